"""Make the data to which the model of `cpdrun predict` is fitted, with one row for each candidate of a recorded sweep.

A row contains two kinds of values. The first is the mean gap to the baseline, from the candidate's recorded runs
(results/reference/NAME/values.csv, or a grid of 30 seeds). A positive gap is better. The second is the damage of the
candidate, which is computed from one observed run of the baseline only, not from the results of the candidate's runs.
The metric and the margin (`tolerance`) are those of the experiment's own search.

`fails` is 1 if the candidate is worse than the baseline by more than the margin, according to the recorded mean gap.
With only two or three seeds, this may be uncertain. `chance` is the probability that the true mean gap exceeds the
margin (`cpdrun.whatif.forecast.failure_chance`). The command is fit_predict.py.
"""

import csv
import json
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median
from typing import Any

import numpy as np

from cpdrun.config.overrides import get_key, has_key
from cpdrun.launch import Display, Job, LaunchOptions, Session
from cpdrun.search.initial_width import subject_ladder
from cpdrun.search.question import Question, ask
from cpdrun.search.results import Results
from cpdrun.shell.terminal import Terminal
from cpdrun.stats.evidence import differences
from cpdrun.study.margin import DEFAULT_POINTS
from cpdrun.study.metric import Metric, worst
from cpdrun.whatif.baseline_runs import find_baseline_runs
from cpdrun.whatif.damage import damage, shown_effects, strictness
from cpdrun.whatif.effects import compute_effects
from cpdrun.whatif.forecast import Subject, failure_chance

REFERENCE = Path("results/reference")
DATA = REFERENCE / "predict" / "data.csv"
TRAINED = "predict-observed"  # the folder in results/ that contains the runs of observed baselines
GRID = "format=fp32,e5m2,e4m3,e3m4,e5m1,e3m3,e3m2,e2m3,e4m1,e3m1,e2m1,e4m0,e3m0,e2m0"
OF_GRID = ["exp=digits_bits", GRID, "aps=true", "emulation=chunked"]
CLASSES_OF_GRID = 10.0


@dataclass(frozen=True)
class Recorded:
    """A recorded experiment.

    Attributes:
        values: The file of its results, in results/reference.
        words: The command-line arguments that select the experiment.
        family: A name for all experiments with the same model and data.
        steps: The number of steps of the observed baseline run. None means the full run.
    """

    values: str
    words: tuple[str, ...]
    family: str
    steps: int | None = None


def _of(name: str, family: str, steps: int | None = None) -> Recorded:
    return Recorded(f"{name}/values.csv", (f"exp={name}",), family, steps)


DIGITS = "convnet on digits"
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
    "fcn_bits_small": Recorded(
        "fcn_bits_small/values.csv", ("exp=fcn_bits_small", "search.metric=test_mean_iou"), "FCN"
    ),
    "transformer_bits_small": Recorded(
        "transformer_bits_small/values.csv",
        ("exp=transformer_bits_small", "format=fp32,e5m2,e4m3,e3m2,e3m0"),
        "GPT",
        steps=120,
    ),
    "llama_fp4": _of("llama_fp4", "Llama"),
    "digits_products": _of("digits_products", DIGITS),
    "fashion_products": _of("fashion_products", "MLP on Fashion-MNIST"),
    "gpt_products_small": _of("gpt_products_small", "GPT"),
}


def observe(names: Sequence[str]) -> None:
    """Replace the rows of these experiments in data.csv, after training their observed baselines."""
    rows = read_rows(DATA) if DATA.exists() else []
    for name in names:
        print(f"== {name}", flush=True)
        new = list(rows_of(name, RECORDED[name]))
        rows = [row for row in rows if row["experiment"] != name] + new
        order = list(RECORDED)
        rows.sort(key=lambda row: order.index(row["experiment"]))
        write_rows(DATA, rows)


def judge(names: Sequence[str]) -> None:
    """Compute gaps, margin and chance of these experiments again from the recorded results, without any training."""
    rows = read_rows(DATA)
    for name in names:
        judged = judged_of(_question(RECORDED[name]), RECORDED[name])
        here = [row for row in rows if row["experiment"] == name]
        if {row["candidate"] for row in here} != set(judged):
            sys.exit(f"error: {DATA} and the results of {name} have different candidates. Run observe {name}")
        for row in here:
            row.update(judged[row["candidate"]])
    write_rows(DATA, rows)


def rows_of(name: str, recorded: Recorded) -> Iterator[dict[str, Any]]:
    question = _question(recorded)
    effects = _effects(question, recorded.steps)
    judged = judged_of(question, recorded)
    for subject in _every(question):
        if subject.label in judged:
            of_it = judged[subject.label]
            found = damage(effects[subject.name])
            yield {
                "experiment": name,
                "family": recorded.family,
                "candidate": subject.label,
                "bits": f"{subject.bits:g}",
                **of_it,
                "layers": rounded(found.layers),
                "forward": rounded(found.forward),
                **{f"measured:{k}": rounded(v) for k, v in shown_effects(effects[subject.name]).items()},
            }


