"""Computation of the largest magnitude max|g| of each layer, and the agreement of the ranks on it, for scaling rules.

In the APS paper, workers agree on an exponent of 8 bits. The exponent E of a float32 gradient ranges from -149 to 128 +
ceil(log2 N), which does not fit in 8 bits, so a very small or large layer would get a wrong shift. Here, the ranks
agree on max|g| itself. One int32 MAX all-reduce reduces its float32 bit pattern for all layers, because the bit
patterns of non-negative floats have the same order as the floats. Each rank then computes the same E from the agreed
magnitude. The result is exact, for subnormals too.

inf and NaN are ignored: the magnitude of a layer is the largest magnitude of its finite elements. It is 0 if they are
all zero.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import Tensor

from cpdrun.comm.wire.communicator import Communicator
from cpdrun.comm.wire.message_layout import ceil_div
from cpdrun.comm.workers import Workers


def largest_magnitude(x: Tensor) -> Tensor:
    """Return max|x| over the finite elements of a float32 tensor, as a 0-d tensor. It is 0 if there are none."""
    if x.numel() == 0:
        return x.new_zeros(())
    if not x.is_cuda:  # This needs one pass and no temporary tensor. On a GPU, the test would synchronize.
        low, high = torch.aminmax(x)
        if torch.isfinite(magnitude := torch.maximum(-low, high)):
            return magnitude
    return torch.where(torch.isfinite(x), x, 0.0).abs().amax()


def sum_exponent(magnitude: float, summands: int) -> int:
    """Return ceil(log2(magnitude * summands)), exactly, for magnitude > 0.

    A float32 magnitude times a small integer is exact in float64.
    """
    mantissa, exponent = math.frexp(magnitude * summands)
    return exponent - (mantissa == 0.5)


def agreement_bytes(values: int, machines: int) -> int:
    """Return the number of bytes that each machine sends to agree on this many magnitudes, rounded up.

    The machines use a ring all-reduce of one int32 value per magnitude.
    """
    return ceil_div(2 * (machines - 1) * 4 * values, machines)


class Agreement:
    """The agreement on the largest magnitude of each layer over all ranks. It is only computed if it is needed.

    Args:
        local: A function that computes this rank's `largest_magnitude` of each layer.
        workers: The workers whose ranks take part.
    """

    def __init__(self, local: Callable[[], Sequence[Tensor]], workers: Workers) -> None:
        self._local: Callable[[], Sequence[Tensor]] | None = local
        self._workers = workers
        self._bits: Tensor | None = None
        self._work: dist.Work | None = None
        self._values: list[float] | None = None

    def start(self) -> None:
        """Start the exchange. A call of `wait` completes it, possibly in a later step. Collective."""
        if self._bits is not None:
            return
        assert self._local is not None
        self._bits = torch.stack(list(self._local())).view(torch.int32)
        # The function references the gradients, which must be freed even if the agreement is kept until the next step.
        self._local = None
        if self._workers.ranks > 1:
            self._work = Communicator(self._workers.group).maximum_(self._bits)

    def wait(self) -> list[float]:
        """Return the agreed magnitudes. Collective."""
        self.start()
        assert self._bits is not None
        if self._values is None:
            if self._work is not None:
                self._work.wait()
            self._values = self._bits.view(torch.float32).tolist()
        return self._values

    @property
    def agreed(self) -> int:
        """The number of exchanged magnitudes, which is 0 if none were needed."""
        return 0 if self._bits is None else self._bits.numel()


class Magnitudes(ABC):
    """The source of the magnitudes that a scaling rule uses, with its state between steps."""

    needs_agreement: ClassVar[bool] = True  # whether ranks exchange any magnitudes

    @abstractmethod
    def of(self, labels: Sequence[str], agreement: Agreement, first: int) -> list[float]:
        """Return one magnitude for each label. May be collective.

        Args:
            labels: The name of each layer, with a suffix that identifies the group of workers. The magnitudes of
                previous steps are stored by label.
            agreement: The agreement on this step's magnitudes.
            first: The index of the first label's magnitude in the agreement.
        """

    def state_dict(self) -> dict[str, Any]:
        """Return the state between steps, for a checkpoint. Collective."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state:
            raise ValueError(f"{type(self).__name__} has no state, but the checkpoint has {sorted(state)}")


class NoMagnitudes(Magnitudes):
    """A source for rules that need no magnitudes. All magnitudes are 0, and nothing is exchanged."""

    needs_agreement = False

    def of(self, labels: Sequence[str], agreement: Agreement, first: int) -> list[float]:
        return [0.0] * len(labels)


class CurrentStep(Magnitudes):
    """A source that uses the gradients of the current step. All ranks wait for the agreement before they send."""

    def of(self, labels: Sequence[str], agreement: Agreement, first: int) -> list[float]:
        return agreement.wait()[first : first + len(labels)]


class PreviousStep(Magnitudes):
    """A source that uses the gradients of the previous step, so that no rank waits before it sends.

    The ranks agree on the magnitudes of the current step while they exchange its gradients, and use them in the next
    step. If a layer is new, or all its previous gradients were zero, the ranks agree on its magnitude immediately.
    """

    def __init__(self) -> None:
        self._known: dict[str, float] = {}
        self._under_way: list[tuple[list[str], Agreement, int]] = []

    def of(self, labels: Sequence[str], agreement: Agreement, first: int) -> list[float]:
        self._settle(set(labels))
        agreement.start()
        for i, label in enumerate(labels):
            if self._known.get(label, 0.0) == 0.0:
                self._known[label] = agreement.wait()[first + i]
        self._under_way.append((list(labels), agreement, first))
        return [self._known[label] for label in labels]

    def _settle(self, labels: set[str]) -> None:
        """Complete the earlier agreements that contain any of the labels."""
        for names, agreement, first in self._under_way:
            if not labels.isdisjoint(names):
                self._known.update(zip(names, agreement.wait()[first : first + len(names)], strict=True))
        self._under_way = [entry for entry in self._under_way if labels.isdisjoint(entry[0])]

    def state_dict(self) -> dict[str, Any]:
        self._settle({name for names, _, _ in self._under_way for name in names})
        return {"magnitudes": dict(self._known)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._known = dict(state["magnitudes"])
