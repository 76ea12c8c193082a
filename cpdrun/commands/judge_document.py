"""The document of `cpdrun judge --json`."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from cpdrun.shell.document import optional
from cpdrun.stats.evidence import Verdict
from cpdrun.study.judge.candidates import JudgedArm, Pairing
from cpdrun.study.judge.session import SessionState

# The decision about an idea of a session, by its verdict.
DECISIONS: dict[Verdict, Literal["keep", "drop", "undecided"]] = {
    Verdict.CERTIFIED: "keep",
    Verdict.REFUTED: "drop",
    Verdict.OPEN: "undecided",
}


@dataclass
class PriorDocument:
    """The standard deviation of differences that other arms or the user provide.

    Attributes:
        deviation: The pooled or stated standard deviation.
        degrees: Its weight in degrees of freedom, or null if the deviation was stated.
    """

    deviation: float
    degrees: float


@dataclass
class MorePairs:
    """About how many further pairs are likely to settle an open question.

    Attributes:
        likely: The most likely number.
        low: The lower end of the range.
        high: The upper end of the range.
    """

    likely: int
    low: int
    high: int


@dataclass
class CandidateDocument:
    """The verdict on a candidate.

    Attributes:
        candidate: The arm.
        verdict: The verdict. In a session, "certified" means that the idea is kept.
        pairs: The number of pairs.
        pairing: How runs were paired.
        difference: The mean difference. Positive is better.
        low: The lower end of its interval, or null if the interval is unbounded.
        high: The upper end of the interval.
        own_low: The lower end of the interval from the candidate's own pairs alone.
        own_high: The upper end of this interval.
        deviation: The standard deviation of a single difference.
        prior: What else is known of the standard deviation.
        is_conditional: Whether the verdict depends on a stated standard deviation.
        margin: The margin. It is negative if an improvement is required.
        error_probability: The probability of a wrong certificate.
        more: The further pairs that are likely to settle the question.
        runs: The number of runs that have ended.
        runs_failed: The number of runs that failed.
        at_most_fail: The upper limit of the share of runs that fail.
        pairs_left_out: The number of pairs without a result because the baseline's run failed.
        runs_unmatched: The number of runs without a run of the baseline.
        decision: In a session: the decision about the idea.
        idea: In a session: the name of the idea.
        number: In a session: the number of the idea.
        log_evidence: In a session: the natural logarithm of the e-value.
        log_evidence_required: In a session: the evidence with which the idea is kept.
    """

    candidate: str
    verdict: Verdict
    pairs: int
    pairing: Pairing
    difference: float
    low: float
    high: float
    own_low: float
    own_high: float
    deviation: float
    prior: PriorDocument | None
    is_conditional: bool
    margin: float
    error_probability: float
    more: MorePairs | None
    runs: int
    runs_failed: int
    at_most_fail: float | None
    pairs_left_out: int
    runs_unmatched: int
    decision: Literal["keep", "drop", "undecided"] | None = optional()
    idea: str | None = optional()
    number: int | None = optional()
    log_evidence: float | None = optional()
    log_evidence_required: float | None = optional()


@dataclass
class SessionDocument:
    """A session of ideas.

    Attributes:
        file: The file of the session.
        ideas: The number of ideas judged so far.
        planned: The number of ideas for which the session is planned.
        kept: The ideas that are kept.
        also_kept: Earlier ideas that are kept from this call on.
    """

    file: str
    ideas: int
    planned: int
    kept: list[str]
    also_kept: list[str]


@dataclass
class JudgeDocument:
    """The verdict on every candidate of a table of results.

    Attributes:
        file: The name of the table.
        baseline: The arm that the others are compared with.
        target: The value that every arm is compared with.
        lower_is_better: Whether lower values are better.
        margin: The margin. It is negative if an improvement is required.
        confidence: The confidence in percent.
        candidates: The verdicts.
        session: The session, if there is one.
        says: The answer in sentences.
        notes: What a user should know in addition.
    """

    file: str
    baseline: str | None
    target: float | None
    lower_is_better: bool
    margin: float
    confidence: float
    candidates: list[CandidateDocument]
    session: SessionDocument | None
    says: list[str]
    notes: list[str]


def candidate_documents(
    judged: Sequence[JudgedArm], confidence: float, session: SessionState | None
) -> list[CandidateDocument]:
    """Return the verdicts for programs, with the decisions of a session if there is one."""
    found = [_candidate(each, confidence) for each in judged]
    for document, decision in zip(found, session.decisions if session else (), strict=False):
        document.verdict, document.decision = decision.verdict, DECISIONS[decision.verdict]
        document.idea, document.number = decision.idea.name, decision.idea.number
        document.log_evidence, document.log_evidence_required = decision.idea.log_evidence, decision.required
    return found


def session_document(file: str, session: SessionState) -> SessionDocument:
    """Return the state of a session for programs."""
    kept, also_kept = list(session.kept), list(session.also_kept)
    return SessionDocument(file, session.ideas, session.settings.planned, kept, also_kept)


def _candidate(judged: JudgedArm, confidence: float) -> CandidateDocument:
    judgement, counts = judged.judgement, judged.pairs.counts
    prior, more = judgement.prior, judgement.more
    return CandidateDocument(
        candidate=judged.candidate,
        verdict=judged.verdict,
        pairs=judgement.pairs,
        pairing=judged.pairs.pairing,
        difference=judgement.mean,
        low=judgement.low,
        high=judgement.high,
        own_low=judgement.own_low,
        own_high=judgement.own_high,
        deviation=judgement.deviation,
        prior=PriorDocument(prior.deviation, prior.degrees) if prior.degrees else None,
        is_conditional=math.isinf(prior.degrees),
        margin=judged.margin,
        error_probability=judged.errors.certify,
        more=None if more is None else MorePairs(more.likely, more.low, more.high),
        runs=counts.ended,
        runs_failed=counts.failed,
        at_most_fail=counts.at_most(confidence),
        pairs_left_out=counts.left_out,
        runs_unmatched=judged.pairs.unmatched,
    )
