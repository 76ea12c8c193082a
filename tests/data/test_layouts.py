"""The loaders of CIFAR-10 and -100, Imagenette, ImageNet and Cityscapes, on small data in the layouts of these sets."""

import pickle
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from image_layouts import write_cifar10, write_cifar100, write_image_folder
from PIL import Image

from cpdrun.data.base import DataError, fetch_batch
from cpdrun.data.images.augment import cutout, random_resized_crop
from cpdrun.data.images.cifar10 import CIFAR10
from cpdrun.data.images.cifar100 import CIFAR100
from cpdrun.data.images.cityscapes import Cityscapes
from cpdrun.data.images.fashion_mnist import DEBIAN_DIR
from cpdrun.data.images.image_folder import ImageFolders
from cpdrun.data.images.imagenette import CLASSES, Imagenette
from cpdrun.data.images.street_scenes import ROAD, SKY, StreetScenes, write_street_scenes
from cpdrun.train.batches import Batches


def draws(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


# ---- CIFAR-10


def cifar10(folder, **changed) -> CIFAR10:
    given = {
        "augment": False,
        "cutout": 0,
        "dawnbench_augment": False,
        "train_samples": None,
        "test_samples": None,
    }
    return CIFAR10(str(folder), **given | changed)


def normalized(pixels, mean, std):
    """An image of CIFAR, in float64."""
    x = torch.from_numpy(pixels.reshape(3, 32, 32)).double() / 255
    mean, std = (torch.tensor(v, dtype=torch.float64).view(3, 1, 1) for v in (mean, std))
    return (x - mean) / std


def test_cifar10_reads_the_batches_in_order(tmp_path):
    folder = write_cifar10(tmp_path)
    data = cifar10(tmp_path, train_samples=50)
    assert (len(data.train), len(data.test)) == (50, 20)
    second = pickle.loads((folder / "data_batch_2").read_bytes(), encoding="bytes")
    x, y = data.train[23]
    expected = normalized(second[b"data"][3], (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616))
    assert torch.allclose(x.double(), expected, atol=1e-6) and y == second[b"labels"][3]
    assert x.dtype == torch.float32
    assert len(cifar10(folder).train) == 100  # the folder of the batches itself may be given, too


def test_cifar10_draws_crops_flips_and_holes_from_one_generator(tmp_path):
    write_cifar10(tmp_path)
    data = cifar10(tmp_path, augment=True, cutout=8)
    x, _ = fetch_batch(data.train, torch.arange(16))
    same, other = data.augment(x, draws(1)), data.augment(x, draws(2))
    assert torch.equal(same, data.augment(x, draws(1))) and not torch.equal(same, other)
    assert same.shape == x.shape


def test_damaged_and_malicious_cifar10_is_refused(tmp_path):
    """A pickle may run anything when it is loaded."""
    folder = write_cifar10(tmp_path)
    batch = folder / "data_batch_3"
    batch.write_bytes(batch.read_bytes()[:1000])
    with pytest.raises(DataError, match="data_batch_3 is not a whole CIFAR-10 batch"):
        cifar10(tmp_path)

    class Evil:
        def __reduce__(self):
            return (Path.touch, (tmp_path / "ran",))

    (folder / "data_batch_1").write_bytes(pickle.dumps({b"data": Evil(), b"labels": []}, protocol=2))
    with pytest.raises(DataError, match="which no batch needs"):
        cifar10(tmp_path)
    assert not (tmp_path / "ran").exists()


def test_the_augmentation_of_dawnbench_mirrors_edges_and_keeps_its_hole_inside(tmp_path):
    write_cifar10(tmp_path)
    data = cifar10(tmp_path, augment=True, dawnbench_augment=True)
    x, _ = fetch_batch(data.train, torch.arange(40))
    padded = torch.nn.functional.pad(x, (4, 4, 4, 4), mode="reflect")
    assert torch.equal(padded[0, 0, 4 - 1], padded[0, 0, 4 + 1]), "the edge itself is not repeated"
    augmented = data.augment(x, draws(1))
    crops = [padded[:, :, i : i + 32, j : j + 32] for i in range(9) for j in range(9)]
    crops += [crop.flip(3) for crop in crops]
    assert torch.stack([(crop == augmented).flatten(1).all(1) for crop in crops]).any(0).all()
    holed = cifar10(tmp_path, augment=True, dawnbench_augment=True, cutout=8).augment(x, draws(1))
    assert ((holed == 0).all(dim=1).sum(dim=(1, 2)) == 64).all()


def test_cutout_zeroes_one_square_and_leaves_its_input():
    x = torch.ones(64, 2, 12, 10)
    holes = (cutout(x, 4, draws()) == 0).all(dim=1)
    assert x.all()
    areas = holes.sum(dim=(1, 2))
    assert areas.max() == 16 and (areas >= 4).all()  # a quarter is left where the centre is a corner
    for hole in holes:
        rows, columns = hole.any(1).nonzero(), hole.any(0).nonzero()
        assert hole.sum() == len(rows) * len(columns)


# ---- CIFAR-100


def test_cifar100_reads_the_hundred_classes(tmp_path):
    folder = write_cifar100(tmp_path)
    data = CIFAR100(str(tmp_path), augment=True, train_samples=25, test_samples=None)
    assert (len(data.train), len(data.test), data.num_classes) == (25, 20, 100)
    test = pickle.loads((folder / "test").read_bytes(), encoding="bytes")
    x, y = data.test[7]
    expected = normalized(test[b"data"][7], (0.5071, 0.4867, 0.4408), (0.2675, 0.2565, 0.2761))
    assert torch.allclose(x.double(), expected, atol=1e-6) and y == test[b"fine_labels"][7]
    x, _ = fetch_batch(data.train, torch.arange(16))
    assert torch.equal(data.augment(x, draws(1)), data.augment(x, draws(1)))
    plain = CIFAR100(str(folder), augment=False, train_samples=None, test_samples=None)
    assert torch.equal(plain.augment(x, draws(1)), x)
    (folder / "test").write_bytes(b"")
    with pytest.raises(DataError, match="test is not a whole CIFAR-100 batch"):
        CIFAR100(str(tmp_path), augment=False, train_samples=None, test_samples=None)


# ---- Imagenette


def test_imagenette_is_read_from_its_layout(tmp_path):
    rng = np.random.default_rng(0)
    for split, count in (("train", 2), ("val", 1)):
        for kind in CLASSES:
            folder = tmp_path / split / kind
            folder.mkdir(parents=True)
            for i in range(count):
                pixels = Image.fromarray(rng.integers(0, 256, (40, 52, 3), dtype=np.uint8))
                pixels.save(folder / f"ILSVRC2012_val_{i:08d}.JPEG" if i else folder / f"{kind}_{i}.JPEG")
        (tmp_path / split / ".DS_Store").touch()
    (tmp_path / "noisy_imagenette.csv").write_text("path,noisy_labels_0\n")
    data = Imagenette(str(tmp_path), size=28, smallest_area=0.08)
    assert (len(data.train), len(data.test), data.num_classes) == (20, 10, 10)
    x, y = fetch_batch(data.train, torch.tensor([19, 0]), lambda: draws(3))
    assert x.shape == (2, 3, 28, 28) and y.tolist() == [9, 0]
    (tmp_path / "val" / "n03000684").rename(tmp_path / "val" / "n03000685")
    with pytest.raises(DataError, match=r"val: no n03000684 \(chain saw\); unpack imagenette2\.tgz"):
        Imagenette(str(tmp_path), size=28, smallest_area=0.08)


# ---- ImageNet


@pytest.fixture
def image_folder(tmp_path):
    return write_image_folder(tmp_path, ("n01440764", "n01443537"), train=3, test=2)


def test_imagenet_is_read_from_its_layout(image_folder):
    data = ImageFolders(str(image_folder), size=28, smallest_area=0.08)
    assert (len(data.train), len(data.test), data.num_classes) == (6, 4, 2)
    x, y = fetch_batch(data.test, torch.arange(4))
    assert x.shape == (4, 3, 28, 28) and x.dtype == torch.float32 and y.tolist() == [0, 0, 1, 1]
    x, y = fetch_batch(data.train, torch.tensor([5, 0]), lambda: draws(3))
    assert x.shape == (2, 3, 28, 28) and y.tolist() == [1, 0]
    assert torch.equal(x, fetch_batch(data.train, torch.tensor([5, 0]), lambda: draws(3))[0])
    assert not torch.equal(x, fetch_batch(data.train, torch.tensor([5, 0]), lambda: draws(4))[0])


def test_mirroring_normalization_and_folders_are_settings(image_folder):
    for old, new in (("train", "training"), ("val", "testing")):
        (image_folder / old).rename(image_folder / new)
    named = {"train_folder": "training", "test_folder": "testing"}

    def batch(seed: int, **settings):
        data = ImageFolders(str(image_folder), size=28, smallest_area=1.0, **named, **settings)
        return fetch_batch(data.train, torch.tensor([0]), lambda: draws(seed))[0]

    plain = batch(0, mirror=False)
    mirrored = [torch.equal(batch(seed), batch(seed, mirror=False)) for seed in range(12)]
    assert set(mirrored) == {True, False}
    pixels = batch(0, mirror=False, mean=[0.0] * 3, std=[1.0] * 3)
    assert pixels.min() >= 0 and pixels.max() <= 1
    mean, std = (torch.tensor(v).view(3, 1, 1) for v in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))
    assert torch.allclose((pixels - mean) / std, plain, atol=1e-6)
    with pytest.raises(ValueError, match=r"data.mean must be three numbers"):
        batch(0, mean=[0.5])
    with pytest.raises(DataError, match=r"data.train_folder and data.test_folder"):
        ImageFolders(str(image_folder), size=28, smallest_area=1.0)


