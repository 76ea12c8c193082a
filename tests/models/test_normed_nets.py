"""ResNet-20, ResNet-18, VGG-11 and MobileNetV2 with each norm, against the networks of the authors."""

from functools import partial

import pytest
import torch
from torch import nn

from cpdrun.models.mobilenet_v2 import MobileNetV2
from cpdrun.models.normed.convnet import NormedConvNet
from cpdrun.models.normed.norms import BatchNorm, EvoNormS0, GroupNorm, RangeBN, RangeEvoNorm
from cpdrun.models.normed.resnet import NormedBlock, NormedResNet
from cpdrun.models.normed.vgg import NormedVGG11

EVONORM = partial(EvoNormS0, groups=8, eps=1e-5)
RANGE = partial(RangeEvoNorm, groups=8, chunks=16, eps=1e-5)
BATCH = partial(BatchNorm, momentum=0.1, eps=1e-5)
GROUP = partial(GroupNorm, groups=4, eps=1e-5)
RANGE_BN = partial(RangeBN, chunks=16, momentum=0.1, eps=1e-5)
NETS = {
    "resnet20": lambda norm: NormedResNet(3, 10, [3, 3, 3], 16, "small", False, norm),
    "vgg11": lambda norm: NormedVGG11(3, 10, 64, 0.5, norm),
    "mobilenet": lambda norm: MobileNetV2(3, 10, "small", norm),
    "mobilenet 224": lambda norm: MobileNetV2(3, 10, "imagenet", norm),
    "resnet18": lambda norm: NormedResNet(3, 10, [2, 2, 2, 2], 64, "imagenet", False, norm),
}
# ResNet_cifar10(depth 20), vgg11, MobileNetV2 and ResNet_imagenet([2, 2, 2, 2]) of quantized_training/ in
# github.com/aparna-aketi/Low_Precision_DL (commit fab2528), norm_type="evonorm", in evaluation on a CPU with torch
# 2.15, weights and images by the formulas below: image side, number of parameters, first three logits of two images.
AUTHORS = {
    "resnet20": (32, 273_258, [2.28391, -0.947924, 0.214355, 2.52926, -0.775636, 0.17025]),
    "vgg11": (32, 9_496_522, [-0.391766, 0.697419, 2.5016, -0.367078, 0.420888, 2.70791]),
    "mobilenet": (32, 2_314_466, [0.262251, 0.771311, 0.680149, 0.221931, 0.854775, 0.564392]),
    "mobilenet 224": (224, 2_314_010, [0.123501, 0.728473, 0.460878, 0.0889286, 0.77737, 0.500035]),
    "resnet18": (224, 11_186_442, [0.100023, 0.0504256, 0.596118, 0.137606, 0.105038, 0.619605]),
}


def fill(model: nn.Module) -> None:
    """Weights by a formula of each parameter's shape and kind alone."""
    for name, p in model.named_parameters():
        i = torch.arange(p.numel(), dtype=torch.float64)
        if p.dim() == 2 or (p.dim() == 4 and p.shape[0] > 1):
            values = torch.sin(0.7 * i * i) * (3 / p[0].numel()) ** 0.5
        else:
            values = 0.05 * torch.cos(i) if name.endswith("bias") else 1 + 0.1 * torch.sin(i)
        p.data = values.float().view(p.shape)


def images(size: int) -> torch.Tensor:
    i = torch.arange(2 * 3 * size * size, dtype=torch.float64)
    return torch.sin(0.013 * i * i).float().view(2, 3, size, size)


@pytest.mark.parametrize("name", AUTHORS)
def test_logits_are_those_of_the_authors_networks(name):
    """Six stored digits; means over positions where theirs have poolings."""
    size, count, expected = AUTHORS[name]
    net = NETS[name](EVONORM).eval()
    fill(net)
    assert sum(p.numel() for p in net.parameters()) == count
    with torch.no_grad():
        logits = net(images(size))[:, :3].flatten()
    torch.testing.assert_close(logits, torch.tensor(expected), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("norm", [EVONORM, RANGE, BATCH, GROUP, RANGE_BN])
@pytest.mark.parametrize(
    "make",
    [
        lambda norm: NormedResNet(1, 5, [1, 1], 8, "small", False, norm),
        lambda norm: NormedResNet(1, 5, [1, 1], 8, "imagenet", False, norm),
        lambda norm: NormedVGG11(1, 5, 8, 0.5, norm),
        lambda norm: MobileNetV2(1, 5, "small", norm),
        lambda norm: NormedConvNet(1, 5, width=8, stride=1, norm=norm),
    ],
)
def test_each_network_trains_with_each_norm_and_has_no_relu_after_one_that_activates(make, norm):
    torch.manual_seed(0)
    net = make(norm)
    y = net(torch.randn(3, 1, 32, 32, generator=torch.Generator().manual_seed(0)))
    assert y.shape == (3, 5)
    nn.functional.cross_entropy(y, torch.arange(3)).backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in net.parameters())
    relus = sum(isinstance(module, nn.ReLU) for module in net.modules())
    assert (relus > 1) == (norm in (BATCH, GROUP, RANGE_BN))  # VGG's classifier has one of its own


def test_a_zero_initialized_network_starts_as_its_shortcuts():
    torch.manual_seed(0)
    net = NormedResNet(3, 10, [2, 2], 8, "small", True, EVONORM)
    x = torch.randn(2, 8, 6, 6)
    block = next(m for m in net.modules() if isinstance(m, NormedBlock) and not len(m.shortcut))
    assert torch.equal(block(x), x)
    assert net.classifier.weight.std() < 0.02 and not net.classifier.bias.any()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: NormedResNet(3, 10, [1], 8, "big", False, EVONORM), "stem must be one of small, imagenet, not big"),
        (lambda: MobileNetV2(3, 10, "32", EVONORM), r"model\.stem must be one of small, imagenet, not 32"),
        (lambda: NormedResNet(3, 10, [], 8, "small", False, EVONORM), "stages must be the number of blocks"),
        (lambda: EvoNormS0(4, groups=3, eps=1e-5), r"norm\.groups=3 does not divide 4 channels"),
    ],
)  # fmt: skip
def test_settings_that_do_not_fit_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
