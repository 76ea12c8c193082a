"""From a step's exact result to weights of a format without a float32 copy: what becomes of the bits that do not fit.

    nearest_even   w = Q(w - u): an update below half a unit of w is lost (Gupta et al., arXiv 1502.02551, section 3)
    stochastic     up or down with probability by distance (the same paper): lost on no average, at the price of noise.
                   stochastic_N, with N random bits, loses an update below 2^-N units of w (`custom_fp.rounding`).
                   Draws come from (seed, update, parameter, element): the same bits for any split and after a resume
    kahan          y = Q(-u - c); t = Q(w + y); c = Q(Q(t - w) - y); w = t: what was rounded away waits in c, of the
                   same format, until it makes a unit (Kahan, CACM 1965; for weights: Zamirai et al., arXiv 2010.06192).
                   With stochastic, t alone is rounded so.

w - u is exact before it is rounded once, as far as float64 holds it.
"""

from collections.abc import Sequence

import custom_fp
import torch
from torch import Tensor

from cpdrun.train.seeds import derived_seed


class WeightUpdate:
    """Weights of `formats`, one each, with a compensation each where `kahan`. `updates` counts calls of `apply_`."""

    def __init__(self, formats: Sequence[str], rounding: str, kahan: bool, seed: int):
        self.formats, self.rounding, self.kahan, self.seed = formats, rounding, kahan, seed
        self.updates = 0
        self.compensations: list[Tensor] = []

    def apply_(self, weights: Sequence[Tensor], changes: Sequence[Tensor]) -> None:
        """Add changes (float64) to weights (float32 values of their formats), in place."""
        if self.kahan and not self.compensations:
            self.compensations = [torch.zeros_like(w) for w in weights]
        for p, (w, change) in enumerate(zip(weights, changes, strict=True)):
            if self.kahan:
                self._add_compensated_(w, change, self.compensations[p], p)
            else:
                w.copy_(self._new(w.double() + change, p))
        self.updates += 1

    def _add_compensated_(self, w: Tensor, change: Tensor, c: Tensor, p: int) -> None:
        y = self._nearest(change - c.double(), p)
        t = self._new(w.double() + y.double(), p)
        taken = self._nearest(t.double() - w.double(), p)
        c.copy_(self._nearest(taken.double() - y.double(), p))
        c.masked_fill_(~torch.isfinite(t), 0.0)
        w.copy_(t)

    def _nearest(self, exact: Tensor, p: int) -> Tensor:
        return custom_fp.quantize(exact, self.formats[p])

    def _new(self, exact: Tensor, p: int) -> Tensor:
        if self.rounding == "nearest_even":
            return self._nearest(exact, p)
        seed = derived_seed("update", self.seed, self.updates, p)
        return custom_fp.quantize(exact, self.formats[p], rounding=self.rounding, seed=seed)
