"""What the sums of gradients keep over several steps: of what one step loses, error feedback and stochastic rounding
give back in others, which no figure of a single step shows.

The steps that were seen, a sample of each, are taken for steps that follow each other, in their order. Of each layer
the sums that come out and the exact ones are added up, as an optimizer without momentum would at one learning rate:

    steps_cosine   of both totals, all layers together, each weighed by the elements that its sample stands for
    steps          how many there were

With error feedback workers carry what was taken from them from one to the next, as `cpdrun.comm.sums.feedback` does; a
shift goes by the largest of a worker's sampled elements with what they carry or, of a layer that is not all in its
sample, by the magnitude that was seen where that is larger.
Steps of a run that do follow each other are more of them and more alike: more comes back there than here.

NaN and inf: what is carried where a value is not finite is 0, as in a run; a total with one has no cosine (NaN).

Legend: N workers, n sampled elements of a layer. Totals are float64.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from cpdrun.comm.sums.feedback import ErrorFeedback
from cpdrun.comm.sums.scaling import ScalingRule
from cpdrun.comm.sums.sum import Sum
from cpdrun.comm.sums.summations import summation_of
from cpdrun.comm.sums.summations.base import Layers
from cpdrun.comm.workers import Workers
from cpdrun.whatif.simulate.worker_sums import SeenShifts


@dataclass
class Following:
    """Of one config. feedback: what its workers carry, None where they forget."""

    feedback: ErrorFeedback | None
    came: dict[str, np.ndarray] = field(default_factory=dict)
    exact: dict[str, np.ndarray] = field(default_factory=dict)
    weights: dict[str, float] = field(default_factory=dict)
    steps: set[int] = field(default_factory=set)

    def add(self, step: int, name: str, values_Nxn: np.ndarray, result_n: np.ndarray, numel: int) -> None:
        """The sum of a layer in a step; n may be 0."""
        n = values_Nxn.shape[1]
        exact = values_Nxn.astype(np.float64).sum(0)
        self.steps.add(step)
        self.weights[name] = numel / n if n else 0.0
        self.came[name] = self.came.get(name, 0.0) + result_n.astype(np.float64)
        self.exact[name] = self.exact.get(name, 0.0) + exact

    def fed_back(
        self,
        how: Sum,
        rule: ScalingRule | None,
        names: Sequence[str],
        values: Sequence[np.ndarray],
        extremes: Sequence[np.ndarray],
        maxima: Sequence[np.ndarray],
        key: tuple,
        numels: Sequence[int],
    ) -> list[np.ndarray]:
        """The sums (n,) of each layer with what workers carry, who then carry what was taken from them. numels: their
        elements; the other arguments as of `sums.summed`."""
        carried = [
            self.feedback.compensate(name, torch.from_numpy(x)) for name, x in zip(names, values, strict=True)
        ]
        largest = [
            _largest(x_Nxn)
            if x_Nxn.shape[1] == numel
            else torch.maximum(torch.from_numpy(seen), _largest(x_Nxn))
            for seen, x_Nxn, numel in zip(maxima, carried, numels, strict=True)
        ]
        stacks = carried
        if rule is not None:  # the element that later levels take their shifts from
            pairs = zip(carried, extremes, strict=True)
            stacks = [torch.cat([x, torch.from_numpy(end)], 1).contiguous() for x, end in pairs]
        out = [torch.empty_like(stack[0]) for stack in stacks]
        summation = summation_of(how, Workers(len(stacks[0])), SeenShifts(rule, torch.stack(largest, 1)))
        shifts = summation.run(Layers(names, stacks, out, key)).shifts
        for p, name in enumerate(names):
            for w, carried_n in enumerate(carried[p]):
                shift = shifts[summation.group_of(w)][p]
                self.feedback.keep(name, w, carried_n, summation.sent_by(w, carried_n, name, shift, key))
        return [total[: x.shape[1]].numpy() for total, x in zip(out, carried, strict=True)]

    def figures(self) -> dict[str, float]:
        """{} where nothing was seen."""
        if not self.steps:
            return {}
        products = {"came": 0.0, "exact": 0.0, "both": 0.0}
        with np.errstate(invalid="ignore", over="ignore"):
            for name, weight in self.weights.items():
                came, exact = self.came[name], self.exact[name]
                products["came"] += weight * float(came @ came)
                products["exact"] += weight * float(exact @ exact)
                products["both"] += weight * float(came @ exact)
        norms = math.sqrt(products["came"] * products["exact"])
        cosine = products["both"] / norms if 0 < norms < math.inf else math.nan
        return {"steps_cosine": cosine, "steps": float(len(self.steps))}


def _largest(x_Nxn: torch.Tensor) -> torch.Tensor:
    """(N,) magnitudes; what is not finite counts as none, as where it is seen."""
    return x_Nxn.abs().nan_to_num(0.0, 0.0, 0.0).amax(1) if x_Nxn.shape[1] else x_Nxn.new_zeros(len(x_Nxn))
