"""max|g| of each layer, found and agreed on by the ranks: what a scaling rule goes by.

The APS paper agrees on an exponent in 8 bits. A float32 gradient has E in -149 .. 128 + ceil(log2 N), more values than
that, so a tiny or huge layer would get a wrong shift. Here the ranks agree on max|g| itself, by its float32 bit pattern
(those of non-negative floats are ordered as the floats are), in one int32 MAX all-reduce for all layers; each computes
the same E from it, exactly, for subnormals too.

inf and NaN take no part: a layer's magnitude is that of its finite elements, 0 where there are none but zeros.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import Tensor

from cpdrun.comm.wire.communicator import Communicator
from cpdrun.comm.wire.layout import ceil_div
from cpdrun.comm.workers import Workers


def largest_magnitude(x: Tensor) -> Tensor:
    """max|x| over the finite elements of a float32 tensor, exact, 0-d; 0 where there are none."""
    if x.numel() == 0:
        return x.new_zeros(())
    if not x.is_cuda:  # one pass, no temporary; a GPU would be waited for, to ask whether it is finite
        low, high = torch.aminmax(x)
        if torch.isfinite(magnitude := torch.maximum(-low, high)):
            return magnitude
    return torch.where(torch.isfinite(x), x, 0.0).abs().amax()


def sum_exponent(magnitude: float, summands: int) -> int:
    """ceil(log2(magnitude * summands)), exact: 24 bits times a small integer fit a double. magnitude > 0."""
    mantissa, exponent = math.frexp(magnitude * summands)
    return exponent - (mantissa == 0.5)


def agreement_bytes(values: int, machines: int) -> int:
    """What each of some machines sends to agree on so many magnitudes: a ring all-reduce of int32, rounded up."""
    return ceil_div(2 * (machines - 1) * 4 * values, machines)


class Agreement:
    """The largest of all ranks' magnitudes, on demand: where nobody asks, nothing is sent."""

    def __init__(self, local: Callable[[], Sequence[Tensor]], workers: Workers) -> None:
        """local: gives this rank's `largest_magnitude` of each."""
        self._local: Callable[[], Sequence[Tensor]] | None = local
        self._workers = workers
        self._bits: Tensor | None = None
        self._work: dist.Work | None = None
        self._values: list[float] | None = None

    def start(self) -> None:
        """Begins the agreement; `wait` completes it, now or steps later. Collective."""
        if self._bits is not None:
            return
        self._bits = torch.stack(list(self._local())).view(torch.int32)
        self._local = None  # it holds on to the gradients, and the agreement may be kept for a step
        if self._workers.ranks > 1:
            self._work = Communicator(self._workers.group).maximum_(self._bits)

    def wait(self) -> list[float]:
        self.start()
        if self._values is None:
            if self._work is not None:
                self._work.wait()
            self._values = self._bits.view(torch.float32).tolist()
        return self._values

    @property
    def agreed(self) -> int:
        """How many magnitudes took part; 0 where nobody has asked."""
        return 0 if self._bits is None else self._bits.numel()


class Magnitudes(ABC):
    """Which magnitudes a rule goes by. What must be remembered for that is remembered here."""

    asks: ClassVar[bool] = True  # whether any are agreed on

    @abstractmethod
    def of(self, labels: Sequence[str], agreement: Agreement, first: int) -> list[float]:
        """One for each label, from what is agreed from place `first` on. Collective where it waits.

        labels: a layer's name, marked with the group of workers that it is of: what is remembered is known by them.
        """

    def state_dict(self) -> dict[str, Any]:
        """What is remembered between steps, for a checkpoint. Collective."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes what `state_dict` gave."""
        if state:
            raise ValueError(f"{type(self).__name__} remembers nothing, the checkpoint has {sorted(state)}")


class NoMagnitudes(Magnitudes):
    """For rules that need none: 0, and nothing is agreed on."""

    asks = False

    def of(self, labels: Sequence[str], agreement: Agreement, first: int) -> list[float]:
        return [0.0] * len(labels)


class CurrentStep(Magnitudes):
    """Those of the gradients that are about to be sent: all wait until they are agreed on."""

    def of(self, labels: Sequence[str], agreement: Agreement, first: int) -> list[float]:
        return agreement.wait()[first : first + len(labels)]


class PreviousStep(Magnitudes):
    """Those of the step before: nobody waits before sending.

    This step's agreement travels beside the gradients and is read in the next step. A layer seen for the first time, or
    whose gradient was all zero, is agreed on at once.
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
        """Completes the earlier agreements on any of these."""
        for names, agreement, first in self._under_way:
            if not labels.isdisjoint(names):
                self._known.update(zip(names, agreement.wait()[first : first + len(names)], strict=True))
        self._under_way = [entry for entry in self._under_way if labels.isdisjoint(entry[0])]

    def state_dict(self) -> dict[str, Any]:
        self._settle({name for names, _, _ in self._under_way for name in names})
        return {"magnitudes": dict(self._known)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._known = dict(state["magnitudes"])
