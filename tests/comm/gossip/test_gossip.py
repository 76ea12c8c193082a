"""Gossip rules are compared with the formulas of their papers, and ranks with one process.

Other tests check how well workers agree, the bytes that they send, and which settings are refused.
"""

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from hydra.utils import instantiate
from ranks import run_ranks

from cpdrun.comm.compressors.min_max import MinMax
from cpdrun.comm.compressors.qsgd import QSGD
from cpdrun.comm.compressors.random_k import RandomK
from cpdrun.comm.compressors.rounded_values import Rounded
from cpdrun.comm.compressors.top_k import TopK
from cpdrun.comm.gossip.base import WeightLayout
from cpdrun.comm.gossip.topologies import (
    Arrows,
    Complete,
    Exponential,
    OnePeerExponential,
    RandomPairs,
    Ring,
    Torus,
)

CONF = Path(__file__).parents[3] / "conf" / "sync"
SHAPES = [torch.Size(shape) for shape in ((3, 5), (7,), (2, 2, 2), ())]
NAMES = ["a.weight", "a.bias", "b.weight", "b.scale"]
NONE = Rounded("fp32", False, "nearest_even")
RING = Ring("uniform", directed=False)
ARROWS = Arrows("uniform", [[0, 1], [1, 2], [2, 3], [3, 4], [4, 5], [5, 0], [0, 3], [0, 2], [4, 1]])


def make(rule: str, N: int = 6, topology: Any = RING, compressor: Any = NONE, **knobs: Any) -> Any:
    spec = yaml.safe_load((CONF / f"gossip_{rule}.yaml").read_text()) | knobs
    spec |= {"topology": topology, "compressor": compressor}
    given = {"format": "fp32", "world_size": N, "parameter_names": NAMES, "seed": 5, "epochs": 3}
    return instantiate(spec, **given, _convert_="object")


def start(rows: WeightLayout, W: int, workers: range) -> torch.Tensor:
    """Return initial weights (W, D), which are the same for all workers."""
    x = rows.zeros(W, torch.device("cpu"))
    for row in x:
        for p, view in enumerate(rows.parameters(row)):
            view.copy_(torch.randn(SHAPES[p], generator=torch.Generator().manual_seed(p)))
    return x


def own_steps(rows: WeightLayout, x: torch.Tensor, workers: range, step: int) -> torch.Tensor:
    """Return each worker's gradient in this step, (W, D)."""
    gradient = torch.zeros_like(x)
    for w, row in zip(workers, gradient, strict=True):
        for p, view in enumerate(rows.parameters(row)):
            generator = torch.Generator().manual_seed(1000 * step + 10 * w + p)
            view.copy_(torch.randn(SHAPES[p], generator=generator))
    return gradient


def run(gossip: Any, steps: int, lr: float = 0.1, decay: float = 0.0) -> torch.Tensor:
    """Train like the training loop, with random gradients. Return this process's weights (W, D)."""
    rows = WeightLayout(SHAPES)
    x = start(rows, len(gossip.mine), gossip.mine)
    gossip.begin(rows, x)
    for step in range(steps):
        gossip.before_step(x, step=step, epoch=0)
        gradient = own_steps(rows, x, gossip.mine, step)
        for i, row in enumerate(gradient):
            gossip.correct(
                i, rows.parameters(row), [decay * p for p in rows.parameters(x[i])] if decay else ()
            )
        x -= lr * (gradient + decay * x)
        gossip.after_step(x, lr=lr, step=step, epoch=0)
    gossip.close(x, step=steps - 1, epoch=0)
    return x


def by_the_book(
    rule: str,
    matrices: list[torch.Tensor],
    compress: Any,
    steps: int,
    lr: float = 0.1,
    eta: float = 1.0,
    **knobs: Any,
):
    """Return the weights (N, D) of the papers' algorithms in float64. `matrices` has W of each round."""
    rows, N = WeightLayout(SHAPES), len(matrices[0])
    decay, share = knobs.get("decay", 0.0), torch.ones(N, 1, dtype=torch.float64)
    x = start(rows, N, range(N)).double()
    hat = x.clone() if knobs.get("knows_start") else torch.zeros_like(x)
    error, m, beta = torch.zeros_like(x), torch.zeros_like(x), knobs.get("beta", 0.0)
    for step in range(steps + knobs.get("closing_rounds", 0)):
        W = matrices[step % len(matrices)]
        before = x.clone()
        if step < steps:
            d = own_steps(rows, x.float(), range(N), step).double() + decay * x
            x = x - lr * (d + beta * (beta * m + d if knobs.get("nesterov") else m))
        if rule == "push_sum":
            share_after = W @ share
            x = W @ (before * share + (x - before)) / share_after
            share = share_after
        elif rule == "dpsgd":
            x = W @ (before if knobs.get("overlap") else x) + ((x - before) if knobs.get("overlap") else 0)
        elif rule == "choco":
            hat = hat + compress(x - hat)
            x = x + eta * (W @ hat - hat)
        else:
            sent = compress(x + error)
            error = x + error - sent
            x = x + eta * (W @ sent - sent)
        m = beta * m + (1 - beta) * (before - x) / lr
    return x


