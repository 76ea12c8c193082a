"""What fitted laws say: sentences, and the same for programs."""

import math
from typing import Any

import numpy as np

from cpdrun.predict.law_loss import Asked, LossLaws, beyond, predicted
from cpdrun.predict.law_workers import WorkerLaw, measured_fewest, needed_at
from cpdrun.stats.chain_law import ChainLaw
from cpdrun.stats.scaling_law import EFFECTIVE, FLOATING, Estimate, Law

SOURCES = {FLOATING: "arXiv 2501.02423", EFFECTIVE: "arXiv 2411.04330"}
FORMULAS = {
    FLOATING: "n/N^alpha + d/D^beta + eps + D^beta/N^alpha log2(B) / (gamma (E+.5)^delta (M+.5)^nu)",
    EFFECTIVE: "A/N_eff^alpha + B/D^beta + E, N_eff = N prod (1 - e^(-P/gamma)) over weights and activations",
}


COVERAGE = (
    "How far to trust the intervals below: in experiments made up by known laws, of the sizes of llama_scaling_small, "
    "those that say 95 % held 86 to 96 % of losses at four times the largest size, and of single parameters as few as "
    "79 % (results/reference/llama_scaling_small/coverage.md)."
)  # as scripts/scaling_law.py coverage found it; a test holds both together


def figure(value: float) -> str:
    """Three digits: 0.0123, 4.56, 1.23e+07, 35,700."""
    if not math.isfinite(value):
        return str(value)
    if value != 0 and not 1e-3 <= abs(value) < 1e6:
        return f"{value:.2e}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def interval(estimate: Estimate, why: str = "") -> str:
    """`0.35 [0.31, 0.39]`, `0.35, not bounded above`, `not determined: ...`."""
    if math.isnan(estimate.value):
        return f"not determined{f': {why}' if why else ' by these runs'}"
    low, high = estimate.low, estimate.high
    if math.isfinite(low) and math.isfinite(high):
        return f"{figure(estimate.value)} [{figure(low)}, {figure(high)}]"
    if math.isfinite(low):
        return f"{figure(estimate.value)}, at least {figure(low)}, not bounded above"
    return (
        f"{figure(estimate.value)}, at most {figure(high)}, not bounded below"
        if math.isfinite(high)
        else "not bounded"
    )


def _of(law: Law | ChainLaw, ci: float) -> str:
    return "; ".join(
        f"{name} {interval(one, law.unseen.get(name, ''))}" for name, one in law.estimates(ci).items()
    )


def of_losses(laws: LossLaws, asked: list[Asked], ci: float) -> list[str]:
    runs, lines = laws.runs, [COVERAGE]
    sizes, budgets = np.unique(runs.parameters), np.unique(runs.data)
    lines.append(
        f"{laws.study.name}: {len(runs)} runs, {len(sizes)} sizes of {sizes[0]:,.0f} to {sizes[-1]:,.0f} parameters, "
        f"{len(budgets)} budgets of {budgets[0]:,.0f} to {budgets[-1]:,.0f} {laws.unit}, formats "
        f"{', '.join(sorted(laws.names.values()))}."
    )
    for form, law in laws.laws.items():
        lines.append(f"Loss = {FORMULAS[form]} ({SOURCES[form]}): {_of(law, ci)}.")
        if held := laws.held.get(form):
            lines.append(
                f"  tested without the largest size, {held.factor:.2g} times the next: {held.within} of "
                f"{len(held.measured)} of its runs lie in their {ci:g} % interval, mean error "
                f"{100 * held.error:.2g} % of the loss."
            )
    for one in asked:
        lines += _at(laws, one, ci)
    lines += [f"note: {note}" for note in laws.notes]
    lines.append(
        f"Intervals: {ci:g} %, by bootstrap of what is left over, in part common to the runs of one size, budget and "
        "seed; each end the further of the percentile and its mirror."
    )
    return lines


def _at(laws: LossLaws, asked: Asked, ci: float) -> list[str]:
    form = laws.best
    table = predicted(laws, form, asked, ci)
    plain, rest = table[0], table[1:]
    lines = [
        f"At {asked.text} ({asked.parameters:,.0f} parameters, {asked.data:,.0f} {laws.unit}), by the form of "
        f"{SOURCES[form]}: {plain['loss']:.3f} [{plain['low']:.3f}, {plain['high']:.3f}] with nothing rounded."
    ]
    for row in rest:
        lines.append(
            f"  {row['format']}: +{row['more']:.3f} [{row['more_low']:.3f}, {row['more_high']:.3f}], within "
            f"{row['tolerance']:g} with {100 * row['within']:.0f} %"
        )
    by_size, by_data = beyond(laws, asked)
    if max(by_size, by_data) > 1.001:
        reach = laws.held[form].factor if form in laws.held else 1.0
        lines.append(
            f"  outside what was trained: {by_size:,.3g} times in parameters, {by_data:,.3g} times in data. The test "
            f"reached {reach:.2g} times, so this is the form carried on, and its interval says nothing of another form."
        )
    return lines


