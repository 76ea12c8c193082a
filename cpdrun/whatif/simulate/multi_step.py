"""Accuracy of the sums of gradients over several steps.

Error feedback and stochastic rounding recover in later steps what one step loses. Figures of single steps cannot show
this. Therefore this module treats the samples of the observed steps as if the steps followed each other. It adds up the
computed sums and the exact sums of each layer over all steps, as an optimizer without momentum does at a constant
learning rate:

    steps_cosine   The cosine between the two totals over all layers. Each layer is weighted by the number of elements
                   that one sampled element represents.
    steps          The number of steps.

With error feedback, each worker carries its residual from one step to the next, as in `cpdrun.comm.sums.feedback`. The
shift follows from the largest compensated gradient (gradient plus residual) among a worker's sampled elements. If the
layer is not completely sampled and its observed maximum is larger, the shift follows from that maximum.

The steps of a real run are more numerous and more similar to each other, so a real run recovers more than these figures
show.

Residuals are set to 0 if a value is not finite, as in a run. If a total contains inf or NaN, the cosine is NaN.

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
from cpdrun.whatif.simulate.worker_sums import ObservedShifts


@dataclass
class MultiStepSums:
    """Accumulate the sums of gradients over several steps for one configuration.

    Attributes:
        feedback: The residuals of the workers; None without error feedback.
        came: The total of the computed sums of each layer, (n,) float64.
        exact: The total of the exact sums of each layer, (n,) float64.
        weights: The number of elements of each layer divided by the number of sampled elements; 0 for empty layers.
        steps: The steps that have been added.
    """

    feedback: ErrorFeedback | None
    came: dict[str, np.ndarray] = field(default_factory=dict)
    exact: dict[str, np.ndarray] = field(default_factory=dict)
    weights: dict[str, float] = field(default_factory=dict)
    steps: set[int] = field(default_factory=set)

    def add(self, step: int, name: str, values_Nxn: np.ndarray, result_n: np.ndarray, numel: int) -> None:
        """Add the sum of one layer in one step to the totals.

        Args:
            step: The step.
            name: The name of the layer.
            values_Nxn: The sampled gradients of the workers. n may be 0.
            result_n: Their sum as the configuration computes it.
            numel: The number of elements of the layer.
        """
        n = values_Nxn.shape[1]
        exact = values_Nxn.astype(np.float64).sum(0)
        self.steps.add(step)
        self.weights[name] = numel / n if n else 0.0
        self.came[name] = self.came.get(name, 0.0) + result_n.astype(np.float64)
        self.exact[name] = self.exact.get(name, 0.0) + exact

    def sum_with_feedback(
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
        """Return the sums of the compensated gradients, (n,) for each layer, and update the residuals.

        The arguments are those of `worker_sums.simulate_sums`, and `numels` is the number of elements of each layer.
        """
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
        if rule is not None:  # append the element from which later levels derive their shifts
            pairs = zip(carried, extremes, strict=True)
            stacks = [torch.cat([x, torch.from_numpy(end)], 1).contiguous() for x, end in pairs]
        out = [torch.empty_like(stack[0]) for stack in stacks]
        summation = summation_of(how, Workers(len(stacks[0])), ObservedShifts(rule, torch.stack(largest, 1)))
        shifts = summation.run(Layers(names, stacks, out, key)).shifts
        for p, name in enumerate(names):
            for w, carried_n in enumerate(carried[p]):
                shift = shifts[summation.group_of(w)][p]
                self.feedback.keep(name, w, carried_n, summation.sent_by(w, carried_n, name, shift, key))
        return [total[: x.shape[1]].numpy() for total, x in zip(out, carried, strict=True)]

    def figures(self) -> dict[str, float]:
        """Return `steps_cosine` and `steps`; an empty dictionary if no step was added."""
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
    """Return the largest finite magnitude of each worker, (N,); 0 if there is none.

    Values that are not finite are ignored, as in the recorded maxima.
    """
    return x_Nxn.abs().nan_to_num(0.0, 0.0, 0.0).amax(1) if x_Nxn.shape[1] else x_Nxn.new_zeros(len(x_Nxn))
