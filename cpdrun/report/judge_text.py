"""Render the sentences of `cpdrun judge`, without numpy and pandas."""

from collections.abc import Mapping, Sequence

from cpdrun.report.failures_text import failure_bound_text, left_out_text
from cpdrun.report.render import render_lines
from cpdrun.stats.evidence import Verdict
from cpdrun.study.judge.candidates import JudgedArm, JudgeQuestion, Pairing
from cpdrun.study.judge.session import SessionState

_WITH_NOTE = (Pairing.ORDER, Pairing.SHUFFLED)


def judge_sentences(
    question: JudgeQuestion,
    margin: float,
    judged: Sequence[JudgedArm],
    session: SessionState | None,
    decision_words: Mapping[Verdict, str],
) -> list[str]:
    """Describe the comparison, the verdicts, the session (if any) and the assumptions.

    `margin` is in the metric's unit. `decision_words` holds the text of a decision for each verdict on an idea.
    """
    return render_lines(
        "judge.j2",
        question=question,
        margin=margin,
        judged=judged,
        session=session,
        decisions=[None] * len(judged) if session is None else session.decisions,
        words=decision_words,
        has_prior=any(each.judgment.prior.degrees for each in judged),
        has_single_pair=any(each.judgment.pairs == 1 for each in judged),
        has_failed=any(each.pairs.failed for each in judged),
        pairing=next((each.pairs.pairing for each in judged if each.pairs.pairing in _WITH_NOTE), None),
        failure_bound_text=failure_bound_text,
        left_out_text=left_out_text,
    )
