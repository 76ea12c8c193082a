"""SGD with momentum in which the result of every operation is rounded to a format.

Q rounds once to the format, to nearest even. The weights are w, the gradient of the scaled loss is g, the momentum
buffer is v, and the loss scale is s. The learning rate lr, the momentum m and the weight decay are rounded to the
format first. The formula has three orders of operations:

    unscale_first   d = Q(Q(g / s) + Q(decay w));     v = Q(Q(m v) + d);           u = Q(lr v)
    rate_first      d as above;                       v = Q(Q(m v) + Q(lr d));     u = v
    unscale_last    d = Q(Q(g) + Q(Q(s decay) w));    v = Q(Q(m v) + d);           u = Q(Q(lr v) / s)

The step is w - u. With Nesterov momentum, u uses Q(d + Q(m v)) in place of v (rate_first: Q(Q(lr d) + Q(m v))). The
first step sets v = d (rate_first: Q(lr d)), as torch.optim.SGD does.

Without rounding, unscale_first is the formula of torch.optim.SGD, with equal bits except for fused operations.
unscale_last is the same formula in units of the scaled loss. With it, small gradients do not underflow before they are
multiplied by the learning rate, but the momentum buffer, up to 1 / (1 - m) times a gradient, may overflow when the
gradient does not. If s changes, v is first converted to the new units: v = Q(v s' / s). rate_first differs from the
others when the learning rate changes, because its momentum buffer contains past steps with the learning rate of their
time.
"""

from collections.abc import Callable, Mapping
from typing import Any

import custom_fp
import torch
from torch import Tensor

ORDERS = ("unscale_first", "rate_first", "unscale_last")
Round = Callable[[Tensor], Tensor]  # float64 -> float32 values of a format


def rounding_to(fmt: str | None) -> Round:
    """Return Q, a function that rounds an exact product or sum once to a format, or to float32 for None.

    The function takes float64 values and returns float32 values of the format. In float64, products of two values of a
    format with at most 26 mantissa bits are exact. Sums are exact unless the exponents differ by more than
    52 - mantissa_bits, in which case the smaller value is far below half a unit in the last place of the larger. Inf,
    NaN, overflow, subnormals and -0 are treated as in `custom_fp.quantize`.
    """
    if fmt is None:
        return lambda exact: exact.to(torch.float32)
    return lambda exact: custom_fp.quantize(exact, fmt)


def sgd_update(
    w: Tensor,
    g: Tensor,
    state: dict[str, Any],
    settings: Mapping[str, Any],
    *,
    scale: float,
    order: str,
    rounded: Round,
) -> Tensor:
    """Return the update u, float32 values of the format. The caller computes w - u and rounds it.

    Args:
        w: The weights, float32. They are not changed.
        g: The gradient of the unscaled loss, float32, of the same shape. It is the gradient of the scaled loss divided
            by `scale`, which is exact if the scale is a power of two.
        state: The optimizer state of w. "momentum_buffer" and "scale", the loss scale of the buffer, are replaced.
        settings: The settings lr, momentum, weight_decay and nesterov.
        scale: The loss scale s.
        order: The order of operations, one of `ORDERS`.
        rounded: The rounding function Q.
    """

    def q(exact: Tensor) -> Tensor:
        return rounded(exact).double()

    def constant(value: float) -> Tensor:
        return q(torch.tensor(value, dtype=torch.float64))

    lr, m = constant(settings["lr"]), constant(settings["momentum"])
    last = order == "unscale_last"
    w, g = w.double(), q(g.double() * scale) if last else q(g.double())
    d = g
    if settings["weight_decay"]:
        d = q(g + q(constant(settings["weight_decay"] * (scale if last else 1.0)) * w))
    entering = q(lr * d) if order == "rate_first" else d
    v = entering
    if settings["momentum"]:
        before = state.get("momentum_buffer")
        if before is not None:
            units = scale / state["scale"] if last else 1.0
            v = q(q(m * q(before.double() * units)) + entering)
        state["momentum_buffer"], state["scale"] = v.float(), scale
        if settings["nesterov"]:
            v = q(entering + q(m * v))
    u = v if order == "rate_first" else q(lr * v)
    return (q(u / scale) if last else u).float()