def of_workers(found: WorkerLaw, workers: list[int], ci: float) -> list[str]:
    sums = found.sums
    seen = sorted({int(n) for n in sums.workers})
    lines = [
        f"{found.study.name}: {len(sums)} runs with APS of {', '.join(map(str, seen))} workers, chains of "
        f"{sums.chain.min():.0f} to {sums.chain.max():.0f} additions, formats "
        f"{', '.join(sorted({cell['format'] for cell in found.cells}))}.",
        "Excess r = log(loss / loss of fp32) = c (1 - exp(-z/c)), z = (k/K)^s, log2 K = a + b m + h (E - "
        f"{found.law.least_exponent:g}): {_of(found.law, ci)}.",
        f"  b: doublings of the chain a mantissa bit is worth; r up to {found.most:.2g} is within {found.tolerance:g} "
        "points of accuracy.",
    ]
    if found.held is not None:
        lines += _tested(found, ci)
    for n in workers:
        for row in needed_at(found, n, ci):
            lines.append(f"{n:,} workers, {row['order']} (chain {row['chain']:,}): {_needed(row, found)}.")
    lines += [f"note: {note}" for note in found.notes]
    lines.append(
        f"Intervals: {ci:g} %, by bootstrap over cells (workers, order, format), drawn within each number."
    )
    return lines


def _tested(found: WorkerLaw, ci: float) -> list[str]:
    held, most = found.held, int(found.sums.workers.max())
    measured = measured_fewest(found, most)
    lines = [
        f"  tested without {most} workers, whose longest chain is {held.factor:.2g} times the next: {held.within} of "
        f"{len(held.measured)} of their runs lie in their {ci:g} % interval."
    ]
    for row in needed_at(found, most, ci, held.law):
        true = measured.get((row["order"], row["chain"]))
        if true is not None:
            said = f"{true:g} bits" if math.isfinite(true) else "more than any tried"
            lines.append(f"  {row['order']} (chain {row['chain']}): predicted {_bits(row)}, measured {said}.")
    return lines


def _bits(row: dict[str, Any]) -> str:
    def said(value: float) -> str:
        return f"{value:g}" if math.isfinite(value) else "more than 27"

    return f"{said(row['bits'])} bits [{said(row['low'])}, {said(row['high'])}]"


def _needed(row: dict[str, Any], found: WorkerLaw) -> str:
    text = _bits(row) + (f", such as {row['format']}" if row["format"] else "")
    if row["beyond"] > 1:
        text += (
            f"; {row['beyond']:.3g} times the longest chain that was run, and the test reached "
            f"{found.held.factor if found.held else 1:.2g} times"
        )
    return text


def as_json(
    losses: list[tuple[LossLaws, list[Asked]]], workers: list[tuple[WorkerLaw, list[int]]], ci: float
) -> dict[str, Any]:
    """Plain data; what is not known or not bounded is None."""
    return _plain(
        {
            "ci": ci,
            "loss": [
                {
                    "sweep": laws.study.name,
                    "runs": len(laws.runs),
                    "unit": laws.unit,
                    "forms": {form: _law(law, ci) | _held(laws, form) for form, law in laws.laws.items()},
                    "best": laws.best,
                    "at": [
                        {
                            "asked": one.text,
                            "parameters": one.parameters,
                            "data": one.data,
                            "beyond": beyond(laws, one),
                            "formats": {form: predicted(laws, form, one, ci) for form in laws.laws},
                        }
                        for one in asked
                    ],
                    "notes": laws.notes,
                }
                for laws, asked in losses
            ],
            "workers": [
                {
                    "sweep": found.study.name,
                    "runs": len(found.sums),
                    "law": _law(found.law, ci),
                    "excess_allowed": found.most,
                    "held_out": _held_workers(found, ci),
                    "at": [row for n in numbers for row in needed_at(found, n, ci)],
                    "notes": found.notes,
                }
                for found, numbers in workers
            ],
        }
    )


def _law(law: Law | ChainLaw, ci: float) -> dict[str, Any]:
    return {"parameters": {name: vars(one) for name, one in law.estimates(ci).items()}, "unseen": law.unseen}


def _held(laws: LossLaws, form: str) -> dict[str, Any]:
    held = laws.held.get(form)
    if held is None:
        return {"held_out": None}
    return {
        "held_out": {
            "factor": held.factor,
            "within": held.within,
            "runs": len(held.measured),
            "error": held.error,
            "measured": held.measured.loss.tolist(),
            "predicted": held.predicted.loss.tolist(),
            "low": held.predicted.run_low.tolist(),
            "high": held.predicted.run_high.tolist(),
        }
    }


def _held_workers(found: WorkerLaw, ci: float) -> dict[str, Any] | None:
    if found.held is None:
        return None
    most = int(found.sums.workers.max())
    measured = measured_fewest(found, most)
    return {
        "workers": most,
        "within": found.held.within,
        "runs": len(found.held.measured),
        "fewest": [
            {**row, "measured": measured.get((row["order"], row["chain"]))}
            for row in needed_at(found, most, ci, found.held.law)
        ],
    }


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if isinstance(value, bool | str) or value is None:
        return value
    number = value.item() if hasattr(value, "item") else value
    return number if math.isfinite(number) else None
