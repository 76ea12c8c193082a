"""The document of `cpdrun judge --json`.

An arm is one variant in a table of results. A candidate is an arm that is compared with the baseline or a target. In a
session, each judged candidate is an idea.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from cpdrun.shell.document import optional
from cpdrun.stats.evidence import PairsRange, SpreadPrior, Verdict
from cpdrun.study.judge.candidates import JudgedArm, Pairing
from cpdrun.study.judge.session import SessionState

# The decision about an idea of a session, for each verdict on the idea.
DECISIONS: dict[Verdict, Literal["keep", "drop", "undecided"]] = {
    Verdict.CERTIFIED: "keep",
    Verdict.REFUTED: "drop",
    Verdict.OPEN: "undecided",
}


@dataclass
class CandidateDocument:
    """The verdict on a candidate.

    Attributes:
        candidate: The candidate's arm in the table.
        verdict: The verdict. In a session, "certified" means that the idea is kept.
        pairs: The number of pairs.
        pairing: How the candidate's runs were paired with the baseline's runs.
        difference: The mean difference. Positive is better.
        low: The lower end of the difference's interval, or null if it is infinite.
        high: The upper end of the difference's interval, or null if it is infinite.
        own_low: The lower end of the interval from the candidate's own pairs, without the prior.
        own_high: The upper end of the interval without the prior.
        deviation: The standard deviation of a single difference.
        prior: The prior for this standard deviation, or null. Its degrees are null if the user stated the standard
            deviation.
        is_conditional: Whether the verdict depends on a stated standard deviation.
        margin: The margin. It is negative if an improvement is required.
        error_probability: The largest probability of certifying a candidate that is worse by more than the margin.
        more: The number of further pairs that are likely to decide the verdict, or null if there is no estimate.
        runs: The number of runs that have ended.
        runs_failed: The number of runs that failed.
        at_most_fail: The upper confidence limit of the share of runs that fail, or null if no run has ended.
        pairs_left_out: The number of pairs without a result because the baseline's run failed.
        runs_unmatched: The number of runs that have no run of the baseline to be paired with.
        decision: In a session: the decision about the idea.
        idea: In a session: the name of the idea.
        number: In a session: the number of the idea.
        log_evidence: In a session: the natural logarithm of the e-value. Larger is stronger evidence for keeping the
            idea.
        log_evidence_required: In a session: the smallest `log_evidence` with which the idea is kept.
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
    prior: SpreadPrior | None
    is_conditional: bool
    margin: float
    error_probability: float
    more: PairsRange | None
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
    """A session: a stream of ideas, of which at most a small share is kept although false.

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
        baseline: The arm that the others are compared with, or null if there is a target.
        target: The value that every arm is compared with, or null if there is a baseline.
        lower_is_better: Whether lower values are better.
        margin: The margin. It is negative if an improvement is required.
        confidence: The confidence in percent.
        candidates: The verdicts.
        session: The session, if there is one.
        says: The answer in sentences.
        notes: Additional notes for the user.
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
    """Return the verdicts, with the decisions of the session if there is one."""
    found = [_candidate(each, confidence) for each in judged]
    for document, decision in zip(found, session.decisions if session else (), strict=False):
        document.verdict, document.decision = decision.verdict, DECISIONS[decision.verdict]
        document.idea, document.number = decision.idea.name, decision.idea.number
        document.log_evidence, document.log_evidence_required = decision.idea.log_evidence, decision.required
    return found


def session_document(file: str, session: SessionState) -> SessionDocument:
    kept, also_kept = list(session.kept), list(session.also_kept)
    return SessionDocument(file, session.ideas, session.settings.planned, kept, also_kept)


def _candidate(judged: JudgedArm, confidence: float) -> CandidateDocument:
    judgment, counts = judged.judgment, judged.pairs.counts
    return CandidateDocument(
        candidate=judged.candidate,
        verdict=judged.verdict,
        pairs=judgment.pairs,
        pairing=judged.pairs.pairing,
        difference=judgment.mean,
        low=judgment.low,
        high=judgment.high,
        own_low=judgment.own_low,
        own_high=judgment.own_high,
        deviation=judgment.deviation,
        prior=judgment.prior if judgment.prior.degrees else None,
        is_conditional=math.isinf(judgment.prior.degrees),
        margin=judged.margin,
        error_probability=judged.errors.certify,
        more=judgment.more,
        runs=counts.ended,
        runs_failed=counts.failed,
        at_most_fail=counts.at_most(confidence),
        pairs_left_out=counts.left_out,
        runs_unmatched=judged.pairs.unmatched,
    )
