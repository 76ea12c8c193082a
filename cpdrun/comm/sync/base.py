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
    """The base class of methods that compute one gradient, which all workers apply, from the gradients of N workers.

    Implementations are built by `hydra.utils.instantiate(cfg.sync, ...)` with the arguments that
    `cpdrun.comm.AllReduceSync` documents. They must accept all of these arguments.
    """

    nonfinite: int = 0
    """The number of inf and NaN in the latest result, plus those that became finite numbers.

    A format without inf and NaN, or overflow=saturate, turns inf and NaN in workers' gradients into finite numbers,
    which are then counted, too. The number is equal on all ranks, for any assignment of workers to ranks.
    """

    learner: str = "cpdrun.train.learners.shared_weights.SharedWeights"
    """The name of the class that trains with this synchronization. It is a name because comm does not import train."""

    longest_chain: int | None = None
    """The largest number of rounded additions that one worker's value passes through, or None if unknown."""

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
            One gradient per parameter, with the same bits on all ranks. The next call may overwrite the gradients.
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

        If a scaling rule is used, both numbers include the bytes that the workers send to agree on shifts: a
        ring all-reduce of one 4-byte value per layer, in each group of workers.

        Returns:
            A dictionary with two keys.

            bytes_per_step_real_worker: The bytes that each worker would send if all N workers were separate machines.
            bytes_per_step_sent: The bytes that this rank sent to other ranks, for all workers that it emulates.
        """

    def state_dict(self) -> dict[str, Any]:
        """Return the state that a resumed run needs to continue bit for bit, with any number of processes.

        The call is collective if the state is divided among ranks. Rank 0 then gets the whole state. The state contains
        only tensors, numbers, strings, lists and dictionaries, so `torch.load(weights_only=True)` can read it.
        """
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load the state that `state_dict` returned, on every rank."""
        if state:
            raise ValueError(f"{type(self).__name__} has no state, but the checkpoint has {sorted(state)}")
