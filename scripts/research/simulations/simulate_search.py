"""Simulate how often the test of a search errs and how many pairs it needs, without and with a pooled spread.

    python scripts/research/simulations/simulate_search.py > results/reference/search/simulation.md

The script prints a Markdown table. A "cell" is the set of paired runs of one candidate and its baseline. The prior of
each simulated candidate is computed from the spreads of OTHERS other cells, with three pairs each.

Error rates are measured with candidates that are worse than their baseline by exactly the margin, the boundary case in
which both a certificate and a refutation are wrong. The number of pairs to certify, and the share of candidates
certified by the third pair, are measured with candidates that equal their baseline.

The rows with recorded noise resample the accuracy differences of the grids in results/reference/search. The cells of
these grids have different spreads. These rows use a margin of 1 point.
"""

import argparse
import math
from functools import cache

import numpy as np
import scipy.stats
from noise import GRIDS, Draw, gamma, read_gaps

from cpdrun.stats.evidence import FEWEST_PAIRS, critical_statistic
from cpdrun.stats.pooled_spread import squeeze

PAIRS, ALPHA, OTHERS, POOLS = 30, 0.05, 7, 200
MARGINS = (1.0, 1.5, 2.0, 3.0)  # standard deviations
STEP = 100 / 360  # smallest difference of two recorded accuracies, in points (360 test images)
LARGEST_GAP = 0.05  # recorded cells whose mean accuracy is lower than the baseline's by more are left out

NOISE: dict[str, Draw] = {
    "normal": lambda rng, size: rng.normal(size=size),
    "skewed towards bad runs, -0.5": gamma(-0.5),
    "skewed towards bad runs, -1": gamma(-1),
    "skewed towards good runs, 2": gamma(2),
    "heavy tails, t with 3 degrees": lambda rng, size: rng.standard_t(3, size=size) / math.sqrt(3),
}


def recorded_cells(grid: str) -> dict[str, np.ndarray]:
    """Return each candidate's accuracy differences in a recorded grid minus their mean, in points.

    Candidates with a diverged run, with no difference at all, or with a mean loss above LARGEST_GAP are left out.
    """
    return {
        candidate: 100 * (gaps - gaps.mean())
        for candidate, gaps in read_gaps(grid).items()
        if np.isfinite(gaps).all() and gaps.any() and gaps.mean() > -LARGEST_GAP
    }


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
    """Return the number of pairs until each row is certified, and the number until it is refuted.

    A row of `x` contains one candidate's accuracy differences plus the margin. PAIRS + 1 means never.
    """
    deviation, degrees = prior
    n = np.arange(1, x.shape[-1] + 1)
    total = x.cumsum(-1)
    squares = (x**2).cumsum(-1) + (n - 1) * resolution**2 / 6 + degrees * deviation**2
    statistic = total / np.sqrt(np.where(squares > 0, squares, 1.0))
    effect = min(margin / deviation, 16.0) if degrees and margin else None

    def first(sign: int, alpha: float) -> np.ndarray:
        enough = criticals(alpha, degrees, effect)[: x.shape[-1]]
        if sign > 0:
            enough = np.where(n < FEWEST_PAIRS, np.inf, enough)
        hit = sign * statistic >= enough
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
    """Return the result of `settled` for `count` candidates whose mean difference is `shift`.

    The candidates are divided equally among POOLS priors, each computed from a new set of OTHERS cells.
    """
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(POOLS):
        spreads = np.hypot(others(rng, (OTHERS, 3)).std(-1, ddof=1), step / math.sqrt(6))
        prior = squeeze([(float(spread), 2) for spread in spreads])
        rounded = (
            2 ** (round(8 * math.log2(prior.deviation)) / 8) if prior.degrees else 0.0
        )  # rounded so that `criticals` computes fewer integrals
        x = own(rng, (count // POOLS, PAIRS)) + shift + margin
        given = (rounded, int(prior.degrees)) if pooled else (0.0, 0)
        found.append(settled(x, given, margin, resolution=step))
    certified, refuted = zip(*found, strict=True)
    return np.concatenate(certified), np.concatenate(refuted)


def resampled(*cells: np.ndarray) -> Draw:
    """Return a function that draws from recorded differences. All values of a row come from the same cell."""

    def draw(rng: np.random.Generator, size: tuple[int, ...]) -> np.ndarray:
        rows = [rng.choice(cells[i], size[-1]) for i in rng.integers(len(cells), size=size[0])]
        return np.array(rows)

    return draw


def share(hits: np.ndarray) -> str:
    ends = scipy.stats.binomtest(int(hits.sum()), len(hits)).proportion_ci(0.95, method="wilson")
    return f"{100 * hits.mean():.1f} [{100 * ends.low:.1f}, {100 * ends.high:.1f}]"


def row(name: str, own: Draw, others: Draw, margins: tuple[float, ...], count: int, seed: int) -> list[str]:
    """Return two table rows, one without and one with the prior.

    With several margins, the error rates are measured only for a margin of 2.
    """
    lines = []
    for pooled in (False, True):
        boundary, step = (2.0, 0.0) if len(margins) > 1 else (margins[0], STEP)
        certified, refuted = searches(own, others, -boundary, boundary, count, seed, pooled=pooled, step=step)
        cells = [share(certified <= PAIRS), share(refuted <= PAIRS)]
        for margin in margins:
            equal, _ = searches(own, others, 0.0, margin, count, seed, pooled=pooled, step=step)
            middle, most = np.percentile(equal, 50), np.percentile(equal, 90)
            shown = [f"{value:.0f}" if value <= PAIRS else f"> {PAIRS}" for value in (middle, most)]
            cells.append(f"{shown[0]} ({shown[1]}); {100 * (equal <= 3).mean():.0f}%")
        lines.append(f"| {name} | {'with' if pooled else 'without'} | {' | '.join(cells)} |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--searches", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    count, seed = arguments.searches, arguments.seed
    print("# The test of a search, without and with a pooled spread\n")
    print(
        f"Per cent of {count:,} candidates at the boundary that are wrongly certified and refuted, with the 95% "
        f"interval (Wilson); at most {100 * ALPHA:g} are allowed. Then, for equal candidates, the median (90%) of the "
        f"pairs to certify, and the share certified by the third pair. Up to {PAIRS} pairs, tested after each.\n"
    )
    heads = [f"margin {margin:g} sd: pairs; by the third" for margin in MARGINS]
    print(f"| noise | prior | wrong certificates | wrong refutations | {' | '.join(heads)} |")
    print("|---|---|" + "--:|" * (2 + len(MARGINS)))
    for name, draw in NOISE.items():
        print("\n".join(row(name, draw, draw, MARGINS, count, seed)))
    print("\nRecorded noise, a margin of 1 point:\n")
    print("| noise | prior | wrong certificates | wrong refutations | pairs; by the third |")
    print("|---|---|--:|--:|--:|")
    for name in GRIDS:
        cells = recorded_cells(name)
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
