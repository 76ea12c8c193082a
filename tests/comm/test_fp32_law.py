"""In fp32, every exchange is plain addition in the order of workers."""

from functools import partial

import pytest
import torch
from bits import reduce, same_bits
from exchanges import EXCHANGES, SHAPES, gradients, make

from cpdrun.comm import Sum, emulate_all_reduce
from cpdrun.comm.compressors.rounded_values import Rounded

FP32 = {"format": "fp32", "scaling": None}
WAYS = {
    "fp32": FP32,
    "hybrid": {"full_precision": {"layers": ["*"]}},
    "requantised": FP32,
    "sharded": FP32,
    "rank none": {"full_precision": {"first_epochs": 1}, "epochs": 3},
    "affine": {"full_precision": {"last_epochs": 1}, "epochs": 1},
    "compressed none": {},
    "compressed sign": {"full_precision": {"layers": ["*"]}},
    "power_sgd e4m3": {"full_precision": {"layers": ["*"]}},
    "power_sgd": {"min_compression_rate": 100},  # no matrix is sent as factors
}


def added(workers: list[list[torch.Tensor]]) -> list[torch.Tensor]:
    totals = [torch.zeros(shape) for shape in SHAPES.values()]
    for grads in workers:
        totals = [total + g for total, g in zip(totals, grads, strict=True)]
    return totals


@pytest.mark.parametrize("name", WAYS)
@pytest.mark.parametrize("world_size", [1, 4])
def test_an_exchange_in_full_precision_adds_in_order(name: str, world_size: int) -> None:
    workers = [gradients(w) for w in range(world_size)]
    results = reduce(make(name, world_size, **WAYS[name]), workers)
    assert all(map(same_bits, results, added(workers)))


@pytest.mark.parametrize(
    "emulate",
    [
        partial(emulate_all_reduce, fmt="fp32"),
        partial(emulate_all_reduce, fmt=Sum("fp32", order="rank")),
        partial(emulate_all_reduce, compressor="rounded"),
        partial(emulate_all_reduce, compressor=Rounded("fp32", False, "nearest_even")),
    ],
)
def test_emulated_sums_in_fp32_add_in_order(emulate: partial) -> None:
    workers = [gradients(w) for w in range(5)]
    results = [emulate(list(of_layer)) for of_layer in zip(*workers, strict=True)]
    assert all(map(same_bits, results, added(workers)))


@pytest.mark.parametrize("name", EXCHANGES)
def test_gradients_must_be_those_of_the_parameters_and_workers(name: str) -> None:
    """Extra gradients once gave uninitialized memory, and those of a single fp32 worker were not checked."""
    sync = make(name, 1)
    stacks = [torch.ones(1, *shape) for shape in SHAPES.values()]
    for given, message in (
        ([*stacks, stacks[0]], "there are 9 parameters, but 10 gradients were passed"),
        (stacks[1:], "there are 9 parameters, but 8 gradients were passed"),
        (
            [torch.ones(2, *shape) for shape in SHAPES.values()],
            "this rank emulates 1 workers, but gradients of 2 workers were passed",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            sync.reduce_stacked(given, step=0, epoch=0)
    patterns = {} if "hybrid" not in name else {"full_precision": None}
    empty = make(name, 2, parameter_names=[], **patterns)
    assert empty.reduce_stacked([], step=0, epoch=0) == [] and empty.nonfinite == 0
