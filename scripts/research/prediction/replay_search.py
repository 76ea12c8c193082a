"""Replay searches on a recorded grid, to measure how often they find the whole grid's answer, and with how many runs.

    cpdrun sweep exp=digits_bits 'seed=range(0,30)'                                    # every cell at 30 seeds
    python scripts/research/prediction/replay_search.py record exp=digits_bits > digits.csv
    python scripts/research/prediction/replay_search.py replay digits.csv --tolerance 1
    python scripts/research/prediction/replay_search.py starts

`record` writes the values of a finished sweep as CSV. `replay` runs 200 searches on such a grid, each with the seeds in
a different random order, and prints a Markdown table. It takes minutes. `starts` prints the differences between
predicted starts and recorded answers. The results are in results/reference/search and results/reference/predict.

A ladder is a series of widths. The answer of the whole grid for a ladder is the narrowest width for which this width
and all wider ones have a format whose mean over all seeds is within the tolerance. A search agrees with this answer if
the narrowest width that it certifies is the same.

With --predicted NAME, the search uses predictions of a model that was fitted without experiment NAME
(results/reference/predict/predicted.csv). It tests the formats of a width in the predicted order. Idle cores do not
test narrower widths in advance if a format is likely to fail. With --start predicted, the search also starts at the
predicted width (search.start). With --start BITS, it starts at that width. The first run of the baseline is then not
used in a pair. With --broken-below BITS, all narrower formats are as bad as the worst cell of the grid, so that
predictions can be wrong.
"""

import argparse
import csv
import math
import random
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, median

from cpdrun.search.initial_width import predicted_width, start_at
from cpdrun.search.ladders import Candidate, Ladder, Rules, ladder_states
from cpdrun.search.question import ask
from cpdrun.search.results import Results
from cpdrun.search.schedule import wanted_runs
from cpdrun.search.settings import PREDICTED as FROM_PREDICTED
from cpdrun.search.settings import WIDEST
from cpdrun.stats.ended_runs import EndedRuns
from cpdrun.stats.evidence import differences
from cpdrun.stats.ledger import Ledger
from cpdrun.study import formats
from cpdrun.study.metric import Metric

COLUMNS = ("chain", "bits", "candidate", "baseline", "seed", "value")
PREDICTED = Path("results/reference/predict/predicted.csv")
SLOTS = 2  # the number of runs at the same time
FIRST_SEED = 0  # the seed of the baseline's run on which a prediction is based


@dataclass(frozen=True)
class Grid:
    """The recorded metrics of a grid.

    Attributes:
        ladders: The ladders of formats.
        values: For each cell, the metric of the runs with seeds 0, 1, 2 and so on. It is NaN for a diverged run.
    """

    ladders: list[Ladder]
    values: dict[str, list[float]]

    @property
    def seeds(self) -> int:
        return min(len(values) for values in self.values.values())

    @property
    def runs(self) -> int:
        return len(self.values) * self.seeds


def record(words: Sequence[str]) -> Grid:
    """Read the values of a finished sweep. A cell is named by its label, and a baseline is named `baseline NAME`."""
    results = Results(ask(words))
    values: dict[str, list[float]] = {}
    ladders = []
    for ladder in results.question.ladders:
        widths = []
        for width in ladder.widths:
            renamed = []
            for candidate in width:
                baseline = f"baseline {candidate.baseline}"
                for name, cell in ((candidate.label, candidate.name), (baseline, candidate.baseline)):
                    found = results.ended.values.get(cell, {})
                    values[name] = [found[seed] for seed in sorted(found)]
                renamed.append(Candidate(candidate.label, baseline, candidate.label, candidate.bits))
            widths.append(tuple(renamed))
        ladders.append(Ladder(ladder.label, tuple(widths)))
    return Grid(ladders, values)


def write(grid: Grid, file) -> None:
    table = csv.writer(file, lineterminator="\n")
    table.writerow(COLUMNS)
    for ladder in grid.ladders:
        for candidate in (c for width in ladder.widths for c in width):
            for seed, value in enumerate(grid.values[candidate.name]):
                row = (ladder.label, f"{candidate.bits:g}", candidate.name, candidate.baseline, seed, value)
                table.writerow(row)
    for name in {c.baseline: None for ladder in grid.ladders for width in ladder.widths for c in width}:
        for seed, value in enumerate(grid.values[name]):
            table.writerow(("", "", name, "", seed, value))


def read(path: Path) -> Grid:
    values: dict[str, list[float]] = {}
    ladders: dict[str, dict[float, dict[str, Candidate]]] = {}
    with path.open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            name = row["candidate"]
            values.setdefault(name, []).append(float(row["value"]))
            if row["chain"]:
                width = ladders.setdefault(row["chain"], {}).setdefault(float(row["bits"]), {})
                width[name] = Candidate(name, row["baseline"], name, float(row["bits"]))
    made = [
        Ladder(label, tuple(tuple(w.values()) for w in widths.values())) for label, widths in ladders.items()
    ]
    return Grid(made, values)


