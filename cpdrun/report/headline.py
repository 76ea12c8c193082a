"""Write the first sentences of a report: which formats are certified, open or refuted, and how many pairs are needed.

Only a certified format is called good enough. If there are at most `MOST_PANELS` facets, each facet gets its own
sentences. Otherwise the facets are summarized in sentences and in a matrix with a row for each facet. A chain holds the
candidates of one facet that share a way of scaling.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any

from cpdrun.report import best_of
from cpdrun.report.completeness import mixture
from cpdrun.report.failures_text import failures_text, identical_texts, left_out_text
from cpdrun.report.render import join_first
from cpdrun.report.result_text import gap_text, more_text, pairs_text, result_text
from cpdrun.report.study_text import baseline_problem_text, margin_text, tuned_sentences
from cpdrun.report.style import strategy_styles
from cpdrun.report.tables import Shown
from cpdrun.stats.evidence import Verdict
from cpdrun.stats.failures import are_identical
from cpdrun.study import formats
from cpdrun.study.axes import axis_text, axis_title
from cpdrun.study.collect import identity
from cpdrun.study.group import Facet, Group
from cpdrun.study.study import Study
from cpdrun.study.verdicts import MARKS, ChainAnswer

MOST_PANELS = 3
# The keys of the order of summation, which says which gradients are added to which, and when.
ORDER = ("sync.order", "sync.group_size")
_VERDICTS = (Verdict.CERTIFIED, Verdict.OPEN, Verdict.REFUTED)
_NOT_TESTED = "not tested"
_HEADINGS = (Verdict.CERTIFIED, Verdict.OPEN, _NOT_TESTED, Verdict.REFUTED)


def headline(study: Study) -> tuple[list[str], Shown | None]:
    """Return the sentences, and the matrix of facets, or None if there are few facets."""
    facets = [facet for facet in study.facets if not facet.has_cases]
    matrix = None
    if study.margin.problem and any(not study.baseline_problem(facet) for facet in study.facets):
        lines = [f"No answer: {study.margin.problem}."]
    elif len(facets) <= MOST_PANELS:
        lines = [line for facet in study.facets for line in _facet_lines(study, facet)]
    else:
        cases = [facet for facet in study.facets if facet.has_cases]
        lines = [*_summary(study, facets), *(line for facet in cases for line in _facet_lines(study, facet))]
        matrix = _matrix(study, facets)
    lines += compare_orders(study)
    if study.judged and not math.isnan(study.tolerance):
        lines.append(f"Margin: {margin_text(study.margin, study.metric)}.")
    lines += [*tuned_sentences(study), *best_of.sentences(study)]
    if not study.metric.is_known:
        lines[0] = f"If a higher {study.metric.name} is better, which no record says: {lines[0]}"
    if mixed := mixture(study):
        lines[0] = f"{mixed}: {lines[0]}"
    return lines, matrix


def verdicts(study: Study) -> list[dict[str, Any]]:
    """Return the answer of each chain as plain data. Gaps are in the metric's own unit, and None means unknown."""
    return [
        {"facet": facet.label, "scaling": name, **_facts(study, facet, study.answer(facet, name))}
        for facet in study.facets
        if not study.baseline_problem(facet)
        for name in facet.chains
    ]


def counts(study: Study) -> list[str]:
    """Return a sentence that counts the certified, refuted and open groups, or no sentence if no group is compared."""
    found = [judged.verdict for judged in study.judged.values()]
    if not found:
        return []
    certified, open_, refuted = (found.count(verdict) for verdict in _VERDICTS)
    return [
        f"Of {len(found)} compared with {study.baseline_name}, {certified} are certified to be at most "
        f"{study.margin_text} worse, {refuted} are refuted, and {open_} are open (in the mean over seeds, at "
        f"{study.ci:g} %)."
    ]


