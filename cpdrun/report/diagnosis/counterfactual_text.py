"""Render what was computed on the tensors of an observed run: the reason, each role, and where errors come from."""

import math
from collections.abc import Iterator

from cpdrun.report.diagnosis.sums_text import share
from cpdrun.study.axes import plain
from cpdrun.whatif.changes import GRADIENT, UPDATE
from cpdrun.whatif.counterfactual import (
    ROLES,
    Counterfactual,
    Figures,
    damage,
    number,
    worst_layers,
)
from cpdrun.whatif.diagnosis import MIN_DAMAGE_GAIN, Fix, gain_over_steps, is_error_feedback, is_unbiased
from cpdrun.whatif.forecast import Forecast

NAMES = {
    "gradient": "gradients",
    "weight": "weights",
    "activation": "activations",
    "output_gradient": "output gradients",
    "update": "updates",
}
_PARTS = {
    "range": "the format's range",
    "additions": "rounded additions",
    "mantissa": "the mantissa of what is sent",
}


def reason(counterfactual: Counterfactual) -> str:
    """Return a clause about the role with the largest damage; empty if nothing is lost."""
    role, own = counterfactual.role, counterfactual.own
    if damage(own, role) < 1e-3:
        return ""
    if role == GRADIENT:
        return f"the sum of gradients keeps {_cosine(own.figures(GRADIENT))} of its direction"
    if role == UPDATE:
        return f"{share(number(own.figures(UPDATE), 'update_lost'))} of the weight updates change nothing"
    figures = own.figures(role)
    name = f" to {plain(figures['format'])}" if figures.get("format") else ""
    lost = number(figures, "underflow", 0.0)
    zeros = f", and {share(lost)} of them become 0" if lost > 0.01 else ""
    return f"rounding {NAMES[role]}{name} leaves a signal-to-noise ratio of {number(figures, 'snr_db'):.1f} dB{zeros}"


def roles(counterfactual: Counterfactual) -> Iterator[str]:
    """Yield a line about all roles, one about the worst layers, and one about the parts of the sum's error."""
    role, own = counterfactual.role, counterfactual.own
    texts = [f"{NAMES[each]}: {text}" for each in ROLES if (text := _figures(each, own.figures(each)))]
    if texts:
        yield f"Observed in {counterfactual.observed.name}: {'; '.join(texts)}"
    worst = [(name, text) for name, of in worst_layers(own, role) if (text := _layer(role, of))]
    if worst and role != GRADIENT:
        named = "; ".join(f"{plain(name)} ({text})" for name, text in worst)
        yield f"The worst {NAMES[role]}: {named}"
    total = sum(counterfactual.parts.values())
    if total > 1e-4:  # a smaller error is that of float32 itself
        parts = sorted(counterfactual.parts.items(), key=lambda one: -one[1])
        named = ", ".join(f"{share(value / total)} from {_PARTS[name]}" for name, value in parts)
        yield f"The error of the sum of gradients comes {named}"


def observed_fix(counterfactual: Counterfactual, fix: Fix) -> str:
    """Return what an observed fix changes: its figure before and after."""
    own, change, effect = counterfactual.own, fix.change, fix.forecast
    assert change is not None and effect is not None
    if is_error_feedback(change):
        text = _error_feedback(own, effect)
    elif change.role == GRADIENT:
        text = _gradient(own, effect, is_unbiased=is_unbiased(change))
    elif change.role == UPDATE:
        text = f"{share(fix.after)} of the weight updates are lost instead of {share(fix.before)}"
        if "precision.update_rounding=stochastic" in change.words:
            text += ", and this error is unbiased, so it averages out over steps"
    else:
        text = f"the signal-to-noise ratio of {NAMES[change.role]} is {fix.after:.1f} dB instead of {fix.before:.1f} dB"
    return f"{' '.join(change.words)} ({change.description}): {text} (computed on what was observed)"


def _error_feedback(own: Forecast, effect: Forecast) -> str:
    lost = share(10 ** (-number(own.figures(GRADIENT), "snr_db", 0.0) / 20))
    text = f"what rounding takes from a worker's gradient ({lost} of its norm) is added to its next gradient"
    more = (
        ""
        if gain_over_steps(own, effect) > MIN_DAMAGE_GAIN
        else "; over the more steps of a run, more comes back"
    )
    return f"{text}; {_over_steps(own, effect)}{more}"


def _gradient(own: Forecast, effect: Forecast, *, is_unbiased: bool) -> str:
    before, after = own.figures(GRADIENT), effect.figures(GRADIENT)
    text = f"the sum keeps {_cosine(after)} of its direction instead of {_cosine(before)}"
    text += f", and its error goes from {share(number(before, 'sum_error'))} to {share(number(after, 'sum_error'))}"
    text += f"; {_over_steps(own, effect)}" if is_unbiased else ""
    likely = [100 * each.chance.mean for each in (own, effect)]
    if round(likely[0]) != round(likely[1]):  # the forecast was fitted on sums of gradients only
        text += (
            f"; the predicted chance of missing the margin is {likely[1]:.0f} % instead of {likely[0]:.0f} %"
        )
    return text


def _over_steps(own: Forecast, effect: Forecast) -> str:
    before, after = own.figures(GRADIENT), effect.figures(GRADIENT)
    return (
        f"added up over the {number(after, 'steps', 0.0):.0f} observed steps, the sums keep "
        f"{_cosine(after, 'steps_cosine')} of their direction instead of {_cosine(before, 'steps_cosine')}"
    )


def _cosine(figures: Figures, name: str = "cosine") -> str:
    """Return `93 %`, or `nothing` if the sum vanished and has no direction."""
    cosine = number(figures, name)
    return share(max(0.0, cosine)) if math.isfinite(cosine) and cosine > 0 else "nothing"


def _figures(role: str, figures: Figures) -> str:
    if role == UPDATE:
        lost = number(figures, "update_lost")
        return f"{share(lost)} lost" if math.isfinite(lost) else ""
    parts = []
    if math.isfinite(snr := number(figures, "snr_db")) and snr < 150:
        parts.append(f"{snr:.1f} dB")
    for key, text in (("underflow", "become 0"), ("saturation", "above the largest value")):
        if number(figures, key, 0.0) > 0:
            parts.append(f"{share(number(figures, key))} {text}")
    if role == GRADIENT and figures:
        growth = number(figures, "growth")
        along = f", {growth:.1f} times the error of the first addition" if math.isfinite(growth) else ""
        if math.isfinite(error := number(figures, "sum_error")) and error > 1e-4:
            parts.append(f"sum wrong by {share(error)}{along}")
        parts.append(f"direction kept: {_cosine(figures)}")
    return ", ".join(parts)


def _layer(role: str, figures: Figures) -> str:
    value = number(figures, "update_lost" if role == UPDATE else "snr_db")
    if not math.isfinite(value):
        return ""
    return f"{share(value)} lost" if role == UPDATE else f"{value:.1f} dB"
