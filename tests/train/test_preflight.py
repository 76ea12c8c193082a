"""What keeps a run from starting is reported in advance in one line, including errors in a user's classes."""

import re
import sys

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from cpdrun.record.measure import ACCURACY
from cpdrun.sweep import plan
from cpdrun.tasks.classification import Classification
from cpdrun.train.build import build_data, build_model
from cpdrun.train.preflight.check import check

HERE = __name__


class Points:
    """64 points of 3 numbers; `kind` chooses the targets."""

    num_classes, in_channels = 10, 3

    def __init__(self, kind: str = "classes"):
        x_Nx3 = torch.randn(64, 3, generator=torch.Generator().manual_seed(0))
        y = {
            "classes": torch.arange(64) % 10,
            "value": x_Nx3.sum(1, keepdim=True),
            "int32": (torch.arange(64) % 10).int(),
            "beyond": torch.full((64,), 12),
        }[kind]
        self.train = self.test = TensorDataset(x_Nx3, y)

    def augment(self, x, generator):
        return x


class Untested(Points):
    def __init__(self):
        super().__init__()
        del self.test


class EmptyTest(Points):
    def __init__(self):
        super().__init__()
        self.test = TensorDataset(torch.zeros(0, 1))


class Unsized:
    def __getitem__(self, i):
        return torch.zeros(3), torch.tensor(0)


class WithoutLength(Points):
    def __init__(self):
        super().__init__()
        self.train = Unsized()


class Line(nn.Linear):
    def __init__(self, num_classes: int = 10):
        super().__init__(3, num_classes)


class OneOutput(nn.Linear):
    def __init__(self):
        super().__init__(3, 1)


class Thousand(nn.Linear):
    def __init__(self):
        super().__init__(3, 1000)


class Aside(Line):
    def forward(self, x):
        return super().forward(x).unsqueeze(1)


class Pair(Line):
    def forward(self, x):
        return super().forward(x), x


class Broken(Line):
    def forward(self, x):
        return self.nothing_of_this_name(x)


class Huge(Line):
    def forward(self, x):
        return super().forward(x).new_empty(1 << 50)


class Leaves(Line):
    def __init__(self, num_classes):
        sys.exit("enough")


class LeavesLater(Line):
    def forward(self, x):
        sys.exit(3)


class Hungry(Line):
    def __init__(self, num_classes):
        raise MemoryError


class Raises(Line):
    def __init__(self, num_classes):
        raise KeyError("width")


def lazy(num_classes):
    return nn.Sequential(nn.Flatten(), nn.LazyLinear(num_classes))


class OddlyMeasured(Classification):
    """A task that declares a metric and does not return it."""

    measures = Classification.measures | {"bits_per_bite": ACCURACY}


def problems(*typed: str, model: str = "Line", data: str = "Points") -> list[str]:
    own = ("model=custom", f"model._target_={HERE}.{model}", "data=custom", f"data._target_={HERE}.{data}")
    return check([run.config for run in plan([*own, *typed]).runs])["problems"]


def test_what_fits_has_no_problems():
    assert problems() == []
    assert (
        check([run.config for run in plan(["exp=digits_bits", "seed=0", "format=fp32,e4m3"]).runs])[
            "problems"
        ]
        == []
    )


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ("Untested", "data: Untested has no test. A data class needs train and test"),
        ("EmptyTest", "data: test of EmptyTest is empty"),
        ("WithoutLength", "data: train of WithoutLength has no length"),
    ],
)
def test_unusable_data_is_named(data, message):
    (problem,) = problems(data=data)
    assert message in problem and "\n" not in problem


@pytest.mark.parametrize(
    ("model", "kind", "message"),
    [
        (
            "OneOutput",
            "value",
            "the targets of Points are float32 of shape (1, 1); the loss is cross-entropy",
        ),
        ("Line", "int32", "the targets of Points are int32 of shape (1,)"),
        ("Line", "beyond", "for targets int64 of shape (1,): Target 12 is out of bounds"),
        ("OneOutput", "classes", "OneOutput has one output, for which the cross-entropy is always 0"),
        (
            "Aside",
            "classes",
            "Aside gives float32 of shape (1, 1, 10) for targets int64 of shape (1,): dimension 1 must",
        ),
        ("Thousand", "classes", "Thousand has 1000 outputs for the 10 classes of the data"),
        ("Pair", "classes", "Pair gives a tuple; the loss takes one tensor"),
        ("Huge", "classes", "model: out of memory: [enforce fail"),
        ("Broken", "classes", "Broken does not accept the samples of data Points: AttributeError"),
        ("Leaves", "classes", "ends the process (sys.exit(enough)) (test_preflight.py, line "),
        ("LeavesLater", "classes", "ends the process (sys.exit(3)) (test_preflight.py, line "),
        ("Hungry", "classes", "MemoryError"),
        ("Raises", "classes", "model: KeyError: 'width' (test_preflight.py, line "),
        ("lazy", "classes", "model: 1.weight has no shape before the first batch (a lazy layer)"),
        ("nothing", "classes", "cannot import"),
    ],
)
def test_a_model_that_does_not_fit_is_named(model, kind, message):
    (problem,) = problems(f"+data.kind={kind}", "format=fp32,e4m3", "seed=0,1", model=model)
    assert message in problem and "\n" not in problem


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        (("model._target_=no.such.Net",), "model: .*no.such.Net"),
        (("model=custom", "model._target_=torch.nn.Nonsense"), "model: .*Nonsense"),
        (("+model.foo=3",), "model: .*foo"),
        (
            ("data=fashion_mnist", "data.data_dir=/nowhere"),
            "data: Fashion-MNIST is not in /nowhere.*apt-get install",
        ),
        (("data=imagenet", "data.data_dir=/nowhere"), "^data: no images in /nowhere/train"),
        (("data.test_fraction=2",), "data: data.test_fraction must lie"),
        (("model=resnet_cifar", "model.depth=9"), "model: model.depth must be 6n\\+2"),
        (("optim.lr=-1",), "optim: .*learning rate"),
        (("world_size=512",), "world_size \\* batch_size = 4096"),
        (("sync.order=nonsense",), "sync: .*nonsense"),
    ],
)
def test_a_wrong_setting_is_named(typed, message):
    (problem,) = check(
        [run.config for run in plan(["exp=digits_bits", "seed=0", "format=fp32", *typed]).runs]
    )["problems"]
    assert re.search(message, problem), problem
    assert "\n" not in problem and ", line " not in problem


def create(name: str, **options) -> nn.Module:
    """Pass all other options on to the model, as timm.create_model does."""
    return {"thousand": lambda num_classes=1000: nn.Linear(3, num_classes), "fixed": lambda: Line()}[name](
        **options
    )


@pytest.mark.parametrize("name", ["thousand", "fixed"])
def test_a_function_that_takes_any_keyword_is_given_the_number_of_classes(name):
    typed = ["model=custom", f"model._target_={HERE}.create", f"+model.name={name}"]
    (run,) = plan([*typed, "data=custom", f"data._target_={HERE}.Points"]).runs
    assert build_model(run.config, build_data(run.config)).out_features == 10


def test_a_metric_that_is_declared_and_not_returned_is_named():
    (run,) = plan(["task=custom", f"task._target_={HERE}.OddlyMeasured"]).runs
    assert check([run.config])["problems"] == [
        "task: OddlyMeasured cannot evaluate the outputs of ConvNet: it returns the metrics accuracy, loss, "
        "but declares accuracy, bits_per_bite, loss"
    ]
