"""Drawn street scenes in the layout of Cityscapes, for a segmentation that trains in minutes without a download.

Sky, road, houses, trees, cars and people are blocks of one color each, with noise. They are six of the 19 classes of
Cityscapes. The images are written once, as PNG files, and read by the loader of Cityscapes.
"""

from pathlib import Path

import numpy as np
from PIL import Image

from cpdrun.data.cache import written_once
from cpdrun.data.images.cityscapes import Cityscapes

# The label ids of Cityscapes, and the color of each class.
SKY, ROAD, HOUSE, TREE, CAR, PERSON = 23, 7, 11, 21, 26, 24
COLOR = {
    SKY: (130, 170, 210),
    ROAD: (110, 100, 110),
    HOUSE: (120, 110, 100),
    TREE: (90, 120, 80),
    CAR: (90, 90, 130),
    PERSON: (150, 100, 90),
}
NOISE = 35.0  # the standard deviation, for pixels from 0 to 255; with it, one pixel's color does not give its class


class StreetScenes(Cityscapes):
    """Street scenes, with samples as in `Cityscapes`. The images are drawn when the dataset is first used.

    Args:
        cache_dir: The folder that contains the cache.
        train_images: The number of training images.
        test_images: The number of test images.
        height: The height of the images in pixels. Their width is twice the height.
        crop: The height and width of training samples.
    """

    def __init__(self, cache_dir: str, train_images: int, test_images: int, height: int, crop: int):
        def write(folder: Path) -> None:
            write_street_scenes(folder, train_images, test_images, height)

        folder = written_once(cache_dir, f"street-scenes-{train_images}-{test_images}-{height}", write)
        super().__init__(str(folder), crop)


def write_street_scenes(folder: Path, train_images: int, test_images: int, height: int) -> None:
    """Write images of height x 2 height pixels and their label ids in the layout of Cityscapes."""
    for split, count in (("train", train_images), ("val", test_images)):
        places = [folder / kind / split / "drawn" for kind in ("leftImg8bit", "gtFine")]
        for place in places:
            place.mkdir(parents=True)
        for i in range(count):
            rng = np.random.default_rng([split == "val", i])
            image_HxWx3, labels_HxW = _scene(height, 2 * height, rng)
            name = f"drawn_{i:06d}_000019"
            Image.fromarray(image_HxWx3).save(places[0] / f"{name}_leftImg8bit.png")
            Image.fromarray(labels_HxW).save(places[1] / f"{name}_gtFine_labelIds.png")


def _scene(H: int, W: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Draw one scene.

    Returns:
        The image (H, W, 3) uint8 and its label ids (H, W) uint8.
    """
    labels = np.full((H, W), SKY, dtype=np.uint8)
    horizon = round(H * rng.uniform(0.45, 0.6))
    left = 0
    while left < W:
        width = int(rng.integers(W // 10, W // 4))
        top = round(horizon * rng.uniform(0.1, 0.8))
        labels[top:horizon, left : left + width] = TREE if rng.random() < 0.3 else HOUSE
        left += width + int(rng.integers(0, W // 12))
    labels[horizon:] = ROAD
    for kind, tall, wide in (
        (CAR, 0.16, 0.16),
        (CAR, 0.12, 0.12),
        (PERSON, 0.24, 0.04),
        (PERSON, 0.18, 0.03),
    ):
        bottom, left = round(rng.uniform(horizon + 0.05 * H, H)), round(rng.uniform(0, W))
        labels[max(0, bottom - round(tall * H)) : bottom, left : left + max(2, round(wide * W))] = kind
    palette = np.zeros((256, 3))
    for label, color in COLOR.items():
        palette[label] = color
    light = rng.uniform(0.7, 1.2)
    image = palette[labels] * light + rng.normal(0, NOISE, (H, W, 3))
    return image.clip(0, 255).astype(np.uint8), labels
