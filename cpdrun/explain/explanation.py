"""What `cpdrun explain` found, as plain data."""

import math
from dataclasses import asdict, dataclass, field
from typing import Any

MEASURED, OBSERVED, ESTIMATED = "measured", "observed", "estimated"


@dataclass(frozen=True)
class Mend:
    """Something that loses less.

    words: key=value as they are typed. basis: `measured` in a run of the same seed beside it, `observed`: computed on
    what a run observed, `estimated` from the exponents that this run recorded. figure: what it rests on, a share, a
    ratio or a count, before and after; NaN where there is none. value: the metric that the run beside reached.
    """

    words: tuple[str, ...]
    basis: str
    text: str
    figure: str = ""
    before: float = math.nan
    after: float = math.nan
    run: str | None = None
    value: float = math.nan


@dataclass(frozen=True)
class LayerLoss:
    """What one layer lost in one role; NaN where that is not known."""

    name: str
    role: str
    format: str
    figures: dict[str, float]


@dataclass(frozen=True)
class Explanation:
    """`sentences`: in words, the main reason first. A number that is not known is NaN, None in JSON."""

    run: str
    state: str
    status: str | None
    verdict: str
    metric: str | None
    value: float
    baseline: str | None
    baseline_value: float
    lost: float  # how much less good than the baseline, in the metric's unit as stored
    tolerance: float  # in the same unit
    cause: str
    role: str
    sentences: list[str]
    layers: list[LayerLoss] = field(default_factory=list)
    epochs: dict[int, float] = field(default_factory=dict)  # the sum's error by epoch, a mean over layers
    first_nonfinite_epoch: int | None = None
    mends: list[Mend] = field(default_factory=list)
    roles: dict[str, dict[str, float]] = field(default_factory=dict)  # of each role, observed
    parts: dict[str, float] = field(
        default_factory=dict
    )  # of the sum's error, observed: range, additions, mantissa
    observed: str | None = None  # the run whose tensors were looked at
    not_seen: list[str] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        return _plain(asdict(self))


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): _plain(one) for key, one in value.items()}
    return [_plain(one) for one in value] if isinstance(value, list | tuple) else value
