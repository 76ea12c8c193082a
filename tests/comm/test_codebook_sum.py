"""Sums in formats with scales, and sums of decoded gradients: the definition, bytes and refusals."""

import custom_fp
import pytest
import torch
from bits import reduce, same_bits
from exchanges import UNEVEN
from ranks import run_ranks

from cpdrun.comm import AllReduceSync, Sum, emulate_all_reduce
from cpdrun.comm.sums import summation_of
from cpdrun.comm.sums.scaling import APS
from cpdrun.comm.sums.summation import Layers
from cpdrun.comm.sync.all_reduce import decoded
from cpdrun.comm.workers import Workers

SHAPES = ((70, 3), (5,), (1,), (0,), (65, 1100))  # the last is cut in two where blocks allow it
NAMES = [f"layer{p}" for p in range(len(SHAPES))]
FORMATS = [
    "dynamic_tree",
    "linear_b64",
    "mxfp8_e5m2",
    "mxfp4",
    "e4m3",
    UNEVEN,
    "nf4_b64",
    "int4_affine_b32",
    "int8_affine",
]


def gradients(worker: int, step: int = 0) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(100 * step + worker)
    return [torch.randn(shape, generator=generator) * 10.0**-p for p, shape in enumerate(SHAPES)]


def make(fmt, world_size: int, requantise: str, **more) -> AllReduceSync:
    given = {"world_size": world_size, "parameter_names": NAMES, "error_feedback": False, **more}
    return decoded(format=fmt, requantise=requantise, **given)


def two_steps_bytes() -> dict[str, dict[str, int]]:
    """In a rank, or in one process: the bytes of the second step."""
    found = {}
    for fmt in ("dynamic_tree", "mxfp4"):
        sync = make(fmt, 2, "once")
        for step in range(2):
            reduce(sync, [gradients(w, step) for w in sync.workers.local], step=step)
        found[fmt] = sync.wire_bytes()
    return found


def by_hand(rows: list[torch.Tensor], fmt, requantise: str) -> torch.Tensor:
    """Quantize, decode, add in float32, and quantize again."""
    q = [custom_fp.quantize(row, fmt) for row in rows]
    s = torch.zeros_like(q[0]) + q[0]
    for w in range(1, len(q)):
        s = (custom_fp.quantize(s, fmt) if requantise == "hop" else s) + q[w]
    return custom_fp.quantize(s, fmt)


@pytest.mark.parametrize("requantise", ["hop", "once"])
@pytest.mark.parametrize("fmt", FORMATS, ids=str)
def test_sums_follow_the_definition(fmt, requantise):
    workers = [gradients(w) for w in range(3)]
    results = reduce(make(fmt, 3, requantise), workers)
    for p, result in enumerate(results):
        expected = by_hand([worker[p].reshape(-1) for worker in workers], fmt, requantise)
        assert same_bits(result, expected.view(SHAPES[p]))
        assert same_bits(
            emulate_all_reduce([worker[p] for worker in workers], fmt, requantise=requantise), result
        )


def test_bytes_are_counted_with_their_scales():
    counted = {ranks: run_ranks(2, two_steps_bytes) if ranks > 1 else [two_steps_bytes()] for ranks in (1, 2)}
    for fmt in ("dynamic_tree", "mxfp4"):
        packed = sum(custom_fp.packed_size(g.numel(), fmt) for g in gradients(0) if g.numel())
        for ranks, of_ranks in counted.items():
            # two ranks: each sends the other's pieces, and its own sum to the other: all of it once between them
            assert sum(wire[fmt]["bytes_per_step_sent"] for wire in of_ranks) == 2 * packed * (ranks - 1)
            assert {wire[fmt]["bytes_per_step_real_worker"] for wire in of_ranks} == {packed}


def test_hop_by_hop_without_scales_is_the_order_rank_of_plain_formats():
    rows = [torch.randn(1000, generator=torch.Generator().manual_seed(w)) for w in range(5)]
    for fmt in ("e4m3", "e5m2", "bf16", "e3m0"):
        assert same_bits(emulate_all_reduce(rows, fmt, requantise="hop"), emulate_all_reduce(rows, fmt))


def test_all_reduce_sync_adds_formats_with_scales_hop_by_hop():
    workers = [gradients(w) for w in range(3)]
    given = {"world_size": 3, "parameter_names": NAMES, "full_precision": {"layers": ["layer1"]}}
    sync = AllReduceSync(format="mxfp6_e2m3", **given)
    expected = reduce(make("mxfp6_e2m3", 3, "hop"), workers)
    expected[1] = workers[0][1] + workers[1][1] + workers[2][1]
    results = reduce(sync, workers)
    assert all(same_bits(a, b) for a, b in zip(results, expected, strict=True))
    stacks = [torch.stack(grads) for grads in zip(*workers, strict=True)]
    rows = sync.statistics(stacks, results)
    assert [row["format"] for row in rows] == ["mxfp6_e2m3", "fp32", *["mxfp6_e2m3"] * 3]


def test_once_errs_less_than_hop_by_hop():
    rows = [torch.randn(4096, generator=torch.Generator().manual_seed(w)) for w in range(16)]
    exact = torch.stack(rows).double().sum(0)
    hop, once = (
        (emulate_all_reduce(rows, "dynamic_tree", requantise=how) - exact).norm() for how in ("hop", "once")
    )
    assert once < 0.7 * hop


def test_a_nan_of_one_worker_makes_its_block_nan():
    workers = [gradients(w) for w in range(2)]
    workers[1][0][0, 0] = float("nan")
    sync = make("mxfp8_e4m3", 2, "once")
    result = reduce(sync, workers)[0]
    assert result.reshape(-1)[:32].isnan().all() and result.reshape(-1)[32:].isfinite().all()
    assert sync.nonfinite == 32


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kahan": True}, "kahan=True: format dynamic_tree has its own scales, so the value must be False"),
        ({"rounding": "stochastic"}, "rounding=stochastic: .* must be nearest_even"),
        ({"order": "ring"}, "order=ring: .* must be rank. Set order=rank"),
        ({"scaling": APS()}, "dynamic_tree has its own scales. Set aps=false"),
        ({"format": "e4m3", "requantise": "once", "scaling": APS()}, "Set aps=false"),
        ({"format": "linear", "requantise": "twice"}, "requantise='twice': choose one of null, hop, once"),
    ],
)
def test_settings_that_do_not_fit_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        AllReduceSync(**{"format": "dynamic_tree", "world_size": 2, "parameter_names": NAMES, **changes})


def test_empty_layers_send_nothing() -> None:
    summation = summation_of(Sum("linear"), Workers(1))
    done = summation.run(Layers(["a"], [torch.ones(1, 0)], [torch.empty(0)]))
    assert (done.sent_bytes, done.real_worker_bytes) == (0, 0)
