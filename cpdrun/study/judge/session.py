"""Judge a growing list of ideas, and record them in a session file.

An idea is a change whose runs are compared with a baseline. A session records which ideas were judged, on which pairs,
and which of them are kept. The choice controls the false discovery rate (`cpdrun.stats.false_discoveries`).

The file has one JSON object per line and is only appended to. A process locks it from its first read to its last write.
All lines of a call are written at once and reach the disk before anything is printed. So the result of a truncated line
was never printed, and such a line is ignored.
"""

import contextlib
import json
import math
import os
import stat
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from cpdrun.errors import UserError
from cpdrun.stats.evidence import NO_PRIOR, SpreadPrior, Verdict
from cpdrun.stats.false_discoveries import kept_ideas, required_log_evidence
from cpdrun.stats.means import deviation
from cpdrun.stats.pooled_spread import FIRST_PAIRS, squeeze
from cpdrun.study.judge.candidates import (
    ErrorProbabilities,
    JudgedArm,
    JudgeQuestion,
    Pairs,
    candidates_of,
    checked_margin,
    form_pairs,
    judge_pairs,
    stated_prior,
)
from cpdrun.study.judge.table import Seed, Table

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

KIND, HEADER, IDEA = "kind", "cpdrun judge session", "idea"
VERSION = 1
PLANNED = 100
CONFIDENCE = 95.0
MAX_BYTES = 256 << 20


@dataclass(frozen=True)
class SessionSettings:
    """The settings that are fixed when a session begins.

    Attributes:
        confidence: 100 minus the false discovery rate, both in percent.
        planned: The planned number of ideas.
        lower_is_better: Whether smaller values of the metric are better.
    """

    confidence: float = CONFIDENCE
    planned: int = PLANNED
    lower_is_better: bool = False


@dataclass(frozen=True)
class Idea:
    """An idea of the session, as it was judged last.

    Attributes:
        number: The number of the idea in the session, starting at 1.
        name: The name of the idea.
        baseline: The name of the baseline's arm, or a text such as "target 0.5".
        boundary: The margin or the required improvement as a text, such as "worse by at most 0.5".
        margin: The margin in the metric's unit, fixed when the idea is first judged.
        prior: The prior for the standard deviation of a difference, fixed when the idea is first judged.
        pairs: The differences keyed by seed, in the order in which they were judged. A failed run has None.
        log_evidence: The natural logarithm of the e-value for the idea, frozen when the idea is kept.
        is_kept: Whether the idea is kept.
    """

    number: int
    name: str
    baseline: str
    boundary: str
    margin: float
    prior: SpreadPrior
    pairs: Mapping[Seed, float | None] = field(default_factory=dict)
    log_evidence: float = 0.0
    is_kept: bool = False

    @property
    def key(self) -> tuple[str, str, str]:
        """The fields that identify the idea."""
        return self.name, self.baseline, self.boundary


@dataclass(frozen=True)
class Decision:
    """The result of judging one idea.

    Attributes:
        idea: The idea after it was judged.
        judged: The verdict on the idea's pairs.
        required: The natural logarithm of the e-value that the idea needed to be kept.
    """

    idea: Idea
    judged: JudgedArm
    required: float

    @property
    def verdict(self) -> Verdict:
        """Certified if the idea is kept, refuted if its pairs refute it, else open."""
        if self.idea.is_kept:
            return Verdict.CERTIFIED
        return Verdict.REFUTED if self.judged.verdict is Verdict.REFUTED else Verdict.OPEN


@dataclass(frozen=True)
class SessionState:
    """The decisions of one call of `judge_ideas`, and the session afterwards.

    Attributes:
        settings: The settings of the session.
        decisions: The results for the judged ideas.
        also_kept: The names of earlier ideas that are kept now because of this call's evidence.
        ideas: The number of ideas in the session.
        kept: The names of all kept ideas.
    """

    settings: SessionSettings
    decisions: list[Decision]
    also_kept: list[str]
    ideas: int
    kept: list[str]