def compare_orders(study: Study) -> list[str]:
    """Return a sentence for each bit width that is certified in one order of summation and refuted in another order."""
    lines = []
    for facets in _by_order(study):
        for name in strategy_styles(study):
            answers = [(facet, study.answer(facet, name)) for facet in facets]
            best = min(
                ((facet, answer.certified) for facet, answer in answers if answer.certified),
                key=lambda pair: formats.order(pair[1].format),
                default=None,
            )
            if best is None:
                continue
            facet, certified = best
            bits = formats.bits(certified.format) or math.inf
            worse = [
                f"{_order(other)} (refuted up to {answer.refuted_bits:g} bits)"
                for other, answer in answers
                if answer.refuted_bits >= bits
            ]
            if worse:
                rest = {key: value for key, value in facet.keys.items() if key not in ORDER}
                where = " ".join([Facet(rest, []).label, name]).strip()
                lines.append(
                    f"Order of summation, {where}: {certified.title} is certified in {_order(facet)}, and not enough "
                    f"in {join_first(worse)}."
                )
    return lines


def longest_chain(facet: Facet) -> float:
    """Return the number of rounded additions in the longest chain of any group of the facet; 0 if no record has it."""
    return max((group.longest_chain for group in facet.groups if group.longest_chain > 0), default=0)


def _facet_lines(study: Study, facet: Facet) -> Iterator[str]:
    """Yield the lines of each verdict, then a line about the baseline, the failures and the test set."""
    at = f", {facet.label}" if facet.label else ""
    if problem := study.baseline_problem(facet):
        text = baseline_problem_text(study, problem)
        yield _no_baseline(study, facet, text, f"{facet.label}: " if facet.label else "")
        return
    found = _case_texts(study, facet) if facet.has_cases else _chain_texts(study, facet)
    for heading in _HEADINGS:
        yield from (f"{heading.upper()}{at}: {text}." for kind, text in found if kind == heading)
    baseline = study.metric.show(facet.baseline.mean) + study.metric.unit
    about = [f"{study.baseline_name}{at}: {baseline}", *_failures(study, facet), *_identical(study, facet)]
    yield ". ".join([*(text.removesuffix(".") for text in about), *_test_set(study, facet)]) + "."


def _chain_texts(study: Study, facet: Facet) -> list[tuple[str, str]]:
    """Return a heading and a text for each way of scaling."""
    return [_chain_text(study, facet, name) for name in facet.chains]


def _chain_text(study: Study, facet: Facet, name: str) -> tuple[str, str]:
    """Return the heading of a chain's answer, which is a verdict or "not tested", and its text."""
    answer, noun = study.answer(facet, name), study.bits_axis.noun
    within = f"at most {study.margin_text} worse than {study.baseline_name}"
    if (certified := answer.certified) is not None:
        if are_identical(certified.fingerprints, facet.baseline.fingerprints):
            return (
                _NOT_TESTED,
                f"{certified.title} {name}, because its runs equal those of {study.baseline_name}",
            )
        sure = f"in the mean over seeds, with {study.ci:g} % confidence"
        text = f"{certified.title} {name} is {within} {sure}: {_result(study, certified)}"
        return Verdict.CERTIFIED, f"{text}{_below(study, answer)}"
    none = f"no {noun} {name} is certified to be {within}"
    if answer.likely is not None:
        what = "Most likely" if answer.is_near else "Nearest is"
        result = _result(study, answer.likely)
        return Verdict.OPEN, f"{none}. {what} {answer.likely.title}: {result}; {_more(study, answer)}"
    if answer.verdict is Verdict.REFUTED:
        width = [g for g in facet.chains[name] if (formats.bits(g.format) or math.inf) == answer.refuted_bits]
        best = max(width, key=lambda group: study.judged[group].judgement.mean)
        text = f"{best.title} {name} is more than {study.margin_text} worse than {study.baseline_name}"
        rest = f". No narrower {noun} can be certified" if len(width) < len(facet.chains[name]) else ""
        judged, why = study.judged[best], "" if study.learnt(best) else ", did not learn"
        failures = f". {failures_text(judged.failures)}" if judged.failures.failed else why
        gap = f"{gap_text(study.metric, judged.judgement)} ({pairs_text(judged.judgement.pairs)})"
        return Verdict.REFUTED, f"{text}: {gap}{failures}{rest}"
    failed = [failures_text(study.failures(group), group.name) for group in facet.chains[name]]
    return Verdict.OPEN, f"{none}, because {join_first(list(filter(None, failed)))}" if any(failed) else none