def with_predictions(grid: Grid, experiment: str) -> Grid:
    """Sort the candidates of each width by their predicted chance of failing, and store the chance in them."""
    with PREDICTED.open(encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["experiment"] == experiment]
    score = {row["candidate"]: float(row["score"]) for row in rows}
    chance = {row["candidate"]: float(row["predicted"]) for row in rows}

    def ordered(width: Sequence[Candidate]) -> tuple[Candidate, ...]:
        likelier = sorted(width, key=lambda candidate: score[candidate.label])
        return tuple(replace(candidate, chance=chance[candidate.label]) for candidate in likelier)

    return replace(
        grid, ladders=[replace(ladder, widths=tuple(map(ordered, ladder.widths))) for ladder in grid.ladders]
    )


def with_start(grid: Grid, start: str) -> Grid:
    """Set the width at which each ladder starts: `widest`, `predicted`, or a number of bits.

    A ladder without a width of this number of bits starts at its widest.
    """

    def begun(ladder: Ladder) -> Ladder:
        bits = [f"{width[0].bits:g}" for width in ladder.widths]
        if start == FROM_PREDICTED:
            return start_at(ladder, predicted_width(ladder), FIRST_SEED)
        return start_at(ladder, bits.index(start) if start in bits else 0, FIRST_SEED)

    return grid if start == WIDEST else replace(grid, ladders=list(map(begun, grid.ladders)))


def with_broken(grid: Grid, bits: float) -> Grid:
    """Replace the values of all candidates with fewer than `bits` bits by those of the worst cell."""
    worst = min((values for name, values in grid.values.items()), key=fmean)
    narrow = [c.name for ladder in grid.ladders for width in ladder.widths for c in width if c.bits < bits]
    return replace(grid, values=grid.values | dict.fromkeys(narrow, worst))


def starts() -> list[str]:
    """Return a table of the differences between predicted starts and recorded answers.

    The recorded answer of a ladder is the narrowest width whose recorded mean is within the margin. The difference is
    the number of widths by which the predicted start is wider (negative) or narrower (positive) than this answer. There
    is one ladder for each experiment and each combination of its settings other than the format.
    """
    ladders: dict[tuple[str, str], dict[float, list[tuple[Candidate, bool]]]] = {}
    with PREDICTED.open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            value, _, label = row["candidate"].partition(" ")
            bits = formats.bits(value)
            if bits is None:  # The candidate is a recipe whose name does not contain a format.
                continue
            candidate = Candidate(row["candidate"], "", row["candidate"], bits, float(row["predicted"]))
            width = ladders.setdefault((row["experiment"], label), {}).setdefault(bits, [])
            width.append((candidate, row["fails"] == "0"))
    found: dict[int, list[str]] = {}
    for (experiment, label), widths in ladders.items():
        rows = [widths[bits] for bits in sorted(widths, reverse=True)]
        ladder = Ladder(label, tuple(tuple(candidate for candidate, _ in row) for row in rows))
        enough = [i for i, row in enumerate(rows) if any(is_within for _, is_within in row)]
        if len(rows) > 1 and enough:
            off = predicted_width(ladder) - max(enough)
            found.setdefault(off, []).append(experiment)
    lines = ["| start minus answer, widths | ladders | experiments |", "|--:|--:|---|"]
    for off, of in sorted(found.items()):
        lines.append(f"| {off:+d} | {len(of)} | {', '.join(dict.fromkeys(of))} |")
    return lines


def whole(grid: Grid, rules: Rules) -> list[float | None]:
    """Return the number of bits that each ladder needs according to the means over all seeds.

    It is None for a ladder whose widest format is not good enough.
    """

    def is_within(candidate: Candidate) -> bool:
        ours, baseline = (dict(enumerate(grid.values[n])) for n in (candidate.name, candidate.baseline))
        gaps = differences(ours, baseline, higher_is_better=rules.higher_is_better, worst=rules.worst)
        return fmean(gaps) >= -rules.tolerance

    answers = []
    for ladder in grid.ladders:
        found = None
        for width in ladder.widths:
            if not any(map(is_within, width)):
                break
            found = width[0].bits
        answers.append(found)
    return answers


