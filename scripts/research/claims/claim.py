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
class Paper:
    title: str
    authors: str
    arxiv: str


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """The candidates and baselines of a sweep to compare, and the bounds between which the comparison holds."""

    sweep: str
    candidate: dict[str, Any]
    baseline: dict[str, Any]
    where: dict[str, Any] = field(default_factory=dict)
    metric: str | None = None
    count: str | None = None
    counted_as: str = TIMES_FEWER
    at_least: float | None = None
    at_most: float | None = None

    def __post_init__(self) -> None:
        if (self.metric is None) == (self.count is None):
            raise ValueError("a comparison needs either a metric or a count")
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
    threshold: str | None = None
    holds_for: str = "every"
    across: str = "comparisons"
    comparisons: tuple[Comparison, ...] = ()
    not_run: str | None = None
    note: str | None = None

    def __post_init__(self) -> None:
        if bool(self.comparisons) == bool(self.not_run):
            raise ValueError("a claim needs either comparisons, or not_run with the reason")
        if self.comparisons and not self.threshold:
            raise ValueError("a claim with comparisons needs a threshold")
        if self.holds_for not in QUANTIFIERS:
            raise ValueError(f"holds_for must be one of {', '.join(QUANTIFIERS)}, not {self.holds_for!r}")


def read_claims(path: Path = CLAIMS) -> list[Claim]:
    """Return all claims in the order of the file.

    Raises:
        ValueError: A claim has a missing, unknown or invalid key.
    """
    claims = []
    for content in yaml.safe_load(path.read_text(encoding="utf-8")):
        paper = Paper(content["title"], content["authors"], content["arxiv"])
        for claim in content["claims"]:
            try:
                claims.append(_claim(paper, claim))
            except (TypeError, ValueError) as error:
                raise ValueError(f"{path}, {claim.get('statement')!r}: {error}") from None
    return claims


def _claim(paper: Paper, content: Mapping[str, Any]) -> Claim:
    comparisons = tuple(Comparison(**comparison) for comparison in content.get("comparisons", ()))
    return Claim(paper=paper, **{**content, "comparisons": comparisons})