def rounded_to_e5m2(x: torch.Tensor) -> torch.Tensor:
    return x.to(torch.float8_e5m2).double()


RULES = [
    ("dpsgd", {"overlap": False}),
    ("dpsgd", {"overlap": True}),
    ("dpsgd", {"overlap": True, "closing_rounds": 3}),
    ("choco", {"eta": 0.7, "knows_start": True}),
    ("push_sum", {}),
    ("choco", {"eta": 1.0, "knows_start": False}),
    ("deep_squeeze", {"eta": 0.5}),
    ("dpsgd", {"overlap": False, "quasi_global_momentum": 0.9}),
    ("choco", {"eta": 1.0, "knows_start": True, "quasi_global_momentum": 0.5}),
    ("choco", {"eta": 1.0, "knows_start": True, "quasi_global_momentum": 0.9, "nesterov": True}),
    ("deep_squeeze", {"eta": 0.5, "quasi_global_momentum": 0.9, "nesterov": True, "closing_rounds": 4}),
]
CHANGING_OR_ONE_WAY = [
    ("dpsgd", OnePeerExponential("uniform")),
    ("dpsgd", RandomPairs("uniform", 9, 3)),
    ("deep_squeeze", RandomPairs("metropolis", 9, 3)),
    ("push_sum", OnePeerExponential("uniform")),
    ("push_sum", ARROWS),
]


@pytest.mark.parametrize(
    ("rule", "knobs", "topology"),
    [
        *((rule, knobs, t) for t in (Ring("uniform", True), Torus("uniform", None)) for rule, knobs in RULES),
        *((rule, {"closing_rounds": 2}, topology) for rule, topology in CHANGING_OR_ONE_WAY),
    ],
)
def test_rules_follow_their_papers(rule: str, knobs: dict, topology: Any) -> None:
    """Compare six steps in float32 with float64: a few dozen roundings of 6e-8 of numbers near 1.

    Only lossless messages are compared over several steps, because in e5m2 a value near a tie may be rounded
    the other way. Closing rounds continue in the order of the graphs.
    """
    gossip = make(rule, topology=topology, **knobs)
    book = knobs | {"beta": knobs.get("quasi_global_momentum", 0.0), "decay": 0.01}
    expected = by_the_book(rule, matrices_of(gossip), lambda x: x, steps=6, **book)
    torch.testing.assert_close(run(gossip, 6, decay=0.01).double(), expected, rtol=0, atol=2e-5)


def matrices_of(gossip: Any) -> list[torch.Tensor]:
    return [torch.from_numpy(graph.matrix_NxN) for graph in gossip.rounds]


