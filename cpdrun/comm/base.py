"""What every way of synchronising gradients looks like to the training loop.

N workers (`world_size`) each produce one gradient per parameter; `nproc` processes (ranks) share the work,
rank r plays the workers [r N/nproc, (r+1) N/nproc). The result depends on the configuration and on N, never
on nproc.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from torch import Tensor


class GradientSync(ABC):
    """Turns the gradients of N workers into the one gradient that all of them apply.

    Implementations are built by `hydra.utils.instantiate(cfg.sync, ...)` with the arguments that
    `cpdrun.comm.AllReduceSync` documents; those a class has no use for it must accept all the same.
    """

    nonfinite: int = 0
    """Elements of the latest result that are inf or NaN, and values of workers' gradients that were but that the format
    made numbers of (one without inf and NaN, or overflow=saturate): equal on all ranks, and for any split."""

    learner: str = "cpdrun.train.learners.shared_weights.SharedWeights"
    """The class of what learns in the training loop by this: by its name, for who sums knows nothing of who learns."""

    longest_chain: int | None = None
    """The most rounded additions in series that a worker's value may pass; None where nobody knows."""

    @abstractmethod
    def reduce_stacked(self, stacks: Sequence[Tensor], *, step: int, epoch: int) -> list[Tensor]:
        """One gradient per parameter, the same bits on every rank.

        stacks[p][i]: float32 gradient of this rank's i-th worker for parameter p, ALREADY divided by N (the sum is the
        mean); never written. step: the number of the optimizer step; with the seed it keys stochastic rounding. epoch:
        counted from 0. The returned tensors belong to the caller until the next call, which may reuse their memory.
        Collective: every rank calls it with the same step and epoch.
        """

    def statistics(
        self, stacks: Sequence[Tensor], mean_gradient: Sequence[Tensor]
    ) -> list[dict[str, str | int | float | None]]:
        """What the latest `reduce_stacked` did to each parameter: a row each, for every so many steps.

        The arguments are those of that call, and its result. Collective.
        """
        return []

    @abstractmethod
    def wire_bytes(self) -> dict[str, int]:
        """Payload bytes of the latest `reduce_stacked`, without the transport's own headers.

        bytes_per_step_real_worker: what each worker would send if all N were machines of their own.
        bytes_per_step_sent: what this rank sent to other ranks, the payloads of all the workers it plays.
        Both with what the agreement on a scaling rule's shifts takes: 4 bytes a layer and group, as a ring sends them.
        """

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint must keep so that a resumed run continues bit for bit, for any later nproc.

        Collective where ranks hold parts of it; rank 0 gets the whole. Tensors, numbers, strings, lists and
        dicts only (`torch.load(weights_only=True)` reads them).
        """
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes what `state_dict` gave, on every rank."""
        if state:
            raise ValueError(f"{type(self).__name__} keeps no state, the checkpoint has {sorted(state)}")