def judge_ideas(
    path: str, table: Table, question: JudgeQuestion, settings: Mapping[str, Any], name: str | None = None
) -> SessionState:
    """Judge the candidates of a table as ideas, and append the results to a session file.

    Args:
        path: The path of the session file. It is created if it does not exist.
        table: The table of results. It must have seeds.
        question: The user's request. Its confidence is replaced by that of the session.
        settings: The settings `confidence` and `planned`, if they were typed. Otherwise, they are those of the file or
            the defaults.
        name: The name of the idea if the table has a single candidate. None for the names of the arms.

    Raises:
        UserError: The table has no seeds, the file is not a session, a typed setting differs from the session's, or
            pairs of an idea have changed.
    """
    if table.is_shuffled:
        raise UserError(
            "a session needs seeds, so that an idea can be judged again with more pairs. Add a column of seeds."
        )
    arms = candidates_of(table, question)
    if name is not None and len(arms) != 1:
        raise UserError(
            f"--idea names one idea, but there are {len(arms)} candidates. Choose one with --candidate."
        )
    margin = checked_margin(table, question)
    pairs = {arm: form_pairs(table, question, arm) for arm in arms}
    with _locked(path) as fd:
        content = _content(fd, path)
        agreed, ideas = _read(content, path)
        now = _settings(agreed, settings, question, path)
        question = replace(question, confidence=now.confidence)
        known = dict(ideas)
        changed = {}
        for arm in arms:
            idea = _asked(ideas, name or arm, question, margin)
            found = _ordered(pairs[arm], idea, path)
            changed[idea.number] = (arm, found)
            ideas[idea.number] = replace(idea, pairs=_recorded(found))
        for number in changed.keys() - known.keys():
            prior = stated_prior(question) or _pooled(ideas, number, question)
            ideas[number] = replace(ideas[number], prior=prior)
        decisions, also = _decide(ideas, changed, question, now)
        lines = [] if agreed else [{KIND: HEADER, "version": VERSION} | asdict(now)]
        lines += [_line(idea) for number, idea in sorted(ideas.items()) if idea != known.get(number)]
        _append(fd, content, lines)
    kept = [idea.name for idea in ideas.values() if idea.is_kept]
    return SessionState(now, decisions, [ideas[number].name for number in also], len(ideas), kept)


def _decide(
    ideas: dict[int, Idea],
    changed: Mapping[int, tuple[str, Pairs]],
    question: JudgeQuestion,
    settings: SessionSettings,
) -> tuple[list[Decision], list[int]]:
    """Judge the ideas in `changed`, and decide which ideas of the session are kept.

    Args:
        ideas: All ideas, keyed by number. Their `log_evidence` and `is_kept` are updated in place.
        changed: The arm's name and the pairs of each idea to judge, keyed by number.
        question: The user's request.
        settings: The settings of the session.

    Returns:
        The results of the judged ideas, and the numbers of other ideas that are newly kept.
    """
    alpha = question.alpha
    before = {number for number, idea in ideas.items() if idea.is_kept}
    required = {
        number: required_log_evidence(number, len(before - {number}) + 1, alpha, settings.planned)
        for number in changed
    }
    judged = {}
    for number, (arm, found) in changed.items():
        idea = ideas[number]
        level = min(alpha, math.exp(-required[number]))
        errors = ErrorProbabilities(certify=level, refute=alpha, interval=alpha)
        judged[number] = judge_pairs(arm, found, question, idea.margin, errors, idea.prior)
        if not idea.is_kept:
            ideas[number] = replace(idea, log_evidence=_evidence_now(judged[number]))
    evidence = {number: idea.log_evidence for number, idea in ideas.items()}
    for number in kept_ideas(evidence, alpha, settings.planned):
        ideas[number] = replace(ideas[number], is_kept=True)
    also = [n for n, idea in ideas.items() if idea.is_kept and n not in before and n not in changed]
    return [Decision(ideas[n], judged[n], required[n]) for n in changed], also


def _evidence_now(judged: JudgedArm) -> float:
    """Return the natural logarithm of an idea's e-value after all pairs, at least 0.

    If a run of the idea failed, return 0. The e-value after all pairs is used, because the largest e-value after any
    number of pairs is not a valid e-value (`cpdrun.stats.false_discoveries`).
    """
    trace = judged.judgment.trace
    return max(0.0, trace[-1] * math.log(10)) if trace and not judged.pairs.is_barred else 0.0


def _asked(ideas: dict[int, Idea], name: str, question: JudgeQuestion, margin: float) -> Idea:
    """Return the idea with this name, baseline, and boundary, or add it to `ideas`."""
    boundary = question.boundary
    kind = "better by more than" if boundary.is_improvement else "worse by at most"
    text = f"{kind} {boundary.number:g}{'%' if boundary.is_relative else ''}"
    baseline = question.baseline if question.baseline is not None else f"target {question.target:g}"
    for idea in ideas.values():
        if idea.key == (name, baseline, text):
            return idea
    idea = Idea(len(ideas) + 1, name, baseline, text, margin, NO_PRIOR)
    ideas[idea.number] = idea
    return idea


def _pooled(ideas: Mapping[int, Idea], number: int, question: JudgeQuestion) -> SpreadPrior:
    """Return the prior for an idea's standard deviation, from the first pairs of other ideas."""
    others = [idea for idea in ideas.values() if idea.number != number]
    first = [[gap for gap in idea.pairs.values() if gap is not None][:FIRST_PAIRS] for idea in others]
    rounding = question.resolution / math.sqrt(6)
    cells = [(math.hypot(deviation(gaps), rounding), len(gaps) - 1) for gaps in first if len(gaps) > 1]
    return squeeze(cells)


def _recorded(pairs: Pairs) -> dict[Seed, float | None]:
    return {seed: None if seed in pairs.failed else gap for seed, gap in pairs.gaps.items()}


