import pytest
import torch
import torch.nn.functional as F

from cpdrun.models.alexnet import AlexNet
from cpdrun.models.auxiliary import WithAuxiliary
from cpdrun.models.convnet import ConvNet
from cpdrun.models.davidnet import DavidNet
from cpdrun.models.fcn_small import FcnSmall
from cpdrun.models.gpt import GPT
from cpdrun.models.resnet18_cifar import ResNet18Cifar
from cpdrun.models.resnet_cifar import ResNetCifar
from cpdrun.models.torchvision_nets import FcnResNet50, ResNet50
from cpdrun.tasks.classification import Classification

IMAGES = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
BYTES = torch.randint(0, 256, (2, 12), generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    ("model", "x", "target"),
    [
        *(
            (lambda: ConvNet(3, 10, width=4, dropout=0.1), torch.randn(2, 3, size, size), (2,))
            for size in (8, 28, 33)
        ),
        *(
            (lambda: ResNetCifar(3, 7, depth=8, width=4), torch.randn(2, 3, size, size), (2,))
            for size in (8, 33)
        ),
        (lambda: ResNet18Cifar(3, 10, width=4), IMAGES, (2,)),
        (lambda: DavidNet(3, 10, width=4, logit_scale=0.125), IMAGES, (2,)),
        (lambda: ResNet50(10, zero_init_residual=False), IMAGES, (2,)),
        (lambda: FcnResNet50(10, auxiliary_weight=0.0), IMAGES, (2, 32, 32)),
        (lambda: AlexNet(3, 10, width=4, hidden=16, dropout=0.5), IMAGES.repeat(1, 1, 2, 2), (2,)),
        (lambda: FcnSmall(3, 10, width=4), IMAGES, (2, 32, 32)),
        (lambda: GPT(256, context=16, layers=2, heads=2, width=8, dropout=0.1), BYTES, (2, 12)),
    ],
)
def test_models_have_logits_of_the_right_shape_and_train_every_parameter(model, x, target):
    torch.manual_seed(0)
    net = model()
    logits = net(x)
    y = torch.randint(0, logits.shape[1], target)
    assert (logits.shape[0], *logits.shape[2:]) == target
    F.cross_entropy(logits, y).backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in net.parameters())


def test_an_auxiliary_head_adds_its_share_of_the_loss_in_training_only():
    torch.manual_seed(0)
    net = FcnResNet50(10, auxiliary_weight=0.4)
    y = torch.randint(0, 10, (2, 32, 32))
    outputs = net(IMAGES)
    assert isinstance(outputs, WithAuxiliary)
    loss = Classification().loss(outputs, (IMAGES, y))
    main, other = F.cross_entropy(outputs.logits, y), F.cross_entropy(outputs.auxiliary, y)
    assert torch.equal(loss, main + 0.4 * other)
    loss.backward()
    assert all(p.grad is not None for p in net.net.aux_classifier.parameters())
    assert net.eval()(IMAGES).shape == (2, 10, 32, 32)


def test_sizes_are_those_published():
    def count(net):
        return sum(p.numel() for p in net.parameters())

    # He et al. 2015, table 6: 0.27 million for depth 20 on CIFAR-10
    assert count(ResNetCifar(3, 10, depth=20, width=16)) == 269_722
    assert count(ResNet18Cifar(3, 10, width=64)) == 11_173_962, "pytorch-cifar's ResNet18()"
    assert count(DavidNet(3, 10, width=64, logit_scale=0.125)) == 6_573_120, "DAWNBench: 6.57 M"
    alexnet = AlexNet(3, 1000, width=64, hidden=4096, dropout=0.5)
    assert count(alexnet) == 61_100_840 + 2 * 1152, "torchvision's alexnet, and its norms' weights and biases"


def test_gpt_does_not_depend_on_later_tokens():
    net = GPT(256, context=16, layers=2, heads=2, width=8, dropout=0.0).eval()
    changed = BYTES.clone()
    changed[:, 7] = (changed[:, 7] + 1) % 256
    assert torch.equal(net(BYTES)[:, :, :7], net(changed)[:, :, :7])
    assert not torch.equal(net(BYTES)[:, :, 7:], net(changed)[:, :, 7:])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ResNetCifar(3, 10, depth=9, width=16), r"6n\+2 .* not 9"),
        (lambda: GPT(256, context=16, layers=1, heads=3, width=8, dropout=0.0), r"model\.heads must divide"),
        (lambda: GPT(256, context=8, layers=1, heads=2, width=8, dropout=0.0)(BYTES), r"model\.context"),
    ],
)
def test_settings_that_do_not_fit_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
