"""Fit the model behind `cpdrun predict` on the recorded sweeps, and say how well it does on experiments left out.

    python scripts/fit_predict.py observe [NAME ...]   # train each experiment's baseline, observed; join: data.csv
    python scripts/fit_predict.py judge [NAME ...]     # gaps and tolerances anew, of what is recorded: data.csv
    python scripts/fit_predict.py fit                  # cpdrun/predict/fitted.json, fit.md, predicted.csv, a picture

The data: predict_rows.py.
"""

import argparse
import itertools
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from predict_rows import (
    DATA,
    RECORDED,
    chance_of,
    judge,
    observe,
    read_rows,
    rounded,
    variance_of,
    write_rows,
)
from scipy.stats import spearmanr
from sklearn.metrics import roc_auc_score

from cpdrun.predict.model import FITTED, Model, fit
from cpdrun.record import write_json

HERE = DATA.parent
FIT, PREDICTED, PICTURE = (HERE / f for f in ("fit.md", "predicted.csv", "calibration.png"))
SETTLED = 0.1  # a chance below it, or above one less it, is taken as known
FEATURES = ("of layers", "forward", "biased", "saturated", "update lost", "strictness")
COMMON = 2.3  # the strictness at which badness is ranked: half a point
TIMES = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0)  # of its tolerance, at which a candidate counts
GOAL_AUC, GOAL_RANK = 0.95, 0.8
OF_RECIPES = ("digits_recipes", "llama_fp4", "digits_products", "fashion_products", "gpt_products_small")
GRADIENTS, PRODUCTS = "gradients between workers", "formats of products"


@dataclass(frozen=True)
class Held:
    """A candidate and what a model says that was fitted without its experiment, and without its family."""

    row: Mapping[str, Any]
    score: float
    chance: float
    badness: float  # the score at a tolerance that is the same for all
    apart: float  # the score of the model without its family

    @property
    def fails(self) -> bool:
        return self.row["fails"] == "1"

    @property
    def kind(self) -> str:
        """What its experiment asks about: where products are rounded, no gradients are sent, or in fp32."""
        return PRODUCTS if self.row["experiment"] in OF_RECIPES else GRADIENTS

    @property
    def gap(self) -> float:
        """As a share of the metric's range, positive is worse."""
        share = 10.0 ** -float(self.row["strictness"])
        return -float(self.row["gap"]) / float(self.row["tolerance"]) * share

    @property
    def error(self) -> float:
        """Of the mean gap, in the unit of `gap`."""
        row, share = self.row, 10.0 ** -float(self.row["strictness"])
        variance = variance_of(float(row["deviation"]), int(row["pairs"]), float(row["spread"]))
        return math.sqrt(variance / int(row["pairs"])) / float(row["tolerance"]) * share

    @property
    def is_settled(self) -> bool:
        return not SETTLED < float(self.row["chance"]) < 1 - SETTLED


def fitted_on(rows: Sequence[Mapping[str, Any]], refits: int = 0) -> Model:
    """Each candidate counts at its own tolerance and at multiples of it: the fit sees how large a gap is, and what a
    tolerance changes within an experiment, where nothing else does."""
    each = [(row, times) for row in rows for times in TIMES]
    return fit(
        [_features(row, times) for row, times in each],
        [_chance(row, times) for row, times in each],
        [row["experiment"] for row, _ in each],
        FEATURES,
        ridge=len(TIMES),
        refits=refits,
    )


def _features(row: Mapping[str, Any], times: float = 1.0) -> dict[str, float]:
    found = {name: float(row[name]) for name in FEATURES}
    return found | ({"strictness": found["strictness"] - math.log10(times)} if "strictness" in found else {})


def _chance(row: Mapping[str, Any], times: float) -> float:
    gap, deviation, spread, tolerance = (float(row[k]) for k in ("gap", "deviation", "spread", "tolerance"))
    return chance_of(gap, deviation, int(row["pairs"]), spread, times * tolerance)


def left_out(rows: Sequence[Mapping[str, Any]]) -> list[Held]:
    found = []
    for key in dict.fromkeys((row["experiment"], row["family"]) for row in rows):
        experiment, family = key
        model = fitted_on([row for row in rows if row["experiment"] != experiment])
        without = fitted_on([row for row in rows if row["family"] != family])
        for row in (row for row in rows if row["experiment"] == experiment):
            x = _features(row)
            badness = model.score({**x, "strictness": COMMON})
            found.append(Held(row, model.score(x), model.probability(x).value, badness, without.score(x)))
    return found


def auc(held: Sequence[Held], *, apart: bool = False) -> float:
    truth = [each.fails for each in held]
    scores = [each.apart if apart else each.score for each in held]
    return float(roc_auc_score(truth, scores)) if len(set(truth)) == 2 else math.nan


def rank(held: Sequence[Held]) -> float:
    gaps, badness = [each.gap for each in held], [each.badness for each in held]
    return float(spearmanr(badness, gaps).statistic) if len(set(badness)) > 1 < len(set(gaps)) else math.nan


def reachable(held: Sequence[Held], draws: int = 200, seed: int = 0) -> float:
    """What the true gaps themselves would rank like, were they those recorded: the rank correlation of these gaps with
    ones drawn around them, as wide as their seeds say. Noise that all share with their baseline is not undone."""
    if len({each.gap for each in held}) < 2:
        return math.nan
    gaps = np.array([each.gap for each in held])
    errors = np.array([each.error for each in held])
    rng = np.random.default_rng(seed)
    drawn = (gaps + errors * rng.normal(size=len(gaps)) for _ in range(draws))
    return fmean(float(spearmanr(gaps, each).statistic) for each in drawn)