A_MESSAGE = sum(-(-shape.numel() // 8) * 8 for shape in SHAPES)  # number of values in a message, with padding
LOW = Rounded("e4m3", True, "nearest_even")


def mix(gossip: Any, steps: int, x_is_known: bool = False) -> tuple[torch.Tensor, torch.Tensor, float]:
    """Gossip without gradients.

    Return the weights (N, D), the mean of the initial weights, and the distance from it, relative to the
    initial one.
    """
    rows = WeightLayout(SHAPES)
    x = own_steps(rows, rows.zeros(len(gossip.mine), torch.device("cpu")), gossip.mine, 0)
    mean, far = x.mean(0), (x - x.mean(0)).norm()
    gossip.begin(rows, x if x_is_known else torch.zeros_like(x))
    for step in range(steps):
        gossip.after_step(x, lr=0.1, step=step, epoch=0)
    return x, mean, float((x - mean).norm() / far)


@pytest.mark.parametrize(
    ("N", "topology", "steps"), [(6, Complete("uniform"), 1), (8, OnePeerExponential("uniform"), 3)]
)
def test_workers_have_the_mean_after_one_complete_round_or_log2_rounds_of_one_peer(
    N, topology, steps
) -> None:
    gossip = make("dpsgd", N=N, topology=topology)
    x, mean, _ = mix(gossip, steps, x_is_known=True)
    torch.testing.assert_close(x, mean.expand(N, -1), rtol=0, atol=1e-6)
    assert gossip.bytes_sent == 4 * A_MESSAGE * (5 if steps == 1 else 3)


@pytest.mark.parametrize("compressor", [NONE, RandomK(0.5, False, "e5m2", False, "nearest_even")])
def test_push_sum_agrees_on_the_mean_if_workers_send_to_unequally_many(compressor: Any) -> None:
    """Sums of numerators and of shares do not change. Few bits reduce agreement. D-PSGD rejects the graph."""
    gossip = make("push_sum", topology=ARROWS, compressor=compressor)
    _, mean, spread = mix(gossip, 60)
    torch.testing.assert_close(gossip.memory["numerator"].mean(0), mean, rtol=0, atol=1e-5)
    share = gossip.share_N
    assert share.sum() == pytest.approx(6) and share.max() > 1.2 > 0.8 > share.min()
    assert spread < (1e-4 if compressor is NONE else 0.9)
    with pytest.raises(Exception, match=r"the same number of neighbors, .* Set sync=gossip_push_sum"):
        make("dpsgd", topology=ARROWS)


def test_closing_rounds_bring_workers_together_and_are_counted() -> None:
    far = []
    for rounds in (0, 20):
        gossip = make("choco", compressor=LOW, closing_rounds=rounds)
        x = run(gossip, 2)
        far.append(float((x - x.mean(0)).norm()))
        assert gossip.bytes_sent == (2 + rounds) * 2 * (2 * len(SHAPES) + A_MESSAGE)
    assert far[1] < 0.01 * far[0]


@pytest.mark.parametrize("rule", ["choco", "deep_squeeze"])
def test_one_step_with_compressed_messages_follows_the_paper(rule: str) -> None:
    gossip = make(rule, compressor=Rounded("e5m2", False, "nearest_even"), eta=0.5)
    knobs = {"knows_start": True} if rule == "choco" else {}
    expected = by_the_book(rule, matrices_of(gossip), rounded_to_e5m2, steps=1, eta=0.5, **knobs)
    torch.testing.assert_close(run(gossip, 1).double(), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("rule", "compressor", "eta", "steps", "most"),
    [
        ("choco", Rounded("e5m2", False, "nearest_even"), 0.5, 150, 1e-3),
        ("choco", TopK(0.2, "fp32", False, "nearest_even"), 0.2, 300, 1e-3),
        ("deep_squeeze", Rounded("e5m2", False, "nearest_even"), 0.5, 150, 0.1),
    ],
)
def test_workers_agree_on_the_mean_although_messages_are_compressed(
    rule, compressor, eta, steps, most
) -> None:
    x, mean, spread = mix(make(rule, compressor=compressor, eta=eta), steps)
    torch.testing.assert_close(x.mean(0), mean, rtol=0, atol=2e-5)  # 150 or 300 additions near 1
    assert spread < most


def test_bytes_are_those_of_the_messages_sent() -> None:
    gossip = make("choco", compressor=LOW)
    run(gossip, 3)
    sent = 2 * (2 * len(SHAPES) + A_MESSAGE)
    assert gossip.wire_bytes() == {"bytes_per_step_sent": 0, "bytes_per_step_real_worker": sent}
    assert gossip.bytes_sent == 3 * sent
    full = make("choco", compressor=LOW, full_precision={"layers": ["a.*"]})
    run(full, 1)
    assert full.bytes_sent == 2 * (4 * 16 + 4 * 8 + 2 * (2 + 8))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"rule": "choco", "eta": 0}, "sync.eta must be above 0"),
        (
            {"rule": "dpsgd", "quasi_global_momentum": 1.0},
            "sync.quasi_global_momentum must lie between 0 and 1",
        ),
        ({"rule": "dpsgd", "compressor": QSGD(7, True), "scaling": object()}, "QSGD has its own scale"),
        ({"rule": "dpsgd", "topology": Torus("uniform", 4)}, "topology.rows=4 does not divide world_size=6"),
        ({"rule": "dpsgd", "nesterov": True}, "sync.nesterov=true needs momentum"),
        ({"rule": "dpsgd", "closing_rounds": -1}, "sync.closing_rounds=-1: must be a whole number"),
        (
            {"rule": "choco", "topology": OnePeerExponential("uniform")},
            "OnePeerExponential changes them in each round. Set sync=gossip_deep_squeeze",
        ),
        (
            {"rule": "push_sum", "topology": Ring("metropolis", False)},
            "topology.mixing: push-sum requires topology.mixing=uniform",
        ),
        (
            {"rule": "push_sum", "topology": Arrows("uniform", [[i, i + 1] for i in range(5)])},
            "push-sum needs a path of links from each worker to every other",
        ),
    ],
)
def test_settings_that_do_not_fit_are_refused(arguments: dict, message: str) -> None:
    with pytest.raises(Exception, match=message):
        make(**arguments)


