"""A factor on the loss, divided out of the gradient again, so that small gradients do not fall below a format.

Whatever the rule: powers of two are meant, so that dividing is exact.
"""

import math
from typing import Any

FIRST_DYNAMIC_SCALE = 2.0**16
GOOD_STEPS_TO_DOUBLE = 2000


class LossScale:
    """A fixed one: every step is taken."""

    def __init__(self, value: float):
        self.value = value
        self.used = value  # of the step accepted last

    def accept(self, nonfinite: int) -> bool:
        """Whether to take the step whose gradient has so many elements that are not finite."""
        self.used = self.value
        return True

    def state_dict(self) -> dict[str, Any]:
        return {"loss_scale": self.value}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.value = state["loss_scale"]


class DynamicLossScale(LossScale):
    """As large as stays finite (arXiv 1710.03740, section 3.2): a step whose gradient is not finite is skipped and
    halves the scale, 2,000 good steps in a row double it."""

    def __init__(self) -> None:
        super().__init__(FIRST_DYNAMIC_SCALE)
        self.good_steps = 0

    def accept(self, nonfinite: int) -> bool:
        self.used = self.value
        if nonfinite:
            self.value, self.good_steps = self.value / 2, 0
            return False
        self.good_steps += 1
        if self.good_steps == GOOD_STEPS_TO_DOUBLE:
            self.value, self.good_steps = self.value * 2, 0
        return True

    def state_dict(self) -> dict[str, Any]:
        return {"loss_scale": self.value, "good_steps": self.good_steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.value, self.good_steps = state["loss_scale"], state["good_steps"]


def log2_of(setting: float | str) -> int:
    """The power of two nearest a setting of precision.loss_scale; a dynamic one's is that it begins with."""
    return round(math.log2(loss_scale_of(setting).value))


NAMED = {"dynamic": DynamicLossScale}


def loss_scale_of(setting: float | str) -> LossScale:
    """That of the key precision.loss_scale: a number, or a name of `NAMED`. Raises ValueError for any other."""
    if setting in NAMED:
        return NAMED[setting]()
    if not (isinstance(setting, int | float) and setting > 0):
        names = ", ".join(NAMED)
        raise ValueError(f"precision.loss_scale must be a number above 0 or {names}, not {setting}")
    return LossScale(float(setting))
