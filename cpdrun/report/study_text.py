"""Texts for the parts of a study: the margin, baselines, tuned values, the question, and settings without effect."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from cpdrun.stats.ledger import Start
from cpdrun.stats.means import edges
from cpdrun.study.axes import FP32, BitsAxis, axis_text, axis_title, plain, short_titles
from cpdrun.study.choices import GROUPS, RECIPE
from cpdrun.study.collect import SEED, IgnoredSetting
from cpdrun.study.margin import Margin
from cpdrun.study.metric import Metric, guess
from cpdrun.study.search_record import CHOOSES, NOT_CHOSEN, USE, Tune

if TYPE_CHECKING:
    from cpdrun.study.group import Group
    from cpdrun.study.study import BaselineProblem, Study


# ---- margins and baselines


def margin_text(margin: Margin, metric: Metric) -> str:
    """Return, for example, `0.5 points (the default for shares)`, or only the origin while the value is unknown."""
    if margin.shown != margin.shown:
        return margin.origin
    return f"{metric.show_tolerance(margin.shown)} ({margin.origin})"


def baseline_problem_text(study: "Study", problem: "BaselineProblem") -> str:
    """Return why a baseline is not fit to compare with, such as `fp32 itself diverged in 2 of 3 runs`."""
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
    """Return a sentence for each tuning that says how values were chosen and which were chosen for each group."""
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
    """Return a sentence that says how the tuned values were chosen, and which values were chosen.

    Args:
        tried: The values tried for each key.
        seeds: The seeds that chose.
        each: The chosen values of each group, in words.
        aside: A phrase that says what the choosing seeds are excluded from, such as "in no number here".
    """
    return f"Chosen for each by the mean over {seeds_text(seeds)}, {aside}, of {tried_text(tried)}: {'; '.join(each)}."


def tried_text(tried: Mapping[str, Sequence[Any]]) -> str:
    """Return the tuned keys and the values tried: `lr (0.05, 0.1, 0.2), momentum (0, 0.9)`."""
    titles = short_titles(tried)
    return ", ".join(f"{titles[key]} ({', '.join(map(axis_text, of))})" for key, of in tried.items())


def at_text(values: Mapping[str, Any], tried: Mapping[str, Sequence[Any]], *, ends: bool = False) -> str:
    """Return the chosen values as a suffix for a name, ` at lr 0.1, momentum 0`; "" without values.

    Args:
        values: The chosen value of each key.
        tried: The values tried for each key.
        ends: Whether to mark a value that is the largest or the smallest tried: `lr 0.2 (largest tried)`.
    """
    titles, of = short_titles(tried), dict(edges(values, tried)) if ends else {}
    texts = [f"{titles[key]} {tuned_text(values[key], of.get(key))}" for key in tried if key in values]
    return f" at {', '.join(texts)}" if texts else ""


def tuned_text(value: Any, end: str | None) -> str:
    """Return a chosen value, such as `0.1`, or `0.2 (largest tried)` if `end` is "largest"."""
    return axis_text(value) + (f" ({end} tried)" if end else "")


def seeds_text(seeds: Sequence[int]) -> str:
    """Return seeds in words: `seed 1000`, `seeds 1000 and 1001`, `seeds 1000 to 1004`.

    Seeds that are not consecutive are all listed.
    """
    if len(seeds) == 1:
        return f"seed {seeds[0]}"
    if len(seeds) > 2 and list(seeds) != list(range(seeds[0], seeds[0] + len(seeds))):
        return f"seeds {', '.join(map(str, seeds))}"
    return f"seeds {seeds[0]} {'and' if len(seeds) == 2 else 'to'} {seeds[-1]}"


def _chosen_text(group: "Group", values: Mapping[str, Any], tune: Tune) -> str:
    name = group.name if group.is_baseline else f"{group.name} {group.strategy}"
    at = at_text(values, tune.values, ends=True)
    return f"{plain(name)}{at}" if at else ""


# ---- notes on the question


def question_notes(study: "Study") -> list[str]:
    """Return notes on the question, such as which parts of it come from a search, and on what is compared."""
    return [
        line
        for line in (
            _asked_text(study),
            _share_text(study),
            *_axis_texts(study.bits_axis),
            *map(start_text, study.starts),
            *_tuning_runs_text(study),
        )
        if line
    ]


def _asked_text(study: "Study") -> str:
    parts, asked = [], study.asked
    if study.has_asked_margin and asked.tolerance is not None:
        shown = (
            asked.tolerance
            if isinstance(asked.tolerance, str)
            else study.metric.show_tolerance(asked.tolerance)
        )
        parts.append(f"a margin of {shown}")
    if study.has_asked_confidence and asked.confidence is not None:
        parts.append(f"{asked.confidence:g} % confidence")
    return f"as the {asked.by} asked: {', '.join(parts)}; --tol and --ci ask otherwise" if parts else ""


def _share_text(study: "Study") -> str:
    name = study.metric.name
    if not study.may_be_share:
        return ""
    return (
        f"{name} lies between 0 and 1 and is taken as it stands, not in points; --metric {name}:share "
        "reads it as a share, in points of a hundred, with half a point as the default margin"
    )


def _axis_texts(axis: BitsAxis) -> list[str]:
    """Return how the bits of a choice are counted, the baseline if it is not fp32, and which axes are held fixed."""
    lines = [f"{axis_title(axis.key)}: {counting_rule(axis.key)}"] if axis.key in GROUPS else []
    if axis.is_widest:
        lines.append(
            f"{axis.key} has no fp32: compared with the widest, {axis.baseline_name}; "
            f"--baseline {axis.key}=VALUE asks for another"
        )
    elif axis.baseline_name != FP32:
        lines.append(f"compared with {axis.baseline_name}")
    for key in axis.others:
        lines.append(f"{key} names formats too, and is held here; --baseline {key}=VALUE compares along it")
    return lines


def counting_rule(group: str) -> str:
    if group == RECIPE:
        return (
            "a recipe has the bits of the narrowest format in which products read activations or gradients; 32 where "
            "it rounds nothing"
        )
    return (
        "a choice has the bits of the widest format that it rounds to, sums aside; 32 where it rounds nothing"
    )


def start_text(start: Start) -> str:
    """Return a sentence about the start of a chain of a search that does not start at its widest width."""
    seed = "" if start.aside is None else f", seed {start.aside}, which the prediction is of, is in no pair"
    at = f"{start.chain}: " if start.chain else ""
    return f"{at}started at {start.bits:g} bits, as predicted; each wider width is judged by itself{seed}"


def _tuning_runs_text(study: "Study") -> list[str]:
    """Return how many runs are in no mean because they chose, or because their values were not chosen."""
    if not study.tuned.by_sweep:
        return []
    counts = Counter(study.tuned.runs[USE].dropna())
    parts = [f"{counts[CHOOSES]} runs that choose the tuned values"] if counts[CHOOSES] else []
    parts += [f"{counts[NOT_CHOSEN]} of values that are not chosen"] if counts[NOT_CHOSEN] else []
    return [f"in no number here: {' and '.join(parts)}"] if parts else []


def sends_alike_text(study: "Study") -> str:
    """Return why all groups send equally many bytes; "" if the bytes on the wire may differ."""
    return f"all send the same: {study.bits_axis.key} says nothing of the wire" if study.sends_alike else ""


def ignored_texts(settings: Iterable[IgnoredSetting]) -> list[str]:
    """Return a line for each setting of a script that changed nothing."""
    return [_ignored_text(setting) for setting in settings]


def _ignored_text(setting: IgnoredSetting) -> str:
    values = ", ".join(setting.values)
    if setting.key == SEED:
        return (
            f"runs of the seeds {values} measured the same to the last digit: the script seeds itself, and no interval "
            "over seeds means anything; hand it the run's: script_args='--seed {seed}'"
        )
    name = setting.name
    return f"runs with {name} = {values} measured the same to the last digit: does the script read --{name}?"
