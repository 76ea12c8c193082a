"""Fit the model behind `cpdrun predict` on the recorded sweeps, and say how well it does on experiments left out.

    python scripts/fit_predict.py observe [NAME ...]   # train each experiment's baseline, observed; join: data.csv
    python scripts/fit_predict.py fit                  # cpdrun/predict/fitted.json, fit.md, predicted.csv, a picture

The data: one row for each candidate of a recorded sweep (results/reference/NAME/values.csv, or a grid of 30 seeds),
with its mean gap to the baseline, positive is better, in the unit of the tolerance of that experiment's search, and
what its effects say, from one run of the baseline. Features come from effects alone, never from how training ended.

`chance`: how likely it is that the true mean gap lies beyond the tolerance, by a t distribution of the recorded pairs
(their variance drawn towards the experiment's, with the weight of PRIOR pairs): two or three seeds do not say surely
on which side of half a point a format is, and a fit that took their word would learn noise. `fails` is the bare word:
the recorded mean is beyond the tolerance.
"""

import argparse
import csv
import itertools
import json
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median
from typing import Any

import numpy as np
from scipy.stats import spearmanr, t
from sklearn.metrics import roc_auc_score

from cpdrun.config.keys import get_key, has_key
from cpdrun.launch import Display, Job, LaunchOptions, Session
from cpdrun.predict.effects import ask as ask_effects
from cpdrun.predict.features import features, shown, strictness
from cpdrun.predict.model import FITTED, Model, fit
from cpdrun.record import write_json
from cpdrun.report.read.learnt import worst
from cpdrun.report.read.metric import Metric
from cpdrun.search.observed import observations, subjects
from cpdrun.search.question import Question, ask
from cpdrun.shell.terminal import Terminal
from cpdrun.stats.anytime import differences

REFERENCE = Path("results/reference")
HERE = REFERENCE / "predict"
DATA, FIT, PREDICTED, PICTURE = (HERE / f for f in ("data.csv", "fit.md", "predicted.csv", "calibration.png"))
TRAINED = "predict-observed"  # the folder under results/ where the observed baselines land
PRIOR = 2
SETTLED = 0.1  # a chance below it, or above one less it, is taken as known
FEATURES = ("misdirected", "of layers", "saturated", "update lost", "products", "strictness")
COMMON = 2.3  # the strictness at which badness is ranked: half a point
GRID = "format=fp32,e5m2,e4m3,e3m4,e5m1,e3m3,e3m2,e2m3,e4m1,e3m1,e2m1,e4m0,e3m0,e2m0"
OF_GRID = ["exp=digits_bits", GRID, "aps=true", "emulation=chunked"]
TIMES = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0)  # of its tolerance, at which a candidate counts
GOAL_AUC, GOAL_RANK = 0.95, 0.8
OF_RECIPES = ("digits_recipes", "llama_fp4")
GRADIENTS, PRODUCTS = "gradients between workers", "recipes of products"


@dataclass(frozen=True)
class Recorded:
    """`values`: what was measured; `words`: what was typed for it; `family`: of one model and data set; `steps`: so
    short a run of the baseline is observed; None: the whole of it."""

    values: str
    words: tuple[str, ...]
    family: str
    metric: str = "test_accuracy"
    steps: int | None = None


def _of(name: str, family: str, metric: str = "test_accuracy", steps: int | None = None) -> Recorded:
    return Recorded(f"{name}/values.csv", (f"exp={name}",), family, metric, steps)


DIGITS, BITS = "convnet on digits", "test_bits_per_byte"
RECORDED = {
    "digits_bits": _of("digits_bits", DIGITS),
    "digits_search": _of("digits_search", DIGITS),
    "codebook_bits": _of("codebook_bits", DIGITS),
    "digits_workers": _of("digits_workers", DIGITS),
    "digits_recipes": _of("digits_recipes", DIGITS),
    "grid_convnet": Recorded("search/digits_convnet.csv", (*OF_GRID, "search.tolerance=1"), DIGITS),
    "grid_mlp": Recorded(
        "search/digits_mlp.csv",
        (*OF_GRID, "model=mlp_bn", "model.in_features=64", "search.tolerance=2"),
        "MLP on digits",
    ),
    "fashion_bits": _of("fashion_bits", "ResNet8 on Fashion-MNIST", steps=160),
    "davidnet_bits_small": _of("davidnet_bits_small", "DavidNet"),
    "resnet18_cifar10_bits_small": _of("resnet18_cifar10_bits_small", "ResNet18"),
    "hybrid_bits_small": _of("hybrid_bits_small", "ResNet18"),
    "resnet50_bits_small": _of("resnet50_bits_small", "ResNet8 on JPEG"),
    "fcn_bits_small": _of("fcn_bits_small", "FCN", "test_mean_iou"),
    "transformer_bits_small": Recorded(
        "transformer_bits_small/values.csv",
        ("exp=transformer_bits_small", "format=fp32,e5m2,e4m3,e3m2,e3m0"),
        "GPT",
        BITS,
        steps=120,
    ),
    "llama_fp4": _of("llama_fp4", "Llama", BITS),
}


