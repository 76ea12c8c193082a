"""A claim as data: conf/claims/<paper>/<name>.yaml, with what the claims of one paper share in its paper.yaml.

paper.yaml
  title, arxiv, authors, order     order: its place among the papers
<name>.yaml
  order        its place among the paper's claims
  section      where the paper says it, with the version where versions differ
  words        the paper's own words, or null where the text could not be had
  says         what is claimed, in ours
  threshold    what would keep it, and whether that number is the paper's or ours
  holds_for    every, most or some of the comparisons: what the words promise
  asks         a list of comparisons, each
    sweep        the experiment whose runs are looked at
    ours         cells: values by axis; a list of values is any of them; a class goes by its name
    against      the cells that they are compared with, equal in every axis that neither names
    where        of both, optional
    metric       of done.json, in shown units (points for an accuracy), better is positive: ours less against
    count        in place of a metric: what a record counts, such as wire:bytes_per_step_real_worker
    as           of a count: times_fewer (against / ours) or per_cent_more (ours over against)
    at_least     the comparison holds from here on
    at_most      and up to here
  not_asked    in place of asks: why it could not be asked here
  note         optional, of ours
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from cpdrun.stats.quantified import QUANTIFIERS
from cpdrun.study.errors import ReportUsageError

PAPER = "paper.yaml"
COUNTS_AS = ("times_fewer", "per_cent_more")


@dataclass(frozen=True)
class Paper:
    title: str
    arxiv: str
    authors: str
    order: int


@dataclass(frozen=True)
class Ask:
    """One comparison of cells of a sweep; see the top of this file."""

    sweep: str
    ours: dict[str, Any]
    against: dict[str, Any]
    where: dict[str, Any] = field(default_factory=dict)
    metric: str | None = None
    count: str | None = None
    counted_as: str = COUNTS_AS[0]
    at_least: float | None = None
    at_most: float | None = None


@dataclass(frozen=True)
class Claim:
    name: str
    paper: Paper
    section: str
    words: str | None
    says: str
    threshold: str | None
    holds_for: str
    asks: list[Ask]
    not_asked: str | None
    note: str | None
    order: int


def shipped() -> Path:
    """The folder of claims that comes with cpdrun."""
    return Path(str(resources.files("cpdrun.conf"))) / "claims"


def read_claims(folder: Path | None = None) -> list[Claim]:
    """Every claim of `folder` (default: those that come with cpdrun), papers and claims in their order.

    Raises ReportUsageError, in one line, for a file that is no claim.
    """
    folder = folder or shipped()
    claims = []
    for about in sorted(folder.glob(f"*/{PAPER}")):
        paper = _paper(about)
        claims += [_claim(path, paper) for path in sorted(about.parent.glob("*.yaml")) if path.name != PAPER]
    if not claims:
        raise ReportUsageError(f"no claims in {folder}: they lie in PAPER/NAME.yaml beside a PAPER/{PAPER}")
    return sorted(claims, key=lambda claim: (claim.paper.order, claim.paper.title, claim.order, claim.name))


def _paper(path: Path) -> Paper:
    content = _mapping(path, required={"title", "arxiv", "authors", "order"}, optional=set())
    return Paper(**{**content, "arxiv": str(content["arxiv"])})


def _claim(path: Path, paper: Paper) -> Claim:
    content = _mapping(
        path,
        required={"order", "section", "words", "says"},
        optional={"threshold", "holds_for", "asks", "not_asked", "note"},
    )
    asks, reason = content.get("asks"), content.get("not_asked")
    if (asks is None) == (reason is None):
        raise _error(path, "needs either asks, or not_asked with the reason")
    if asks is not None and not (isinstance(asks, list) and asks):
        raise _error(path, "asks must be a list of comparisons")
    if asks is not None and not content.get("threshold"):
        raise _error(path, "what is asked needs a threshold, and whose it is")
    quantifier = content.get("holds_for", QUANTIFIERS[0])
    if quantifier not in QUANTIFIERS:
        raise _error(path, f"holds_for must be one of {', '.join(QUANTIFIERS)}, not {quantifier!r}")
    return Claim(
        name=path.stem,
        paper=paper,
        section=content["section"],
        words=content["words"],
        says=content["says"],
        threshold=content.get("threshold"),
        holds_for=quantifier,
        asks=[_ask(path, ask) for ask in asks or []],
        not_asked=reason,
        note=content.get("note"),
        order=content["order"],
    )


def _ask(path: Path, content: Any) -> Ask:
    known = {"sweep", "ours", "against", "where", "metric", "count", "as", "at_least", "at_most"}
    if not isinstance(content, Mapping) or not {"sweep", "ours", "against"} <= content.keys() <= known:
        raise _error(
            path, f"asks: each needs sweep, ours and against, and may have {', '.join(sorted(known))}"
        )
    for key in ("ours", "against", "where"):
        if not isinstance(content.get(key, {}), Mapping):
            raise _error(path, f"asks: {key} must map axes to values")
    if ("metric" in content) == ("count" in content):
        raise _error(path, "asks: each compares either a metric or a count")
    if content.get("as", COUNTS_AS[0]) not in COUNTS_AS:
        raise _error(path, f"asks: as must be one of {', '.join(COUNTS_AS)}, not {content['as']!r}")
    bounds = [content.get(key) for key in ("at_least", "at_most")]
    if bounds == [None, None] or not all(_is_number(bound) for bound in bounds if bound is not None):
        raise _error(path, "asks: each needs at_least or at_most, a number")
    return Ask(
        sweep=str(content["sweep"]),
        ours=dict(content["ours"]),
        against=dict(content["against"]),
        where=dict(content.get("where", {})),
        metric=content.get("metric"),
        count=content.get("count"),
        counted_as=content.get("as", COUNTS_AS[0]),
        at_least=bounds[0],
        at_most=bounds[1],
    )


def _mapping(path: Path, required: set[str], optional: set[str]) -> dict[str, Any]:
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise _error(path, " ".join(str(error).split())) from None
    if not isinstance(content, dict):
        raise _error(path, "holds no keys")
    if missing := sorted(required - content.keys()):
        raise _error(path, f"lacks {', '.join(missing)}")
    if unknown := sorted(map(str, content.keys() - required - optional)):
        raise _error(path, f"unknown key {unknown[0]!r}; there are: {', '.join(sorted(required | optional))}")
    return content


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _error(path: Path, what: str) -> ReportUsageError:
    return ReportUsageError(f"{path}: {what}")
