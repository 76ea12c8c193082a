"""A dataset of a user's own, outside the package: the digits, cropped and mirrored at random."""

from cpdrun.data.images.augment import crop_and_flip
from cpdrun.data.images.digits import Digits


class AugmentedDigits(Digits):
    def augment(self, x, generator):
        return crop_and_flip(x, padding=1, generator=generator)
