"""The picture of a fitted law of loss, and whether its intervals hold what they say.

    python scripts/scaling_law.py picture llama_scaling_small     # loss_vs_parameters.png into results/reference/NAME
    python scripts/scaling_law.py coverage llama_scaling_small    # coverage.md there, on losses made up by known laws

Coverage: experiments of the sizes, budgets and formats of the reference, with losses by the floating form and normal
noise, a part of it common to the runs of one size, budget and seed. Three cases:

    quiet     the constants that were fitted to the reference; noise of half a per cent of the loss, half of it common
    as there  the same constants, and the noise that the fit left over of the reference
    inside    constants within the bounds (an irreducible loss, formats that cost what they do in print); noise of 2 %

Counted: how often the 95 % interval holds the true parameter and the true loss at four times the largest size, and how
often a law without the largest size has its runs in their interval. 60 experiments of each, seven minutes on one
core; the bootstrap has half of its usual draws. coverage.made_by.txt beside it says of which commit it is: a working
tree that differs from its commit is refused.
"""

import argparse
import math
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from made_by import clean_commit, write_made_by

from cpdrun.predict.law_loss import PLAIN, LossLaws, fit_losses
from cpdrun.predict.law_read import read
from cpdrun.stats.noise import Noise
from cpdrun.stats.scaling_law import FLOATING, Law, Runs, hold_out_largest

REFERENCE = Path("results/reference")
COLORS = ("#444444", "#0072b2", "#56b4e9", "#d55e00", "#009e73", "#cc79a7")
FEW_STARTS = 4


def picture(name: str, words: list[str]) -> Path:
    """Loss against parameters, a panel a budget, a line a format; what was left out to test the law is open."""
    from matplotlib.figure import Figure

    [study] = read([name, *words])
    laws = fit_losses(study)
    held = laws.held.get(laws.best)
    budgets = np.unique(laws.runs.data)
    figure = Figure(figsize=(3.1 * len(budgets), 3.3), layout="constrained")
    panels = figure.subplots(1, len(budgets), sharey=True, squeeze=False)[0]
    formats = [None, *sorted(laws.names, key=lambda fmt: laws.names[fmt])]
    for axes, data in zip(panels, budgets, strict=True):
        for fmt, color in zip(formats, COLORS, strict=False):
            _line(axes, laws, fmt, data, color)
        if held is not None:
            _band(axes, laws, data)
        axes.set_xscale("log")
        axes.set_xticks(sizes := np.unique(laws.runs.parameters), [f"{size / 1000:,.0f}k" for size in sizes])
        axes.minorticks_off()
        axes.set_title(f"{data:,.0f} {laws.unit}", fontsize=9)
        axes.set_xlabel("parameters", fontsize=8)
        axes.tick_params(labelsize=7)
    panels[0].set_ylabel("test loss, nats", fontsize=8)
    panels[-1].legend(fontsize=6.5, frameon=False)
    figure.suptitle(
        f"{name}: lines, the law of all runs; band, of nothing rounded, the 95 % interval of a run by a law "
        "without the largest size",
        fontsize=8,
    )
    path = REFERENCE / name / "loss_vs_parameters.png"
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    return path


def _line(axes, laws: LossLaws, fmt, data: float, color: str) -> None:
    runs = laws.runs
    of_format = ~runs.rounded if fmt is None else (
        (runs.exponent_bits == fmt[0]) & (runs.mantissa_bits == fmt[1]) & (runs.block == fmt[2])
    )  # fmt: skip
    points = runs.take(of_format & (runs.data == data))
    if not len(points):
        return
    label = PLAIN if fmt is None else laws.names[fmt]
    axes.plot(points.parameters, points.loss, "o", color=color, markersize=3)
    asked = _along(laws, points.take([0]), data)
    axes.plot(
        asked.parameters, laws.laws[laws.best].predict(asked).loss, color=color, linewidth=1, label=label
    )


def _band(axes, laws: LossLaws, data: float) -> None:
    plain = laws.runs.take(~laws.runs.rounded & (laws.runs.data == data))
    if len(plain):
        asked = _along(laws, plain.take([0]), data)
        found = laws.held[laws.best].law.predict(asked)
        axes.fill_between(
            asked.parameters, found.run_low, found.run_high, color=COLORS[0], alpha=0.15, linewidth=0
        )


def _along(laws: LossLaws, one: Runs, data: float) -> Runs:
    """The same format and data at 40 sizes, somewhat past both ends."""
    sizes = np.geomspace(laws.runs.parameters.min() / 1.2, laws.runs.parameters.max() * 1.5, 40)
    many = one.take(np.zeros(len(sizes), int))
    return replace(many, parameters=sizes, data=np.full(len(sizes), data))


@dataclass(frozen=True)
class Case:
    """A true law, in the inner parameters, and the standard deviations of the noise of log losses."""

    name: str
    theta: np.ndarray
    common: float
    own: float


