"""The assignment of workers to processes.

With N workers and P ranks, rank r emulates the workers r*N/P to (r+1)*N/P - 1. The order of ranks is therefore the
order of workers.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


@dataclass(frozen=True)
class Workers:
    """The workers that one rank emulates.

    Attributes:
        world_size: The number of workers.
        rank: This rank.
        ranks: The number of ranks.
        group: The process group of the ranks, or None for the default group.

    Raises:
        ValueError: The number of ranks does not divide the number of workers.
    """

    world_size: int
    rank: int = 0
    ranks: int = 1
    group: dist.ProcessGroup | None = None

    def __post_init__(self) -> None:
        if self.world_size < 1:
            raise ValueError(f"there must be at least 1 worker, not {self.world_size}")
        if self.world_size % self.ranks:
            raise ValueError(
                f"nproc={self.ranks} does not divide world_size={self.world_size}: each process must emulate the same "
                "number of workers"
            )

    @classmethod
    def of_group(cls, world_size: int, group: "dist.ProcessGroup | Workers | None" = None) -> "Workers":
        """Return the assignment to the ranks of a process group.

        If torch.distributed is not initialized, this process emulates all workers. If `group` is a `Workers` object, it
        is returned unchanged. A process that belongs to a process group can thus emulate all workers alone.
        """
        if isinstance(group, Workers):
            return group
        if not dist.is_initialized():
            return cls(world_size)
        return cls(world_size, dist.get_rank(group), dist.get_world_size(group), group)

    @classmethod
    def from_environment(cls, world_size: int) -> "Workers":
        """Return the assignment according to the environment variables RANK and WORLD_SIZE, which torchrun sets.

        If the variables are not set, one process emulates all workers.
        """
        return cls(world_size, int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1")))

    @property
    def share(self) -> int:
        """The number of workers on each rank."""
        return self.world_size // self.ranks

    @property
    def local(self) -> range:
        """The indices of the workers that this rank emulates."""
        return self.emulated_by(self.rank)

    def emulated_by(self, rank: int) -> range:
        """Return the indices of the workers that a rank emulates."""
        return range(rank * self.share, (rank + 1) * self.share)

    def owner(self, worker: int) -> int:
        """Return the rank that emulates a worker."""
        return worker // self.share

    def rows(self, stacks: Sequence[Tensor], layers: int) -> list[Tensor]:
        """Flatten each layer's gradients to shape (share, n).

        Args:
            stacks: For each layer, the gradients of this rank's workers, with shape (share, ...).
            layers: The expected number of layers.

        Raises:
            ValueError: The number of layers or of workers is wrong.
        """
        if len(stacks) != layers:
            raise ValueError(f"there are {layers} parameters, but {len(stacks)} gradients were passed")
        for stack in stacks:
            if len(stack) != self.share:
                raise ValueError(
                    f"this rank emulates {self.share} workers, but gradients of {len(stack)} workers were passed"
                )
        return [stack.detach().reshape(self.share, -1) for stack in stacks]

    def total(self, count: int, device: torch.device) -> int:
        """Return the sum of all ranks' counts. Collective."""
        return int(self.sum_of_disjoint(torch.tensor(count, dtype=torch.int64, device=device)))

    def sum_of_disjoint(self, table: Tensor) -> Tensor:
        """Sum a table over the ranks in place, and return it. Collective.

        Each entry must be set by one rank and be zero on all others, so that the sum is exact in any order.
        """
        if self.ranks > 1:
            dist.all_reduce(table, group=self.group)
        return table

    def gather(self, mine: dict[Any, Any]) -> dict[Any, Any]:
        """Merge one dictionary per rank on rank 0. Collective.

        Args:
            mine: The dictionary of this rank. No key may occur on two ranks.

        Returns:
            The merged dictionary on rank 0, and an empty dictionary on the other ranks.
        """
        if self.ranks == 1:
            return mine
        everyone: list[Any] | None = [None] * self.ranks if self.rank == 0 else None
        dist.gather_object(mine, everyone, group=self.group, group_dst=0)
        return {key: value for part in everyone or () for key, value in part.items()}
