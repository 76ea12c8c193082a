"""Partitions, which choose the samples on which each worker trains.

Iid        All workers draw from all samples at random.
InOrder    The workers take the samples of a stream in their order.
Skewed     A fraction of each class is sorted by label and assigned to the workers in contiguous parts. The other
           samples are assigned at random. This follows Aketi, Kodge and Roy, "Low Precision Decentralized Distributed
           Training over IID and non-IID Data" (arXiv 2111.09389), and their code. A difference: the sorted samples of
           a class are chosen at random, not by the order of the dataset, and the sizes of the parts differ by at most
           two samples.
Dirichlet  Each class is divided in proportions drawn from Dirichlet(alpha) (Hsu, Qi and Brown, arXiv 1909.06335, and
           Lin et al., arXiv 2102.04761, section 5.1). The proportions are drawn again until each worker has enough
           samples for a batch.

Data without classes, such as text, is treated as STRETCHES classes, which are equal consecutive parts of the samples.

Shapes: N workers, B samples per worker, S steps per epoch, n samples.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cpdrun.data.base import IndexedDataset, fetch_batch, targets_of

Draws = Callable[..., torch.Generator]  # (purpose, *key) -> a random generator for this purpose and key
STRETCHES = 32
DIRICHLET_TRIES = 1000


class Partition(ABC):
    """A partition of the training samples between workers."""

    @abstractmethod
    def deal(self, train: IndexedDataset, N: int, B: int, *, seed: int, epoch: int, draws: Draws) -> Tensor:
        """Return the samples that each worker uses at each step of an epoch.

        Args:
            train: The training set.
            N: The number of workers.
            B: The number of samples per worker and step.
            seed: The seed of the run.
            epoch: The epoch.
            draws: Makes a random generator for a purpose and a key.

        Returns:
            The indices of the samples, (S, N, B) int64, where S = len(train) // (N * B).

        Raises:
            ValueError: This partition of the samples is not possible.
        """


class Iid(Partition):
    """All samples in one random order per epoch. Each step uses the next N * B samples."""

    def deal(self, train: IndexedDataset, N: int, B: int, *, seed: int, epoch: int, draws: Draws) -> Tensor:
        S = len(train) // (N * B)
        order = torch.randperm(len(train), generator=draws("order", seed, epoch))
        return order[: S * N * B].view(S, N, B)


class InOrder(Partition):
    """The samples of a stream in their order: worker after worker, step after step, epoch after epoch."""

    def deal(self, train: IndexedDataset, N: int, B: int, *, seed: int, epoch: int, draws: Draws) -> Tensor:
        S = len(train) // (N * B)
        return epoch * S * N * B + torch.arange(S * N * B).view(S, N, B)


class Shards(Partition):
    """A base class of partitions in which each worker has a fixed part of the samples.

    If the part of a worker is too small for an epoch, it is used repeatedly. If it is too large, the worker uses only
    as many samples as the others.
    """

    def __init__(self) -> None:
        self._kept: tuple[Any, list[Tensor]] | None = None

    @abstractmethod
    def shards(self, label_n: Tensor, N: int, B: int, generator: torch.Generator) -> list[Tensor]:
        """Return the indices of the samples of each of the N workers, int64. No part is empty."""

    def deal(self, train: IndexedDataset, N: int, B: int, *, seed: int, epoch: int, draws: Draws) -> Tensor:
        S, key = len(train) // (N * B), (id(train), N, B, seed)
        if self._kept is None or self._kept[0] != key:
            self._kept = key, self.shards(labels(train), N, B, draws("partition", seed))
        rows = [
            _shuffled(shard, S * B, draws("order", seed, epoch, w)) for w, shard in enumerate(self._kept[1])
        ]
        return torch.stack(rows).view(N, S, B).transpose(0, 1).contiguous()


class Skewed(Shards):
    """A partition that assigns the fraction `skew` of each class in the order of the labels.

    Each worker then has few classes of this fraction. With skew=0, the parts are random, and with skew=1, they are as
    different as possible.

    Args:
        skew: The fraction, from 0 to 1.

    Raises:
        ValueError: The fraction is out of range.
    """

    def __init__(self, skew: float):
        super().__init__()
        if not 0 <= skew <= 1:
            raise ValueError(f"partition.skew must lie between 0 and 1, not {skew}")
        self.skew = skew

    def shards(self, label_n: Tensor, N: int, B: int, generator: torch.Generator) -> list[Tensor]:
        by_label, at_random = [], []
        for members in _classes(label_n):
            members = members[torch.randperm(len(members), generator=generator)]
            cut = int(self.skew * len(members))
            by_label.append(members[:cut].sort().values)
            at_random.append(members[cut:])
        rest = torch.cat(at_random)
        parts = _even(torch.cat(by_label), N), _even(rest[torch.randperm(len(rest), generator=generator)], N)
        return [torch.cat(both) for both in zip(*parts, strict=True)]


class Dirichlet(Shards):
    """A partition that divides each class in proportions drawn from Dirichlet(alpha).

    Args:
        alpha: The concentration, above 0. A small value gives a worker few classes and makes the parts unequal.

    Raises:
        ValueError: `alpha` is not positive.
    """

    def __init__(self, alpha: float):
        super().__init__()
        if not alpha > 0:
            raise ValueError(f"partition.alpha must be above 0, not {alpha}")
        self.alpha = alpha

    def shards(self, label_n: Tensor, N: int, B: int, generator: torch.Generator) -> list[Tensor]:
        numbers = np.random.default_rng(generator.initial_seed())
        for _ in range(DIRICHLET_TRIES):
            parts: list[list[Tensor]] = [[] for _ in range(N)]
            for members in _classes(label_n):
                members = members[torch.randperm(len(members), generator=generator)]
                shares = numbers.dirichlet([self.alpha] * N).cumsum()[:-1]
                cuts = (shares * len(members)).round().astype(int).tolist()
                for part, dealt in zip(parts, members.tensor_split(cuts), strict=True):
                    part.append(dealt)
            dealt_N = [torch.cat(part) for part in parts]
            if min(map(len, dealt_N)) >= B:
                return dealt_N
        raise ValueError(
            f"partition.alpha={self.alpha}: in each of {DIRICHLET_TRIES} draws, a worker had fewer than {B} "
            "samples; use a larger alpha, fewer workers or smaller batches"
        )


def labels(train: IndexedDataset) -> Tensor:
    """Return the class of each sample, (n,) int64.

    If the target of a sample is not a single class, the class is the index of the stretch that contains the sample.
    """
    n, known = len(train), getattr(train, "y_N", None)
    y = torch.as_tensor(targets_of(fetch_batch(train, torch.arange(1))) if known is None else known)
    if y.dim() > 1 or y.is_floating_point():
        return torch.arange(n) * STRETCHES // n
    if known is not None:
        return y
    return torch.cat([targets_of(fetch_batch(train, index)) for index in torch.arange(n).split(4096)])


def _classes(label_n: Tensor) -> list[Tensor]:
    return [torch.nonzero(label_n == label).flatten() for label in label_n.unique().tolist()]


def _even(samples: Tensor, N: int) -> list[Tensor]:
    """Divide the samples into N consecutive parts whose lengths differ by at most one."""
    return list(samples.tensor_split([len(samples) * w // N for w in range(1, N)]))


def _shuffled(shard: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """Return `count` samples of a part, from as many random orders of the whole part as are needed."""
    rounds = -(-count // len(shard))
    return torch.cat([shard[torch.randperm(len(shard), generator=generator)] for _ in range(rounds)])[:count]
