"""Sums in formats with scales: the definition, between ranks as in one process, bytes, and what has no meaning."""

import os
import signal
import threading
from functools import cache

import custom_fp
import pytest
import torch
import torch.distributed as dist
from bits import reduce, same_bits
from custom_fp import Codebook
from ranks import run_ranks

from cpdrun.comm import AllReduceSync, RankLost, Sum, all_reduce, all_reduce_, emulate_all_reduce
from cpdrun.comm.sums import summation_of
from cpdrun.comm.sums.scaling import APS
from cpdrun.comm.sums.summation import Layers
from cpdrun.comm.sync.all_reduce import decoded
from cpdrun.comm.workers import Workers

SHAPES = ((70, 3), (5,), (1,), (0,), (65, 1100))  # the last is cut in two where blocks allow it
NAMES = [f"layer{p}" for p in range(len(SHAPES))]
UNEVEN = Codebook("uneven", (-0.9, -0.3, 0.1, 0.5, 0.8), block=24)  # 3 bits, no zero, no 1
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
PLAIN = {
    "order": "rank",
    "group_size": None,
    "kahan": False,
    "rounding": "nearest_even",
    "overflow": "infinity",
}


def gradients(worker: int, step: int = 0) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(100 * step + worker)
    return [torch.randn(shape, generator=generator) * 10.0**-p for p, shape in enumerate(SHAPES)]


def make(fmt, world_size: int, requantise: str, error_feedback: bool = False, **more) -> AllReduceSync:
    return decoded(
        format=fmt,
        world_size=world_size,
        parameter_names=NAMES,
        requantise=requantise,
        error_feedback=error_feedback,
        **more,
    )


def two_steps(fmt, world_size: int, requantise: str, ranks: int, feedback: bool) -> tuple:
    """In a rank: what two steps give, and the bytes."""
    sync = make(fmt, world_size, requantise, feedback)
    found = [reduce(sync, [gradients(w, step) for w in sync.workers.local], step=step) for step in range(2)]
    return found, sync.wire_bytes()


def by_hand(rows: list[torch.Tensor], fmt, requantise: str) -> torch.Tensor:
    """The formulas of decoded.py, one after the other."""
    q = [custom_fp.quantize(row, fmt) for row in rows]
    s = torch.zeros_like(q[0]) + q[0]
    for w in range(1, len(q)):
        s = (custom_fp.quantize(s, fmt) if requantise == "hop" else s) + q[w]
    return custom_fp.quantize(s, fmt)


@pytest.mark.parametrize("requantise", ["hop", "once"])
@pytest.mark.parametrize("fmt", FORMATS, ids=str)
def test_the_definition(fmt, requantise):
    workers = [gradients(w) for w in range(3)]
    results = reduce(make(fmt, 3, requantise), workers)
    for p, result in enumerate(results):
        expected = by_hand([worker[p].reshape(-1) for worker in workers], fmt, requantise)
        assert same_bits(result, expected.view(SHAPES[p]))
        assert same_bits(
            emulate_all_reduce([worker[p] for worker in workers], fmt, requantise=requantise), result
        )


@cache
def every_case(ranks: int) -> list:
    """In a rank: two steps in formats of each kind, hop by hop and once."""
    kinds = ["dynamic_tree", "mxfp4", "e4m3", UNEVEN, "int4_affine_b32"]
    return [two_steps(fmt, 4, how, ranks, True)[0] for fmt in kinds for how in ("hop", "once")]


@pytest.mark.parametrize("n", [1, 2, 4])
def test_all_ranks_end_with_the_bits_of_one_process(n):
    here = every_case(1)
    for cases in run_ranks(n, every_case, n):
        for ours, theirs in zip(here, cases, strict=True):
            for step in range(2):
                assert all(same_bits(a, b) for a, b in zip(ours[step], theirs[step], strict=True))


