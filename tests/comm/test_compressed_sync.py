"""CompressedSync: error feedback, full precision, bytes and refusals. The files test_*_law.py test its sums."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from bits import reduce, same_bits
from exchanges import COMPRESSORS
from hydra.utils import instantiate

from cpdrun.comm.compressors.min_max import MinMax
from cpdrun.comm.compressors.qsgd import QSGD
from cpdrun.comm.compressors.rounded_values import Rounded
from cpdrun.comm.compressors.top_k import TopK
from cpdrun.comm.sums.scaling import APS, DelayedAPS
from cpdrun.comm.sync.compressed_sync import CompressedSync

CONF = Path(__file__).parents[2] / "conf"
SHAPES = {"conv.weight": (3, 4), "conv.bias": (3,), "nothing": (0, 2), "fc.weight": (5, 20), "fc.bias": ()}
NONE = COMPRESSORS["none"]


def make(compressor: Any = NONE, world_size: int = 4, **changes: Any) -> CompressedSync:
    knobs = yaml.safe_load((CONF / "sync" / "compressed.yaml").read_text()) | changes
    knobs |= {"compressor": compressor, "world_size": world_size, "parameter_names": list(SHAPES)}
    return instantiate(knobs, _convert_="object")


def gradients(worker: int, step: int = 0) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1000 * step + worker)
    return [torch.randn(shape, generator=generator) for shape in SHAPES.values()]


def test_without_error_feedback_there_is_no_state():
    sync = make(COMPRESSORS["top_k"], error_feedback=False)
    first, again = (reduce(sync, [gradients(w) for w in range(4)], step=s, epoch=0) for s in (0, 1))
    assert all(same_bits(a, b) for a, b in zip(first, again, strict=True))
    assert sync.state_dict() == {}


def test_a_worker_sends_its_largest_values_and_the_rest_later():
    sync = make(TopK(0.5, "fp32", False, "nearest_even"), world_size=2)
    spare = [torch.zeros(shape) for name, shape in SHAPES.items() if name != "conv.bias"]

    def sent(*bias_of_workers: list[float]) -> list[float]:
        given = [[spare[0], torch.tensor(bias), *spare[1:]] for bias in bias_of_workers]
        return reduce(sync, given)[1].tolist()

    assert sent([4.0, 1.0, 2.0], [0.0, 8.0, 0.5]) == [4.0, 8.0, 2.5]
    assert sent([0.0, 0.0, 0.0], [0.0, 0.0, 0.0]) == [0.0, 1.0, 0.0]


def test_values_that_a_format_makes_finite_are_counted():
    sync = make(Rounded("e2m1fn", False, "nearest_even"), world_size=2)
    broken = [gradients(w) for w in range(2)]
    broken[1][3][2, 7], broken[0][0][0, 0] = math.nan, math.inf
    assert all(torch.isfinite(total).all() for total in reduce(sync, broken))
    assert sync.nonfinite == 2


def test_full_precision_layers_are_sent_uncompressed():
    hybrid = {"layers": ["fc.*"], "first_epochs": 1, "last_epochs": 0}
    sync = make(COMPRESSORS["e3m0 aps"], full_precision=hybrid, epochs=3, error_feedback=False)
    workers = [gradients(w) for w in range(4)]
    exact = reduce(make(), workers)
    for epoch in range(2):
        result = reduce(sync, workers, step=epoch, epoch=epoch)
        same = [same_bits(a, b) for a, b in zip(result, exact, strict=True)]
        assert same == ([False, False, True, True, True] if epoch else [True] * 5)


@pytest.mark.parametrize("compressor", COMPRESSORS.values(), ids=COMPRESSORS)
def test_bytes_are_those_of_the_messages(compressor):
    sync = make(compressor)
    reduce(sync, [gradients(w) for w in range(4)])
    message = sum(compressor.message_bytes(n) for n in (12, 3, 100, 1))
    assert sync.wire_bytes() == {"bytes_per_step_sent": 0, "bytes_per_step_real_worker": 3 * message}


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