def cases(truth: Law) -> list[Case]:
    """Of the law that was fitted to the reference."""
    theta, runs = truth.fitted.theta, truth.runs
    _, slope = truth._model(theta, runs)
    left = Noise.of(truth.fitted.left_over, slope, list(runs.group))
    inside = theta.copy()
    inside[[0, 1, 4, 6, 7]] = theta[0] - 1, 0.3, 0.8, 2.0, 1.5  # n smaller, alpha, eps, delta, nu
    return [
        Case("quiet", theta, 0.005 / math.sqrt(2), 0.005 / math.sqrt(2)),
        Case("as there", theta, left.common, left.own),
        Case("inside", inside, 0.02 / math.sqrt(2), 0.02 / math.sqrt(2)),
    ]


@dataclass
class Held:
    """Shares: how often a parameter's interval held it and was bounded, a far loss's held that loss, and that of a run
    of the size left out held the run."""

    truth: list[float]
    holds: np.ndarray
    bounded: np.ndarray
    far: float
    left_out: float


def coverage_of(case: Case, truth: Law, experiments: int, draws: int) -> Held:
    runs = truth.runs
    far = runs.take(runs.parameters == runs.parameters.max())
    far = replace(far, parameters=4 * far.parameters)
    exact, exact_far = (np.exp(truth._model(case.theta, asked)[0]) for asked in (runs, far))
    outer, rng = truth._outer(case.theta), np.random.default_rng(0)
    found = Held(outer, np.zeros(len(outer)), np.zeros(len(outer)), 0.0, 0.0)
    _, place = np.unique(runs.group, return_inverse=True)
    for experiment in range(experiments):
        noise = case.common * rng.normal(size=place.max() + 1)[place] + case.own * rng.normal(size=len(runs))
        made = replace(runs, loss=exact * np.exp(noise))
        settings = {"starts": FEW_STARTS, "draws": draws, "seed": experiment}
        law = Law(FLOATING, made, **settings)
        ends = [(one.low, one.high) for one in law.estimates(95).values()]
        found.holds += [low <= true <= high for (low, high), true in zip(ends, outer, strict=True)]
        found.bounded += [math.isfinite(low) and math.isfinite(high) for low, high in ends]
        asked = law.predict(far)
        found.far += float(np.mean((asked.low <= exact_far) & (exact_far <= asked.high)))
        test = hold_out_largest(FLOATING, made, **settings)
        found.left_out += test.within / len(test.measured)
        print(f"{case.name}: {experiment + 1} of {experiments}", file=sys.stderr, flush=True)
    return replace(
        found,
        **{name: getattr(found, name) / experiments for name in ("holds", "bounded", "far", "left_out")},
    )


def coverage(name: str, words: list[str], experiments: int, draws: int) -> Path:
    """A table in Markdown, beside the reference, and what it was made by."""
    commit, started = clean_commit(), time.monotonic()
    [study] = read([name, *words])
    truth = fit_losses(study, draws=0).laws[FLOATING]
    every = cases(truth)
    held = [coverage_of(case, truth, experiments, draws) for case in every]

    def row(first: str, cells: Iterable[str]) -> str:
        return "| " + " | ".join([first, *cells]) + " |"

    def shares(first: str, values: Iterable[float]) -> str:
        return row(first, (f"{100 * value:.0f} %" for value in values))

    lines = [
        f"`python scripts/scaling_law.py coverage {name} --experiments {experiments} --draws {draws}`:",
        f"how often a 95 % interval holds what is true, in {experiments} experiments of {len(truth.runs)} runs of each",
        "case, with losses made up by a known law. In brackets the true value, and how often both ends were bounded.",
        "",
        row(
            "", (f"{one.name}: noise {_percent(one.common)} common, {_percent(one.own)} own" for one in every)
        ),
        "|---|" + "--:|" * len(every),
        shares("**loss at four times the largest size**", (one.far for one in held)),
        shares("a run of the largest size, by a law without it", (one.left_out for one in held)),
    ]
    for i, parameter in enumerate(truth.estimates(95)):
        cells = [
            f"{100 * one.holds[i]:.0f} % ({one.truth[i]:.3g}; {100 * one.bounded[i]:.0f} %)" for one in held
        ]
        lines.append(row(parameter, cells))
    path = REFERENCE / name / "coverage.md"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    write_made_by(path.with_suffix(".made_by.txt"), commit, started, [path.name])
    return path


def _percent(share: float) -> str:
    return f"{100 * share:.2g} %"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=["picture", "coverage"])
    parser.add_argument(
        "name", nargs="?", default="llama_scaling_small", help="a sweep or a committed reference"
    )
    parser.add_argument("words", nargs="*", help="results_dir=PATH, where the sweep lies")
    parser.add_argument("--experiments", type=int, default=60, help="of each case")
    parser.add_argument("--draws", type=int, default=100, help="of the bootstrap")
    asked = parser.parse_args()
    if asked.what == "picture":
        print(picture(asked.name, asked.words))
    else:
        print(coverage(asked.name, asked.words, asked.experiments, asked.draws))
    return 0


if __name__ == "__main__":
    sys.exit(main())