def test_splits_of_different_classes_are_refused(image_folder):
    (image_folder / "val" / "n01443537").rename(image_folder / "val" / "n09999999")
    with pytest.raises(DataError, match="different classes"):
        ImageFolders(str(image_folder), size=28, smallest_area=0.08)


def test_random_crops_cover_the_given_range_of_sizes():
    shares, ratios = [], []
    generator = draws()
    for _ in range(1000):
        top, left, h, w = random_resized_crop(120, 160, 0.25, generator)
        assert 0 <= top <= 120 - h and 0 <= left <= 160 - w
        shares.append(h * w / (120 * 160))
        ratios.append(w / h)
    assert min(shares) > 0.24 and max(shares) > 0.9 and min(shares) < 0.3
    assert min(ratios) > 0.72 and max(ratios) < 1.37
    assert random_resized_crop(1, 100, 1.0, draws()) == (0, 49, 1, 1)  # nothing fits: the central square


# ---- Cityscapes


@pytest.fixture(scope="module")
def scenes(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cityscapes")
    write_street_scenes(folder, train_images=3, test_images=2, height=32)
    return folder


def test_cityscapes_is_read_from_its_layout(scenes):
    data = Cityscapes(str(scenes), crop=24)
    assert (len(data.train), len(data.test)) == (3, 2)
    x, y = data.test[0]
    assert (x.shape, x.dtype, y.shape, y.dtype) == ((3, 32, 64), torch.float32, (32, 64), torch.int64)
    # road and sky; house, tree, person, car
    assert {0, 10} <= set(y.unique().tolist()) <= {0, 2, 8, 10, 11, 13}
    x, y = fetch_batch(data.train, torch.tensor([2, 1]), lambda: draws(1))
    assert x.shape == (2, 3, 24, 24) and y.shape == (2, 24, 24)
    assert torch.equal(x, fetch_batch(data.train, torch.tensor([2, 1]), lambda: draws(1))[0])


def test_operations_and_memory_are_counted_for_crops_and_not_for_whole_images(scenes):
    data = Cityscapes(str(scenes), crop=24)
    batches = Batches(data, seed=7, device=torch.device("cpu"), loaders=0, channels_last=False)
    x, y = batches.first_samples(2)
    assert x.shape == (2, 3, 24, 24) and y.shape == (2, 24, 24)


def test_label_ids_become_train_ids_and_the_rest_is_ignored():
    from cpdrun.data.images.cityscapes import train_id_of_label

    train_id_256 = train_id_of_label()
    assert train_id_256[[ROAD, SKY]].tolist() == [0, 10]
    assert sorted(set(train_id_256.tolist())) == [-100, *range(19)]
    assert (train_id_256[[0, 1, 2, 3, 9, 255]] == -100).all()


def test_images_and_labels_have_the_same_crops(tmp_path):
    """Where the label is road the picture is white, else black; so they still agree after scaling and cropping."""
    for kind, split in [(k, s) for k in ("leftImg8bit", "gtFine") for s in ("train", "val")]:
        (tmp_path / kind / split / "town").mkdir(parents=True)
    labels = np.full((40, 80), SKY, dtype=np.uint8)
    labels[20:, 30:] = ROAD
    image = np.repeat(np.where(labels == ROAD, 255, 0).astype(np.uint8)[:, :, None], 3, axis=2)
    for split in ("train", "val"):
        Image.fromarray(image).save(tmp_path / f"leftImg8bit/{split}/town/town_0_0_leftImg8bit.png")
        Image.fromarray(labels).save(tmp_path / f"gtFine/{split}/town/town_0_0_gtFine_labelIds.png")
    data = Cityscapes(str(tmp_path), crop=64)
    generator, padded = draws(), 0
    for _ in range(20):
        x, y = (t[0] for t in data.train.fetch_augmented([0], generator))
        counted = y != -100
        padded += int((~counted).any())
        assert ((x[0] > 0) == (y == 0))[counted].float().mean() > 0.95  # but for pixels at edges
    assert padded > 0


def test_street_scenes_are_written_once_and_are_reproducible(tmp_path):
    first = StreetScenes(str(tmp_path), train_images=2, test_images=1, height=16, crop=16)
    written = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.png")}
    assert len(written) == 6
    second = StreetScenes(str(tmp_path), train_images=2, test_images=1, height=16, crop=16)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.png")} == written
    elsewhere = StreetScenes(str(tmp_path / "b"), train_images=2, test_images=1, height=16, crop=16)
    for data in (second, elsewhere):
        assert torch.equal(data.test[0][0], first.test[0][0])
        assert torch.equal(data.train[1][1], first.train[1][1])
    assert [path.name for path in tmp_path.iterdir()] != [] and not list(tmp_path.glob(".*"))


@pytest.mark.skipif(not DEBIAN_DIR.exists(), reason="Debian's dataset-fashion-mnist is not installed")
def test_fashion_mnist_as_folders_of_jpeg(tmp_path):
    from cpdrun.data.images.fashion_folder import FashionFolder

    data = FashionFolder(None, str(tmp_path), train_images=40, test_images=30, size=28, smallest_area=0.5)
    assert (len(data.train), len(data.test), data.num_classes) == (40, 30, 10)
    x, _ = fetch_batch(data.train, torch.arange(4), draws)
    assert x.shape == (4, 3, 28, 28)


# ---- all


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (cifar10, r"no data_batch_1.*cifar-10-python\.tar\.gz.*data\.data_dir=PATH"),
        (
            partial(CIFAR100, augment=False, train_samples=None, test_samples=None),
            r"no train.*cifar-100-python\.tar\.gz",
        ),
        (partial(Imagenette, size=28, smallest_area=0.08), r"Imagenette is not in .*train: no n01440764"),
        (partial(ImageFolders, size=28, smallest_area=0.08), r"no images in .*train: .*data\.data_dir=PATH"),
        (
            partial(Cityscapes, crop=24),
            r"Cityscapes is not in .*leftImg8bit_trainvaltest.*data\.data_dir=PATH",
        ),
    ],
)
def test_absent_data_is_reported_with_the_remedy(tmp_path, make, message):
    with pytest.raises(DataError, match=message):
        make(str(tmp_path))


def test_loaders_do_not_change_batches(image_folder):
    data = ImageFolders(str(image_folder), size=28, smallest_area=0.08)
    index_SxNxB = torch.tensor([[[0, 1], [2, 3]], [[4, 5], [1, 0]]])
    batches = {}
    for loaders in (0, 2):
        of = Batches(data, seed=7, device=torch.device("cpu"), loaders=loaders, channels_last=False)
        of.plan(index_SxNxB, range(2), first_step=10)
        batches[loaders] = [of.fetch(index_SxNxB[s, w], 10 + s, w) for s in range(2) for w in range(2)]
    for (x, y), (x_ahead, y_ahead) in zip(batches[0], batches[2], strict=True):
        assert torch.equal(x, x_ahead) and torch.equal(y, y_ahead)
    assert not torch.equal(batches[0][0][0], batches[0][3][0])