def replay(grid: Grid, rules: Rules, seed: int) -> tuple[list[float | None], int]:
    """Run a search with its own order of seeds. Return the bits certified for each ladder, and the number of runs."""
    rng, ended, flying, runs, ledger = random.Random(seed), EndedRuns(), [], 0, Ledger()
    order = rng.sample(range(grid.seeds), grid.seeds)
    while True:
        standings = ladder_states(known(grid.ladders, ended), ended, rules, ledger=ledger)
        if all(standing.ladder.is_started for standing in standings):
            ledger = ledger.merged(
                [each for s in standings for width in s.widths for each in width.hypotheses]
            )
        for wish in wanted_runs(standings, ended, set(flying), rules):
            if len(flying) == SLOTS:
                break
            flying.append(wish)
        if not flying:
            return [s.answer[0].bits if s.answer else None for s in standings], runs
        name, number = ending = flying.pop(rng.randrange(len(flying)))
        runs += 1
        ended.values.setdefault(name, {})[number] = grid.values[name][order[number]]
        assert ended.has(ending)


def known(ladders: Sequence[Ladder], ended: EndedRuns) -> list[Ladder]:
    """Return the ladders with the information that a search has so far.

    The start is unknown until the first run of the baseline has ended.
    """
    return [
        ladder
        if ladder.aside is None or ended.has((ladder.baseline, ladder.aside))
        else replace(ladder, start=0, aside=None, is_started=False)
        for ladder in ladders
    ]


def table(grid: Grid, rules: Rules, searches: int) -> list[str]:
    expected = whole(grid, rules)
    found = [replay(grid, rules, seed) for seed in range(searches)]
    lines = [
        "| ladder | bits needed, whole grid | searches that say so | fewer bits | more, or open |",
        "|---|--:|--:|--:|--:|",
    ]
    for i, ladder in enumerate(grid.ladders):
        answers = [math.inf if bits[i] is None else bits[i] for bits, _ in found]
        truth = math.inf if expected[i] is None else expected[i]
        counts = [sum(test(bits) for bits in answers) for test in (truth.__eq__, truth.__gt__, truth.__lt__)]
        shown = " | ".join(f"{100 * count / searches:.1f}%" for count in counts)
        lines.append(
            f"| {ladder.label} | {'none is enough' if truth == math.inf else f'{truth:g}'} | {shown} |"
        )
    runs = [count for _, count in found]
    lines.append(
        f"\nRuns of a search: median {median(runs):.0f}, {min(runs)} to {max(runs)}, of {grid.runs} of the grid "
        f"({100 * median(runs) / grid.runs:.0f}%)."
    )
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(required=True, dest="command")
    recording = commands.add_parser("record", help="print the values of a finished sweep as CSV")
    recording.add_argument("words", nargs="+", metavar="key=value")
    replaying = commands.add_parser("replay", help="search a grid again and again")
    replaying.add_argument("file", type=Path)
    replaying.add_argument(
        "--tolerance", type=float, required=True, help="the margin, in points or in the unit of the metric"
    )
    replaying.add_argument("--metric", default="test_accuracy")
    replaying.add_argument("--samples", type=int, default=0, help="size of the test set, for an accuracy")
    replaying.add_argument(
        "--worst", type=float, default=0.0, help="the value of a diverged run (default: 0)"
    )
    replaying.add_argument("--searches", type=int, default=200)
    replaying.add_argument(
        "--predicted", metavar="NAME", help="use the predictions of predicted.csv for this experiment"
    )
    replaying.add_argument("--start", default=WIDEST, help=f"{WIDEST}, {FROM_PREDICTED}, or a number of bits")
    replaying.add_argument(
        "--broken-below", type=float, metavar="BITS", help="make all narrower formats as bad as the worst"
    )
    commands.add_parser("starts", help="compare predicted starts with the recorded answers")
    arguments = parser.parse_args()
    if arguments.command == "starts":
        print("\n".join(starts()))
        return
    if arguments.command == "record":
        write(record(arguments.words), sys.stdout)
        return
    grid, metric = read(arguments.file), Metric(arguments.metric)
    if arguments.predicted:
        grid = with_predictions(grid, arguments.predicted)
    if arguments.broken_below:
        grid = with_broken(grid, arguments.broken_below)
    grid = with_start(grid, arguments.start)
    rules = Rules(
        tolerance=arguments.tolerance / metric.scale,
        alpha=0.05,
        most_seeds=grid.seeds,
        higher_is_better=metric.higher_is_better,
        worst=arguments.worst,
        resolution=1 / arguments.samples if arguments.samples else 0.0,
        metric=metric.name,
    )
    print(f"# {arguments.file.stem}: {arguments.searches} searches of a recorded grid\n")
    print(
        f"{metric.name}, tolerance {arguments.tolerance:g}, {len(grid.values)} cells at {grid.seeds} seeds.\n"
    )
    print("\n".join(table(grid, rules, arguments.searches)))


if __name__ == "__main__":
    main()
