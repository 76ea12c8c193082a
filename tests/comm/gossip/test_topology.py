"""Graphs of workers: neighbors, doubly stochastic mixing, and spectral gaps with known closed forms."""

import math

import numpy as np
import pytest

from cpdrun.comm.gossip.topologies import (
    Arrows,
    Complete,
    Exponential,
    Hub,
    Links,
    OnePeerExponential,
    RandomPairs,
    Ring,
    Torus,
    mean_gap,
    spectral_gap,
)

GRAPHS = {
    "ring": Ring("uniform", directed=False),
    "directed ring": Ring("uniform", directed=True),
    "torus": Torus("uniform", rows=None),
    "exponential": Exponential("uniform"),
    "complete": Complete("uniform"),
    "metropolis ring": Ring("metropolis", directed=False),
}
STAR = [[0, i] for i in range(1, 5)]


@pytest.mark.parametrize("N", [1, 2, 3, 4, 9, 12])
@pytest.mark.parametrize("name", GRAPHS)
def test_mixing_keeps_the_mean_and_connects_all(name: str, N: int) -> None:
    topology = GRAPHS[name]
    W = topology.matrices(N)[0]
    assert W.min() >= 0
    np.testing.assert_allclose(W.sum(axis=0), 1, atol=1e-12)
    np.testing.assert_allclose(W.sum(axis=1), 1, atol=1e-12)
    for i, of_i in enumerate(topology.senders(N)):
        assert set(np.flatnonzero(W[i])) == {i, *of_i}
    # Rounds of mixing reduce the distance to the mean at least as fast as the spectral gap says.
    x = np.random.default_rng(0).normal(size=N)
    far = np.abs(np.linalg.matrix_power(W, 30) @ x - x.mean()).max()
    assert far <= np.linalg.norm(x) * (1 - spectral_gap(W)) ** 30 + 1e-9


def closed_forms() -> list:
    def ring(n: int) -> float:
        return 2 / 3 * (1 - math.cos(2 * math.pi / n))

    return [
        *(("ring", n, ring(n)) for n in (3, 8, 16)),
        *(("directed ring", n, 1 - math.cos(math.pi / n)) for n in (2, 8, 16)),
        *(("torus", n * n, 2 / 5 * (1 - math.cos(2 * math.pi / n))) for n in (3, 4, 6)),
        *(("exponential", n, 2 / (1 + math.ceil(math.log2(n)))) for n in (2, 6, 8, 12, 16)),
        *(("complete", n, 1.0) for n in (1, 2, 7)),
    ]


@pytest.mark.parametrize(("name", "N", "gap"), closed_forms())
def test_spectral_gaps_are_those_of_the_closed_forms(name: str, N: int, gap: float) -> None:
    W = GRAPHS[name].matrices(N)[0]
    assert spectral_gap(W) == pytest.approx(gap, abs=1e-12)
    if np.array_equal(W, W.T):
        assert sorted(np.abs(np.linalg.eigvalsh(W)))[:-1][-1:] == pytest.approx(
            [1 - gap] if N > 1 else [], abs=1e-12
        )


def test_metropolis_mixes_graphs_with_different_numbers_of_neighbors() -> None:
    W = Links("metropolis", STAR).matrices(5)[0]
    np.testing.assert_allclose(W[0], [1 / 5] * 5)
    np.testing.assert_allclose(W[1], [1 / 5, 4 / 5, 0, 0, 0])


