"""`compat=cpd`: sums as the code of APS's authors forms them where it departs from ours: github.com/drcut/CPD, ddd9a67

What it does otherwise, in the names of `summations/rounded.py`:

    without APS   normal_sum_gradients and kahan_sum_gradients add what workers have, unrounded: acc = Q(acc + g_w), the
                  addition in float32. Nothing that fits k bits could be sent: gradients travel in float32. Ours rounds
                  what travels, q_w = Q(g_w). In two levels the sums of the first are rounded already.
    Kahan         of two levels only the second, between nodes, knows it; a node adds its own workers plainly
                  (example/ResNet18/tools/mix.py).

What is not reproduced, for it is an error of theirs: E of APS from a float32 log2, too small by one just above some
powers of two; an all-zero layer, which becomes NaN; shifts beyond 2^127; and three errors of its cast: ties of
subnormals decided without the bits shifted away, values that round past the largest one left finite and outside the
format, float32 subnormals flushed.
"""

from __future__ import annotations

from collections.abc import Sequence

import custom_fp
import torch
from custom_fp import Format
from torch import Tensor


def add_unrounded(values: Sequence[Tensor], fmt: Format, *, kahan: bool) -> Tensor:
    """Float32 values in the order given, each addition in float32 and then rounded to the format, nearest even."""

    def rounded(x: Tensor) -> Tensor:
        return custom_fp.quantize(x, fmt)

    total = torch.zeros_like(values[0])
    lost = torch.zeros_like(total)
    for value in values:
        if not kahan:
            total = rounded(total + value)
            continue
        corrected = rounded(value - lost)
        new_total = rounded(total + corrected)
        lost = rounded(rounded(new_total - total) - corrected)
        lost = torch.where(torch.isfinite(new_total), lost, 0.0)  # as custom_fp.accumulate: inf stays inf
        total = new_total
    return total
