"""Small random images in the layouts of CIFAR-10, CIFAR-100 and ImageNet, for tests."""

import pickle
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from PIL import Image


def write_cifar10(folder: Path, samples: int = 20) -> Path:
    """Write five training batches and a test batch of `samples` images each. Return the folder of the batches."""
    rng = np.random.default_rng(0)
    folder = folder / "cifar-10-batches-py"
    folder.mkdir()
    for name in [f"data_batch_{i}" for i in range(1, 6)] + ["test_batch"]:
        batch = {b"data": rng.integers(0, 256, (samples, 3072), dtype=np.uint8)}
        batch[b"labels"] = rng.integers(0, 10, samples).tolist()
        (folder / name).write_bytes(pickle.dumps(batch, protocol=2))
    return folder


def write_cifar100(folder: Path) -> Path:
    """Write 40 training and 20 test images. Return the folder of the files."""
    rng = np.random.default_rng(0)
    folder = folder / "cifar-100-python"
    folder.mkdir()
    for name, samples in (("train", 40), ("test", 20)):
        batch = {b"data": rng.integers(0, 256, (samples, 3072), dtype=np.uint8)}
        fine = rng.integers(0, 100, samples).tolist()
        batch |= {b"fine_labels": fine, b"coarse_labels": [label // 5 for label in fine]}
        (folder / name).write_bytes(pickle.dumps(batch, protocol=2))
    (folder / "meta").write_bytes(pickle.dumps({b"fine_label_names": [b"apple"] * 100}, protocol=2))
    return folder


def write_image_folder(folder: Path, classes: Iterable[str], train: int, test: int) -> Path:
    """Write `train` and `test` images of each class as JPEG files. Some are gray, as in ImageNet. Return the folder."""
    rng = np.random.default_rng(0)
    for split, count in (("train", train), ("val", test)):
        for kind in classes:
            (folder / split / kind).mkdir(parents=True)
            for i in range(count):
                pixels = rng.integers(0, 256, (40 + 7 * i, 60, 3), dtype=np.uint8)
                image = Image.fromarray(pixels if i else pixels[:, :, 0])
                image.save(folder / split / kind / f"{kind}_{i}.JPEG")
    return folder
