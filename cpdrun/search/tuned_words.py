"""What a search that tunes says of it: which values were chosen, of how many, and on seeds of their own."""

import math
from collections.abc import Iterator
from typing import Any

from cpdrun.report.read.words import axis_text, short_titles
from cpdrun.search.results import Results
from cpdrun.search.schedule import Candidate, Standing


def asked(results: Results) -> dict[str, Any]:
    """The question for sweep.yaml, with what was chosen so far for whoever reads it; a report chooses by the same runs
    and the same rule."""
    question = results.question
    if not question.tuning:
        return question.asked
    chosen = {label: dict(question.tuning.values[arm]) for label, arm in _chosen(results)}
    return question.asked | {"tune": question.asked["tune"] | {"chosen": chosen}}


def plan_text(results: Results) -> str:
    """`lr (0.05, 0.1, 0.2) chosen for each, and for the baseline, on seeds 1000 and 1001; `, "" where nothing is."""
    tuning = results.question.tuning
    if not any(map(tuning.runs, tuning.arms)):
        return ""
    return f"{_tried(results)} chosen for each, and for the baseline, on {seeds_text(tuning.seeds)}; "


def at(results: Results, name: str) -> str:
    """` at lr 0.1`, behind the name of a candidate or of the baseline; "" where nothing is tuned, or not yet chosen."""
    values = results.question.tuning.values.get(name, {})
    titles = short_titles(results.question.tuning.keys)
    return (
        f" at {', '.join(f'{titles[key]} {axis_text(value)}' for key, value in values.items())}"
        if values
        else ""
    )


def line(results: Results) -> list[str]:
    """`lr was chosen of 0.05, 0.1, 0.2 for each on seeds 1000 and 1001, which are in no pair: fp32 0.1 ...`"""
    tuning = results.question.tuning
    if not tuning:
        return []
    tried = _tried(results)
    runs = [f"{label} {chosen_text(results, arm)}" for label, arm in _chosen(results)]
    if not runs:
        return [f"{tried}: chosen for none so far."]
    if all(len(arms) == 1 for arms in tuning.arms.values()):
        return [f"{tried}: one value, so nothing was chosen."]
    return [
        f"Chosen for each by the mean over {seeds_text(tuning.seeds)}, in no pair, of {tried}: "
        f"{'; '.join(runs)}."
    ]


def seeds_text(seeds: tuple[int, ...]) -> str:
    """`seed 1000`, `seeds 1000 and 1001`, `seeds 1000 to 1004`."""
    if len(seeds) == 1:
        return f"seed {seeds[0]}"
    return f"seeds {seeds[0]} {'and' if len(seeds) == 2 else 'to'} {seeds[-1]}"


def took(results: Results, runs: str, seeds: int) -> str:
    """`61 runs, 12 of them to choose; the grid of all cells at 14 seeds, each tuned, takes 180.`"""
    tuning = results.question.tuning
    cells, to_choose = len(tuning.arms), sum(map(tuning.runs, tuning.arms))
    text = f"{runs}, {tuning_runs(results)} of them to choose"
    grid = f"; the grid of all {cells} cells at {seeds} seeds, each tuned, takes {to_choose + cells * seeds}"
    return f"{text}{grid if seeds else ''}."


def title(results: Results) -> str:
    """Of the table's column: `lr`, `lr, momentum`."""
    return ", ".join(short_titles(results.question.tuning.keys).values())


def chosen_text(results: Results, name: str) -> str:
    """`0.2 (largest tried)`; of a cell that is being tuned how far that is; "" of one that is not reached."""
    tuning = results.question.tuning
    if name in tuning.values:
        edges = dict(tuning.edges(name))
        return ", ".join(
            axis_text(value) + (f" ({edges[key]} tried)" if key in edges else "")
            for key, value in tuning.values[name].items()
        )
    left = sum(map(len, tuning.missing(name, results.ended)))
    done = tuning.runs(name) - left
    return f"{done} of {tuning.runs(name)} runs to choose" if done else ""


def in_short(results: Results, name: str) -> str:
    """The same for a column: `0.2 max`, `3 of 6 runs`."""
    text = chosen_text(results, name).replace(" (largest tried)", " max").replace(" (smallest tried)", " min")
    return text.removesuffix(" to choose")


def chosen_so_far(results: Results, candidate: Candidate) -> str:
    """`3 of 6 runs to choose`, where that is begun and not done; "" else."""
    left = candidate.name in results.question.tuning.arms
    return chosen_text(results, candidate.name) if left else ""


def tuning_runs(results: Results) -> int:
    """How many runs on tuning seeds have ended."""
    tuning = results.question.tuning
    arms = (arm for arms in tuning.arms.values() if len(arms) > 1 for arm in arms)
    return sum(results.ended.has((arm, seed)) for arm in arms for seed in tuning.seeds)


def baselines(results: Results, standings: list[Standing]) -> dict[str, str]:
    """What each baseline is called, by the name of its arm: `fp32`, with the chain where there are several."""
    name = results.question.baseline_name
    found: dict[str, str] = {}
    for standing in standings:
        for candidate, _, _ in standing:
            found.setdefault(candidate.baseline, standing.chain.label)
    return {arm: name if len(found) == 1 else f"{name} beside {chain}" for arm, chain in found.items()}


def facts(results: Results, name: str, of: str = "tuned") -> dict[str, Any]:
    """For programs: `{tuned: {values, at_edge, measured}}`, null before it is chosen; empty where nothing is."""
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
    tuning = results.question.tuning
    return {"values": dict(tuning.keys), "seeds": list(tuning.seeds), "runs": tuning_runs(results)}


def _tried(results: Results) -> str:
    """`lr (0.05, 0.1, 0.2), momentum (0, 0.9)`."""
    keys = results.question.tuning.keys
    titles = short_titles(keys)
    return ", ".join(f"{titles[key]} ({', '.join(map(axis_text, values))})" for key, values in keys.items())


def _chosen(results: Results) -> Iterator[tuple[str, str]]:
    """What is chosen so far: labels and arms, the baselines first."""
    standings, tuning = results.standings(), results.question.tuning
    labels = baselines(results, standings)
    for standing in standings:
        labels |= {candidate.name: candidate.label for candidate, _, _ in standing}
    return ((label, arm) for arm, label in labels.items() if arm in tuning.values)
