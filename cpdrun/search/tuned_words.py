"""Write the messages of a search about tuning: which values were chosen, from how many, and on which seeds."""

import math
from collections.abc import Iterator
from typing import Any

from cpdrun.report.study_text import at_text, choice_text, seeds_text, tried_text
from cpdrun.search.results import Results
from cpdrun.search.schedule import Standing
from cpdrun.search.start import recorded
from cpdrun.study.axes import axis_text, short_titles
from cpdrun.sweep.manifest import LEDGER

MARGIN = {"largest": "max", "smallest": "min"}


def asked(results: Results) -> dict[str, Any]:
    """Return the question for sweep.yaml, with the start of each chain and the values chosen so far.

    The chosen values are for human readers. A report chooses again, from the same runs and by the same rule.
    """
    question = results.question
    about = question.asked | recorded(results.begun.by, results.chains, question.tuning.arms)
    about |= {LEDGER: results.ledger.as_yaml}
    if not question.tuning:
        return about
    chosen = {label: dict(question.tuning.values[arm]) for label, arm in _chosen(results)}
    return about | {"tune": about["tune"] | {"chosen": chosen}}


def plan_text(results: Results) -> str:
    """Return `lr (0.05, 0.1, 0.2) chosen for each, and for the baseline, on seeds 1000 and 1001; `, or "".

    The text is empty if no cell has values to choose from.
    """
    tuning = results.question.tuning
    if not any(map(tuning.runs, tuning.arms)):
        return ""
    return f"{tried_text(tuning.keys)} chosen for each, and for the baseline, on {seeds_text(tuning.seeds)}; "


def at(results: Results, name: str) -> str:
    """Return the suffix of a name, such as ` at lr 0.1`, or "" if nothing is tuned or nothing is chosen yet."""
    tuning = results.question.tuning
    return at_text(tuning.values.get(name, {}), tuning.keys)


def line(results: Results) -> list[str]:
    """Return a line that names the chosen values, or an empty list if nothing is tuned.

    Example: `Chosen for each by the mean over seeds 1000 and 1001, in no pair, of lr (0.05, 0.1): fp32 at lr 0.1 ...`
    """
    tuning = results.question.tuning
    if not tuning:
        return []
    tried = tried_text(tuning.keys)
    each = [
        f"{label}{at_text(tuning.values[arm], tuning.keys, ends=True)}" for label, arm in _chosen(results)
    ]
    if not each:
        return [f"{tried}: chosen for none so far."]
    if all(len(arms) == 1 for arms in tuning.arms.values()):
        return [f"{tried}: one value, so nothing was chosen."]
    return [choice_text(tuning.keys, tuning.seeds, each, "in no pair")]


def took(results: Results, runs: str, seeds: int) -> str:
    """Return the number of runs with the share that tuning took.

    Example: `61 runs, 12 of them to choose; the grid of all cells at 14 seeds, each tuned, takes 180.`
    """
    tuning = results.question.tuning
    cells, to_choose = len(tuning.arms), sum(map(tuning.runs, tuning.arms))
    text = f"{runs}, {tuning_runs(results)} of them to choose"
    grid = f"; the grid of all {cells} cells at {seeds} seeds, each tuned, takes {to_choose + cells * seeds}"
    return f"{text}{grid if seeds else ''}."


def title(results: Results) -> str:
    """Return the heading of the table's column, such as `lr` or `lr, momentum`."""
    return ", ".join(short_titles(results.question.tuning.keys).values())


def in_short(results: Results, name: str) -> str:
    """Return the chosen values for a table cell, such as `0.2 max`, or `3 of 6 runs` while a cell is being tuned."""
    tuning = results.question.tuning
    ends = {key: f" {MARGIN[end]}" for key, end in tuning.edges(name)}
    values = tuning.values.get(name, {})
    if not values:
        return so_far(results, name)
    return ", ".join(axis_text(value) + ends.get(key, "") for key, value in values.items())


def so_far(results: Results, name: str) -> str:
    """Return the progress of a cell that is being tuned, such as `3 of 6 runs`.

    The text is empty if the cell is not tuned or if none of its tuning runs has ended.
    """
    tuning = results.question.tuning
    if name not in tuning.arms:
        return ""
    done = tuning.runs(name) - sum(map(len, tuning.missing(name, results.ended)))
    return f"{done} of {tuning.runs(name)} runs" if done else ""


def tuning_runs(results: Results) -> int:
    """Return how many runs on tuning seeds have ended."""
    tuning = results.question.tuning
    arms = (arm for arms in tuning.arms.values() if len(arms) > 1 for arm in arms)
    return sum(results.ended.has((arm, seed)) for arm in arms for seed in tuning.seeds)


def baselines(results: Results, standings: list[Standing]) -> dict[str, str]:
    """Return the name of each baseline by the name of its arm. If there are several, each name includes the chain."""
    name = results.question.baseline_name
    found: dict[str, str] = {}
    for standing in standings:
        found.setdefault(standing.chain.baseline, standing.chain.label)
    return {arm: name if len(found) == 1 else f"{name} beside {chain}" for arm, chain in found.items()}


def facts(results: Results, name: str, of: str = "tuned") -> dict[str, Any]:
    """Return the choice for programs: `{tuned: {values, at_edge, measured}}`.

    The key of the mapping is `of`. Until values are chosen, it maps to None. The mapping is empty if nothing is tuned.
    """
    tuning = results.question.tuning
    if not tuning:
        return {}
    if name not in tuning.values:
        return {of: None}
    measured = [value if math.isfinite(value) else None for value in tuning.measured(name, results.ended)]
    return {
        of: {"values": dict(tuning.values[name]), "at_edge": dict(tuning.edges(name)), "measured": measured}
    }


def question_facts(results: Results) -> dict[str, Any]:
    """Return the tuned values, the tuning seeds and the number of tuning runs for programs."""
    tuning = results.question.tuning
    return {"values": dict(tuning.keys), "seeds": list(tuning.seeds), "runs": tuning_runs(results)}


def _chosen(results: Results) -> Iterator[tuple[str, str]]:
    """Return the labels and the arms chosen so far, the baselines first."""
    standings, tuning = results.standings(), results.question.tuning
    labels = baselines(results, standings)
    for standing in standings:
        labels |= {candidate.name: candidate.label for candidate, _, _ in standing}
    return ((label, arm) for arm, label in labels.items() if arm in tuning.values)
