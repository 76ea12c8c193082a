"""The interface of gradient synchronization, as the training loop sees it.

Each of N workers (`world_size`) produces one gradient per parameter. The workers are divided among `nproc` processes
(ranks): rank r emulates the workers r N/nproc to (r+1) N/nproc - 1. The result depends on the configuration and on N,
never on nproc.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from torch import Tensor


class GradientSync(ABC):
    """A method that turns the gradients of N workers into the one gradient that all of them apply.

    Implementations are built by `hydra.utils.instantiate(cfg.sync, ...)` with the arguments that
    `cpdrun.comm.AllReduceSync` documents. They must accept all of these arguments.
    """

    nonfinite: int = 0
    """The number of inf and NaN in the latest result and in workers' gradients.

    Values of workers' gradients are counted if the format turns them into finite numbers (a format without inf and NaN,
    or overflow=saturate). The number is equal on all ranks, for any assignment of workers to ranks.
    """

    learner: str = "cpdrun.train.learners.shared_weights.SharedWeights"
    """The class that trains with this synchronization. It is given by name, because comm does not import train."""

    longest_chain: int | None = None
    """The largest number of rounded additions in series that a worker's value passes, or None if unknown."""

    @abstractmethod
    def reduce_stacked(self, stacks: Sequence[Tensor], *, step: int, epoch: int) -> list[Tensor]:
        """Reduce the gradients of all workers. Collective.

        All ranks call this method with the same step and epoch.

        Args:
            stacks: For each parameter, the float32 gradients of this rank's workers, with shape (L, ...). They must
                already be divided by N, so that their sum is the mean. They are not modified.
            step: The number of the optimizer step. Together with the seed, it determines stochastic rounding.
            epoch: The epoch, counted from 0.

        Returns:
            One gradient per parameter, with the same bits on all ranks. The next call may reuse their memory.
        """

    def statistics(
        self, stacks: Sequence[Tensor], mean_gradient: Sequence[Tensor]
    ) -> list[dict[str, str | int | float | None]]:
        """Return statistics of the latest `reduce_stacked` call, with one row per parameter. Collective.

        Args:
            stacks: The gradients that were passed to that call.
            mean_gradient: The result of that call.
        """
        return []

    @abstractmethod
    def wire_bytes(self) -> dict[str, int]:
        """Return the payload bytes of the latest `reduce_stacked` call, without the headers of the transport.

        Returns:
            bytes_per_step_real_worker: The bytes that each worker would send if all N workers were separate machines.
            bytes_per_step_sent: The bytes that this rank sent to other ranks, for all workers that it emulates.

            Both include the agreement on a scaling rule's shifts, with 4 bytes per layer and group, as in a ring.
        """

    def state_dict(self) -> dict[str, Any]:
        """Return the state that a resumed run needs to continue bit for bit, with any number of processes.

        Collective if the ranks have parts of it. Rank 0 gets the whole state. It contains only tensors, numbers,
        strings, lists and dictionaries, so `torch.load(weights_only=True)` can read it.
        """
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load the state that `state_dict` returned, on every rank."""
        if state:
            raise ValueError(f"{type(self).__name__} has no state, but the checkpoint has {sorted(state)}")
