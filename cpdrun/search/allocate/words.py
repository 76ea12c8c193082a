"""Write the messages of a screen: factors and runs, effects and verdicts, the allocation, and the facts for programs.

No message is stronger than the tests allow. The verdicts `sensitive` and `harmless` hold for all factors together at
the screen's confidence. An interval holds for its own factor only.
"""

import math
from collections.abc import Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from cpdrun.search.allocate.allocation import Allocation, Costs
from cpdrun.search.allocate.question import ScreenQuestion
from cpdrun.search.allocate.results import Found, Round
from cpdrun.search.allocate.settings import GRADIENT, Level
from cpdrun.stats.screening import Sensitivity

STYLES = {Sensitivity.SENSITIVE: "red", Sensitivity.HARMLESS: "green", Sensitivity.OPEN: "yellow"}


def asked_lines(question: ScreenQuestion) -> list[str]:
    """Return lines that say what is varied, and in how many runs."""
    if question.number > 1:
        return [*_round_lines(question)]
    asked = question.settings
    levels = "; ".join(
        f"{role} {' or '.join(map(level_text, reversed(asked.low[role])))} or {level_text(asked.high[role])}"
        for role in asked.roles
    )
    lines = [f"Which need high bits? {len(question.factors)} factors, low or high: {levels}"]
    lines += _round_lines(question)
    if asked.rounds > 1:
        lines.append(
            f"  at most {question.most_runs()} runs in {asked.rounds} rounds: what can be low is asked of again, "
            "one level further down"
        )
    for group in question.groups:
        roles = ", ".join(f.role for f in question.factors if question.groups[f.group] is group)
        layers = group.layers if GRADIENT in asked.roles else group.products
        lines.append(f"  {group.name} ({roles}): {', '.join(layer.name for layer in layers)}")
    return lines


def _round_lines(question: ScreenQuestion) -> list[str]:
    asked, of = question.settings, question.design
    kind = ", folded over: no interaction of two factors biases an effect" if of.is_folded else ""
    seeds = f"{asked.seeds} seed{'s' if asked.seeds > 1 else ''}"
    runs = f"{of.runs} rows x {seeds}{kind} -> {len(question.runs)} runs"
    if question.number == 1:
        return [runs]
    steps = {
        f"{role} {level_text(asked.level(role, question.number))}": None
        for role in (question.factors[i].role for i in question.varied)
    }
    return [
        f"Round {question.number}: {len(question.varied)} of {len(question.factors)} factors one level further down, "
        f"the others as allocated: {'; '.join(steps)}",
        runs,
    ]


def level_text(level: Level) -> str:
    """Return the name of a level, such as `e3m0`, `e3m0 with APS` or `mxfp4 stochastic`."""
    extra = [f"{key}={value}" for key, value in level.items() if key not in ("format", "aps")]
    extra += ["with APS"] if level.get("aps") else []
    return " ".join([str(level["format"]), *extra])


def table(question: ScreenQuestion, found: Found) -> Table:
    """Return a table with one row for each factor, the most sensitive first."""
    said = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", pad_edge=False)
    said.add_column("factor", no_wrap=True)
    said.add_column(f"low costs{found.metric.points}", justify="right", no_wrap=True)
    said.add_column(f"{question.settings.confidence:g} %", justify="right", no_wrap=True)
    said.add_column("", no_wrap=True)
    for i in by_effect(found):
        effect = found.effects.factors[i]
        name = question.factors[question.varied[i]].name
        text = Text(str(effect.verdict), style=STYLES[effect.verdict])
        ends = f"[{_signed(found, effect.low)}, {_signed(found, effect.high)}]"
        said.add_row(name, _signed(found, effect.mean), ends, text)
    return said


def by_effect(found: Found) -> list[int]:
    """Return the columns of the design, the most harmful factor first."""
    return sorted(range(len(found.effects.factors)), key=lambda i: -found.effects.factors[i].mean)


def verdict_lines(question: ScreenQuestion, found: Found) -> list[str]:
    """Return lines that say what is sensitive, what is harmless and what diverged, and how this is known."""
    asked, metric = question.settings, found.metric
    of = {v: [i for i in by_effect(found) if found.effects.factors[i].verdict is v] for v in Sensitivity}
    named = ", ".join(
        f"{question.factors[question.varied[i]].name} ({_signed(found, found.effects.factors[i].mean)})"
        for i in of[Sensitivity.SENSITIVE]
    )
    tolerance = metric.show_tolerance(found.tolerance * metric.scale)
    sensitive, harmless, open_ = (len(of[verdict]) for verdict in Sensitivity)
    lines = [
        f"{sensitive} of {len(question.varied)} factors are sensitive{': ' if named else ''}{named}; {harmless} are "
        f"harmless, each less than {tolerance}; {open_} not shown to be either. All verdicts of a kind hold together "
        f"at {asked.confidence:g} % (Holm; {found.effects.method})."
    ]
    if found.diverged:
        count = len(found.diverged)
        lines.append(
            f"{count} run{'s' if count > 1 else ''} diverged and count{'s' if count == 1 else ''} as "
            f"{metric.show(found.worst)}{metric.unit}: effects are of that scale, not of runs that train"
            + (f". Low in each of them: {', '.join(blamed)}" if (blamed := found.blamed(question)) else "")
            + "."
        )
    return lines


