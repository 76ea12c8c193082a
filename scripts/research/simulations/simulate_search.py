"""How often the test of a search errs, and how many pairs it takes, without and with a pooled spread: a Markdown table.

    nice python scripts/research/simulations/simulate_search.py > results/reference/search/simulation.md

Every simulated candidate has OTHERS other cells with three pairs each, whose spreads give its prior. At the boundary,
the candidate is worse than its baseline by exactly the margin, so that each certificate and each refutation is wrong.
Pairs to certify, and the share that is certified by the third pair, are of candidates that equal the baseline. Recorded
noise is that of the grids in results/reference/search, resampled. Its cells differ in their spreads, and its margin is
1 point.
"""

import argparse
import csv
import math
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import scipy.stats

from cpdrun.stats.evidence import critical_statistic
from cpdrun.stats.pooled_spread import squeeze

PAIRS, ALPHA, OTHERS, POOLS = 30, 0.05, 7, 200
MARGINS = (1.0, 1.5, 2.0, 3.0)  # standard deviations
STEP = 100 / 360  # points of the recorded accuracies, on 360 test images
RECORDED = ("digits_convnet", "digits_mlp")
LARGEST_GAP = 0.05  # of recorded cells that learned

Draw = Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]  # differences minus their mean


def gamma(skewness: float) -> Draw:
    """Return a gamma distribution with mean 0, standard deviation 1 and this skewness."""
    shape = 4 / skewness**2
    return lambda rng, size: np.sign(skewness) * (rng.gamma(shape, size=size) - shape) / math.sqrt(shape)


NOISE: dict[str, Draw] = {
    "normal": lambda rng, size: rng.normal(size=size),
    "skewed towards bad runs, -0.5": gamma(-0.5),
    "skewed towards bad runs, -1": gamma(-1),
    "skewed towards good runs, 2": gamma(2),
    "heavy tails, t with 3 degrees": lambda rng, size: rng.standard_t(3, size=size) / math.sqrt(3),
}


def recorded(name: str) -> dict[str, np.ndarray]:
    """Return the differences of a recorded grid minus their mean, in points, by candidate, without broken cells."""
    values: dict[str, dict[int, float]] = {}
    baseline = {}
    with Path(f"results/reference/search/{name}.csv").open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            values.setdefault(row["candidate"], {})[int(row["seed"])] = float(row["value"])
            baseline[row["candidate"]] = row["baseline"]
    found = {}
    for candidate, against in baseline.items():
        if against and against != candidate:
            gaps = np.array([value - values[against][seed] for seed, value in values[candidate].items()])
            if np.isfinite(gaps).all() and gaps.any() and gaps.mean() > -LARGEST_GAP:
                found[candidate] = 100 * (gaps - gaps.mean())
    return found


@cache
def criticals(alpha: float, degrees: int, equal_effect: float | None) -> np.ndarray:
    return np.array([critical_statistic(n, alpha, degrees, equal_effect) for n in range(1, PAIRS + 1)])


def settled(
    x: np.ndarray,
    prior: tuple[float, int] = (0.0, 0),
    margin: float = 0.0,
    certify: float = ALPHA,
    refute: float = ALPHA,
    resolution: float = 0.0,
) -> tuple[np.ndarray, np.ndarray]:
    """Return after how many pairs each row of x = difference + margin is certified, and refuted; PAIRS + 1: never."""
    deviation, degrees = prior
    n = np.arange(1, x.shape[-1] + 1)
    total = x.cumsum(-1)
    squares = (x**2).cumsum(-1) + (n - 1) * resolution**2 / 6 + degrees * deviation**2
    statistic = total / np.sqrt(np.where(squares > 0, squares, 1.0))
    effect = min(margin / deviation, 16.0) if degrees and margin else None

    def first(sign: int, alpha: float) -> np.ndarray:
        hit = sign * statistic >= criticals(alpha, degrees, effect)[: x.shape[-1]]
        return np.where(hit.any(-1), hit.argmax(-1) + 1, PAIRS + 1)

    certified, refuted = first(1, certify), first(-1, refute)
    never = PAIRS + 1
    return np.where(certified < refuted, certified, never), np.where(refuted < certified, refuted, never)


