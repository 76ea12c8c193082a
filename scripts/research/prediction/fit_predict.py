"""Fit the model of `cpdrun predict` on recorded sweeps, and report how well it predicts networks that were left out.

    python scripts/research/prediction/fit_predict.py fit
    python scripts/research/prediction/fit_predict.py judge [NAME ...]
    python scripts/research/prediction/fit_predict.py observe [NAME ...]

`fit` fits the model to results/reference/predict/data.csv. It writes fit.md and predicted.csv to the same folder, and
the coefficients to cpdrun/whatif. It takes about two minutes. `judge` computes the gaps and margins in data.csv again
from the recorded results. `observe` trains the baselines with observation and writes their rows again, which takes
hours.

predict_rows.py makes the data. In the model (`cpdrun.whatif.forecast`), each experiment has a level, which is a random
intercept. The likelihood is integrated over the levels with Gauss-Hermite quadrature. The fit maximizes this likelihood
over the intercept, the slope and the standard deviation of the levels.
"""

import argparse
import itertools
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from predict_rows import DATA, RECORDED, judge, observe, read_rows, rounded, write_rows
from scipy.optimize import minimize
from sklearn.metrics import roc_auc_score

from cpdrun.record import write_json
from cpdrun.whatif.damage import Damage
from cpdrun.whatif.forecast import COEFFICIENTS, GRID, RANGE, Chance, Model, Weights, expit

FIT, PREDICTED = (DATA.parent / name for name in ("fit.md", "predicted.csv"))
# The number of quadrature nodes. With 41 nodes, the error of the log-likelihood of these data is 0.05. With 200, it is
# 1e-5.
NODES = 200
SETTLED = (
    0.1  # An outcome counts as known if its probability is below this number or above one minus this number.
)
EDGES = (0, 0.05, 0.2, 0.5, 0.8, 0.95, 1)  # the boundaries of the rows of the calibration table

Row = Mapping[str, Any]


def log_likelihood(
    scores: np.ndarray, fails: np.ndarray, groups: np.ndarray, parameters: Sequence[float], nodes: int = NODES
) -> float:
    """Return the log-likelihood of the parameters, integrated over the level of each group.

    Args:
        scores: The score of each candidate, shape [N].
        fails: 1 if the candidate failed, else 0, shape [N].
        groups: The group of each candidate, integers from 0, shape [N].
        parameters: The intercept, the slope and the standard deviation of the levels.
        nodes: The number of quadrature nodes.
    """
    intercept, slope, deviation = parameters
    x, weights = np.polynomial.hermite_e.hermegauss(nodes)
    logits = (intercept + slope * scores)[:, None] + deviation * x
    each = fails[:, None] * logits - np.logaddexp(0, logits)
    by_group = np.zeros((groups.max() + 1, nodes))
    np.add.at(by_group, groups, each)
    return float(np.logaddexp.reduce(by_group + np.log(weights / weights.sum()), axis=1).sum())


def fit(scores: np.ndarray, fails: np.ndarray, groups: np.ndarray) -> tuple[float, float, float]:
    """Return the intercept, the slope and the standard deviation of the levels with the largest likelihood."""

    def cost(p: np.ndarray) -> float:
        return -log_likelihood(scores, fails, groups, (p[0], p[1], math.exp(p[2])))

    found = minimize(cost, [0.0, 1.0, 0.0], method="BFGS").x
    return float(found[0]), float(found[1]), math.exp(found[2])


def fit_rows(rows: Sequence[Row]) -> Model:
    """Fit the model to rows of data.csv. Each experiment has its own level."""
    names, groups = np.unique([row["experiment"] for row in rows], return_inverse=True)
    fails = np.array([float(row["fails"]) for row in rows])
    strict = [float(row["strictness"]) for row in rows]
    parameters = fit(np.array([score_of(row) for row in rows]), fails, groups)
    return Model(*parameters, (min(strict), max(strict)), len(rows), len(names))


def score_of(row: Row) -> float:
    return damage_of(row).total + float(row["strictness"])


def damage_of(row: Row) -> Damage:
    return Damage(float(row["layers"]), float(row["forward"]))


@dataclass(frozen=True)
class LeftOut:
    """A candidate, and its prediction by a model that was fitted without its experiment or its network.

    The prediction is updated once, after the candidate of the experiment whose probability of failing is nearest to one
    half has been trained.

    Attributes:
        chance: The predicted probability that the candidate fails.
        after_one: The updated probability.
        is_trained: Whether this candidate is the one that was trained for the update.
    """

    row: Row
    logit: float
    chance: Chance
    after_one: Chance
    is_trained: bool

    @property
    def fails(self) -> bool:
        return self.row["fails"] == "1"

    @property
    def is_settled(self) -> bool:
        return not SETTLED < float(self.row["chance"]) < 1 - SETTLED