def test_bytes_are_counted_with_their_scales():
    for fmt in ("dynamic_tree", "mxfp4"):
        packed = sum(custom_fp.packed_size(worker.numel(), fmt) for worker in gradients(0) if worker.numel())
        counted = [wire for _, wire in run_ranks(2, two_steps, fmt, 2, "once", 2, False)]
        # two ranks: each sends the other's pieces, and its own sum to the other: all of it once between them
        assert sum(wire["bytes_per_step_sent"] for wire in counted) == 2 * packed
        assert {wire["bytes_per_step_real_worker"] for wire in counted} == {packed}
        assert two_steps(fmt, 2, "once", 1, False)[1]["bytes_per_step_sent"] == 0


def test_hop_by_hop_without_scales_is_the_order_rank_of_plain_formats():
    rows = [torch.randn(1000, generator=torch.Generator().manual_seed(w)) for w in range(5)]
    for fmt in ("e4m3", "e5m2", "bf16", "e3m0"):
        assert same_bits(emulate_all_reduce(rows, fmt, requantise="hop"), emulate_all_reduce(rows, fmt))


def test_sync_all_reduce_takes_formats_with_scales_and_rounds_hop_by_hop():
    workers = [gradients(w) for w in range(3)]
    sync = AllReduceSync(
        format="mxfp6_e2m3",
        world_size=3,
        parameter_names=NAMES,
        error_feedback=False,
        full_precision={"layers": ["layer1"]},
        **PLAIN,
    )
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


def test_a_nan_of_one_worker_is_seen_by_all():
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
    ],
)
def test_knobs_without_a_meaning_are_refused(changes, message):
    knobs = PLAIN | changes
    with pytest.raises(ValueError, match=message):
        AllReduceSync(
            format="dynamic_tree", world_size=2, parameter_names=NAMES, error_feedback=False, **knobs
        )


def test_scaling_rules_are_refused():
    with pytest.raises(ValueError, match="Set aps=false"):
        make("e4m3", 2, "once", scaling=APS())
    with pytest.raises(ValueError, match=r"dynamic_tree has its own scales\. Set aps=false"):
        AllReduceSync(
            format="dynamic_tree",
            world_size=2,
            parameter_names=NAMES,
            error_feedback=False,
            scaling=APS(),
            **PLAIN,
        )
    with pytest.raises(ValueError, match="requantise='twice': choose one of null, hop, once"):
        make("linear", 2, "twice")


def reduce_in_functions() -> list[torch.Tensor]:
    x = gradients(dist.get_rank())[0]
    return [
        all_reduce(x, "dynamic_tree"),
        all_reduce_(x.clone(), "mxfp6_e3m2"),
        all_reduce(x, Sum("linear", requantise="once")),
    ]


def test_all_reduce_as_a_function():
    tensors = [gradients(w)[0] for w in range(3)]
    kinds = ("dynamic_tree", "mxfp6_e3m2", Sum("linear", requantise="once"))
    expected = [emulate_all_reduce(tensors, kind) for kind in kinds]
    for found in run_ranks(3, reduce_in_functions):
        assert all(same_bits(a, b) for a, b in zip(found, expected, strict=True))
    with pytest.raises(ValueError, match=r"format mxfp4 has its own scales\. Set aps=false"):
        emulate_all_reduce(tensors, "mxfp4", aps=True)


def reduce_until_rank_1_dies() -> str:
    if dist.get_rank() == 1:
        threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGKILL)).start()
    with pytest.raises(RankLost) as caught:
        while True:
            all_reduce(torch.ones(100_000), "dynamic_tree")
    return str(caught.value)


def test_the_survivors_name_a_rank_that_died():
    for message in run_ranks(3, reduce_until_rank_1_dies, dies={1}):
        assert message.startswith("rank 1 ended in the middle of a step")


def test_empty_layers_send_nothing() -> None:
    summation = summation_of(Sum("linear"), Workers(1))
    done = summation.run(Layers(["a"], [torch.ones(1, 0)], [torch.empty(0)]))
    assert (done.sent_bytes, done.real_worker_bytes) == (0, 0)
