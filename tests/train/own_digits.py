"""Datasets that a user defines outside the package: augmented digits, digits as a stream, and random images."""

import torch
from torch.utils.data import IterableDataset, TensorDataset

from cpdrun.data.images.augment import crop_and_flip
from cpdrun.data.images.digits import Digits


class AugmentedDigits(Digits):
    """The digits, cropped and mirrored at random."""

    def augment(self, x, generator):
        return crop_and_flip(x, padding=1, generator=generator)


class OneByOne(IterableDataset):
    """A stream of `samples` samples. Pass number n begins with sample n."""

    def __init__(self, whole, samples: int = 100):
        self.whole, self.samples, self.first = whole, samples, 0

    def set_epoch(self, number: int) -> None:
        self.first = number

    def __iter__(self):
        return (self.whole[(self.first + i) % self.samples] for i in range(self.samples))


class DigitsOneByOne:
    """The digits as two streams that do not report their length."""

    num_classes, in_channels = 10, 1

    def __init__(self, held_out: int = 40):
        digits = Digits(test_fraction=0.9)
        self.train, self.test = OneByOne(digits.train), OneByOne(digits.test, held_out)


class RandomImages:
    """Random images with three channels, in ten classes."""

    num_classes, in_channels = 10, 3

    def __init__(self, samples: int = 160):
        generator = torch.Generator().manual_seed(0)
        images = torch.randn(samples, 3, 32, 32, generator=generator)
        labels = torch.randint(10, (samples,), generator=generator)
        self.train = self.test = TensorDataset(images, labels)
