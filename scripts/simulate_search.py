"""How often a search certifies what is worse than allowed: simulated searches, as a Markdown table.

    nice python scripts/simulate_search.py > results/reference/search/simulation.md

The truth is the hardest there is: every format is worse than the baseline by exactly the tolerance, so that each
certificate is wrong, and every candidate is seeded to the end. Then the same where the wide formats are mixed: one of
each width equals the baseline, the others and the whole narrowest width are at the boundary; wrong is a claim that the
narrowest width is enough. And where a chain of STARTED widths starts at one that was predicted, rightly or not: the
wide ones equal the baseline, from one on all are at the boundary; wrong is any certificate of those, wherever the
search has gone from its start. Differences are drawn with a standard deviation of 1 and looked at after every pair.
"""

import argparse
import math
from collections.abc import Callable

import numpy as np

from cpdrun.stats.chain import portions, shares
from cpdrun.stats.evidence import critical_statistic
from cpdrun.stats.intervals import wilson

PAIRS, ALPHA = 30, 0.05
FAMILIES = [(1, 1), (2, 1), (3, 1), (4, 1), (1, 2), (1, 4), (2, 2), (4, 4)]  # formats a width, chains
TOLERANCE = 2.0  # standard deviations, where some are equal to the baseline
WIDTHS = 3  # of a mixed chain: the last is worse throughout
STARTED = 5  # widths of a chain that starts at one of them
STARTS = (0, 1, 2, 4)  # by index: the widest is 0
WORST = -200.0  # what a diverged run is worth: as 98 points where the deviation is half a point
CHUNK = 1000

Draw = Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]  # differences less their mean


def gamma(skewness: float) -> Draw:
    """A gamma distribution of mean 0, deviation 1 and this skewness."""
    shape = 4 / skewness**2
    return lambda rng, size: np.sign(skewness) * (rng.gamma(shape, size=size) - shape) / math.sqrt(shape)


def counted(rng: np.random.Generator, size: tuple[int, ...]) -> np.ndarray:
    """Both values rounded to steps of .8 deviations, as accuracies on 360 samples of runs that are .35 points apart."""
    values = rng.normal(size=(2, *size)) / math.sqrt(2)
    return (np.round(values[0] / STEP) - np.round(values[1] / STEP)) * STEP


def diverging(share: float, *, hidden: bool) -> Draw:
    """That share of the runs diverges and counts as WORST. Not `hidden`: the others are at the boundary by themselves.
    `hidden`: the others are better, so that the mean with the diverged ones is at the boundary."""

    def draw(rng: np.random.Generator, size: tuple[int, ...]) -> np.ndarray:
        others = rng.normal(size=size) - (share * WORST / (1 - share) if hidden else 0.0)
        return np.where(rng.random(size) < share, WORST, others)

    return draw


STEP = 0.8
HOLDS: dict[str, Draw] = {
    "normal": lambda rng, size: rng.normal(size=size),
    "counts of samples": counted,
    "skewed towards good runs, 2": gamma(2),
    "skewed towards bad runs, −0.5": gamma(-0.5),
    "heavy tails, t with 3 degrees": lambda rng, size: rng.standard_t(3, size=size) / math.sqrt(3),
    "5 % diverge, the others at the boundary": diverging(0.05, hidden=False),
    "30 % diverge, the others at the boundary": diverging(0.3, hidden=False),
}
BREAKS: dict[str, Draw] = {
    "skewed towards bad runs, −1": gamma(-1),
    "skewed towards bad runs, −2": gamma(-2),
    "1 % diverge, hidden in a mean at the boundary": diverging(0.01, hidden=True),
}


def settled(x: np.ndarray, certify: float, refute: float, resolution: float) -> tuple[np.ndarray, np.ndarray]:
    """Whether each row of x = difference + tolerance is certified, or refuted, first. x: [..., pairs]; bool [...]."""
    n = np.arange(1, x.shape[-1] + 1)
    mean = x.cumsum(-1) / n
    variance = ((x**2).cumsum(-1) - n * mean**2).clip(0) / np.maximum(n - 1, 1) + resolution**2 / 6
    square = mean**2 + (n - 1) / n * variance
    z = mean * np.sqrt(n / np.where(square > 0, square, 1.0))
    above, below = (
        sign * z >= [critical_statistic(int(k), alpha) for k in n]
        for sign, alpha in ((1, certify), (-1, refute))
    )
    never = x.shape[-1]
    first_above, first_below = (np.where(hit.any(-1), hit.argmax(-1), never) for hit in (above, below))
    return first_above < first_below, first_below < first_above


def at_the_boundary(
    draw: Draw, formats: int, chains: int, searches: int, seed: int, resolution: float = 0.0
) -> int:
    """Searches with a wrong certificate. Below a width of which nothing is certified nothing is tried."""
    rng, wrong = np.random.default_rng(seed), 0
    for start in range(0, searches, CHUNK):
        x = draw(rng, (min(CHUNK, searches - start), chains, formats, PAIRS))
        certified, _ = settled(x, *shares(ALPHA, formats, chains), resolution)
        wrong += int(certified.any((1, 2)).sum())
    return wrong