def allocation_lines(rounds: Sequence[Round], chosen: Allocation | None) -> list[str]:
    """Return lines that describe the allocation and compare it with uniform formats."""
    question, found = rounds[-1].question, rounds[-1].found
    asked, metric = question.settings, found.metric
    tolerance = metric.show_tolerance(found.tolerance * metric.scale)
    if chosen is None:
        more = f"screen.seeds={2 * asked.seeds} would narrow the intervals, a larger screen.tolerance asks for less"
        return [
            f"Allocation: none. Not one factor may be low within {tolerance} at {asked.confidence:g} %; {more}."
        ]
    share = chosen.price.cost / chosen.all_high.cost
    lines = [
        f"Allocation: {_how_low(question, chosen)}. Together they cost "
        f"{_signed(found, chosen.expected)}{metric.points}, at most {_signed(found, chosen.bound)} "
        f"at {asked.confidence:g} %, of {tolerance}, if effects add up.",
        f"{chosen.price.cost:.4g} {chosen.price.unit}, {share:.0%} of all high, {chosen.price.mean_bits:.2f} bits a "
        f"value in the mean (all low {chosen.all_low.mean_bits:.2f}, all high {chosen.all_high.mean_bits:.2f}).",
    ]
    for name, bits, price in uniform_prices(question):
        less = 1 - chosen.price.cost / price.cost
        fewer = 1 - chosen.price.mean_bits / price.mean_bits
        lines.append(
            f"  against {name} everywhere ({bits:g} bits): {less:.0%} fewer {chosen.price.unit.split(' of ')[0]}, "
            f"{fewer:.0%} fewer bits in the mean"
        )
    return lines


def _how_low(question: ScreenQuestion, chosen: Allocation) -> str:
    """Return the levels in words, such as `10 of 12 factors low, high: A, B`.

    If there are several low levels, say how many factors have each, and name the factors that do not have the lowest.
    """
    of = {i: chosen.levels.get(i, 0) for i in range(len(question.factors))}
    if question.settings.rounds == 1:
        high = [question.factors[i].name for i, level in of.items() if not level]
        return f"{len(chosen.low)} of {len(of)} factors low{', high: ' if high else ''}{', '.join(high)}"
    said = []
    for level in range(question.settings.rounds, -1, -1):
        own = [question.factors[i].name for i in of if of[i] == level]
        names = f" ({', '.join(own)})" if own and level < question.settings.rounds else ""
        said.append(f"{len(own)} {f'at low level {level}' if level else 'high'}{names}")
    return f"of {len(of)} factors {', '.join(said)}"


def uniform_prices(question: ScreenQuestion) -> list[tuple[str, float, Any]]:
    """Return the name, the bits and the `Price` of each uniform format with which the allocation is compared."""
    from cpdrun.study import formats

    found = []
    for level in question.settings.uniform:
        bits = float(formats.bits(level["format"]))
        found.append((level_text(level), bits, costs_of(question).uniform(bits)))
    return found


def costs_of(question: ScreenQuestion) -> Costs:
    """Return the cost of levels for a screen."""
    return Costs(question.settings, question.groups, question.factors, question.layers)


def facts(
    question: ScreenQuestion, rounds: Sequence[Round], chosen: Allocation | None, command: str | None
) -> dict[str, Any]:
    """Return the screen for programs. Differences are in the metric's own unit, and larger is worse.

    `question` is the question of the last round that was reached.
    """
    found = rounds[-1].found if rounds else None
    return {
        "sweep": str(question.directory.path),
        "factors": [f.name for f in question.factors],
        "round": question.number,
        "rows": question.design.runs,
        "runs": len(question.plan.runs),
        "most_runs": len(question.plan.runs) - len(question.runs) + question.most_runs(),
        "metric": found and found.metric.name,
        **(round_facts(rounds) if found else {"effects": None, "method": None}),
        "tolerance": found and found.tolerance,
        "diverged": found and sum(len(each.found.diverged) for each in rounds),
        "allocation": chosen and allocation_facts(question, chosen),
        "certify": command,
    }


def round_facts(rounds: Sequence[Round]) -> dict[str, Any]:
    """Return the effects of all rounds and the methods that estimated them."""
    methods = dict.fromkeys(each.found.effects.method for each in rounds)
    return {
        "effects": [fact for each in rounds for fact in _effect_facts(each)],
        "method": "; then ".join(methods),
    }


def _effect_facts(of: Round) -> list[dict[str, Any]]:
    question, found = of.question, of.found
    names = [question.factors[i].name for i in question.varied]
    more = {"round": question.number} if question.settings.rounds > 1 else {}
    return [
        {
            "factor": names[i],
            **more,
            "cost": effect.mean,
            "low": effect.low,
            "high": effect.high,
            "verdict": str(effect.verdict),
        }
        for i, effect in ((i, found.effects.factors[i]) for i in by_effect(found))
    ]


def allocation_facts(question: ScreenQuestion, chosen: Allocation) -> dict[str, Any]:
    """Return the allocation for programs."""
    return {
        "low": [question.factors[i].name for i in chosen.low],
        "high": [f.name for i, f in enumerate(question.factors) if i not in chosen.low],
        "levels": {
            f.name: level_text(question.settings.level(f.role, chosen.levels.get(i, 0)))
            for i, f in enumerate(question.factors)
        },
        "expected": chosen.expected,
        "bound": chosen.bound,
        "cost": chosen.price.cost,
        "unit": chosen.price.unit,
        "mean_bits": chosen.price.mean_bits,
        "all_low": chosen.all_low.cost,
        "all_high": chosen.all_high.cost,
        "case": question.cases.of(chosen.levels),
    }


def _signed(found: Found, value: float) -> str:
    if not math.isfinite(value):
        return "-"
    digits = 2 if found.metric.is_fraction else 4
    return f"{'−' if value < 0 else '+'}{abs(value) * found.metric.scale:.{digits}f}"
