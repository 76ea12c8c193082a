"""All workers' values aligned to the largest exponent among them, cut off below a width in bits, added as integers and
rounded once: adders of switches, which have integers alone.

With E the largest exponent of an element's N values, each is cut off (toward zero) below 2^(E - width). A format whose
range, from its smallest value to its largest, has at most width + 1 bits loses nothing (e4m3: 17), and has the bits
of order=exact. The order of the workers has no effect.

Published:
  SwitchML  Sapio et al., "Scaling Distributed Machine Learning with In-Network Aggregation" (NSDI 2021, arXiv
            1903.06701): workers scale a chunk by a power that all agree on and send 32-bit integers.
  ATP       Lao et al., "ATP: In-network Aggregation for Multi-tenant Learning" (NSDI 2021): a fixed scale, 32 bits.
  FPISA     Yuan et al., "Unlocking the Power of Inline Floating-Point Operations on Programmable Switches" (NSDI 2022,
            arXiv 2112.06095): floating-point values travel; a switch keeps exponent and significand apart, shifts
            by the difference of exponents, adds, and normalises when the sum leaves.
This is FPISA with all N there at once. As they come one by one, it has the largest exponent so far, and shifts in two's
complement, which cuts toward minus infinity; SwitchML's and ATP's scales are of many elements, and so coarser.

`aligned` is `aligned_23`: of a register of 32 bits a sign, 7 for the carries of up to 128 workers and 24 digits,
those of float32, which come through whole. `aligned_N`, N of 1 to 40: fewer bits, less of small values.
"""

import re
from dataclasses import dataclass
from typing import Any

from custom_fp.accumulator import MOST_DIGITS

from cpdrun.comm.sums.orders.base import Order

WIDTH = 23  # of `aligned`
_OF_FLOAT32 = 23


@dataclass(frozen=True)
class Aligned(Order):
    """width: bits kept below the largest exponent."""

    width: int = WIDTH

    def with_suffix(self, suffix: str) -> Order:
        if not re.fullmatch(r"[1-9]\d?", suffix) or int(suffix) > MOST_DIGITS:
            raise ValueError(
                f"order=aligned_{suffix}: take aligned, or aligned_1 .. aligned_{MOST_DIGITS}, its bits"
            )
        return Aligned(int(suffix))

    @property
    def adding(self) -> dict[str, Any]:
        return {"order": "aligned", "width": self.width}

    @property
    def keeps_float32(self) -> bool:
        return self.width >= _OF_FLOAT32

    def cuts(self, n_workers: int) -> list[tuple[range, ...]]:
        if n_workers > 1 << 52 - self.width:
            raise ValueError(
                f"order=aligned_{self.width} adds up to {1 << 52 - self.width} workers, not {n_workers}"
            )
        return super().cuts(n_workers)
