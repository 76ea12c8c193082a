"""Which samples each worker trains on: at random from all, or from a part of its own that holds some classes more
than others.

Skewed     a fraction of each class is sorted by label and dealt to the workers contiguously, the rest at random:
           Aketi, Kodge and Roy, "Low Precision Decentralized Distributed Training over IID and non-IID Data"
           (arXiv 2111.09389), as its authors' code has it. Here chance, not the order of the data set, says
           which samples of a class belong to the sorted fraction, and parts differ by two samples at most.
Dirichlet  each class is dealt in proportions drawn from Dirichlet(alpha) (Hsu, Qi and Brown, arXiv 1909.06335, and
           Lin et al., arXiv 2102.04761, section 5.1), drawn anew until each worker has a batch.

Data without classes (text) counts as STRETCHES classes, its equal stretches from the first sample to the last.
Legend: N workers, B samples a worker, S steps an epoch, n samples.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from cpdrun.data.base import fetch_batch, targets_of

Draws = Callable[..., torch.Generator]  # (purpose, *key) -> a generator of its own
STRETCHES = 32
DIRICHLET_TRIES = 1000


class Partition(ABC):
    """Deals the samples of an epoch to the workers."""

    @abstractmethod
    def deal(self, train: Dataset, N: int, B: int, *, seed: int, epoch: int, draws: Draws) -> Tensor:
        """index_SxNxB: int64, the samples that each worker takes at each step; S = len(train) // (N * B).

        Raises ValueError where the samples cannot be dealt so.
        """


class Iid(Partition):
    """All samples in one random order, the next N * B of them at each step."""

    def deal(self, train: Dataset, N: int, B: int, *, seed: int, epoch: int, draws: Draws) -> Tensor:
        S = len(train) // (N * B)
        order = torch.randperm(len(train), generator=draws("order", seed, epoch))
        return order[: S * N * B].view(S, N, B)


class InOrder(Partition):
    """A stream's samples as they come: worker after worker, step after step, epoch after epoch."""

    def deal(self, train: Dataset, N: int, B: int, *, seed: int, epoch: int, draws: Draws) -> Tensor:
        S = len(train) // (N * B)
        return epoch * S * N * B + torch.arange(S * N * B).view(S, N, B)


class Shards(Partition):
    """Each worker keeps a part of its own. A part too small for an epoch is gone through again, one too large
    gives as many samples as the others."""

    def __init__(self) -> None:
        self._kept: tuple[Any, list[Tensor]] | None = None

    @abstractmethod
    def shards(self, label_n: Tensor, N: int, B: int, generator: torch.Generator) -> list[Tensor]:
        """The samples of each of N workers, int64, none empty."""

    def deal(self, train: Dataset, N: int, B: int, *, seed: int, epoch: int, draws: Draws) -> Tensor:
        S, key = len(train) // (N * B), (id(train), N, B, seed)
        if self._kept is None or self._kept[0] != key:
            self._kept = key, self.shards(labels(train), N, B, draws("partition", seed))
        rows = [
            _shuffled(shard, S * B, draws("order", seed, epoch, w)) for w, shard in enumerate(self._kept[1])
        ]
        return torch.stack(rows).view(N, S, B).transpose(0, 1).contiguous()


class Skewed(Shards):
    """The fraction `skew` of each class is dealt in the order of the labels, so that a worker has few classes of it:
    0 is a random part, 1 as unlike the others' as can be."""

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
    """Each class is dealt in proportions from Dirichlet(alpha): small alpha, few classes and unequal parts."""

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
            f"partition.alpha={self.alpha}: in {DIRICHLET_TRIES} draws some worker had fewer than {B} samples; "
            "take a larger alpha, fewer workers or smaller batches"
        )


def labels(train: Dataset) -> Tensor:
    """The class of each sample (n,); the stretch it lies in where a sample has no single class, or a number."""
    n, known = len(train), hasattr(train, "y_N")
    y = torch.as_tensor(train.y_N) if known else targets_of(fetch_batch(train, torch.arange(1)))
    if y.dim() > 1 or y.is_floating_point():
        return torch.arange(n) * STRETCHES // n
    if known:
        return y
    return torch.cat([targets_of(fetch_batch(train, index)) for index in torch.arange(n).split(4096)])


def _classes(label_n: Tensor) -> list[Tensor]:
    return [torch.nonzero(label_n == label).flatten() for label in label_n.unique().tolist()]


def _even(samples: Tensor, N: int) -> list[Tensor]:
    """N stretches whose lengths differ by one at most."""
    return list(samples.tensor_split([len(samples) * w // N for w in range(1, N)]))


def _shuffled(shard: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """The first `count` of the shard's samples in one random order after another."""
    rounds = -(-count // len(shard))
    return torch.cat([shard[torch.randperm(len(shard), generator=generator)] for _ in range(rounds)])[:count]