# ---------------------------------------------------------------- the data


def observe(names: Sequence[str]) -> None:
    """Rows of these experiments in place of those that data.csv has of them."""
    rows = read_rows(DATA) if DATA.exists() else []
    for name in names:
        print(f"== {name}", flush=True)
        new = list(rows_of(name, RECORDED[name]))
        rows = [row for row in rows if row["experiment"] != name] + new
        order = list(RECORDED)
        rows.sort(key=lambda row: order.index(row["experiment"]))
        write_rows(DATA, rows)


def rows_of(name: str, recorded: Recorded) -> Iterator[dict[str, Any]]:
    question = ask([*recorded.words, f"search.metric={recorded.metric}", f"name={TRAINED}"])
    effects = _effects(question, recorded.steps)
    gaps, tolerance, classes = _gaps(question, recorded)
    strict = strictness(Metric(recorded.metric), tolerance, classes)
    spread = median(float(np.std(each, ddof=1)) for each in gaps.values() if len(each) > 1)
    for chain in question.chains:
        for subject in subjects(question, chain):
            if subject.name not in gaps:
                continue
            of_it = gaps[subject.name]
            mean = fmean(of_it)
            own = float(np.std(of_it, ddof=1)) if len(of_it) > 1 else spread
            chance = chance_of(mean, own, len(of_it), spread, tolerance)
            yield {
                "experiment": name,
                "family": recorded.family,
                "candidate": subject.label,
                "bits": f"{subject.bits:g}",
                "pairs": len(of_it),
                "gap": _round(mean),
                "deviation": _round(own),
                "spread": _round(spread),
                "tolerance": tolerance,
                "fails": int(mean < -tolerance),
                "chance": _round(chance),
                **{k: _round(v) for k, v in features(effects[subject.name], strict).items()},
                **{f"measured:{k}": _round(v) for k, v in shown(effects[subject.name]).items()},
            }


def _effects(question: Question, steps: int | None) -> dict[str, dict[str, Any]]:
    found = {}
    served = observations(question, steps)
    with Session() as session:
        for each in served:
            if not each.is_there:
                job = Job(each.folder, each.run.config, each.run.overrides)
                launcher = each.run.config["launcher"]
                session.launch(each.sweep, [job], launcher, LaunchOptions(jobs=1), Display(Terminal()), None)
    for each in served:
        configs = {
            subject.name: subject.config
            for chain in question.chains
            if chain.baseline in each.serves
            for subject in subjects(question, chain)
        }
        found |= ask_effects(each.folder, configs, question.directory)
    return found


def _gaps(question: Question, recorded: Recorded) -> tuple[dict[str, list[float]], float, float]:
    """By candidate, in shown units, positive is better; the tolerance in the same; the classes of the task."""
    metric = Metric(recorded.metric)
    table = REFERENCE / recorded.values
    values, classes = (_grid if recorded.values.startswith("search/") else _runs)(
        table, question, recorded.metric
    )
    asked = question.settings.tolerance
    tolerance = metric.default_tolerance if asked is None else asked
    found = {}
    for candidate in (c for chain in question.chains for width in chain.widths for c in width):
        baseline = values.get(candidate.baseline, {})
        low = worst(metric, classes, list(baseline.values()), tolerance / metric.scale)
        ours = values.get(candidate.name, {})
        gaps = differences(ours, baseline, higher_is_better=metric.higher_is_better, worst=low)
        if gaps:
            found[candidate.name] = [metric.scale * gap for gap in gaps]
    return found, tolerance, classes


def _runs(table: Path, question: Question, metric: str) -> tuple[dict[str, dict[int, float]], float]:
    """values.csv: by cell and seed."""
    found: dict[str, dict[int, float]] = {}
    with table.open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    columns = list(rows[0])
    keys = columns[: columns.index("seed")]
    typed = {name: _typed(question, name, keys) for name in question.cells}
    for row in rows:
        for name, point in typed.items():
            if all(row[key] == point[key] for key in keys):
                is_lost = row["diverged"] == "true" or not row[f"metric:{metric}"]
                value = math.nan if is_lost else float(row[f"metric:{metric}"])
                found.setdefault(name, {})[int(row["seed"])] = value
    return found, float(rows[0]["num_classes"] or "nan")


