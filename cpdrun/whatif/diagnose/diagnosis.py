"""What a diagnosis of a run consists of."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from cpdrun.record import Result, RunDir, State
from cpdrun.study.gradient_sums import Reason
from cpdrun.study.run_comparison import Neighbor, RunComparison, RunVerdict
from cpdrun.study.study import Study
from cpdrun.whatif.diagnose.changes import Change
from cpdrun.whatif.diagnose.counterfactual import Counterfactual, Effect

MEASURED, OBSERVED, ESTIMATED = "measured", "observed", "estimated"


@dataclass(frozen=True)
class Fix:
    """A change of the configuration that loses less.

    Attributes:
        words: key=value, as they are typed.
        basis: `measured` in a finished run of the same seed, `observed`: computed on the tensors that a run observed,
            or `estimated` from the exponents that the run recorded.
        figure: The name of the figure that improves: a share, a ratio or a count.
        before: That figure now; NaN if unknown.
        after: That figure with the change; NaN if unknown.
        neighbor: The finished run, for a measured fix.
        change: The change, for the other fixes.
        effect: What the change does to the observed tensors, for an observed fix.
        span: The number of powers of two that a layer's gradients span, for an estimated fix of the range.
    """

    words: tuple[str, ...]
    basis: str
    figure: str
    before: float
    after: float
    neighbor: Neighbor | None = None
    change: Change | None = None
    effect: Effect | None = None
    span: float = math.nan


@dataclass(frozen=True)
class Diagnosis:
    """A run, how it compares with its baseline, and why.

    Attributes:
        study: The study of its sweep; None if no run has finished or the runs cannot be compared.
        reason: The main reason why its sums of gradients are wrong.
        counterfactual: What its configuration, and each change of it, do to observed tensors; None if no run was
            observed.
        problem: Why there is no counterfactual although a run was observed.
        fixes: Changes that lose less, best first.
    """

    run: RunDir
    config: Mapping[str, Any]
    state: State
    result: Result | None
    study: Study | None
    comparison: RunComparison
    reason: Reason
    counterfactual: Counterfactual | None = None
    problem: str = ""
    fixes: list[Fix] = field(default_factory=list)

    @property
    def is_baseline(self) -> bool:
        return self.comparison.verdict is RunVerdict.BASELINE
