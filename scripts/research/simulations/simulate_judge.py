"""Simulate sessions of `cpdrun judge`, and count how many of the ideas that an agent keeps are false.

    nice python scripts/research/simulations/simulate_judge.py > results/reference/judge/simulation.md

The script prints a Markdown table. A session has 100 ideas, of which 0 to 20 are better than the baseline by 0.5 to 3
standard deviations of a pair's gap. Half of the other ideas make no difference, and half are worse. An agent adds pairs
to an idea until the idea is kept, refuted, or has reached the largest number of pairs. For comparison, a greedy rule
uses the same pairs and keeps an idea if the mean of its gaps is above 0. The script takes about ten minutes.

There are four kinds of noise:

- normal,
- skewed to the left, like that of runs that sometimes fail,
- recorded, from results/reference/search,
- normal, with a standard deviation that differs between ideas by a factor of about two.
"""

import argparse
import math
from collections.abc import Callable

import numpy as np
from noise import GRIDS, gamma, read_gaps
from scipy.special import ndtr

from cpdrun.stats.evidence import EFFECTS
from cpdrun.stats.false_discoveries import required_log_evidence
from cpdrun.stats.pooled_spread import FEWEST_CELLS, FIRST_PAIRS, MOST_DEGREES

IDEAS, MOST_REAL, ALPHA = 100, 20, 0.05
MOST_KEPT = 60  # the largest number of kept ideas for which the threshold is tabulated
STEP = 1 / 360  # the resolution of the recorded accuracies

# A function that returns gaps minus their mean, and the resolution of the values of each idea.
Draw = Callable[[np.random.Generator, tuple[int, ...]], tuple[np.ndarray, np.ndarray]]


def log_evidence(statistic: np.ndarray, pairs: int, degrees: int) -> np.ndarray:
    """Return `cpdrun.stats.evidence.log_evidence` for an array of T. A negative T counts as 0."""
    k, parts, statistic = pairs + degrees, [], np.maximum(statistic, 0)
    for effect in EFFECTS:
        w = effect * statistic
        first = math.sqrt(2 * math.pi) * ndtr(w)
        log_integral = w * w / 2 + np.log(first)
        ratio = w + np.exp(-w * w / 2) / first
        for j in range(1, k):
            log_integral += np.log(ratio)
            ratio = w + j / ratio
        parts.append(log_integral - pairs * effect**2 / 2)
    constant = (k / 2 - 1) * math.log(2) + math.lgamma(k / 2) + math.log(len(EFFECTS))
    return np.logaddexp.reduce(parts) - constant


def standardized_cells() -> tuple[np.ndarray, np.ndarray]:
    """Return the standardized gaps of the recorded grids, and the resolution of the values in each cell.

    Each row contains the gaps of one cell, with mean 0 and standard deviation 1.
    """
    cells = [gaps for grid in GRIDS for gaps in read_gaps(grid).values() if len(gaps) >= 20]
    # The seeds must be in alphabetical order (0, 1, 10, 11, ..., 2, 20, ...), as in the committed simulation.
    cells = [gaps[sorted(range(len(gaps)), key=str)] for gaps in cells if gaps.std() > 0]
    shortest = min(map(len, cells))
    rows = [((gaps - gaps.mean()) / gaps.std())[:shortest] for gaps in cells]
    return np.array(rows), np.array([STEP / gaps.std() for gaps in cells])


def draw_recorded(rng: np.random.Generator, size: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    cells, steps = standardized_cells()
    which = rng.integers(len(cells), size=(size[0], size[1], 1))
    return cells[which, rng.integers(cells.shape[1], size=size)], steps[which[..., 0]]


def exact(draw: Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]) -> Draw:
    """Return noise whose values have no limited resolution."""
    return lambda rng, size: (draw(rng, size), np.zeros(size[:2]))


NOISE: dict[str, Draw] = {
    "normal": exact(lambda rng, size: rng.normal(size=size)),
    "skewed to the left": exact(gamma(-1)),
    "recorded": draw_recorded,
    "normal, spread differs": exact(
        lambda rng, size: rng.normal(size=size) * np.exp(0.35 * rng.normal(size=(*size[:2], 1)))
    ),
}


