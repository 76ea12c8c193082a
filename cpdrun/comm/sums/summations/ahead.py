"""Shifts agreed on a few layers at a time: the magnitudes of the next ones are looked for, and agreed on, while
the segments of those before are on the wire.

That is possible where all owners' segments hold the same layers, as where each layer is cut in shards by itself. In any
other layout the first segments hold layers from everywhere: all are agreed on at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from custom_fp.formats.protocol import NumberFormat
from torch import Tensor

from cpdrun.comm.sums.magnitudes import Agreement
from cpdrun.comm.sums.orders import Level
from cpdrun.comm.sums.scaling import Shifts
from cpdrun.comm.wire.layout import Layout
from cpdrun.comm.workers import Workers

SEGMENTS = 4  # of a part: its agreement is queued behind the first one's bytes, and must not be waited for


class Ahead:
    """Of a level of one group. `shifts` are those of the layers, known as far as `settle` was called; `agreed` counts
    magnitudes.

    local: this rank's `largest_magnitude` of a layer. Collective: all ranks settle the same segments, in order.
    """

    def __init__(
        self,
        rule: Shifts,
        level: Level,
        layers: Sequence[str],
        local: Callable[[int], Tensor],
        fmt: NumberFormat,
        workers: Workers,
        layout: Layout,
    ) -> None:
        self.rule, self.level, self.layers, self.local = rule, level, list(layers), local
        self.fmt, self.workers = fmt, workers
        self.last = layout.last_layers
        self.ends = _ends(layout)  # where each part ends, in layers
        self.shifts, self.agreed = [0] * len(self.layers), 0
        self._settled = 0  # parts
        self._under_way: Agreement | None = None

    def settle(self, segment: int) -> None:
        """The shifts of all layers of a segment are known from here on."""
        while self._settled < len(self.ends) and (
            self._settled == 0 or self._first(self._settled) <= self.last[segment]
        ):
            self.begin()
            first, end = self._first(self._settled), self.ends[self._settled]
            (found,), agreed = self.rule.of_agreement(
                self.level, self.layers[first:end], self._under_way, self.fmt
            )
            self.shifts[first:end] = found
            self.agreed += agreed
            self._settled, self._under_way = self._settled + 1, None

    def begin(self) -> None:
        """With the part after those that are settled."""
        if self._under_way is None and self._settled < len(self.ends):
            part = range(self._first(self._settled), self.ends[self._settled])
            self._under_way = Agreement(lambda: [self.local(p) for p in part], self.workers)
            if self.rule.asks:
                self._under_way.start()

    def _first(self, part: int) -> int:
        return self.ends[part - 1] if part else 0


def _ends(layout: Layout) -> list[int]:
    """Parts of so many segments of all owners, or one of all layers."""
    ends, segments = [], 0
    for segment, layer in enumerate(layout.last_layers):
        segments += 1
        if segments >= SEGMENTS and segment + 1 < layout.segments and layer + 1 > (ends[-1] if ends else 0):
            ends.append(layer + 1)
            segments = 0
    layers = len(layout.numels)
    return [layers] if not ends or ends[-1] >= layers else [*ends, layers]
