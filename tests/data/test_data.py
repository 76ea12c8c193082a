import gzip
import struct

import pytest
import torch

from cpdrun.data.base import DataError, fetch_batch
from cpdrun.data.images.augment import crop_and_flip
from cpdrun.data.images.digits import Digits
from cpdrun.data.images.fashion_mnist import DEBIAN_DIR, FashionMNIST


def test_digits_are_those_of_scikit_learn_without_overlap():
    from sklearn.datasets import load_digits

    digits = Digits(test_fraction=0.2)
    assert (len(digits.train), len(digits.test)) == (1437, 360)
    x = torch.cat([digits.train.x_NxCxHxW, digits.test.x_NxCxHxW]).view(-1, 64)
    y = torch.cat([digits.train.y_N, digits.test.y_N])
    original = load_digits()
    ours = sorted((*row.tolist(), int(label)) for row, label in zip(x, y, strict=True))
    rows = zip(original.data, original.target, strict=True)
    theirs = sorted((*map(int, row), int(label)) for row, label in rows)
    assert ours == theirs


def test_a_batch_is_the_samples_one_by_one():
    train = Digits(test_fraction=0.2).train
    x, y = fetch_batch(train, torch.tensor([5, 3]))
    assert x.dtype == torch.float32 and y.dtype == torch.int64 and x.shape == (2, 1, 8, 8)
    assert torch.equal(x[1], train[3][0]) and torch.equal(y[1], train[3][1])
    plain = [(torch.ones(2) * i, i) for i in range(4)]
    x, y = fetch_batch(plain, torch.tensor([2, 0]))
    assert x.tolist() == [[2, 2], [0, 0]] and y.tolist() == [2, 0]


def test_crops_and_flips_are_random_parts_of_the_padded_image():
    x = torch.rand(64, 2, 5, 5)
    seen = crop_and_flip(x, 1, torch.Generator().manual_seed(3))
    assert torch.equal(seen, crop_and_flip(x, 1, torch.Generator().manual_seed(3)))
    padded = torch.nn.functional.pad(x, (1, 1, 1, 1))
    possible = [padded[:, :, i : i + 5, j : j + 5] for i in range(3) for j in range(3)]
    possible += [crop.flip(3) for crop in possible]
    matches = torch.stack([(crop == seen).flatten(1).all(1) for crop in possible])
    assert matches.any(0).all()
    assert matches.any(1).sum() > 12, "64 images hit most of the 18 ways"


@pytest.fixture
def idx_folder(tmp_path):
    """The four files of Fashion-MNIST's layout with a few images, one of them gzipped."""
    images = torch.randint(0, 256, (12, 28, 28), dtype=torch.uint8)
    labels = torch.arange(12, dtype=torch.uint8) % 10
    for split in ("train", "t10k"):
        packed = struct.pack(">4i", 0x803, 12, 28, 28) + images.numpy().tobytes()
        with gzip.open(tmp_path / f"{split}-images-idx3-ubyte.gz", "wb") as file:
            file.write(packed)
        (tmp_path / f"{split}-labels-idx1-ubyte").write_bytes(
            struct.pack(">2i", 0x801, 12) + labels.numpy().tobytes()
        )
    return tmp_path, images, labels


def test_fashion_mnist_reads_idx_files_gzipped_or_not(idx_folder):
    folder, images, labels = idx_folder
    data = FashionMNIST(str(folder), augment=True, train_samples=10, test_samples=5)
    assert (len(data.train), len(data.test)) == (10, 5)
    x, y = data.train[7]
    assert torch.allclose(x, (images[7:8].float() / 255 - 0.286) / 0.353, atol=1e-6) and y == labels[7]
    batch, _ = fetch_batch(data.train, torch.arange(4))
    assert not torch.equal(data.augment(batch, torch.Generator().manual_seed(0)), batch)
    still = FashionMNIST(str(folder), augment=False, train_samples=None, test_samples=None)
    assert torch.equal(still.augment(batch, torch.Generator()), batch)


def test_absent_and_damaged_files_are_named_with_the_remedy(idx_folder, tmp_path):
    with pytest.raises(
        DataError, match=r"not in /nowhere.*apt-get install dataset-fashion-mnist.*data\.data_dir"
    ):
        FashionMNIST("/nowhere", augment=False, train_samples=None, test_samples=None)
    folder, *_ = idx_folder
    archive = folder / "train-images-idx3-ubyte.gz"
    archive.write_bytes(archive.read_bytes()[:100])
    with pytest.raises(DataError, match="gz is not a whole idx file"):
        FashionMNIST(str(folder), augment=False, train_samples=None, test_samples=None)


@pytest.mark.skipif(not DEBIAN_DIR.exists(), reason="Debian's dataset-fashion-mnist is not installed")
def test_the_files_of_the_debian_package_are_read():
    data = FashionMNIST(None, augment=False, train_samples=None, test_samples=None)
    assert (len(data.train), len(data.test)) == (60000, 10000)
    x, _ = fetch_batch(data.train, torch.arange(2000))
    assert abs(x.mean()) < 0.05 and abs(x.std() - 1) < 0.05