def _typed(question: Question, name: str, keys: Sequence[str]) -> dict[str, str]:
    """Its values as values.csv has them."""
    run = question.cells[name][0]
    words = dict(word.split("=", 1) for word in run.overrides if "=" in word)
    point = {}
    for key in keys:
        value = get_key(run.config, key) if has_key(run.config, key) else None
        value = words.get(key, value) if value is None or isinstance(value, Mapping) else value
        point[key] = json.dumps(value) if isinstance(value, bool) else str(value)
    return point


def _grid(table: Path, question: Question, metric: str) -> tuple[dict[str, dict[int, float]], float]:
    """A grid of scripts/replay_search.py: candidates by label, its one baseline by a name of its own."""
    names = {c.label: c.name for chain in question.chains for width in chain.widths for c in width}
    [baseline] = {c.baseline for chain in question.chains for width in chain.widths for c in width}
    found: dict[str, dict[int, float]] = {}
    with table.open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            name = names[row["candidate"]] if row["chain"] else baseline
            found.setdefault(name, {})[int(row["seed"])] = float(row["value"])
    return found, 10.0


def chance_of(mean: float, deviation: float, pairs: int, spread: float, tolerance: float) -> float:
    """That the true mean lies beyond the tolerance. `spread`: the deviation usual in the experiment."""
    degrees = pairs - 1 + PRIOR
    variance = ((pairs - 1) * deviation**2 + PRIOR * spread**2) / degrees
    if variance == 0:
        return float(mean < -tolerance)
    return float(t.cdf((-tolerance - mean) / math.sqrt(variance / pairs), degrees))


def _round(value: float | None) -> str:
    return "" if value is None or not math.isfinite(value) else f"{value:.6g}"


def read_rows(path: Path) -> list[dict[str, Any]]:
    with path.open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def write_rows(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8", newline="") as file:
        table = csv.DictWriter(
            file, list(dict.fromkeys(key for row in rows for key in row)), lineterminator="\n"
        )
        table.writeheader()
        table.writerows(rows)


# ---------------------------------------------------------------- the fit


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
        """What its experiment asks about: a recipe sends no gradients, or sends them in fp32."""
        return PRODUCTS if self.row["experiment"] in OF_RECIPES else GRADIENTS

    @property
    def gap(self) -> float:
        """As a share of the metric's range, positive is worse."""
        share = 10.0 ** -float(self.row["strictness"])
        return -float(self.row["gap"]) / float(self.row["tolerance"]) * share

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


def report(rows: Sequence[Mapping[str, Any]], model: Model, held: Sequence[Held]) -> Iterator[str]:
    settled = [each for each in held if each.is_settled]
    yield "# The model of `cpdrun predict` on experiments that it was not fitted on\n"
    yield "`python scripts/fit_predict.py fit`, of data.csv. Each experiment is predicted by a fit without it.\n"
    yield "| | candidates | fail | AUC | AUC, its model and data left out too | rank correlation with the gap |"
    yield "|---|--:|--:|--:|--:|--:|"
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
        for value in (auc(held), auc(held, apart=True), rank(held))
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
    write_json(Path("cpdrun/predict") / FITTED, _rounded(model.as_json()))
    keys = ("experiment", "candidate", "fails", "gap")
    write_rows(
        PREDICTED,
        [
            {k: e.row[k] for k in keys} | {"predicted": _round(e.chance), "score": _round(e.score)}
            for e in held
        ],
    )
    draw(held, PICTURE)


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _rounded(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(each) for each in value]
    return float(f"{value:.5g}") if isinstance(value, float) else value


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(required=True, dest="command")
    observing = commands.add_parser("observe", help="train the baselines, observed, and join")
    observing.add_argument("names", nargs="*", metavar="NAME", help=f"default: {' '.join(RECORDED)}")
    commands.add_parser("fit", help="fit, and say how well")
    arguments = parser.parse_args()
    if arguments.command == "fit":
        fit_all()
        return
    if unknown := set(arguments.names) - set(RECORDED):
        sys.exit(f"error: unknown {', '.join(sorted(unknown))}; there are {', '.join(RECORDED)}")
    observe(arguments.names or list(RECORDED))


if __name__ == "__main__":
    main()