def report(rows: Sequence[Mapping[str, Any]], model: Model, held: Sequence[Held]) -> Iterator[str]:
    settled = [each for each in held if each.is_settled]
    yield "# The model of `cpdrun predict` on experiments that it was not fitted on\n"
    yield "`python scripts/fit_predict.py fit`, of data.csv. Each experiment is predicted by a fit without it.\n"
    correlations = "rank correlation with the gap | of a perfect prediction"
    yield f"| | candidates | fail | AUC | AUC, its model and data left out too | {correlations} |"
    yield "|---|--:|--:|--:|--:|--:|--:|"
    for label, some in (("all", held), ("settled by their seeds", settled)):
        yield _line(f"**{label}**", some)
        for kind in (GRADIENTS, PRODUCTS):
            yield _line(f"{label}, {kind}", [each for each in some if each.kind == kind])
    for name in dict.fromkeys(row["experiment"] for row in rows):
        yield _line(name, [each for each in held if each.row["experiment"] == name])
    sure = f"{100 * (1 - SETTLED):.0f} %"
    yield f"\nWanted: AUC {GOAL_AUC}, rank correlation {GOAL_RANK}. Settled: its seeds say with {sure} on which side"
    yield "of the tolerance it lies; the others are within noise of it, and no prediction can rank noise.\n"
    yield "Wrong sides, of those that are settled:\n"
    wrong = [each for each in settled if each.fails != (each.chance > 0.5)]
    for each in wrong:
        gap = f"gap {float(each.row['gap']):+.2f}, tolerance {each.row['tolerance']}"
        said = f"{gap}: predicted {100 * each.chance:.0f} %"
        yield f"- {each.row['experiment']}, {each.row['candidate']}: {said}"
    yield "- none" if not wrong else ""
    yield "\nWeights, a feature being measured in its own deviations:\n"
    for name, weight in zip(("(intercept)", *model.features), model.weights, strict=True):
        yield f"- {name}: {weight:.2f}"
    yield from _groups_of_eight(held)


def _line(label: str, held: Sequence[Held]) -> str:
    fails = sum(each.fails for each in held)
    shown = [
        f"{value:.2f}" if math.isfinite(value) else "-"
        for value in (auc(held), auc(held, apart=True), rank(held), reachable(held))
    ]
    return f"| {label} | {len(held)} | {fails} | {' | '.join(shown)} |"


def _groups_of_eight(held: Sequence[Held]) -> Iterator[str]:
    """What was to be foretold before any run of digits_workers: e3m0 of 64 workers in one chain and in groups of 8."""
    yield "\ne3m0 with APS at 64 workers, by the fit without digits_workers:\n"
    for each in held:
        candidate = each.row["candidate"]
        if each.row["experiment"] == "digits_workers" and "e3m0" in candidate and "64" in candidate:
            yield f"- {candidate}: misses with {100 * each.chance:.1f} %, measured {float(each.row['gap']):+.1f} points"


def draw(held: Sequence[Held], path: Path) -> None:
    from matplotlib.figure import Figure

    edges = (0, 0.05, 0.2, 0.5, 0.8, 0.95, 1.0001)
    figure = Figure(figsize=(4.5, 4.2), layout="constrained")
    axes = figure.subplots()
    axes.plot([0, 1], [0, 1], color="0.7", linewidth=1)
    for low, high in itertools.pairwise(edges):
        inside = [each for each in held if low <= each.chance < high]
        if inside:
            x, y = fmean(e.chance for e in inside), fmean(float(e.row["chance"]) for e in inside)
            axes.errorbar(x, y, yerr=math.sqrt(y * (1 - y) / len(inside)), fmt="o", color="C0", capsize=3)
            axes.annotate(str(len(inside)), (x, y), xytext=(6, -10), textcoords="offset points", fontsize=8)
    axes.set_xlabel("predicted probability of missing the tolerance")
    axes.set_ylabel("share that misses it (of each as sure as its seeds are)")
    axes.set_title("Experiments left out of the fit; figures: candidates", fontsize=9)
    figure.savefig(path, dpi=130, metadata={"Software": None})


def fit_all() -> None:
    rows = read_rows(DATA)
    model, held = fitted_on(rows, refits=200), left_out(rows)
    text = "\n".join(report(rows, model, held)) + "\n"
    print(text)
    FIT.write_text(text, encoding="utf-8")
    write_json(Path("cpdrun/predict") / FITTED, _short(model.as_json()))
    keys = ("experiment", "candidate", "fails", "gap")
    write_rows(
        PREDICTED,
        [
            {k: e.row[k] for k in keys} | {"predicted": rounded(e.chance), "score": rounded(e.score)}
            for e in held
        ],
    )
    draw(held, PICTURE)


def _short(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _short(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_short(each) for each in value]
    return float(f"{value:.5g}") if isinstance(value, float) else value


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(required=True, dest="command")
    of_names = {
        "observe": (observe, "train the baselines, observed, and join"),
        "judge": (judge, "gaps and tolerances anew, of what is recorded"),
    }
    for command, (_, said) in of_names.items():
        taking = commands.add_parser(command, help=said)
        taking.add_argument("names", nargs="*", metavar="NAME", help=f"default: {' '.join(RECORDED)}")
    commands.add_parser("fit", help="fit, and say how well")
    arguments = parser.parse_args()
    if arguments.command == "fit":
        fit_all()
        return
    if unknown := set(arguments.names) - set(RECORDED):
        sys.exit(f"error: unknown {', '.join(sorted(unknown))}; there are {', '.join(RECORDED)}")
    of_names[arguments.command][0](arguments.names or list(RECORDED))


if __name__ == "__main__":
    main()
