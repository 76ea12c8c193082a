"""What was counted on an observed run, in words: the reason, each role, each mend with its figure before and after."""

import math
from collections.abc import Iterator

from cpdrun.explain.counted import ROLES, Counted, Effect, Figures, damage, number, worst_layers
from cpdrun.explain.explanation import OBSERVED, Mend
from cpdrun.explain.mends import GRADIENT, UPDATE, Turned
from cpdrun.report.why.words import share
from cpdrun.study.axes.titles import plain

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
LESS = 0.02  # of a damage: less is no mend
NEXT_TO_NONE = 1e-6  # a gain that is sorted last
SURER = 0.1  # of the forecast's score, a logit


def reason(counted: Counted) -> str:
    """Of the role that loses most, with its figure; empty where nothing is lost."""
    role, own = counted.role, counted.own
    if damage(own, role) < 1e-3:
        return ""
    if role == GRADIENT:
        return f"the sum of gradients keeps {_cosine(own.of(GRADIENT))} of its direction"
    if role == UPDATE:
        return f"{share(number(own.of(UPDATE), 'update_lost'))} of what steps add leaves the weight as it was"
    figures = own.of(role)
    name = f" to {plain(figures['format'])}" if figures.get("format") else ""
    lost = number(figures, "underflow", 0.0)
    zeros = f", {share(lost)} of them become 0" if lost > 0.01 else ""
    return f"rounding {NAMES[role]}{name} leaves {number(figures, 'snr_db'):.1f} dB of signal to noise{zeros}"


def roles(counted: Counted) -> Iterator[str]:
    """A line on all roles, and one on where the sum's error comes from."""
    said = [f"{NAMES[role]}: {text}" for role in ROLES if (text := _figures(role, counted.own.of(role)))]
    if said:
        yield f"Observed in {counted.observed.name}: {'; '.join(said)}"
    worst = [
        (name, of) for name, of in worst_layers(counted.own, counted.role) if _of_layer(counted.role, of)
    ]
    if worst and counted.role != GRADIENT:
        named = "; ".join(f"{plain(name)} ({_of_layer(counted.role, of)})" for name, of in worst)
        yield f"Most of {NAMES[counted.role]}: {named}"
    total = sum(counted.parts.values())
    if total > 1e-4:  # less is float32's own
        parts = sorted(counted.parts.items(), key=lambda one: -one[1])
        named = ", ".join(f"{share(value / total)} of {_PARTS[name]}" for name, value in parts)
        yield f"Of the error of the sum of gradients: {named}"


def mends(counted: Counted) -> list[Mend]:
    """Those that lose less, the most first."""
    found = [(_gain(counted.own, one, effect), one, effect) for one, effect in counted.mends]
    better = sorted((each for each in found if each[0] > 0), key=lambda each: -each[0])
    return [(_feedback if is_feedback(one) else _mend)(counted.own, one, effect) for _, one, effect in better]


def is_feedback(one: Turned) -> bool:
    """What it gives back comes in later steps, which no figure of single steps shows."""
    return any(word.startswith("sync.error_feedback") for word in one.words)


def _is_unbiased(one: Turned) -> bool:
    """What it takes in one step it gives in others, on the average."""
    return "sync.rounding=stochastic" in one.words


def _feedback(own: Effect, one: Turned, effect: Effect) -> Mend:
    lost = share(10 ** (-number(own.of(GRADIENT), "snr_db", 0.0) / 20))
    text = f"what rounding takes from a worker's gradient, {lost} of its length, is added to its next one"
    more = "" if _more_over_steps(own, effect) > LESS else "; a run has more steps, in which more comes back"
    text += f"; {_over_steps(own, effect)}{more}"
    said = f"{' '.join(one.words)} ({one.what}): {text} (computed on what was observed)"
    before, after = (number(each.of(GRADIENT), "steps_cosine", 0.0) for each in (own, effect))
    return Mend(one.words, OBSERVED, said, "steps_cosine", before, after)


def _over_steps(own: Effect, effect: Effect) -> str:
    was, now = own.of(GRADIENT), effect.of(GRADIENT)
    return (
        f"over the {number(now, 'steps', 0.0):.0f} steps that were seen, as if each followed the other, the sums keep "
        f"{_cosine(now, 'steps_cosine')} of their direction in place of {_cosine(was, 'steps_cosine')}"
    )