@dataclass(frozen=True)
class Experiment:
    """The candidates of an experiment that was left out of the fit.

    It also contains whether the number of failures was in the predicted 80% range.
    """

    name: str
    candidates: list[LeftOut]
    is_in_range: bool
    is_in_range_after_one: bool


def leave_out(rows: Sequence[Row], key: str) -> list[Experiment]:
    """Return the predictions of each experiment by a model that is fitted without the rows with the same `key`."""
    found = []
    for name in dict.fromkeys(row[key] for row in rows):
        model = fit_rows([row for row in rows if row[key] != name])
        for experiment in dict.fromkeys(row["experiment"] for row in rows if row[key] == name):
            here = [row for row in rows if row["experiment"] == experiment]
            found.append(_predict(experiment, here, model))
    return found


def _predict(name: str, rows: Sequence[Row], model: Model) -> Experiment:
    prior = model.level_weights()
    logits = [model.logit(damage_of(row), float(row["strictness"])) for row in rows]
    trained = min(range(len(rows)), key=lambda i: abs(logits[i]))
    posterior = model.level_weights([(logits[trained], float(rows[trained]["chance"]))])
    found = [
        LeftOut(row, logit, model.chance(logit, prior), model.chance(logit, posterior), i == trained)
        for i, (row, logit) in enumerate(zip(rows, logits, strict=True))
    ]
    others = [each for each in found if not each.is_trained]
    return Experiment(
        name, found, _is_count_in_range(found, model, prior), _is_count_in_range(others, model, posterior)
    )


def _is_count_in_range(found: Sequence[LeftOut], model: Model, weights: Weights) -> bool:
    """Return whether the number of failures lies within the 80% range of its predictive distribution."""
    number = np.zeros((len(found) + 1, len(GRID)))
    number[0] = 1
    for each in found:
        p = np.array([expit(each.logit + model.level_deviation * level) for level in GRID])
        number[1:] = number[1:] * (1 - p) + number[:-1] * p
        number[0] *= 1 - p
    at_most = np.cumsum(number @ weights)
    count = sum(each.fails for each in found)
    below = at_most[count - 1] if count else 0.0
    return bool(at_most[count] > RANGE[0] and below < RANGE[1])


def auc(found: Sequence[LeftOut], *, within: bool = False) -> float:
    """Return the area under the ROC curve. With `within`, it is the mean over experiments that have both outcomes."""
    if within:
        names = dict.fromkeys(each.row["experiment"] for each in found)
        areas = [auc([each for each in found if each.row["experiment"] == name]) for name in names]
        return float(np.nanmean(areas))
    truth = [each.fails for each in found]
    return float(roc_auc_score(truth, [each.logit for each in found])) if len(set(truth)) == 2 else math.nan


def brier(found: Sequence[LeftOut], *, after_one: bool = False) -> float:
    chances = [(each.after_one if after_one else each.chance).mean for each in found]
    return float(np.mean([(p - each.fails) ** 2 for p, each in zip(chances, found, strict=True)]))


def report(rows: Sequence[Row], model: Model) -> Iterator[str]:
    """Yield the lines of fit.md."""
    damages = [damage_of(row).total for row in rows]
    unfitted = roc_auc_score([row["fails"] == "1" for row in rows], damages)
    yield "# The model of `cpdrun predict` on networks that it was not fitted on\n"
    yield "Made by `python scripts/research/prediction/fit_predict.py fit` from data.csv.\n"
    yield f"    logit P(fails) = {model.intercept:.3f} + {model.slope:.3f} (layers + forward + strictness) + level"
    yield f"    the level of an experiment ~ N(0, {model.level_deviation:.3f}^2)\n"
    yield f"Fitted on {model.candidates} candidates of {model.experiments} experiments. The sum layers + forward,"
    yield f"without any fit, has an AUC of {unfitted:.3f}.\n"
    by_network, by_experiment = leave_out(rows, "family"), leave_out(rows, "experiment")
    yield "| | its network left out | only its experiment left out |"
    yield "|---|--:|--:|"
    for label, measure in MEASURES.items():
        yield f"| {label} | {measure(by_network)} | {measure(by_experiment)} |"
    yield "\nCalibration, each network left out:\n"
    yield "| predicted chance | candidates | mean prediction | failed |"
    yield "|---|--:|--:|--:|"
    for low, high in itertools.pairwise(EDGES):
        inside = [each for each in _every(by_network) if low <= each.chance.mean < high]
        mean, failed = (
            100 * np.mean(of) for of in ([e.chance.mean for e in inside], [e.fails for e in inside])
        )
        yield f"| {100 * low:.0f} to {100 * high:.0f}% | {len(inside)} | {mean:.0f}% | {failed:.0f}% |"
    yield "\nBy experiment, its network left out:\n"
    yield "| experiment | candidates | fail | predicted to fail | AUC | Brier of the others: before, after one run |"
    yield "|---|--:|--:|--:|--:|--:|"
    for each in by_network:
        found = each.candidates
        area, expected, others = auc(found), sum(one.chance.mean for one in found), _others([each])
        yield (
            f"| {each.name} | {len(found)} | {sum(one.fails for one in found)} | {expected:.1f} | "
            f"{'-' if math.isnan(area) else f'{area:.2f}'} | {brier(others):.3f}, {brier(others, after_one=True):.3f} |"
        )