def judged_of(question: Question, recorded: Recorded) -> dict[str, dict[str, Any]]:
    """Return the columns of data.csv that follow from the recorded results, by label of the candidate."""
    metric = Results(question).metric
    gaps, tolerance, classes = _gaps(question, recorded, metric)
    strict = strictness(metric, tolerance, classes)
    spread = median(float(np.std(each, ddof=1)) for each in gaps.values() if len(each) > 1)
    found = {}
    for subject in _every(question):
        if subject.name not in gaps:
            continue
        of_it = gaps[subject.name]
        mean = fmean(of_it)
        own = float(np.std(of_it, ddof=1)) if len(of_it) > 1 else spread
        found[subject.label] = {
            "pairs": len(of_it),
            "gap": rounded(mean),
            "deviation": rounded(own),
            "spread": rounded(spread),
            "tolerance": tolerance,
            "fails": int(mean < -tolerance),
            "chance": rounded(failure_chance(mean, own, len(of_it), spread, tolerance)),
            "strictness": rounded(strict),
        }
    return found


def _question(recorded: Recorded) -> Question:
    """Return the question of a search. Raise ValueError if the margin does not belong to the typed metric."""
    question = ask([*recorded.words, f"name={TRAINED}"])
    typed = {word.split("=")[0] for word in recorded.words}
    if (
        "search.metric" in typed
        and "search.tolerance" not in typed
        and question.settings.tolerance is not None
    ):
        raise ValueError(
            f"{recorded.words}: the experiment's tolerance is for its own metric. Add search.tolerance=VALUE"
        )
    return question


def _every(question: Question) -> Iterator[Subject]:
    return (subject for ladder in question.ladders for subject in subject_ladder(question, ladder).subjects)


def _effects(question: Question, steps: int | None) -> dict[str, dict[str, Any]]:
    found = {}
    served = find_baseline_runs(question.directory, question.baseline_runs, steps)
    with Session() as session:
        for each in served:
            if not each.is_there:
                job = Job(each.folder, each.run.config, each.run.overrides)
                launcher = each.run.config["launcher"]
                session.launch(each.sweep, [job], launcher, LaunchOptions(jobs=1), Display(Terminal()), None)
    for each in served:
        configs = {
            subject.name: subject.config
            for ladder in question.ladders
            if ladder.baseline in each.serves
            for subject in subject_ladder(question, ladder).subjects
        }
        found |= compute_effects(each.folder, configs, question.directory)
    return found


def _gaps(
    question: Question, recorded: Recorded, metric: Metric
) -> tuple[dict[str, list[float]], float, float]:
    """Return the gaps of each candidate, the margin, and the number of classes.

    Gaps and margin are in the units of reports. A positive gap is better.
    """
    table = REFERENCE / recorded.values
    values, classes = (_grid if recorded.values.startswith("search/") else _runs)(
        table, question, metric.name
    )
    asked = question.settings.tolerance
    asked = DEFAULT_POINTS if asked is None and metric.is_fraction else asked
    if not isinstance(asked, int | float):
        raise ValueError(
            f"{recorded.words}: no tolerance is set. Add search.tolerance=VALUE, in the unit of the metric"
        )
    tolerance = float(asked)
    found = {}
    for candidate in (c for ladder in question.ladders for width in ladder.widths for c in width):
        baseline = values.get(candidate.baseline, {})
        low = worst(metric, classes, list(baseline.values()), tolerance / metric.scale)
        ours = values.get(candidate.name, {})
        gaps = differences(ours, baseline, higher_is_better=metric.higher_is_better, worst=low)
        if gaps:
            found[candidate.name] = [metric.scale * gap for gap in gaps]
    return found, tolerance, classes


def _runs(table: Path, question: Question, metric: str) -> tuple[dict[str, dict[int, float]], float]:
    """Return the values of a values.csv by cell and seed, and the number of classes."""
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
    """Return the values of some keys in a cell's config, spelled as in values.csv."""
    run = question.cells[name][0]
    words = dict(word.split("=", 1) for word in run.overrides if "=" in word)
    point = {}
    for key in keys:
        value = get_key(run.config, key) if has_key(run.config, key) else None
        value = words.get(key, value) if value is None or isinstance(value, Mapping) else value
        point[key] = json.dumps(value) if isinstance(value, bool) else str(value)
    return point


def _grid(table: Path, question: Question, metric: str) -> tuple[dict[str, dict[int, float]], float]:
    """Return the values of a grid of replay_search.py by cell and seed, and the number of classes."""
    names = {c.label: c.name for ladder in question.ladders for width in ladder.widths for c in width}
    [baseline] = {c.baseline for ladder in question.ladders for width in ladder.widths for c in width}
    found: dict[str, dict[int, float]] = {}
    with table.open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            name = names[row["candidate"]] if row["chain"] else baseline
            found.setdefault(name, {})[int(row["seed"])] = float(row["value"])
    return found, CLASSES_OF_GRID


def rounded(value: float | None) -> str:
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
