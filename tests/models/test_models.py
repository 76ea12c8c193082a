import pytest
import torch

from cpdrun.models.convnet import ConvNet
from cpdrun.models.resnet_cifar import ResNetCifar
from cpdrun.optim.schedules import Cosine, Step


@pytest.mark.parametrize("size", [8, 28, 33])
def test_models_map_images_of_any_size_to_logits(size):
    x = torch.randn(2, 3, size, size)
    assert ConvNet(3, 10, width=4, dropout=0.1)(x).shape == (2, 10)
    assert ResNetCifar(3, 7, depth=8, width=4)(x).shape == (2, 7)


def test_resnet_20_has_the_papers_parameters():
    """He et al. 2015, table 6: 0.27 million for depth 20 on CIFAR-10."""
    count = sum(p.numel() for p in ResNetCifar(3, 10, depth=20, width=16).parameters())
    assert count == 269_722


def test_a_depth_that_is_not_6n_plus_2_is_named():
    with pytest.raises(ValueError, match=r"6n\+2 .* not 9"):
        ResNetCifar(3, 10, depth=9, width=16)


def test_schedules():
    cosine = Cosine(warmup_epochs=2, warmup_start=0.0, final=0.1)
    assert [cosine(e, 10) for e in (0, 1, 2, 6, 10)] == pytest.approx([0, 0.5, 1, 0.55, 0.1])
    step = Step(warmup_epochs=1, warmup_start=0.5, milestones=[4, 8], gamma=0.1)
    assert [step(e, 10) for e in (0, 1, 3.99, 4, 8)] == pytest.approx([0.5, 1, 1, 0.1, 0.01])
    assert Cosine(warmup_epochs=0, warmup_start=0.1, final=0.0)(0, 5) == 1