def _below(study: Study, answer: ChainAnswer) -> str:
    """Return which candidate with fewer bits than the certified format is open, or else which bit width is refuted."""
    if answer.likely is not None:
        gap = gap_text(study.metric, study.judged[answer.likely].judgement)
        return f". Open: {answer.likely.title}, {gap}; {_more(study, answer)}"
    return "" if math.isnan(answer.refuted_bits) else f". Refuted: {answer.refuted_bits:g} bits"


def _case_texts(study: Study, facet: Facet) -> list[tuple[str, str]]:
    """Return each verdict that a named case has, and a text that lists the named cases with that verdict."""
    groups = [group for chain in facet.chains.values() for group in chain if group in study.judged]
    groups.sort(key=lambda group: -study.judged[group].judgement.mean)
    found: list[tuple[str, str]] = []
    for verdict in _VERDICTS:
        chosen = [group for group in groups if study.judged[group].verdict is verdict]
        shown = [f"{group.full_name} ({_case_text(study, group)})" for group in chosen]
        what = {
            Verdict.CERTIFIED: f"at most {study.margin_text} worse than {study.baseline_name} in the mean over seeds, "
            f"with {study.ci:g} % confidence",
            Verdict.OPEN: f"not known whether at most {study.margin_text} worse than {study.baseline_name}",
            Verdict.REFUTED: f"more than {study.margin_text} worse than {study.baseline_name}",
        }[verdict]
        if chosen:
            found.append(
                (verdict, f"{len(chosen)} of {len(groups)} cases, {what}: {join_first(shown, '; ', most=8)}")
            )
    return found


def _case_text(study: Study, group: Group) -> str:
    """Return the gap of a named case, with its failures or the number of pairs that it still needs."""
    judged = study.judged[group]
    text = gap_text(study.metric, judged.judgement)
    if judged.failures.failed:
        return f"{text}, {failures_text(judged.failures)}"
    if judged.verdict is not Verdict.OPEN:
        return text
    answer = ChainAnswer(likely=group, judgement=judged.judgement)
    return f"{text}, {_more(study, answer)}"


def _result(study: Study, group: Group) -> str:
    judged = study.judged[group]
    return result_text(study.metric, judged.judgement, judged.failures, study.ci)


def _more(study: Study, answer: ChainAnswer) -> str:
    """Return how many more pairs would settle an open answer."""
    samples = study.samples(answer.likely)
    return more_text(answer.judgement, study.tolerance / study.metric.scale, samples)


def _failures(study: Study, facet: Facet) -> Iterator[str]:
    """Yield which candidates have failed runs, and which candidates lack pairs because runs of the baseline failed."""
    groups = [group for groups in facet.chains.values() for group in groups if group in study.judged]
    for title, describe in (
        ("Failures", failures_text),
        ("Fewer pairs", left_out_text),
    ):
        texts = [
            f"{group.full_name}, {text}" for group in groups if (text := describe(study.failures(group)))
        ]
        if texts:
            yield f"{title}: {join_first(texts, '; ')}"


def _identical(study: Study, facet: Facet) -> list[str]:
    """Return a line for each set of cells, of the baseline and its candidates, whose runs are equal bit for bit."""
    cells = {study.baseline_name: facet.baseline.fingerprints}
    groups = [group for groups in facet.strategies.values() for group in groups]
    return identical_texts(cells | {group.full_name: group.fingerprints for group in groups})