@pytest.mark.parametrize(
    ("topology", "N", "message"),
    [
        (Ring("metropolis", directed=True), 4, "links go both ways"),
        (Links("metropolis", [[0, 1], [2, 3]]), 4, "do not connect all workers"),
        (
            Links("metropolis", [[0, 4]]),
            4,
            r"\[0, 4\] must be a pair of workers, which are numbered from 0 to 3",
        ),
        (Links("metropolis", [3]), 4, r"\[3\] must be a pair of workers"),
        (Links("uniform", STAR), 5, "Set topology.mixing=metropolis"),
        (RandomPairs("uniform", 1, 0), 8, "do not connect all workers"),
        (Hub("uniform"), 4, "Set sync=gossip_push_sum"),
        (Torus("uniform", rows=3), 8, "topology.rows=3 does not divide world_size=8"),
    ],
)
def test_graphs_that_cannot_gossip_are_refused(topology, N: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        topology.matrices(N)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        # -1 once gave a graph without workers, and 0 was taken for null
        *(
            (lambda rows=rows: Torus("uniform", rows), r"topology\.rows=.*: must be a whole")
            for rows in (0, -1, 1.5)
        ),
        (
            lambda: Ring("best", directed=False),
            r"topology\.mixing must be one of uniform, metropolis, not best",
        ),
        (lambda: RandomPairs("uniform", 0, 0), r"topology\.period=0"),
    ],
)
def test_settings_out_of_range_are_refused(make, message) -> None:
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize("N", [1, 2, 5, 8, 12])
@pytest.mark.parametrize("topology", [OnePeerExponential("uniform"), RandomPairs("uniform", 30, 0)])
def test_each_round_of_a_changing_graph_keeps_the_mean_and_all_together_connect(topology, N: int) -> None:
    rounds, matrices = topology.rounds(N), topology.matrices(N)
    assert len(rounds) == len(matrices)
    x = np.random.default_rng(0).normal(size=N)
    mean = x.mean()
    for senders, W in zip(rounds, matrices, strict=True):
        np.testing.assert_allclose(W.sum(axis=0), 1, atol=1e-12)
        np.testing.assert_allclose(W.sum(axis=1), 1, atol=1e-12)
        assert all(len(of_i - {i}) <= 1 for i, of_i in enumerate(senders))
        x = W @ x
    assert x.mean() == pytest.approx(mean)
    assert 0 < mean_gap(topology.matrices(N)) <= 1
    if isinstance(topology, OnePeerExponential) and N in (2, 8):
        np.testing.assert_allclose(x, mean, atol=1e-12)
        assert mean_gap(topology.matrices(N)) > 0.99


@pytest.mark.parametrize("period", [4, 25, 400])
def test_the_mean_gap_of_many_rounds_is_accurate(period: int) -> None:
    """Compare the gap with the product of few rounds, and with how fast workers agree in 800 rounds.

    The gap is a lower bound for this speed, whatever the initial weights are. There are ten workers, because
    eight may agree exactly.
    """
    topology = RandomPairs("uniform", period, 0)
    matrices, gap = topology.matrices(10), mean_gap(topology.matrices(10))
    if period == 4:
        product = matrices[3] @ matrices[2] @ matrices[1] @ matrices[0]
        assert gap == pytest.approx(1 - np.linalg.norm(product - 1 / 10, 2) ** (1 / 4))
        return
    apart, logs = np.random.default_rng(0).normal(size=10), 0.0
    for t in range(800):
        apart = matrices[t % period] @ (apart - apart.mean())
        logs, apart = logs + math.log(np.linalg.norm(apart)), apart / np.linalg.norm(apart)
    assert gap == pytest.approx(1 - math.exp(logs / 800), abs=0.05) and 0.1 < gap < 0.5


def test_random_pairs_depend_on_the_seed() -> None:
    a, b, c = (RandomPairs("uniform", 20, seed).rounds(8) for seed in (0, 0, 1))
    assert a == b != c
    assert all(senders[next(iter(senders[i]))] == {i} for senders in a for i in range(8))


def test_a_hub_sends_to_all_and_receives_from_one() -> None:
    (P,) = Hub("uniform").push_matrices(4)
    np.testing.assert_allclose(P[:, 0], [1 / 4] * 4)
    np.testing.assert_allclose(P[0], [1 / 4, 0, 0, 1 / 2])
    np.testing.assert_allclose(P.sum(axis=0), 1)


def test_push_sum_columns_sum_to_one_on_one_way_links() -> None:
    (P,) = Arrows("uniform", [[0, 1], [1, 2], [2, 0], [0, 2]]).push_matrices(3)
    np.testing.assert_allclose(P, [[1 / 3, 0, 1 / 2], [1 / 3, 1 / 2, 0], [1 / 3, 1 / 2, 1 / 2]])
    with pytest.raises(
        ValueError,
        match=r"topology\.arrows: \[0, 3\] must be a pair of workers, which are numbered from 0 to 2",
    ):
        Arrows("uniform", [[0, 3]]).push_matrices(3)
