"""The picture of a fitted law of loss, and whether its intervals hold what they say.

    python scripts/scaling_law.py picture llama_scaling_small     # loss_vs_parameters.png into results/reference/NAME
    python scripts/scaling_law.py coverage --experiments 200      # a table, on losses made up after a known law

Coverage: experiments of the sizes, budgets and formats of the reference, losses by the floating form with the constants
that were fitted to it, and noise of --noise for each run, a part --shared of it (of the variance) common to the runs of
one size, budget and seed. Counted: how often the 95 % interval holds the true parameter and the true loss at four times
the largest size, and how often a law without the largest size has its runs in their interval.
"""

import argparse
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np

from cpdrun.predict.law_loss import PLAIN, LossLaws, fit_losses
from cpdrun.predict.law_read import read
from cpdrun.stats.scaling_law import FLOATING, Law, Runs, hold_out_largest

REFERENCE = Path("results/reference")
COLORS = ("#444444", "#0072b2", "#56b4e9", "#d55e00", "#009e73", "#cc79a7")
FEW_STARTS = 6


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


def coverage(name: str, experiments: int, noise: float, shared: float, draws: int) -> list[str]:
    """A table in Markdown. The truth is the law fitted to the reference."""
    [study] = read([name])
    design = fit_losses(study, draws=0)
    truth = design.laws[FLOATING]
    theta, runs = truth.fitted.theta, design.runs
    exact = truth.draws(runs)[0]
    far = runs.take(runs.parameters == runs.parameters.max())
    far = replace(far, parameters=4 * far.parameters)
    true_far, outer = truth.draws(far)[0], truth._outer(theta)
    names = list(truth.estimates(95))
    held, bounded = dict.fromkeys(names, 0), dict.fromkeys(names, 0)
    loss, tested, asked = 0.0, 0, 0
    rng = np.random.default_rng(0)
    for experiment in range(experiments):
        losses = exact * np.exp(_noise(runs, noise, shared, rng))
        made = replace(runs, loss=losses)
        law = Law(FLOATING, made, starts=FEW_STARTS, draws=draws, seed=experiment)
        for i, (one, found) in enumerate(law.estimates(95).items()):
            held[one] += found.low <= outer[i] <= found.high
            bounded[one] += bool(np.isfinite(found.low) and np.isfinite(found.high))
        found = law.predict(far)
        loss += float(np.mean((found.low <= true_far) & (true_far <= found.high)))
        test = hold_out_largest(FLOATING, made, starts=FEW_STARTS, draws=draws, seed=experiment)
        tested += test.within
        asked += len(test.measured)
        print(f"{experiment + 1} of {experiments}", file=sys.stderr, flush=True)
    rows = [
        f"| {one} | {outer[i]:.3g} | {100 * held[one] / experiments:.0f} % | {100 * bounded[one] / experiments:.0f} % |"
        for i, one in enumerate(names)
    ]
    return [
        f"{experiments} experiments of {len(runs)} runs, noise {noise:g} of the loss, {draws} draws.",
        "",
        "| parameter | truth | interval holds it | bounded on both sides |",
        "|---|--:|--:|--:|",
        *rows,
        "",
        f"Loss at four times the largest size: {100 * loss / experiments:.0f} % of the intervals hold it. "
        f"Runs of the largest size in their interval by a law without it: {100 * tested / asked:.0f} %.",
    ]


def _noise(runs: Runs, noise: float, shared: float, rng: np.random.Generator) -> np.ndarray:
    """(R,): a part common to each group, the rest each run's own."""
    groups, place = np.unique(runs.group, return_inverse=True)
    common = rng.normal(size=len(groups))[place]
    return noise * (np.sqrt(shared) * common + np.sqrt(1 - shared) * rng.normal(size=len(runs)))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=["picture", "coverage"])
    parser.add_argument(
        "name", nargs="?", default="llama_scaling_small", help="a sweep or a committed reference"
    )
    parser.add_argument("words", nargs="*", help="results_dir=PATH, where the sweep lies")
    parser.add_argument("--experiments", type=int, default=200)
    parser.add_argument(
        "--noise", type=float, default=0.005, help="standard deviation of the logarithm of a loss"
    )
    parser.add_argument(
        "--shared", type=float, default=0.5, help="share of its variance that a seed's runs share"
    )
    parser.add_argument("--draws", type=int, default=100)
    asked = parser.parse_args()
    if asked.what == "picture":
        print(picture(asked.name, asked.words))
    else:
        print("\n".join(coverage(asked.name, asked.experiments, asked.noise, asked.shared, asked.draws)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