def _test_set(study: Study, facet: Facet) -> list[str]:
    """Return how many test samples the margin is, and the range of the deciding gap on another test set.

    The deciding gap is that of the first chain's certified format, or of its most likely one. The list is empty if the
    number of test samples is unknown.
    """
    samples = study.samples(facet.baseline)
    if not math.isfinite(samples):
        return []
    share = study.tolerance / study.metric.scale * samples
    are = "is" if study.tolerance == 1 else "are"
    lines = [f"{study.margin_text} {are} {share:.1f} of {samples:.0f} test samples"]
    answers = [study.answer(facet, name) for name in facet.chains]
    deciding = [group for answer in answers if (group := answer.certified or answer.likely) is not None]
    for group in deciding[:1]:
        found = study.finite_test_set(group)
        if found is not None and math.isfinite(found.low):
            ends = f"{study.metric.show_gap(found.low)} and {study.metric.show_gap(found.high)}"
            lines.append(
                f"On another test set of {found.samples} samples the gap of {group.full_name} would be between {ends}"
                f"{study.metric.points} ({study.ci:g} %)"
            )
    return lines


def _no_baseline(study: Study, facet: Facet, problem: str, where: str) -> str:
    """Return the sentence for a facet without a usable baseline, with the best mean if there is any."""
    if facet.fp32 is not None and facet.fp32.n_finished:
        return f"{where}No answer: {problem}, so there is nothing to compare with."
    groups = [group for group in facet.groups if group.values]
    if not groups:
        return f"{where}No finished run has a value of {study.metric.name}."
    best = (max if study.metric.higher_is_better else min)(groups, key=lambda group: group.mean)
    value = study.metric.show(best.mean) + study.metric.unit
    return (
        f"{where}No answer: there is no finished {study.baseline_name} run to compare with. The best mean is that of "
        f"{best.title} {best.strategy}: {value}."
    )


def _summary(study: Study, facets: list[Facet]) -> Iterator[str]:
    """Yield a sentence for each way of scaling, the meaning of "certified", and how many facets have no answer."""
    known = [facet for facet in facets if not study.baseline_problem(facet)]
    if not known:
        problem = study.baseline_problem(facets[0])
        why = baseline_problem_text(study, problem) if problem else ""
        yield f"No answer for any of {len(facets)} combinations: {why} in the first."
        return
    found = [
        (name, [study.answer(facet, name) for facet in known if name in facet.chains])
        for name in strategy_styles(study)
    ]
    found = [(name, answers) for name, answers in found if answers]
    found.sort(key=lambda pair: min(_VERDICTS.index(answer.verdict) for answer in pair[1]))
    for name, answers in found:
        of = f"{len(answers)} combinations of {_axes(facets)}"
        parts = []
        for verdict in _VERDICTS:
            chosen = [answer for answer in answers if answer.verdict is verdict]
            if not chosen:
                continue
            text = (
                f"{verdict.upper() if not parts else verdict} in {len(chosen)}{'' if parts else f' of {of}'}"
            )
            shown = sorted(
                (answer.group for answer in chosen if answer.group),
                key=lambda group: formats.order(group.format),
            )
            ends = list(dict.fromkeys(group.title for group in shown[:1] + shown[-1:]))
            kind = "" if verdict is Verdict.CERTIFIED else "most likely "
            parts.append(f"{text} ({kind}{' to '.join(ends)})" if ends else text)
        yield f"{parts[0]} {name}{''.join(f', {part}' for part in parts[1:])}."
    yield (
        f"Certified means at most {study.margin_text} worse than {study.baseline_name} in the mean over seeds, with "
        f"{study.ci:g} % confidence."
    )
    if len(known) < len(facets):
        yield f"No answer in {len(facets) - len(known)} of {len(facets)}: {study.baseline_name} failed or is missing."