def _ordered(pairs: Pairs, idea: Idea, path: str) -> Pairs:
    """Sort pairs in the order in which they are judged: earlier pairs come first.

    Raises:
        UserError: A pair that was judged before is missing or has changed.
    """
    now = _recorded(pairs)
    for seed, before in idea.pairs.items():
        if seed not in now:
            raise UserError(
                f"{path}: idea {idea.name!r} was judged with seed {seed}, which is missing now. Keep all of its pairs, "
                "or give a new idea another name with --idea."
            )
        gap = now[seed]
        is_same = gap is before if gap is None or before is None else math.isclose(gap, before, rel_tol=1e-9)
        if not is_same:
            raise UserError(
                f"{path}: idea {idea.name!r} was judged before with other values for seed {seed}. If the idea is "
                "new, name it with --idea. If the baseline is new, rename the baseline."
            )
    order = [*idea.pairs, *(seed for seed in pairs.gaps if seed not in idea.pairs)]
    return replace(pairs, gaps={seed: pairs.gaps[seed] for seed in order})


def _settings(
    agreed: SessionSettings | None, typed: Mapping[str, Any], question: JudgeQuestion, path: str
) -> SessionSettings:
    if agreed is None:
        return SessionSettings(**typed, lower_is_better=question.lower_is_better)
    for key, option in (("confidence", "--confidence"), ("planned", "--ideas")):
        if typed.get(key, getattr(agreed, key)) != getattr(agreed, key):
            raise UserError(
                f"{path} began with {option} {getattr(agreed, key):g}, which cannot change. Start another file."
            )
    if agreed.lower_is_better != question.lower_is_better:
        began = "with" if agreed.lower_is_better else "without"
        raise UserError(f"{path} began {began} --lower-is-better. Use another file for another metric.")
    return agreed


@contextlib.contextmanager
def _locked(path: str) -> Iterator[int]:
    if fcntl is None:
        raise UserError("--session needs file locks, which this system lacks.")
    try:
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW
        fd = os.open(path, flags, 0o666)
    except OSError as error:
        raise UserError(f"cannot open the session {path}: {error.strerror}") from None
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise UserError(f"the session {path} is not a regular file.")
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
        except OSError as error:
            raise UserError(f"cannot lock the session {path}: {error.strerror}") from None
        yield fd
    finally:
        os.close(fd)


def _content(fd: int, path: str) -> bytes:
    size = os.fstat(fd).st_size
    if size > MAX_BYTES:
        raise UserError(f"the session {path} is larger than {MAX_BYTES >> 20} MiB.")
    return os.pread(fd, size, 0)


def _read(content: bytes, path: str) -> tuple[SessionSettings | None, dict[int, Idea]]:
    """Read the settings and the latest ideas from a session file.

    Returns:
        The settings, or None for a new file, and the ideas keyed by number.

    Raises:
        UserError: The file is not a session, has another version, or is damaged.
    """
    rows = []
    for line in content.splitlines():
        with contextlib.suppress(ValueError, RecursionError):
            rows.append(json.loads(line))
    start = json.dumps({KIND: HEADER}).encode()[:-1]
    if not rows and b"\n" not in content and (start.startswith(content) or content.startswith(start)):
        return None, {}  # The file is empty, or a process was killed while it wrote the first line.
    header = rows[0] if rows and isinstance(rows[0], dict) else {}
    if header.get(KIND) != HEADER:
        raise UserError(f"{path} is not a session of cpdrun judge. Name a new file; nothing was written.")
    if header.get("version") != VERSION:
        raise UserError(f"{path} was written by another version of cpdrun. Start another file.")
    try:
        settings = SessionSettings(header["confidence"], header["planned"], header["lower_is_better"])
        ideas: dict[int, Idea] = {}
        for row in rows[1:]:
            if row[KIND] == IDEA:
                prior = SpreadPrior(row["prior"][0], math.inf if row["prior"][1] is None else row["prior"][1])
                fixed = (row["number"], row["idea"], row["baseline"], row["boundary"], row["margin"], prior)
                pairs = dict(row["pairs"])
                ideas[row["number"]] = Idea(*fixed, pairs, row["log_evidence"], row["kept"])
    except (KeyError, TypeError, IndexError):
        raise UserError(
            f"{path} is damaged: a line lacks what cpdrun judge writes. Start another file."
        ) from None
    return settings, ideas


def _line(idea: Idea) -> dict[str, Any]:
    degrees = None if math.isinf(idea.prior.degrees) else idea.prior.degrees
    return {
        KIND: IDEA,
        "number": idea.number,
        "idea": idea.name,
        "baseline": idea.baseline,
        "boundary": idea.boundary,
        "margin": idea.margin,
        "prior": [idea.prior.deviation, degrees],
        "pairs": [[seed, gap] for seed, gap in idea.pairs.items()],
        "log_evidence": idea.log_evidence,
        "kept": idea.is_kept,
    }


def _append(fd: int, content: bytes, rows: list[dict[str, Any]]) -> None:
    """Append all rows at once, one per line, after ending a truncated last line."""
    if not rows:
        return
    text = "".join(json.dumps(row, allow_nan=False) + "\n" for row in rows).encode()
    if content and not content.endswith(b"\n"):
        text = b"\n" + text
    while text:
        text = text[os.write(fd, text) :]
    os.fsync(fd)