def searches(
    own: Draw,
    others: Draw,
    shift: float,
    margin: float,
    count: int,
    seed: int,
    *,
    pooled: bool,
    step: float = 0.0,
) -> tuple[np.ndarray, np.ndarray]:
    """Return `settled` of `count` candidates with a mean of `shift`, with the priors of POOLS sets of other cells."""
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(POOLS):
        spreads = np.hypot(others(rng, (OTHERS, 3)).std(-1, ddof=1), step / math.sqrt(6))
        prior = squeeze([(float(spread), 2) for spread in spreads])
        rounded = (
            2 ** (round(8 * math.log2(prior.deviation)) / 8) if prior.degrees else 0.0
        )  # fewer integrals
        x = own(rng, (count // POOLS, PAIRS)) + shift + margin
        given = (rounded, int(prior.degrees)) if pooled else (0.0, 0)
        found.append(settled(x, given, margin, resolution=step))
    certified, refuted = zip(*found, strict=True)
    return np.concatenate(certified), np.concatenate(refuted)


def resampled(*cells: np.ndarray) -> Draw:
    """Return draws from recorded differences; each row is of one of the cells."""

    def draw(rng: np.random.Generator, size: tuple[int, ...]) -> np.ndarray:
        rows = [rng.choice(cells[i], size[-1]) for i in rng.integers(len(cells), size=size[0])]
        return np.array(rows)

    return draw


def share(hits: np.ndarray) -> str:
    ends = scipy.stats.binomtest(int(hits.sum()), len(hits)).proportion_ci(0.95, method="wilson")
    return f"{100 * hits.mean():.1f} [{100 * ends.low:.1f}, {100 * ends.high:.1f}]"


def row(name: str, own: Draw, others: Draw, margins: tuple[float, ...], count: int, seed: int) -> list[str]:
    """Return two rows, without and with the prior. The boundary is looked at with a margin of 2."""
    lines = []
    for pooled in (False, True):
        boundary, step = (2.0, 0.0) if len(margins) > 1 else (margins[0], STEP)
        certified, refuted = searches(own, others, -boundary, boundary, count, seed, pooled=pooled, step=step)
        cells = [share(certified <= PAIRS), share(refuted <= PAIRS)]
        for margin in margins:
            equal, _ = searches(own, others, 0.0, margin, count, seed, pooled=pooled, step=step)
            middle, most = np.percentile(equal, 50), np.percentile(equal, 90)
            shown = [f"{value:.0f}" if value <= PAIRS else f"> {PAIRS}" for value in (middle, most)]
            cells.append(f"{shown[0]} ({shown[1]}); {100 * (equal <= 3).mean():.0f} %")
        lines.append(f"| {name} | {'with' if pooled else 'without'} | {' | '.join(cells)} |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--searches", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    count, seed = arguments.searches, arguments.seed
    print("# The test of a search, without and with a pooled spread\n")
    print(
        f"Per cent of {count:,} candidates at the boundary that are wrongly certified and refuted, with the 95 % "
        f"interval (Wilson); at most {100 * ALPHA:g} are allowed. Then, for equal candidates, the median (90 %) of the "
        f"pairs to certify, and the share certified by the third pair. Up to {PAIRS} pairs, looked at after each.\n"
    )
    heads = [f"margin {margin:g} sd: pairs; by the third" for margin in MARGINS]
    print(f"| noise | prior | wrong certificates | wrong refutations | {' | '.join(heads)} |")
    print("|---|---|" + "--:|" * (2 + len(MARGINS)))
    for name, draw in NOISE.items():
        print("\n".join(row(name, draw, draw, MARGINS, count, seed)))
    print("\nRecorded noise, a margin of 1 point:\n")
    print("| noise | prior | wrong certificates | wrong refutations | pairs; by the third |")
    print("|---|---|--:|--:|--:|")
    for name in RECORDED:
        cells = recorded(name)
        for candidate, gaps in cells.items():
            others = resampled(*(each for other, each in cells.items() if other != candidate))
            print(
                "\n".join(
                    row(
                        f"{name}, {candidate}, sd {gaps.std(ddof=1):.2f}",
                        resampled(gaps),
                        others,
                        (1.0,),
                        count,
                        seed,
                    )
                )
            )


if __name__ == "__main__":
    main()
