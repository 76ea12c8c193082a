"""Outer steps: the formula of the paper, residuals, ranks compared with one process, bytes and refusals."""

from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from bits import same_bits
from hydra.utils import instantiate
from ranks import run_ranks, through_a_file

from cpdrun.comm.compressors.min_max import MinMax
from cpdrun.comm.compressors.qsgd import QSGD
from cpdrun.comm.compressors.rounded_values import Rounded
from cpdrun.comm.compressors.top_k import TopK
from cpdrun.comm.sums.scaling import APS
from cpdrun.comm.sync.local import LocalSync

CONF = Path(__file__).parents[3] / "conf"
SHAPES = {"fc.weight": (5, 7), "fc.bias": (5,), "scale": (), "nothing": (0, 3)}
SUM = Rounded("fp32", False, "nearest_even")
N = 4
EXCHANGES = {
    "fp32": {},
    "sum with APS": {"format": "e3m0", "scaling": APS()},
    "stochastic tree": {"format": "e5m2", "order": "tree", "rounding": "stochastic"},
    "sum in 2 bits": {"format": "int2_affine_b128", "requantise": "once"},
    "top_k": {"compressor": TopK(0.1, "fp32", False, "nearest_even")},
    "min_max in 2 bits": {"compressor": MinMax(2, "stochastic")},
    "qsgd in 2 bits": {"compressor": QSGD(1, True)},
}


def make(world_size: int = N, **changes: Any) -> LocalSync:
    knobs = yaml.safe_load((CONF / "sync" / "local.yaml").read_text()) | {"compressor": SUM} | changes
    given = {"format": "fp32", "parameter_names": list(SHAPES), "seed": 3, "epochs": 2}
    return instantiate({**given, **knobs, "world_size": world_size}, _convert_="object")


