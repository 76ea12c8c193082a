"""Which of the N workers this process plays, and which process plays the others.

Rank r of the ranks plays workers r*N/ranks .. (r+1)*N/ranks - 1, so rank-major order is worker order.
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
    """The share of `world_size` workers that rank `rank` of `ranks` plays.

    group: the process group of these ranks, None for the default one. Raises ValueError where the ranks cannot share
    the workers equally.
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
                f"nproc={self.ranks} does not divide world_size={self.world_size}: each process plays the same "
                "number of workers"
            )

    @classmethod
    def of_group(cls, world_size: int, group: "dist.ProcessGroup | Workers | None" = None) -> "Workers":
        """Shared by the ranks of a group; all played by this process where torch.distributed is not initialised.

        Workers in place of a group are those: what a process emulates alone, whatever else it is a rank of.
        """
        if isinstance(group, Workers):
            return group
        if not dist.is_initialized():
            return cls(world_size)
        return cls(world_size, dist.get_rank(group), dist.get_world_size(group), group)

    @classmethod
    def from_environment(cls, world_size: int) -> "Workers":
        """By RANK and WORLD_SIZE as torchrun sets them; one process plays all where they are not set."""
        return cls(world_size, int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1")))

    @property
    def share(self) -> int:
        """Workers a rank."""
        return self.world_size // self.ranks

    @property
    def mine(self) -> range:
        return self.played_by(self.rank)

    def played_by(self, rank: int) -> range:
        return range(rank * self.share, (rank + 1) * self.share)

    def owner(self, worker: int) -> int:
        """The rank that plays it."""
        return worker // self.share

    def rows(self, stacks: Sequence[Tensor], layers: int) -> list[Tensor]:
        """(share, n) of each layer's gradients, (share, ...). Raises ValueError where one is missing or too many."""
        if len(stacks) != layers:
            raise ValueError(f"{len(stacks)} gradients for {layers} parameters")
        for stack in stacks:
            if len(stack) != self.share:
                raise ValueError(f"{len(stack)} workers on a rank that plays {self.share}")
        return [stack.detach().reshape(self.share, -1) for stack in stacks]

    def total(self, count: int, device: torch.device) -> int:
        """Of all ranks' counts. Collective."""
        return int(self.sum_of_disjoint(torch.tensor(count, dtype=torch.int64, device=device)))

    def sum_of_disjoint(self, table: Tensor) -> Tensor:
        """Add tables over the ranks, each entry set by one rank and zero elsewhere: exact in any order."""
        if self.ranks > 1:
            dist.all_reduce(table, group=self.group)
        return table

    def gather(self, mine: dict[Any, Any]) -> dict[Any, Any]:
        """Of each worker something, by keys that no two ranks share: all of it on rank 0, {} elsewhere. Collective."""
        if self.ranks == 1:
            return mine
        everyone: list[Any] | None = [None] * self.ranks if self.rank == 0 else None
        dist.gather_object(mine, everyone, group=self.group, group_dst=0)
        return {key: value for part in everyone or () for key, value in part.items()}
