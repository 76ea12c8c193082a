"""Fashion-MNIST (Xiao et al., arXiv 1708.07747): 60,000 + 10,000 gray 28x28 images of ten kinds of clothing.

The idx files may be compressed with gzip. They contain two zero bytes, the type (8 for unsigned bytes), the number of
dimensions, each dimension as a big-endian int32, and the values (http://yann.lecun.com/exdb/mnist). They are read here,
because an import of torchvision, which has a reader, takes longer than reading all of the data. The images are kept in
memory as bytes.
"""

import gzip
import math
import struct
import zlib
from pathlib import Path

import torch
from torch import Tensor

from cpdrun.data.base import DataError, ImageTensors
from cpdrun.data.images.augment import crop_and_flip

DEBIAN_DIR = Path("/usr/share/datasets/fashion-mnist")
UNSIGNED_BYTES = 8


class FashionMNIST:
    """Fashion-MNIST, with samples of an image (1, 28, 28) float32 and a class () int64.

    Args:
        data_dir: The folder that contains the idx files. With None, it is the folder of Debian's package
            dataset-fashion-mnist.
        augment: Whether training images are padded, cropped at random places and mirrored at random.
        train_samples: The number of training images that are used, from the start. With None, all are used.
        test_samples: The number of test images that are used, from the start. With None, all are used.

    Raises:
        DataError: The idx files are missing or damaged.
    """

    num_classes = 10
    in_channels = 1
    image_size = 28

    def __init__(
        self, data_dir: str | None, augment: bool, train_samples: int | None, test_samples: int | None
    ):
        self.path = folder = Path(data_dir).expanduser() if data_dir else DEBIAN_DIR
        self.train = _images(folder, "train", train_samples)
        self.test = _images(folder, "t10k", test_samples)
        self.augments = augment

    def augment(self, x: Tensor, generator: torch.Generator) -> Tensor:
        return crop_and_flip(x, padding=2, generator=generator) if self.augments else x


def _images(folder: Path, split: str, samples: int | None) -> ImageTensors:
    x_NxHxW = _read(folder, f"{split}-images-idx3-ubyte", dimensions=3)[:samples]
    y_N = _read(folder, f"{split}-labels-idx1-ubyte", dimensions=1)[:samples].long()
    return ImageTensors(x_NxHxW[:, None], y_N, scale=255, mean=0.286, std=0.353)


def _read(folder: Path, name: str, dimensions: int) -> Tensor:
    plain, gzipped = folder / name, folder / f"{name}.gz"
    if not plain.exists() and not gzipped.exists():
        raise DataError(
            f"Fashion-MNIST is not in {folder} (no {name} or {name}.gz): "
            "apt-get install dataset-fashion-mnist, or give the folder that contains the files with "
            "data.data_dir=PATH"
        )
    path = plain if plain.exists() else gzipped
    try:
        with path.open("rb") if path is plain else gzip.open(path) as file:
            return _idx(file.read(), dimensions)
    except (OSError, EOFError, ValueError, struct.error, zlib.error) as error:
        raise DataError(f"{path} is not a whole idx file ({error or type(error).__name__})") from None


def _idx(content: bytes, dimensions: int) -> Tensor:
    """Return the values of an idx file as a uint8 tensor of its shape.

    Raises:
        ValueError: The file has another type, another number of dimensions or another number of values.
        struct.error: The file ends before its values.
    """
    if content[:4] != bytes([0, 0, UNSIGNED_BYTES, dimensions]):
        raise ValueError(f"it starts with {content[:4]!r}")
    shape = struct.unpack_from(f">{dimensions}i", content, 4)
    values = memoryview(content)[4 + 4 * dimensions :]
    if len(values) != math.prod(shape):
        raise ValueError(f"it has {len(values)} values, but its header says {' x '.join(map(str, shape))}")
    return torch.frombuffer(bytearray(values), dtype=torch.uint8).view(shape)