def mixed(
    draw: Draw, formats: int, chains: int, searches: int, seed: int, resolution: float = 0.0
) -> tuple[int, int]:
    """Searches that claim too few bits, and that name any format which is worse than allowed."""
    rng, too_few, misnamed = np.random.default_rng(seed), 0, 0
    for start in range(0, searches, CHUNK):
        size = min(CHUNK, searches - start)
        x = draw(rng, (size, chains, WIDTHS, formats, PAIRS))
        good = rng.integers(formats, size=(size, chains, WIDTHS, 1)) == np.arange(formats)
        good[:, :, -1] = False
        x = x + np.where(good, TOLERANCE, 0.0)[..., None]
        certified, _ = settled(x, *shares(ALPHA, formats, chains), resolution)
        reached = np.cumprod(certified.any(-1), -1).astype(bool)  # every width up to here is certified
        first = certified.argmax(
            -1
        )  # formats are tried one after the other, and the first certified is named
        named_well = np.take_along_axis(good, first[..., None], -1)[..., 0]
        too_few += int(reached[:, :, -1].any(-1).sum())
        misnamed += int((reached & ~named_well).any((1, 2)).sum())
    return too_few, misnamed


def from_a_start(
    draw: Draw,
    start: int,
    good: int,
    formats: int,
    chains: int,
    searches: int,
    seed: int,
    resolution: float = 0.0,
) -> int:
    """Searches with a wrong certificate, of chains that start at width `start`, of which the `good` widest have one
    format that equals the baseline and all else is at the boundary. As a search does, it goes down from the start
    while widths are certified, and, where the start is not, up until one is."""
    rng, wrong, size = np.random.default_rng(seed), 0, CHUNK // 4
    certify, refute = shares(ALPHA, formats, chains)
    for begin in range(0, searches, size):
        now = min(size, searches - begin)
        claimed = np.zeros((now, chains, STARTED), bool)
        is_wrong = np.zeros((now, chains, STARTED), bool)
        for width, portion in enumerate(portions(STARTED, start)):
            x = draw(rng, (now, chains, formats, PAIRS))
            equal = (rng.integers(formats, size=(now, chains, 1)) == np.arange(formats)) & (width < good)
            certified, _ = settled(
                x + np.where(equal, TOLERANCE, 0.0)[..., None], certify * portion, refute, resolution
            )
            claimed[:, :, width], is_wrong[:, :, width] = certified.any(-1), width >= good
        down = np.cumprod(claimed[:, :, start:], -1).astype(bool)
        above = claimed[:, :, :start][:, :, ::-1]  # from the start up
        first = np.cumsum(above, -1) == 1
        up = above & first & ~claimed[:, :, start, None]
        found = np.concatenate([up[:, :, ::-1], down], -1)
        wrong += int((found & is_wrong).any((1, 2)).sum())
    return wrong


def starts(searches: int, seed: int) -> list[str]:
    families = [(1, 1), (3, 1), (3, 4)]
    lines = [
        f"| of {STARTED} widths good enough | differences | formats, chains | "
        + " | ".join("starts at the widest" if s == 0 else f"at width {s + 1}" for s in STARTS)
        + " |",
        "|---|---|---|" + "--:|" * len(STARTS),
    ]
    for good in (0, 1, 3):
        for name in ("normal", "skewed towards bad runs, −0.5"):
            for k, c in families:
                counts = [from_a_start(HOLDS[name], s, good, k, c, searches, seed) for s in STARTS]
                cells = " | ".join(shown(count, searches) for count in counts)
                lines.append(f"| {good or 'none'} | {name} | {k}, {c} | {cells} |")
    return lines


def shown(wrong: int, searches: int) -> str:
    low, high = wilson(wrong / searches, searches, 95)
    return f"{100 * wrong / searches:.1f} [{100 * low:.1f}, {100 * high:.1f}]"


def table(searches: int, seed: int) -> list[str]:
    heads = [f"{k} format{'s' if k > 1 else ''}, {c} chain{'s' if c > 1 else ''}" for k, c in FAMILIES]
    lines = [f"| differences | wrong | {' | '.join(heads)} |", "|---|---|" + "--:|" * len(heads)]

    def add(name: str, what: str, counts: list[int]) -> None:
        lines.append(f"| {name} | {what} | {' | '.join(shown(count, searches) for count in counts)} |")

    for name, draw in {**HOLDS, **BREAKS}.items():
        step = STEP if draw is counted else 0.0
        note = " *(assumption broken)*" if name in BREAKS else ""
        add(
            name + note,
            "any certificate",
            [at_the_boundary(draw, k, c, searches, seed, step) for k, c in FAMILIES],
        )
    counts = [mixed(HOLDS["normal"], k, c, searches, seed) for k, c in FAMILIES]
    add("normal, one of each wide width equal", "too few bits", [few for few, _ in counts])
    add("", "a wrong name at any width", [name for _, name in counts])
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--searches", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    print("# Wrong certificates at the boundary\n")
    print(
        f"Per cent of {arguments.searches:,} searches, with the 95 % interval (Wilson); wanted: at most "
        f"{100 * ALPHA:g}. Up to {PAIRS} pairs a candidate, looked at after each. "
        f"`python scripts/simulate_search.py --searches {arguments.searches} --seed {arguments.seed}`\n"
    )
    print("\n".join(table(arguments.searches, arguments.seed)))
    print("\n# Wrong certificates where a search starts below the widest\n")
    print(
        "The same searches, wrong certificates wherever they went. Width 1 is the widest; where 3 are good enough, a "
        "start at width 2 is too wide, at 3 right and at 5 too narrow.\n"
    )
    print("\n".join(starts(arguments.searches, arguments.seed)))


if __name__ == "__main__":
    main()
