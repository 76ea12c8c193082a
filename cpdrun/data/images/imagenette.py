"""Imagenette (fastai, github.com/fastai/imagenette): ten easy classes of ImageNet with 9,469 + 3,925 images.

The layout is imagenette2/train/<class>/*.JPEG and imagenette2/val/<class>/*.JPEG, where the classes have their WordNet
numbers as names. The first version (`imagenette`, with 12,894 + 500 images) and the smaller versions (-320, -160) have
the same layout.
"""

from pathlib import Path

from cpdrun.data.base import DataError
from cpdrun.data.images.image_folder import ImageFolders

CLASSES = {
    "n01440764": "tench",
    "n02102040": "English springer",
    "n02979186": "cassette player",
    "n03000684": "chain saw",
    "n03028079": "church",
    "n03394916": "French horn",
    "n03417042": "garbage truck",
    "n03425413": "gas pump",
    "n03445777": "golf ball",
    "n03888257": "parachute",
}


class Imagenette(ImageFolders):
    """Imagenette, with samples as in `ImageFolders`.

    Args:
        data_dir: The folder that contains train and val.
        size: The height and width of the samples.
        smallest_area: The smallest fraction of an image that a random crop covers.

    Raises:
        DataError: The folders train and val do not contain exactly the ten classes.
    """

    def __init__(self, data_dir: str, size: int, smallest_area: float):
        for split in ("train", "val"):
            folder = Path(data_dir).expanduser() / split
            found = {path.name for path in folder.iterdir() if path.is_dir()} if folder.is_dir() else set()
            if odd := sorted(found ^ set(CLASSES)):
                what = (
                    f"no {odd[0]} ({CLASSES[odd[0]]})"
                    if odd[0] in CLASSES
                    else f"{odd[0]} is not one of its classes"
                )
                raise DataError(
                    f"Imagenette is not in {folder}: {what}; unpack imagenette2.tgz from "
                    "github.com/fastai/imagenette, and set data.data_dir to the path of its folder imagenette2"
                )
        super().__init__(data_dir, size, smallest_area)