def tensors(*key: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(hash(key))
    return [torch.randn(shape, generator=generator) for shape in SHAPES.values()]


def begin(outer: LocalSync, workers: range = range(N)) -> list[torch.Tensor]:
    """Return the weights of every worker (W, ...), which are all equal."""
    start = tensors(0)
    outer.begin(start)
    return [torch.stack([x] * len(workers)) for x in start]


def train(
    outer: LocalSync, x_PxW: list[torch.Tensor], steps: range, last: int | None = None
) -> list[dict[str, int]]:
    """Move each worker's weights at random, with outer steps when due. Return the bytes of each step."""
    sent = []
    for step in steps:
        for i, worker in enumerate(outer.exchange.workers.local):
            for x_W, way in zip(x_PxW, tensors(worker, step), strict=True):
                x_W[i] -= 0.1 * way
        outer.after_step(x_PxW, step=step, epoch=0, last=step == last)
        sent.append(outer.wire_bytes())
    return sent


@pytest.mark.parametrize(("lr", "momentum", "nesterov"), [(0.7, 0.9, True), (0.7, 0.9, False), (1, 0, True)])
def test_outer_steps_follow_diloco(lr, momentum, nesterov):
    """Algorithm 1 of arXiv 2311.08105 in float64. Rate 1 without momentum is the mean of the weights."""
    outer = make(inner_steps=3, outer_lr=lr, outer_momentum=momentum, nesterov=nesterov)
    x_PxW = begin(outer)
    agreed, velocity = [x[0].double() for x in x_PxW], [0.0] * len(SHAPES)
    for first in (0, 3, 6):
        own = [
            [
                agreed[p] - sum(0.1 * tensors(w, s)[p].double() for s in range(first, first + 3))
                for w in range(N)
            ]
            for p in range(len(SHAPES))
        ]
        for p in range(len(SHAPES)):
            delta = agreed[p] - sum(own[p]) / N
            velocity[p] = momentum * velocity[p] + delta
            agreed[p] = agreed[p] - lr * (delta + momentum * velocity[p] if nesterov else velocity[p])
        train(outer, x_PxW, range(first, first + 3))
        for x_W, expected in zip(x_PxW, agreed, strict=True):
            assert all(same_bits(x, x_W[0]) for x in x_W), "all workers continue from the same weights"
            torch.testing.assert_close(x_W[0].double(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["sum with APS", "top_k"])
def test_the_sent_values_and_the_residual_are_the_pseudo_gradient(name):
    outer = make(1, inner_steps=2, **EXCHANGES[name])
    x_PxW = begin(outer, range(1))
    owed = [torch.zeros(shape) for shape in SHAPES.values()]
    for step in range(6):
        for x_W, way in zip(x_PxW, tensors(step), strict=True):
            x_W -= 0.1 * way
        exchanged = outer.after_step(x_PxW, step=step, epoch=0)
        assert (exchanged is None) == (step % 2 == 0)
        if exchanged:
            residuals = outer.state_dict()["exchange"]["residuals"]
            for p, (name, shape) in enumerate(SHAPES.items()):
                d, sent, left = exchanged[0][p][0], exchanged[1][p], residuals[f"0/{name}"].view(shape)
                assert torch.equal(d + owed[p] - sent, left), name
                owed[p] = left.clone()
    assert any(left.abs().max() > 0 for left in owed if left.numel())


def test_there_are_no_residuals_without_error_feedback_and_in_fp32():
    assert make(error_feedback=False, format="e3m0").exchange.feedback is None
    assert make(compressor=EXCHANGES["top_k"]["compressor"], error_feedback=False).exchange.feedback is None
    assert make().exchange.feedback is None and make(format="e3m0").exchange.feedback is not None


def phases(stops: bool) -> list[tuple]:
    """Take three outer steps of each exchange, the last of them early. Return the weights and the bytes.

    With `stops`, training is stopped within a phase and continues from the saved state.
    """
    found = []
    for knobs in EXCHANGES.values():
        outer = make(inner_steps=2, **knobs)
        x_PxW = begin(outer, outer.exchange.workers.local)
        sent = train(outer, x_PxW, range(3))
        if stops:
            state = through_a_file(outer.state_dict())
            outer = make(inner_steps=2, **knobs)
            begin(outer, outer.exchange.workers.local)
            outer.load_state_dict(state)
        sent += train(outer, x_PxW, range(3, 5), last=4)
        found.append(([x_W[0] for x_W in x_PxW], outer.agreed, sent))
    return found


@pytest.mark.parametrize("ranks", [1, 2])
def test_ranks_that_stop_and_continue_have_the_bits_of_one_process(ranks):
    key, expected = "bytes_per_step_real_worker", phases(stops=False)
    for of_rank in run_ranks(2, phases, True) if ranks > 1 else [phases(stops=True)]:
        for (x, agreed, sent), (x_here, agreed_here, sent_here) in zip(of_rank, expected, strict=True):
            assert all(map(same_bits, (*x, *agreed), (*x_here, *agreed_here)))
            assert [step[key] for step in sent] == [step[key] for step in sent_here]
            exchanged = [False, True, False, True, True]
            assert [step["bytes_per_step_sent"] > 0 for step in sent] == [
                ranks > 1 and due for due in exchanged
            ]


def test_bytes_are_sent_in_outer_steps_only():
    n = 5 * 7 + 5 + 1
    outer = make(inner_steps=4, format="e4m3")
    sent = [step["bytes_per_step_real_worker"] for step in train(outer, begin(outer), range(8))]
    assert sent[:3] == sent[4:7] == [0, 0, 0] and sent[3] == sent[7]
    assert sent[3] >= 2 * (N - 1) * n // N
    compressor = EXCHANGES["top_k"]["compressor"]
    outer = make(inner_steps=4, compressor=compressor)
    message = sum(compressor.message_bytes(size) for size in (35, 5, 1))
    assert [step["bytes_per_step_real_worker"] for step in train(outer, begin(outer), range(4))] == [
        0,
        0,
        0,
        3 * message,
    ]


def test_weights_of_fewer_bits_that_did_not_move_have_no_pseudo_gradient():
    outer = make(1, inner_steps=1)
    outer.begin([torch.full((3,), 1 / 3)] * 4)
    held = [torch.full((1, 3), 1 / 3, dtype=torch.bfloat16)] * 4
    assert all(not d.any() for d in outer.pseudo_gradients(held))


def test_nan_reaches_all_workers_and_is_counted():
    outer = make(inner_steps=1)
    x_PxW = begin(outer)
    x_PxW[0][2, 1, 1] = torch.nan
    outer.after_step(x_PxW, step=0, epoch=0)
    assert x_PxW[0][:, 1, 1].isnan().all() and torch.isfinite(x_PxW[0][:, 0]).all()
    assert outer.nonfinite == 1


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"inner_steps": 0}, "inner_steps=0: must be a whole number, at least 1"),
        ({"inner_steps": 1.5}, "inner_steps=1.5: must be a whole number"),
        ({"outer_lr": 0}, "outer_lr=0: must be a number above 0"),
        ({"outer_lr": "fast"}, "outer_lr=fast: must be a number above 0"),
        ({"outer_momentum": 1}, "outer_momentum=1: must be at least 0 and below 1"),
        ({"nesterov": 2}, "nesterov=2: choose true or false"),
        ({"order": "star"}, "order='star'"),
        (
            {"compressor": QSGD(1, True), "format": "e4m3"},
            "format=e4m3: QSGD does not send values in a number format",
        ),
    ],
)
def test_settings_out_of_range_are_refused(settings, message):
    with pytest.raises(Exception, match=message):
        make(**settings)