def _gain(own: Effect, one: Turned, effect: Effect) -> float:
    """What less it loses, 0 for nothing: of gradients by the forecast too, which was fitted on them."""
    if is_feedback(one):
        less = _more_over_steps(own, effect)
        # a run's steps are more, and more alike: where nothing comes back in these, it may in those
        return max(less, NEXT_TO_NONE) if damage(own, GRADIENT) > LESS else 0.0
    surer = own.forecast.logit - effect.forecast.logit if one.role == GRADIENT else 0.0
    less = damage(own, one.role) - damage(effect, one.role)
    if _is_unbiased(one):
        less = max(less, _more_over_steps(own, effect))
    return max(surer, less) if less > LESS or surer > SURER else 0.0


def _more_over_steps(own: Effect, effect: Effect) -> float:
    before, after = (number(each.of(GRADIENT), "steps_cosine", 0.0) for each in (own, effect))
    return after - before


def _mend(own: Effect, one: Turned, effect: Effect) -> Mend:
    figure = {GRADIENT: "cosine", UPDATE: "update_lost"}.get(one.role, "snr_db")
    before, after = (number(effect.of(one.role), figure) for effect in (own, effect))
    if one.role == GRADIENT:
        was, now = own.of(GRADIENT), effect.of(GRADIENT)
        text = f"the sum keeps {_cosine(now)} of its direction in place of {_cosine(was)}"
        text += (
            f", its error goes from {share(number(was, 'sum_error'))} to {share(number(now, 'sum_error'))}"
        )
        text += f"; {_over_steps(own, effect)}" if _is_unbiased(one) else ""
        before, after = number(was, figure, 0.0), number(now, figure, 0.0)
    elif one.role == UPDATE:
        text = f"{share(after)} of what steps add is lost in place of {share(before)}"
        if "precision.update_rounding=stochastic" in one.words:
            text += ", and what is lost averages out over steps, for it is unbiased"
    else:
        text = f"{after:.1f} dB of signal to noise of {NAMES[one.role]} in place of {before:.1f}"
    likely = [100 * each.forecast.chance.mean for each in (own, effect)]
    chance = ""
    if one.role == GRADIENT and round(likely[0]) != round(likely[1]):  # what the forecast was fitted on
        chances = f"{likely[1]:.0f} % in place of {likely[0]:.0f} %"
        chance = f"; it misses the tolerance with {chances} by the fitted forecast"
    said = f"{' '.join(one.words)} ({one.what}): {text}{chance} (computed on what was observed)"
    return Mend(one.words, OBSERVED, said, figure, before, after)


def _cosine(figures: Figures, name: str = "cosine") -> str:
    """`nothing`, `93 %`: of a sum that vanished there is no cosine."""
    cosine = number(figures, name)
    return share(max(0.0, cosine)) if math.isfinite(cosine) and cosine > 0 else "nothing"


def _figures(role: str, figures: Figures) -> str:
    if role == UPDATE:
        lost = number(figures, "update_lost")
        return f"{share(lost)} lost" if math.isfinite(lost) else ""
    parts = []
    if math.isfinite(snr := number(figures, "snr_db")) and snr < 150:
        parts.append(f"{snr:.1f} dB")
    for key, word in (("underflow", "become 0"), ("saturation", "beyond the largest")):
        if number(figures, key, 0.0) > 0:
            parts.append(f"{share(number(figures, key))} {word}")
    if role == GRADIENT and figures:
        growth = number(figures, "growth")
        along = f", {growth:.1f} times what the first addition is off by" if math.isfinite(growth) else ""
        if math.isfinite(error := number(figures, "sum_error")) and error > 1e-4:
            parts.append(f"sum off by {share(error)}{along}")
        parts.append(f"direction kept: {_cosine(figures)}")
    return ", ".join(parts)


def _of_layer(role: str, figures: Figures) -> str:
    key = "update_lost" if role == UPDATE else "snr_db"
    value = number(figures, key)
    if not math.isfinite(value):
        return ""
    return f"{share(value)} lost" if role == UPDATE else f"{value:.1f} dB"