CASES = [
    ("choco", {"eta": 0.5}, TopK(0.3, "e4m3", True, "stochastic"), RING),
    ("deep_squeeze", {"quasi_global_momentum": 0.9}, QSGD(7, True), Exponential("uniform")),
    ("dpsgd", {"overlap": True}, MinMax(5, "stochastic"), Ring("uniform", True)),
    ("dpsgd", {"quasi_global_momentum": 0.9}, NONE, Torus("uniform", None)),
    (
        "push_sum",
        {"closing_rounds": 2},
        RandomK(0.5, True, "e4m3", True, "stochastic"),
        Arrows("uniform", [[0, 1], [1, 2], [2, 3], [3, 0], [0, 2]]),
    ),
    ("deep_squeeze", {"quasi_global_momentum": 0.9, "nesterov": True}, NONE, RandomPairs("uniform", 8, 1)),
]  # fmt: skip


def run_all() -> list[tuple[dict[int, torch.Tensor], dict, int]]:
    """Return the weights of this process's workers, the state and the sent bytes, for each case."""
    found = []
    for rule, knobs, compressor, topology in CASES:
        gossip = make(rule, N=4, topology=topology, compressor=compressor, **knobs)
        x = dict(zip(gossip.mine, run(gossip, 3), strict=True))
        found.append((x, gossip.state_dict(), gossip.wire_bytes()["bytes_per_step_sent"]))
    return found


def test_ranks_have_the_bits_of_one_process() -> None:
    together = run_ranks(2, run_all)
    for case, (x, state, _) in enumerate(run_all()):
        for of_rank in together:
            for w, row in of_rank[case][0].items():
                assert torch.equal(row, x[w]), f"case {case}, worker {w}"
            assert of_rank[case][2] > 0
        kept = together[0][case][1]
        assert kept["bytes_sent"] == state["bytes_sent"]
        for w, name in itertools.product(range(4), state["memory"][0]):
            assert torch.equal(kept["memory"][w][name], state["memory"][w][name])


MOMENTUM = {"quasi_global_momentum": 0.9}


@pytest.mark.parametrize(
    ("rule", "N", "topology", "settings"),
    [
        ("dpsgd", 8, Ring("uniform", directed=True), MOMENTUM),
        ("dpsgd", 16, Ring("uniform", directed=True), MOMENTUM),
        ("dpsgd", 16, RING, MOMENTUM),
        ("dpsgd", 16, RING, MOMENTUM | {"overlap": True}),
        ("dpsgd", 16, RandomPairs("uniform", period=4, seed=0), MOMENTUM),
        ("choco", 8, Ring("uniform", directed=True), MOMENTUM | {"nesterov": True, "knows_start": True}),
        ("choco", 16, Ring("uniform", directed=True), MOMENTUM | {"eta": 0.3, "knows_start": True}),
    ],
)
def test_quasi_global_momentum_moves_workers_apart_at_the_predicted_rate(rule, N, topology, settings):
    gossip = make(rule, N, topology, **settings)
    rows = WeightLayout(SHAPES)
    x = start(rows, N, gossip.mine)
    gossip.begin(rows, x)
    x.normal_(generator=torch.Generator().manual_seed(0)).sub_(
        x.mean(dim=0)
    )  # a mean of 0, so distances stay exact
    distances = []
    for step in range(240):
        gossip.before_step(x, step=step, epoch=0)
        step_WxD = torch.zeros_like(x)
        for i, row in enumerate(step_WxD):
            gossip.correct(i, rows.parameters(row))
        x -= 0.1 * step_WxD
        gossip.after_step(x, lr=0.1, step=step, epoch=0)
        distances.append((x - x.mean(dim=0)).norm())
    rate = float(distances[-1] / distances[-161]) ** (1 / 160)
    assert rate == pytest.approx(gossip.momentum_growth(), abs=5e-3)


def test_the_growth_of_quasi_global_momentum_in_known_cases():
    assert make("dpsgd", 8, Ring("uniform", directed=True), **MOMENTUM).momentum_growth() == pytest.approx(
        1.00615, abs=1e-5
    )
    assert make("dpsgd", 8, Complete("uniform"), **MOMENTUM).momentum_growth() < 1
    assert make("dpsgd", 1, Ring("uniform", directed=True), **MOMENTUM).momentum_growth() is None
    assert make("dpsgd").momentum_growth() is None
    assert make("push_sum", 6, ARROWS, **MOMENTUM).momentum_growth() is None  # rows that do not sum to 1
