"""Claims of papers, read from claims.yaml. The comments in that file explain its keys."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from research.claims.quantified_claims import QUANTIFIERS

CLAIMS = Path(__file__).with_name("claims.yaml")
TIMES_FEWER, PERCENT_MORE = "times_fewer", "percent_more"


@dataclass(frozen=True)
class Untested:
    """A claim that cannot be tested here, and the reason."""

    statement: str
    quote: str
    section: str
    reason: str


@dataclass(frozen=True)
class Paper:
    title: str
    authors: str
    arxiv: str
    not_tested: tuple[Untested, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """What is compared, and the bounds between which the comparison holds.

    It compares either candidates and baselines of a sweep, or numbers of a committed table with the bounds alone.
    """

    sweep: str = ""
    candidate: dict[str, Any] = field(default_factory=dict)
    baseline: dict[str, Any] = field(default_factory=dict)
    where: dict[str, Any] = field(default_factory=dict)
    metric: str | None = None
    count: str | None = None
    counted_as: str = TIMES_FEWER
    table: str | None = None
    column: str | None = None
    at_least: float | None = None
    at_most: float | None = None

    def __post_init__(self) -> None:
        if sum(kind is not None for kind in (self.metric, self.count, self.table)) != 1:
            raise ValueError("a comparison needs a metric, a count or a table, and only one of them")
        if (self.table is None) != (self.column is None):
            raise ValueError("a comparison with a table needs a column, and one with a column needs a table")
        if self.table is None and not (self.sweep and self.candidate and self.baseline):
            raise ValueError("a comparison of runs needs a sweep, a candidate and a baseline")
        if self.counted_as not in (TIMES_FEWER, PERCENT_MORE):
            raise ValueError(f"counted_as must be {TIMES_FEWER} or {PERCENT_MORE}, not {self.counted_as!r}")
        if self.at_least is None and self.at_most is None:
            raise ValueError("a comparison needs at_least or at_most")


@dataclass(frozen=True, kw_only=True)
class Claim:
    paper: Paper
    statement: str
    quote: str | None
    section: str
    threshold: str
    comparisons: tuple[Comparison, ...]
    holds_for: str = "every"
    across: str = "comparisons"
    note: str | None = None

    def __post_init__(self) -> None:
        if not self.comparisons:
            raise ValueError("a claim needs comparisons; the paper's not_tested has claims without them")
        if not self.threshold:
            raise ValueError("a claim needs a threshold")
        if self.holds_for not in QUANTIFIERS:
            raise ValueError(f"holds_for must be one of {', '.join(QUANTIFIERS)}, not {self.holds_for!r}")


def read_claims(path: Path = CLAIMS) -> list[Claim]:
    """Return all claims in the order of the file.

    Raises:
        ValueError: A claim has a missing, unknown or invalid key.
    """
    claims = []
    for content in yaml.safe_load(path.read_text(encoding="utf-8")):
        not_tested = tuple(Untested(**claim) for claim in content.get("not_tested", ()))
        paper = Paper(content["title"], content["authors"], content["arxiv"], not_tested)
        for claim in content["claims"]:
            try:
                claims.append(_claim(paper, claim))
            except (TypeError, ValueError) as error:
                raise ValueError(f"{path}, {claim.get('statement')!r}: {error}") from None
    return claims


def _claim(paper: Paper, content: Mapping[str, Any]) -> Claim:
    comparisons = tuple(Comparison(**comparison) for comparison in content.get("comparisons", ()))
    return Claim(paper=paper, **{**content, "comparisons": comparisons})