def _matrix(study: Study, facets: list[Facet]) -> Shown:
    """Return a table with a row for each facet, with few workers and short chains of additions first.

    The columns are the keys of the facet, the longest chain of additions if it is recorded, the mean of the baseline,
    and the answer for each way of scaling.
    """
    keys = list(facets[0].keys)
    names = [name for name in strategy_styles(study) if any(name in facet.chains for facet in facets)]
    has_chains, rows = any(map(longest_chain, facets)), []
    for facet in sorted(
        facets, key=lambda facet: (_sortable(facet.keys.get("world_size")), longest_chain(facet))
    ):
        problem = study.baseline_problem(facet)
        lengths = [f"{longest_chain(facet):.0f}" if longest_chain(facet) else "-"] if has_chains else []
        fp32 = baseline_problem_text(study, problem) if problem else study.metric.show(facet.baseline.mean)
        cells = ["-" if problem else _cell(study, facet, name) for name in names]
        rows.append([*(axis_text(facet.keys[key]) for key in keys), *lengths, fp32, *cells])
    labels = [*map(axis_title, keys), *(["chain"] if has_chains else [])]
    return Shown([*labels, f"{study.baseline_name}, {study.metric.title}", *names], rows, len(labels))


def _cell(study: Study, facet: Facet, name: str) -> str:
    """Return the answer of a chain with its mark, such as `✓ e3m0 (4 bits)` or `✗ none`.

    An open format that is the most likely answer has the mark `?`.
    """
    if name not in facet.chains:
        return "-"
    answer = study.answer(facet, name)
    none = "none" if answer.verdict is Verdict.REFUTED else "-"
    return f"{MARKS[answer.verdict]} {answer.group.title if answer.group else none}"


def _by_order(study: Study) -> list[list[Facet]]:
    """Return groups of facets that differ only in their order of summation."""
    found: dict[tuple[str, ...], list[Facet]] = {}
    for facet in study.facets:
        if ORDER[0] in facet.keys and not facet.has_cases and not study.baseline_problem(facet):
            rest = tuple(f"{key}={identity(value)}" for key, value in facet.keys.items() if key not in ORDER)
            found.setdefault(rest, []).append(facet)
    return [facets for facets in found.values() if len(facets) > 1]


def _order(facet: Facet) -> str:
    """Return the order of summation with the longest chain of additions, such as `tree (chain 6)`."""
    name = " ".join(axis_text(facet.keys[key]) for key in ORDER if facet.keys.get(key) is not None)
    return f"{name} (chain {longest_chain(facet):.0f})" if longest_chain(facet) else name


def _axes(facets: Sequence[Facet]) -> str:
    names = [axis_title(key) for key in facets[0].keys]
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def _sortable(value: object) -> tuple:
    return (0, value) if isinstance(value, int | float) else (1, str(value))


def _facts(study: Study, facet: Facet, answer: ChainAnswer) -> dict[str, Any]:
    """Return the answer of a chain as plain data, judged by its certified, most likely or best candidate."""
    group = answer.certified or answer.likely or answer.best
    if group is None:
        return {"verdict": str(answer.verdict), "candidate": None, "bits": None}
    judged = study.judged[group]
    found, failed = judged.judgement, judged.failures
    more = found.more if answer.judgement is None else answer.judgement.more
    is_open = answer.verdict is Verdict.OPEN and more is not None
    return {
        "verdict": str(answer.verdict),
        "candidate": group.full_name,
        "bits": group.bits,
        "pairs": found.pairs,
        **{key: finite(getattr(found, key)) for key in ("mean", "low", "high", "own_low", "own_high")},
        "more": more.likely if is_open else None,
        "more_range": [more.low, more.high] if is_open else None,
        "runs_ended": failed.ended,
        "runs_failed": failed.failed,
        "at_most_fail": failed.at_most(study.ci),
        "is_identical": are_identical(group.fingerprints, facet.baseline.fingerprints),
    }


def finite(value: float) -> float | None:
    """Return the value, or None if it is NaN or infinite."""
    return value if math.isfinite(value) else None