def _every(experiments: Sequence[Experiment]) -> list[LeftOut]:
    return [one for each in experiments for one in each.candidates]


def _others(experiments: Sequence[Experiment]) -> list[LeftOut]:
    return [one for one in _every(experiments) if not one.is_trained]


def _before_and_after(experiments: Sequence[Experiment]) -> str:
    scores = [[brier(_others([each]), after_one=after) for each in experiments] for after in (False, True)]
    better = sum(after < before for before, after in zip(*scores, strict=True))
    means = ", ".join(f"{np.mean(of):.3f}" for of in scores)
    return f"{means} (better in {better} of {len(experiments)})"


MEASURES: Mapping[str, Callable[[Sequence[Experiment]], str]] = {
    "AUC": lambda of: f"{auc(_every(of)):.3f}",
    "AUC of candidates that their seeds settle": lambda of: (
        f"{auc([e for e in _every(of) if e.is_settled]):.3f}"
    ),
    "AUC within an experiment, mean": lambda of: f"{auc(_every(of), within=True):.3f}",
    "Brier score": lambda of: f"{brier(_every(of)):.3f}",
    "count of failures in the 80% range": lambda of: f"{sum(e.is_in_range for e in of)} of {len(of)}",
    "Brier score of the others before, after one candidate is trained": lambda of: (
        f"{brier(_others(of)):.3f}, {brier(_others(of), after_one=True):.3f}"
    ),
    "the same, mean over experiments": _before_and_after,
    "mean width of the 80% range of the others before, after one candidate is trained": lambda of: ", ".join(
        f"{np.mean([chance.high - chance.low for chance in chances]):.2f}"
        for chances in ([e.chance for e in _others(of)], [e.after_one for e in _others(of)])
    ),
    "count of failures in the 80% range after one is trained": lambda of: (
        f"{sum(e.is_in_range_after_one for e in of)} of {len(of)}"
    ),
}


def fit_all() -> None:
    rows = read_rows(DATA)
    model = fit_rows(rows)
    text = "\n".join(report(rows, model)) + "\n"
    print(text)
    FIT.write_text(text, encoding="utf-8")
    numbers = {key: _rounded(value) for key, value in asdict(model).items()}
    write_json(Path("cpdrun/whatif") / COEFFICIENTS, numbers)
    keys = ("experiment", "candidate", "fails", "gap")
    order = list(RECORDED)
    found = sorted(leave_out(rows, "experiment"), key=lambda each: order.index(each.name))
    write_rows(
        PREDICTED,
        [
            {key: each.row[key] for key in keys}
            | {"predicted": rounded(each.chance.mean), "score": rounded(each.logit)}
            for each in _every(found)
        ],
    )


def _rounded(value: Any) -> Any:
    return float(f"{value:.6g}") if isinstance(value, float) else value


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(required=True, dest="command")
    commands.add_parser("fit", help="fit the model and report how well it does")
    with_names = {
        "observe": (observe, "train the baselines, observed, and rewrite their rows"),
        "judge": (judge, "recompute gaps and margins from what is recorded"),
    }
    for command, (_, text) in with_names.items():
        subparser = commands.add_parser(command, help=text)
        subparser.add_argument("names", nargs="*", metavar="NAME", help=f"default: {' '.join(RECORDED)}")
    arguments = parser.parse_args()
    if arguments.command == "fit":
        fit_all()
        return
    if unknown := set(arguments.names) - set(RECORDED):
        sys.exit(f"error: unknown {', '.join(sorted(unknown))}; there are {', '.join(RECORDED)}")
    with_names[arguments.command][0](arguments.names or list(RECORDED))


if __name__ == "__main__":
    main()