def simulate(
    rng: np.random.Generator, noise: Draw, sessions: int, pairs: int
) -> dict[str, tuple[np.ndarray, ...]]:
    """Return, for each session, the numbers of real and false ideas that were kept, the gain, and the pairs used."""
    real = rng.random((sessions, IDEAS)).argsort(1) < rng.integers(MOST_REAL + 1, size=(sessions, 1))
    worse = -rng.exponential(0.5, (sessions, IDEAS)) * (rng.random((sessions, IDEAS)) < 0.5)
    effects = np.where(real, rng.uniform(0.5, 3, (sessions, IDEAS)), worse)
    gaps, steps = noise(rng, (sessions, IDEAS, pairs))
    gaps += effects[..., None]
    rounding = steps**2 / 6
    thresholds = np.array([required_log_evidence(1, k, ALPHA, IDEAS) for k in range(1, MOST_KEPT + 1)])
    counts = np.zeros(
        (sessions, MOST_KEPT)
    )  # the number of earlier ideas whose evidence reaches each threshold
    taken = np.zeros((sessions, IDEAS), int)
    evidence = np.zeros((sessions, IDEAS))
    spreads = gaps[..., : min(FIRST_PAIRS, pairs)].var(-1, ddof=1) + rounding
    for idea in range(IDEAS):
        going = np.ones(sessions, bool)
        has_prior = idea >= FEWEST_CELLS
        pooled = np.exp(np.log(spreads[:, :idea]).mean(1) + 0.5772) if has_prior else np.zeros(sessions)
        degrees = MOST_DEGREES if has_prior else 0
        for n in range(1, pairs + 1):
            at = np.flatnonzero(going)
            taken[at, idea] = n
            if n + degrees < 2:
                continue
            x = gaps[at, idea, :n]
            statistic = x.sum(1) / np.sqrt(
                (x**2).sum(1) + (n - 1) * rounding[at, idea] + degrees * pooled[at]
            )
            log = log_evidence(statistic, n, degrees)
            evidence[at, idea] = log
            is_kept = (counts[at] + (log[:, None] >= thresholds) >= np.arange(1, MOST_KEPT + 1)) & (
                log[:, None] >= thresholds
            )
            is_refuted = log_evidence(-statistic, n, degrees) >= math.log(1 / ALPHA)
            going[at[is_kept.any(1) | is_refuted]] = False
        counts += evidence[:, idea, None] >= thresholds
    most = np.where(counts >= np.arange(1, MOST_KEPT + 1), np.arange(1, MOST_KEPT + 1), 0).max(1)
    threshold = np.where(most > 0, thresholds[np.maximum(most, 1) - 1], np.inf)
    kept = evidence >= threshold[:, None]
    means = np.where(np.arange(pairs) < taken[..., None], gaps, 0).sum(-1) / taken
    rules = {"cpdrun judge --session": kept, "greedy": means > 0}
    spent = taken.sum(1)
    return {
        name: (_false_share(found, real), (found & real).sum(1), (found * effects).sum(1), spent, real.sum(1))
        for name, found in rules.items()
    }


def _false_share(kept: np.ndarray, real: np.ndarray) -> np.ndarray:
    return (kept & ~real).sum(1) / np.maximum(kept.sum(1), 1)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sessions", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--chunk", type=int, default=1000)
    arguments = parser.parse_args()
    rng = np.random.default_rng(arguments.seed)
    print(f"{arguments.sessions:,} sessions a row, {IDEAS} ideas each, 0 to {MOST_REAL} of them real.\n")
    print(
        "| noise | most pairs | rule | false among the kept | real ideas kept | gain per 100 pairs | pairs |"
    )
    print("|---|--:|---|--:|--:|--:|--:|")
    for pairs in (6, 12):
        for name, noise in NOISE.items():
            chunks = [
                simulate(rng, noise, min(arguments.chunk, arguments.sessions), pairs)
                for _ in range(max(1, arguments.sessions // arguments.chunk))
            ]
            for rule in chunks[0]:
                false, found, gain, spent, real = (
                    np.concatenate(part) for part in zip(*(c[rule] for c in chunks), strict=True)
                )
                share = found.sum() / real.sum()
                per = 100 * gain.sum() / spent.sum()
                print(
                    f"| {name} | {pairs} | {rule} | {100 * false.mean():.1f}% | {100 * share:.0f}% "
                    f"| {per:+.2f} | {spent.mean():.0f} |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
