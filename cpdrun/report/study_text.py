"""Texts about a study's margin, baseline, tuned values and ignored settings."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pandas as pd

from cpdrun.costmodel.costs import not_counted
from cpdrun.report.render import join_last, render_lines
from cpdrun.stats.means import edges
from cpdrun.study.axes import axis_text, plain, short_titles
from cpdrun.study.choices import GROUPS, RECIPE
from cpdrun.study.collect import SEED, IgnoredSetting, finished
from cpdrun.study.facet_summary import sends_alike
from cpdrun.study.margin import Margin
from cpdrun.study.metric import Metric, guess
from cpdrun.study.search_record import CHOOSES, NOT_CHOSEN, USE, Tune

if TYPE_CHECKING:
    from cpdrun.study.group import Group
    from cpdrun.study.study import BaselineProblem, Study


# ---- margins and baselines


def margin_text(margin: Margin, metric: Metric) -> str:
    """Return the margin with its origin: "0.5 points (the default)".

    Return only the origin if the margin is not known yet.
    """
    if margin.shown != margin.shown:
        return margin.origin
    return f"{metric.show_tolerance(margin.shown)} ({margin.origin})"


def baseline_problem_text(study: "Study", problem: "BaselineProblem") -> str:
    """Explain why a baseline is unusable: "fp32 itself diverged in 2 of 3 runs"."""
    name, metric, group = study.baseline_name, study.metric, problem.group
    kind = str(problem.kind)
    if kind == "not finished" or group is None:
        return f"no finished {name} run"
    if kind == "diverged":
        return f"{name} itself diverged in {group.diverged} of {group.n_finished} runs"
    if kind == "no value":
        return f"{name} has no value of {metric.name}"
    shown = metric.show(group.mean) + metric.unit
    if kind == "did not learn":
        by_chance = metric.show(guess(metric, group.num_classes)) + metric.unit
        return f"{name} itself did not learn ({shown}; a guess among {group.num_classes:.0f} classes {by_chance})"
    return f"{name} itself reaches {shown}, and its record does not say of how many classes"


# ---- tuned values


def tuned_sentences(study: "Study") -> list[str]:
    """Say for each tuning how values were chosen, and which each group got.

    A tuning with a single combination of values is skipped, because nothing was chosen.
    """
    found = []
    for tune in {repr(tune): tune for tune in study.tuned.by_sweep.values()}.values():
        if len(tune.arms()) < 2:
            continue
        each = [_chosen_text(group, study.tuned.values_of(group), tune) for group in study.groups]
        each = list(dict.fromkeys(filter(None, each)))
        found.append(choice_text(tune.values, tune.seeds, each, "in no number here"))
    return found


def choice_text(
    tried: Mapping[str, Sequence[Any]], seeds: Sequence[int], each: Sequence[str], aside: str
) -> str:
    """Say how tuned values were chosen, and which were chosen.

    Args:
        tried: The tried values, keyed by config key.
        seeds: The seeds whose runs decided the choice.
        each: The chosen values of each group, as texts.
        aside: Where these seeds are not used, such as "in no number here".
    """
    tuned = f"{tried_text(tried)} was chosen for each by the mean over {seeds_text(seeds)}, {aside}"
    return f"{tuned}. Chosen: {'; '.join(each)}."


def tried_text(tried: Mapping[str, Sequence[Any]]) -> str:
    """List the tried values: "lr (0.05, 0.1, 0.2), momentum (0, 0.9)"."""
    titles = short_titles(tried)
    return ", ".join(f"{titles[key]} ({', '.join(map(axis_text, of))})" for key, of in tried.items())


def at_text(values: Mapping[str, Any], tried: Mapping[str, Sequence[Any]], *, ends: bool = False) -> str:
    """Return the chosen values as a suffix: " at lr 0.1, momentum 0"; "" if none.

    With `ends`, mark a value at the end of its tried range: "lr 0.2 (largest tried)".
    """
    titles, of = short_titles(tried), dict(edges(values, tried)) if ends else {}
    texts = [f"{titles[key]} {tuned_text(values[key], of.get(key))}" for key in tried if key in values]
    return f" at {', '.join(texts)}" if texts else ""


def tuned_text(value: Any, end: str | None) -> str:
    """Format a chosen value: "0.1", or "0.2 (largest tried)" if `end` is "largest"."""
    return axis_text(value) + (f" ({end} tried)" if end else "")


def seeds_text(seeds: Sequence[int]) -> str:
    """Name the seeds: "seed 1000", "seeds 1000 and 1001", "seeds 1000 to 1004".

    Seeds that are not consecutive are all listed.
    """
    if len(seeds) == 1:
        return f"seed {seeds[0]}"
    if len(seeds) > 2 and list(seeds) != list(range(seeds[0], seeds[0] + len(seeds))):
        return f"seeds {', '.join(map(str, seeds))}"
    return f"seeds {seeds[0]} {'and' if len(seeds) == 2 else 'to'} {seeds[-1]}"


def _chosen_text(group: "Group", values: Mapping[str, Any], tune: Tune) -> str:
    name = group.name if group.is_baseline else group.full_name
    at = at_text(values, tune.values, ends=True)
    return f"{plain(name)}{at}" if at else ""


# ---- notes on what is compared


def question_notes(study: "Study") -> list[str]:
    """Return notes on what is compared and which settings come from a search."""
    key = study.bits_axis.key
    uses = Counter(study.tuned.runs[USE].dropna()) if study.tuned.by_sweep else Counter()
    return render_lines(
        "study.j2",
        study=study,
        may_be_share=may_be_share(study),
        rule=counting_rule(key) if key in GROUPS else "",
        not_counted=_by_reason(not_counted(study.groups)),
        choosing=uses[CHOOSES],
        not_chosen=uses[NOT_CHOSEN],
    )


def _by_reason(problems: dict[str, str]) -> list[tuple[str, str]]:
    """Return each reason with the names of the groups to which it applies. The names are joined as text."""
    names: dict[str, list[str]] = {}
    for name, reason in problems.items():
        names.setdefault(reason, []).append(name)
    return [(reason, join_last(of_reason)) for reason, of_reason in names.items()]


def may_be_share(study: "Study") -> bool:
    """Return True if the values look like an accuracy, although no record declares the metric as a share.

    This matters because the default margin for shares differs from that for other metrics.
    """
    metric, done = study.metric, finished(study.runs)
    values = done.get(f"metric:{metric.name}", pd.Series(dtype=float)).dropna()
    if metric.is_fraction or not metric.higher_is_better or "acc" not in metric.name or values.empty:
        return False
    # If even the largest value is below 0.05, the metric may be a percentage, and no run may have learned anything.
    return bool(values.between(0, 1).all() and values.max() > 0.05)


def counting_rule(group: str) -> str:
    """Say how the bits of a choice in a config group such as `recipe` are counted."""
    if group == RECIPE:
        return (
            "The bits of a recipe are the mean bits of the operands of all multiply-accumulates in a step. Scales are "
            "included, and operands in float32 count as 32 bits. Planned bits are those of the narrowest format in "
            "which products read activations or gradients. They determine the order in which recipes are tested."
        )
    return (
        f"A choice of {group} has the bits of the widest format that it rounds to, not counting the format of sums, or "
        "32 bits if it rounds nothing."
    )


def sends_alike_text(study: "Study") -> str:
    """Explain why all groups send the same number of bytes. Return "" if they may differ."""
    key = study.bits_axis.key
    return (
        f"all runs send the same number of bytes, because {key} does not change what is sent"
        if sends_alike(study)
        else ""
    )


def ignored_texts(settings: Iterable[IgnoredSetting]) -> list[str]:
    """Return a sentence about each setting whose values made no difference to the metrics of a script."""
    return [_ignored_text(setting) for setting in settings]


def _ignored_text(setting: IgnoredSetting) -> str:
    values, name = ", ".join(setting.values), setting.name
    if setting.key == SEED:
        return (
            f"Runs of the seeds {values} measured exactly the same, so the script seems to seed itself, and no "
            "interval over seeds means anything. Pass the seed of the run to the script: type its option among the "
            "script's arguments, such as --seed {seed}."
        )
    return f"Runs with {name} = {values} measured exactly the same. Does the script read --{name}?"
