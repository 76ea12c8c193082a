"""Models, data and loss that do not fit together are refused before anything starts."""

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from cpdrun.sweep import plan
from cpdrun.train.build import build_data, build_model
from cpdrun.train.preflight.check import check

HERE = __name__


class Points:
    """64 points of 3 numbers; `kind` says what is to be learnt of them."""

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


class Line(nn.Linear):
    def __init__(self, num_classes: int = 10):
        super().__init__(3, num_classes)


class OneOutput(nn.Linear):
    def __init__(self):
        super().__init__(3, 1)


class Aside(Line):
    def forward(self, x):
        return super().forward(x).unsqueeze(1)


class Thousand(nn.Linear):
    def __init__(self):
        super().__init__(3, 1000)


class Pair(Line):
    def forward(self, x):
        return super().forward(x), x


class Broken(Line):
    def forward(self, x):
        return self.nothing_of_this_name(x)


class Huge(Line):
    def forward(self, x):
        return super().forward(x).new_empty(1 << 50)


def create(name: str, **options) -> nn.Module:
    """As timm.create_model: what is not named here goes on to the model."""
    return {"thousand": lambda num_classes=1000: nn.Linear(3, num_classes), "fixed": lambda: Line()}[name](
        **options
    )


def problems(model: str, *typed: str) -> list[str]:
    runs = plan(
        [
            "model=custom",
            f"model._target_={HERE}.{model}",
            "data=custom",
            f"data._target_={HERE}.Points",
            *typed,
        ]
    )
    return check([run.config for run in runs.runs])["problems"]


def test_what_fits_is_accepted():
    assert problems("Line") == []


@pytest.mark.parametrize(
    ("model", "kind", "said"),
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
    ],
)
def test_what_the_loss_cannot_mean_is_refused(model, kind, said):
    (problem,) = problems(model, f"+data.kind={kind}", "format=fp32,e4m3", "seed=0,1")
    assert said in problem


@pytest.mark.parametrize("name", ["thousand", "fixed"])
def test_a_function_that_takes_any_keyword_is_given_the_number_of_classes(name):
    typed = ["model=custom", f"model._target_={HERE}.create", f"+model.name={name}"]
    (run,) = plan([*typed, "data=custom", f"data._target_={HERE}.Points"]).runs
    assert build_model(run.config, build_data(run.config)).out_features == 10
