"""CompressedSync: what it adds up, what it remembers, ranks against one process, bytes."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from bits import reduce, same_bits
from hydra.utils import instantiate
from ranks import run_ranks

from cpdrun.comm import emulate_all_reduce
from cpdrun.comm.compressors.min_max import MinMax
from cpdrun.comm.compressors.qsgd import QSGD
from cpdrun.comm.compressors.random_k import RandomK
from cpdrun.comm.compressors.rounded_values import Rounded
from cpdrun.comm.compressors.sign import Sign
from cpdrun.comm.compressors.top_k import TopK
from cpdrun.comm.sums.scaling import APS, DelayedAPS
from cpdrun.comm.sync.compressed_sync import CompressedSync

CONF = Path(__file__).parents[2] / "conf"
SHAPES = {"conv.weight": (3, 4), "conv.bias": (3,), "nothing": (0, 2), "fc.weight": (5, 20), "fc.bias": ()}
NONE = Rounded("fp32", False, "nearest_even")
COMPRESSORS = {
    "none": NONE,
    "e3m0 aps": Rounded("e3m0", True, "nearest_even"),
    "stochastic": Rounded("e5m2", False, "stochastic"),
    "blocks": Rounded("mxfp4", False, "nearest_even"),
    "top_k": TopK(0.1, "fp32", False, "nearest_even"),
    "top_1": TopK(1e-9, "fp32", False, "nearest_even"),
    "random_k": RandomK(0.2, False, "e4m3", True, "stochastic"),
    "qsgd": QSGD(7, True),
    "min_max": MinMax(4, "stochastic"),
    "sign": Sign(1),
}


def make(compressor: Any = NONE, world_size: int = 4, **changes: Any) -> CompressedSync:
    knobs = yaml.safe_load((CONF / "sync" / "compressed.yaml").read_text()) | changes
    knobs |= {"compressor": compressor, "world_size": world_size, "parameter_names": list(SHAPES)}
    return instantiate(knobs, _convert_="object")


def gradients(worker: int, step: int = 0) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1000 * step + worker)
    return [torch.randn(shape, generator=generator) for shape in SHAPES.values()]


def test_without_compression_it_is_the_float32_sum_in_worker_order():
    workers = [gradients(w) for w in range(4)]
    for result, *of_workers in zip(reduce(make(), workers, step=0, epoch=0), *workers, strict=True):
        assert same_bits(result, emulate_all_reduce(of_workers, "fp32"))


@pytest.mark.parametrize("compressor", COMPRESSORS.values(), ids=COMPRESSORS)
def test_what_was_sent_and_the_residual_are_the_gradient(compressor):
    sync = make(compressor, world_size=1)
    owed = [torch.zeros(shape) for shape in SHAPES.values()]
    for step in range(5):
        compensated = [g + e for g, e in zip(gradients(0, step), owed, strict=True)]
        sent = reduce(sync, [gradients(0, step)], step=step, epoch=0)
        residuals = sync.state_dict()["residuals"]
        owed = [residuals[f"0/{name}"].view(shape) for name, shape in SHAPES.items()]
        for c, s, e in zip(compensated, sent, owed, strict=True):
            assert torch.equal(e, c - s)


def test_without_error_feedback_nothing_is_remembered():
    sync = make(COMPRESSORS["top_k"], error_feedback=False)
    first, again = (reduce(sync, [gradients(w) for w in range(4)], step=s, epoch=0) for s in (0, 1))
    assert all(same_bits(a, b) for a, b in zip(first, again, strict=True))
    assert sync.state_dict() == {}


def test_a_worker_sends_its_largest_values_and_the_rest_later():
    sync = make(TopK(0.5, "fp32", False, "nearest_even"), world_size=2)
    spare = [torch.zeros(shape) for name, shape in SHAPES.items() if name != "conv.bias"]

    def sent(*bias_of_workers: list[float]) -> list[float]:
        given = [[spare[0], torch.tensor(bias), *spare[1:]] for bias in bias_of_workers]
        return reduce(sync, given, step=0, epoch=0)[1].tolist()

    assert sent([4.0, 1.0, 2.0], [0.0, 8.0, 0.5]) == [4.0, 8.0, 2.5]
    assert sent([0.0, 0.0, 0.0], [0.0, 0.0, 0.0]) == [0.0, 1.0, 0.0]


def test_zeros_stay_zero():
    nothing = [[torch.zeros(shape) for shape in SHAPES.values()] for _ in range(4)]
    for name, compressor in COMPRESSORS.items():
        for total in reduce(make(compressor), nothing, step=0, epoch=0):
            assert same_bits(total, torch.zeros_like(total)), name


def test_what_is_not_finite_stays_visible_or_is_counted():
    for name, compressor in COMPRESSORS.items():
        sync = make(compressor, world_size=2)
        broken = [gradients(w) for w in range(2)]
        broken[1][3][2, 7] = math.nan
        reduce(sync, broken, step=0, epoch=0)
        assert sync.nonfinite >= 1, name
        reduce(sync, [gradients(w) for w in range(2)], step=1, epoch=0)
        assert sync.nonfinite == 0, name
    sync = make(Rounded("e2m1fn", False, "nearest_even"), world_size=2)
    broken[0][0][0, 0] = math.inf
    assert all(torch.isfinite(total).all() for total in reduce(sync, broken, step=0, epoch=0))
    assert sync.nonfinite == 2


def test_full_precision_layers_travel_as_they_are():
    hybrid = {"layers": ["fc.*"], "first_epochs": 1, "last_epochs": 0}
    sync = make(COMPRESSORS["e3m0 aps"], full_precision=hybrid, epochs=3, error_feedback=False)
    workers = [gradients(w) for w in range(4)]
    exact = reduce(make(), workers, step=0, epoch=0)
    for epoch in range(2):
        result = reduce(sync, workers, step=epoch, epoch=epoch)
        same = [same_bits(a, b) for a, b in zip(result, exact, strict=True)]
        assert same == ([False, False, True, True, True] if epoch else [True] * 5)


def three_steps(name: str) -> tuple:
    """In a rank, or in the one process: what three steps give, and the bytes."""
    sync = make(COMPRESSORS[name], seed=3)
    mine = sync.workers.local
    found = []
    for step in range(3):
        found.append(reduce(sync, [gradients(w, step) for w in mine], step=step, epoch=0))
    return found, sync.wire_bytes(), sync.nonfinite


def all_compressors() -> list[tuple]:
    return [three_steps(name) for name in COMPRESSORS]


def test_ranks_end_with_the_bits_of_one_process():
    here, ranks = all_compressors(), 2
    for everyone in run_ranks(ranks, all_compressors):
        for (found, wire, nonfinite), (expected, wire_here, _), compressor in zip(
            everyone, here, COMPRESSORS.values(), strict=True
        ):
            for a, b in zip(found, expected, strict=True):
                assert all(same_bits(x, y) for x, y in zip(a, b, strict=True))
            message = sum(compressor.message_bytes(n) for n in (12, 3, 100, 1))
            assert wire_here == {"bytes_per_step_sent": 0, "bytes_per_step_real_worker": 3 * message}
            sent = 4 // ranks * (ranks - 1) * message
            assert wire == {"bytes_per_step_sent": sent, "bytes_per_step_real_worker": 3 * message}
            assert nonfinite == 0


def test_a_resumed_sync_continues_bit_for_bit():
    for name in ("top_k", "random_k"):
        sync, resumed = make(COMPRESSORS[name]), make(COMPRESSORS[name])
        reduce(sync, [gradients(w) for w in range(4)], step=0, epoch=0)
        resumed.load_state_dict(sync.state_dict())
        later = [gradients(w, 1) for w in range(4)]
        pairs = zip(*(reduce(s, later, step=1) for s in (sync, resumed)), strict=True)
        assert all(same_bits(a, b) for a, b in pairs)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"compressor": MinMax(8, "nearest_even"), "format": "e4m3"},
            "format=e4m3: MinMax does not send values in a number format",
        ),
        ({"compressor": QSGD(7, True), "scaling": APS()}, "aps=true: QSGD has its own scale"),
        (
            {"compressor": COMPRESSORS["e3m0 aps"], "scaling": DelayedAPS(1)},
            "the rule DelayedAPS cannot be combined with a compressor",
        ),
    ],
)
def test_settings_that_do_not_fit_are_refused(settings, message):
    with pytest.raises(Exception, match=message):
        make(**settings)


def test_a_wrong_number_of_workers_is_refused():
    with pytest.raises(
        ValueError, match="this rank emulates 4 workers, but gradients of 1 workers were passed"
    ):
        reduce(make(), [gradients(0)], step=0, epoch=0)


def test_no_parameters_have_no_gradients():
    sync = CompressedSync(compressor=NONE, error_feedback=True, world_size=2, parameter_names=[])
    assert sync.reduce_stacked([], step=0, epoch=0) == []
