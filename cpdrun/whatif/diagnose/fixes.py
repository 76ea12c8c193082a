"""Changes that lose less than a run: measured in other runs, computed on observed tensors, or estimated."""

import math
from collections.abc import Iterator, Sequence

from cpdrun.study.gradient_sums import Cause, Reason, longest_chain, represented_binades, workers_per_scale
from cpdrun.study.run_comparison import Neighbor
from cpdrun.whatif.diagnose.changes import GRADIENT, UPDATE, Change
from cpdrun.whatif.diagnose.counterfactual import Counterfactual, Effect, damage, number
from cpdrun.whatif.diagnose.diagnosis import ESTIMATED, MEASURED, OBSERVED, Fix

LEAST_DAMAGE = 0.02  # a change that reduces the damage by less is no fix
LEAST_LOGIT = 0.1  # nor is one that reduces the forecast's logit by less
NEXT_TO_NONE = 1e-6  # puts a fix last
# An estimated fix represents at least so many powers of two of a layer's gradients. e3m0 with APS represents as many of
# 8 workers' gradients and equals fp32.
FEWEST_BINADES = 2
REPRESENTED = "powers of two represented of those that a layer's gradients span"
IN_SERIES = "rounded additions in series"


def measured_fixes(neighbors: Sequence[Neighbor], reason: Reason) -> list[Fix]:
    """Return the settings of neighbors that lost less."""
    before = reason.statistics.sum_error
    return [
        Fix(tuple(one.words), MEASURED, "sum_error", before, one.statistics.sum_error, neighbor=one)
        for one in neighbors
    ]


def observed_fixes(counterfactual: Counterfactual) -> list[Fix]:
    """Return the changes that lose less on observed tensors, best first."""
    own = counterfactual.own
    gains = [(_gain(own, change, effect), change, effect) for change, effect in counterfactual.changes]
    better = sorted((each for each in gains if each[0] > 0), key=lambda each: -each[0])
    return [_observed_fix(own, change, effect) for _, change, effect in better]


def estimated_fixes(reason: Reason, own: Change, changes: Sequence[Change]) -> list[Fix]:
    """Return the changes that the recorded exponents show to lose less, best first. `own` changes nothing."""
    fixes = [fix for change in changes for fix in _estimate(reason, own, change)]
    return sorted(fixes, key=_ratio, reverse=True)


def is_error_feedback(change: Change) -> bool:
    """Return whether a change turns on error feedback, whose gain comes in later steps only."""
    return any(word.startswith("sync.error_feedback") for word in change.words)


def is_unbiased(change: Change) -> bool:
    """Return whether a change makes the rounding of sums unbiased, so that errors average out over steps."""
    return "sync.rounding=stochastic" in change.words


def gain_over_steps(own: Effect, effect: Effect) -> float:
    """Return by how much the cosine of the sum over all observed steps rises."""
    before, after = (number(each.of(GRADIENT), "steps_cosine", 0.0) for each in (own, effect))
    return after - before


def _gain(own: Effect, change: Change, effect: Effect) -> float:
    """Return how much less a change loses; 0 for no gain. For gradients the forecast counts, too."""
    if is_error_feedback(change):
        # a run has more steps than were observed, so what gives nothing back in these may do so in others
        gain = gain_over_steps(own, effect)
        return max(gain, NEXT_TO_NONE) if damage(own, GRADIENT) > LEAST_DAMAGE else 0.0
    of_forecast = own.forecast.logit - effect.forecast.logit if change.role == GRADIENT else 0.0
    gain = damage(own, change.role) - damage(effect, change.role)
    if is_unbiased(change):
        gain = max(gain, gain_over_steps(own, effect))
    return max(of_forecast, gain) if gain > LEAST_DAMAGE or of_forecast > LEAST_LOGIT else 0.0


def _observed_fix(own: Effect, change: Change, effect: Effect) -> Fix:
    if is_error_feedback(change):
        figure, role = "steps_cosine", GRADIENT
    else:
        figure, role = {GRADIENT: "cosine", UPDATE: "update_lost"}.get(change.role, "snr_db"), change.role
    unknown = 0.0 if role == GRADIENT else math.nan
    before, after = (number(each.of(role), figure, unknown) for each in (own, effect))
    return Fix(change.words, OBSERVED, figure, before, after, change=change, effect=effect)


def _estimate(reason: Reason, own: Change, change: Change) -> Iterator[Fix]:
    before, after = _represented(reason, own), _represented(reason, change)
    if before is not None and after is not None and after[0] >= max(FEWEST_BINADES, before[0] + 0.5):
        yield Fix(change.words, ESTIMATED, REPRESENTED, before[0], after[0], change=change, span=after[1])
        return
    was, now = (longest_chain(one.config["sync"], one.config["world_size"]) for one in (own, change))
    if reason.cause is Cause.ADDITIONS and was is not None and now is not None and now < was:
        yield Fix(change.words, ESTIMATED, IN_SERIES, was, now, change=change)


def _represented(reason: Reason, change: Change) -> tuple[float, float] | None:
    config = change.config
    workers = workers_per_scale(config["sync"], config["world_size"])
    return represented_binades(reason.statistics, config["format"], workers, scaled=config["aps"])


def _ratio(fix: Fix) -> float:
    """Return the factor by which a fix improves its figure, 0 if it is unknown."""
    if not (math.isfinite(fix.before) and math.isfinite(fix.after)):
        return 0.0
    low, high = sorted((fix.before, fix.after))
    return (high + 1) / (low + 1)
