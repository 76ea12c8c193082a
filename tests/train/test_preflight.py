"""Whatever a class of the user's own does before a first step is one line, which names its file and line."""

import sys

import pytest
import torch
from torch import nn
from torch.utils.data import IterableDataset, TensorDataset

from cpdrun.sweep import plan
from cpdrun.train.preflight.check import check

SAMPLES = TensorDataset(torch.zeros(128, 1, 8, 8), torch.zeros(128, dtype=torch.int64))


class Data:
    num_classes, in_channels = 10, 1

    def __init__(self):
        self.train = self.test = SAMPLES

    def augment(self, x, generator):
        return x


class Stream(IterableDataset):
    def __iter__(self):
        return iter(())


class Streamed(Data):
    def __init__(self):
        super().__init__()
        self.train = Stream()


class Untested(Data):
    def __init__(self):
        self.train = SAMPLES


class EmptyTest(Data):
    def __init__(self):
        super().__init__()
        self.test = TensorDataset(torch.zeros(0, 1))


class Unsized:
    def __getitem__(self, i):
        return SAMPLES[i]


class WithoutLength(Data):
    def __init__(self):
        super().__init__()
        self.train = Unsized()


class Leaves(nn.Linear):
    def __init__(self, num_classes):
        sys.exit("enough")


class LeavesLater(nn.Linear):
    def __init__(self, num_classes):
        super().__init__(64, num_classes)

    def forward(self, x):
        sys.exit(3)


class Hungry(nn.Linear):
    def __init__(self, num_classes):
        raise MemoryError


class Raises(nn.Linear):
    def __init__(self, num_classes):
        raise KeyError("width")


def lazy(num_classes):
    return nn.Sequential(nn.Flatten(), nn.LazyLinear(num_classes))


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        (("data=custom", "Streamed"), "data: train does not report its length; type max_steps=N"),
        (("data=custom", "Untested"), "data: Untested has no test: a data class has train and test"),
        (("data=custom", "EmptyTest"), "data: test of EmptyTest is empty"),
        (("data=custom", "WithoutLength"), "data: train of WithoutLength has no length"),
        (("model=custom", "Leaves"), "ends the process (sys.exit(enough)) (test_preflight.py, line "),
        (("model=custom", "LeavesLater"), "ends the process (sys.exit(3)) (test_preflight.py, line "),
        (("model=custom", "Hungry"), "MemoryError"),
        (("model=custom", "Raises"), "model: KeyError: 'width' (test_preflight.py, line "),
        (("model=custom", "lazy"), "model: 1.weight has no shape before the first batch (a lazy layer)"),
        (("model=custom", "nothing"), "cannot import"),
    ],
    ids=lambda value: value[-1] if isinstance(value, tuple) else "",
)
def test_whatever_happens_is_one_line(typed, message):
    choice, name = typed
    (run,) = plan([choice, f"{choice.partition('=')[0]}._target_={__name__}.{name}"]).runs
    (problem,) = check([run.config])["problems"]
    assert message in problem and "\n" not in problem


def test_a_mistake_in_a_setting_of_ours_names_no_line():
    (run,) = plan(["data=imagenet", "data.data_dir=/nowhere"]).runs
    (problem,) = check([run.config])["problems"]
    assert problem.startswith("data: no images in /nowhere/train") and ", line " not in problem


def test_data_that_fits_has_no_problem():
    (run,) = plan(["data=custom", f"data._target_={__name__}.Data"]).runs
    assert check([run.config])["problems"] == []
