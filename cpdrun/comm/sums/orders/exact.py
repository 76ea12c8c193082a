"""The sum of all workers' values exact, and rounded once: what an adder of N inputs has, as wide as it takes.

An aggregator in the network has it where its registers hold the format's whole range and the bits of N carries
(`aligned.py`). NVLink's reductions add 16-bit values in float32 where they are asked to (PTX ISA, multimem.ld_reduce
with .acc::f32), which is near it. We found nothing on their order, nor on what SHARP (Graham et al., "Scalable
Hierarchical Aggregation Protocol", COMHPC 2016) does to floating-point sums. The order of the workers plays no part.

Bytes are counted as cpdrun sends them, to an owner and back: a switch would take 1 / (2 (N-1)/N) of that.
"""

from dataclasses import dataclass
from typing import ClassVar

from cpdrun.comm.sums.orders.base import Order


@dataclass(frozen=True)
class Exact(Order):
    adding: ClassVar[dict[str, str]] = {"order": "exact"}
