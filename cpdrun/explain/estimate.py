"""What a mend would change, estimated from the exponents that a run recorded, where no tensor was observed."""

import math

from cpdrun.explain.explanation import ESTIMATED, Mend
from cpdrun.explain.mends import Turned
from cpdrun.report.why.chain import chain, together
from cpdrun.report.why.reason import Cause, Reason, reached
from cpdrun.report.why.seen import Seen

ENOUGH = (
    2  # powers of two of a layer's largest gradients: e3m0 with APS has as many of 8 workers' and equals fp32
)
REACHED = "powers of two reached of those that a layer's gradients span"
IN_SERIES = "rounded additions in series"


def estimate(config: dict, found: Reason, turned: Turned) -> Mend | None:
    """None where exponents say nothing of it, or that it changes nothing for the better."""
    before, after = _reached(config, found.seen), _reached(turned.config, found.seen)
    if before is not None and after is not None and after[0] >= max(ENOUGH, before[0] + 0.5):
        text = (
            f"the format would reach {after[0]:.1f} of the {after[1]:.1f} powers of two that a layer's gradients span, "
            f"in place of {before[0]:.1f}"
        )
        return _mend(turned, REACHED, before[0], after[0], text)
    was, now = (_chain(one) for one in (config, turned.config))
    is_of_chain = found.cause is Cause.ADDITIONS
    if is_of_chain and was is not None and now is not None and now < was:
        text = f"{now} rounded additions in series in place of {was}"
        return _mend(turned, IN_SERIES, was, now, text)
    return None


def _mend(turned: Turned, figure: str, before: float, after: float, text: str) -> Mend:
    said = f"{' '.join(turned.words)} ({turned.what}): {text} (estimated from the exponents recorded)"
    return Mend(turned.words, ESTIMATED, said, figure, before, after)


def _reached(config: dict, seen: Seen) -> tuple[float, float] | None:
    workers = together(config["sync"], config["world_size"])
    return reached(seen, config["format"], workers, scaled=config["aps"])


def _chain(config: dict) -> float | None:
    return chain(config["sync"], config["world_size"])


def gain(mend: Mend) -> float:
    """To sort by: what it reaches more, or has fewer of, as a ratio."""
    if not (math.isfinite(mend.before) and math.isfinite(mend.after)):
        return 0.0
    low, high = sorted((mend.before, mend.after))
    return (high + 1) / (low + 1)
