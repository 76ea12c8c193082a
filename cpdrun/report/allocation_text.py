"""Texts of `cpdrun search --allocate`: factors, effects, verdicts and the allocation.

A factor is one role (such as weight or gradient) of a group of layers. The verdicts "sensitive" and "harmless" hold
jointly for all factors at the screen's confidence. The printed interval of a factor holds for this factor alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from rich.table import Table
from rich.text import Text

from cpdrun.report.render import render_lines
from cpdrun.search.allocate.allocation import Allocation
from cpdrun.search.allocate.question import ScreenQuestion
from cpdrun.search.allocate.results import Round, RoundResult, ScreenResult, level_name, uniform_prices
from cpdrun.search.settings import GRADIENT
from cpdrun.shell.terminal import plain_table
from cpdrun.stats.screening import Sensitivity

STYLES = {Sensitivity.SENSITIVE: "red", Sensitivity.HARMLESS: "green", Sensitivity.OPEN: "yellow"}


@dataclass(kw_only=True)
class ScreenDocument(ScreenResult):
    """The results of a screen, as `cpdrun search --allocate --json` prints them.

    Attributes:
        dry_run: Whether the command was a dry run, which starts no runs.
    """

    dry_run: bool


def describe_round(question: ScreenQuestion) -> list[str]:
    """Describe what a round of the screen varies, and how many runs it takes.

    The first round also lists the layers of each group.
    """
    asked, number = question.settings, question.number
    if number == 1:
        levels = [
            f"{role} {' or '.join(map(level_name, reversed(asked.low[role])))} or {level_name(asked.high[role])}"
            for role in asked.roles
        ]
    else:
        roles = dict.fromkeys(question.factors[i].role for i in question.varied)
        levels = [f"{role} {level_name(asked.level(role, number))}" for role in roles]
    lines = render_lines(
        "allocation_question.j2",
        round=number,
        rounds=asked.rounds,
        factors=len(question.factors),
        varied=len(question.varied),
        levels=levels,
        rows=question.design.runs,
        seeds=asked.seeds,
        runs=len(question.runs),
        most_runs=question.most_runs(),
        is_folded=question.design.is_folded,
    )
    if number > 1:
        return lines
    for i, group in enumerate(question.groups):
        roles_of_group = ", ".join(factor.role for factor in question.factors if factor.group == i)
        layers = group.layers if GRADIENT in asked.roles else group.products
        lines.append(f"  {group.name} ({roles_of_group}): {', '.join(layer.name for layer in layers)}")
    return lines


def make_effects_table(question: ScreenQuestion, found: RoundResult) -> Table:
    """Make a table of the factors' effects, most harmful first."""
    headings = [f"cost of low{found.metric.points}", f"{question.settings.confidence:g}%"]
    table = plain_table(["factor"], headings)
    table.add_column("", no_wrap=True)
    for i in found.by_effect():
        effect = found.effects.factors[i]
        ends = f"[{_signed(found, effect.low)}, {_signed(found, effect.high)}]"
        verdict = Text(str(effect.verdict), style=STYLES[effect.verdict])
        table.add_row(question.factors[question.varied[i]].name, _signed(found, effect.mean), ends, verdict)
    return table


def describe_effects(question: ScreenQuestion, found: RoundResult) -> list[str]:
    """Describe the sensitive and harmless factors, diverged runs and the test."""
    metric, effects = found.metric, found.effects.factors
    verdicts = [effect.verdict for effect in effects]
    return render_lines(
        "allocation_effects.j2",
        sensitive=[
            f"{question.factors[question.varied[i]].name} ({_signed(found, effects[i].mean)})"
            for i in found.by_effect()
            if effects[i].verdict is Sensitivity.SENSITIVE
        ],
        factors=len(question.varied),
        harmless=verdicts.count(Sensitivity.HARMLESS),
        open=verdicts.count(Sensitivity.OPEN),
        margin=metric.show_tolerance(found.tolerance * metric.scale),
        confidence=f"{question.settings.confidence:g}",
        method=found.effects.method,
        diverged=len(found.diverged),
        worst=metric.show(found.worst) + metric.unit,
        blamed=found.blamed(question),
    )


def describe_allocation(rounds: Sequence[Round], chosen: Allocation | None) -> list[str]:
    """Describe the allocation and compare its cost with uniform formats."""
    question, found = rounds[-1].question, rounds[-1].found
    metric = found.metric
    values = {
        "chosen": chosen,
        "margin": metric.show_tolerance(found.tolerance * metric.scale),
        "confidence": f"{question.settings.confidence:g}",
        "more_seeds": 2 * question.settings.seeds,
    }
    if chosen is None:
        return render_lines("allocation.j2", **values)
    uniforms = [
        {
            "name": name,
            "bits": f"{bits:g}",
            "less": f"{1 - chosen.price.cost / price.cost:.0%}",
            "fewer_bits": f"{1 - chosen.price.mean_bits / price.mean_bits:.0%}",
        }
        for name, bits, price in uniform_prices(question)
    ]
    return render_lines(
        "allocation.j2",
        **values,
        levels=_describe_levels(question, chosen),
        expected=_signed(found, chosen.expected) + metric.points,
        bound=_signed(found, chosen.bound) + metric.points,
        share=f"{chosen.price.cost / chosen.all_high.cost:.0%}",
        unit=chosen.price.unit.split(" of ")[0],
        uniforms=uniforms,
    )


def _describe_levels(question: ScreenQuestion, chosen: Allocation) -> str:
    """Summarize the levels, such as "10 of 12 factors are low; high: A, B".

    With several low levels, count the factors at each level and name those above the lowest.
    """
    levels = {i: chosen.levels.get(i, 0) for i in range(len(question.factors))}
    rounds = question.settings.rounds
    if rounds == 1:
        high = [question.factors[i].name for i, level in levels.items() if not level]
        return (
            f"{len(chosen.low)} of {len(levels)} factors are low{'; high: ' if high else ''}{', '.join(high)}"
        )
    parts = []
    for level in range(rounds, -1, -1):
        own = [question.factors[i].name for i in levels if levels[i] == level]
        names = f" ({', '.join(own)})" if own and level < rounds else ""
        parts.append(f"{len(own)} at low level {level}{names}" if level else f"{len(own)} high{names}")
    return f"of {len(levels)} factors, {', '.join(parts)}"


def _signed(found: RoundResult, value: float) -> str:
    return replace(found.metric, decimals=2 if found.metric.is_fraction else 4).show_difference(value)
