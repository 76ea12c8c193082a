"""Gossip: workers keep weights of their own and, after each step, mix them with what their neighbours send.

A rule says what is sent and how it is mixed (`DPSGD` below; `choco.py`, `deep_squeeze.py`); a topology says who
sends to whom, and with which weights W; a compressor turns a layer into bytes. Shared by all rules: the exchange, and

    quasi-global momentum (Lin, Karimireddy, Stich and Jaggi, arXiv 2102.04761, algorithm 1, QG-DSGDm): a step takes
    g + beta m in place of g, without momentum of the optimizer's own, and after the gossip of round t
    m = mu m + (1 - mu) (x_t - x_{t+1}) / lr, with mu = beta. What differs: a round whose learning rate is 0 leaves m.
    nesterov (its QG-DSGDm-N, which Aketi, Kodge and Roy, arXiv 2111.09389, train with): with d = g + weight decay of x,
    a step takes d + beta (beta m + d).

    closing rounds: after the last step workers gossip without steps, so that the accuracy is that of weights which
    agree better (the code of arXiv 2111.09389 has 51 of them).

A topology may have another graph each round (`changing.py`): the round of step t is the one of place t mod their
number, closing rounds going on from the last step.

Legend: N workers, W of them on this rank, D values of all parameters in a row (`rows.py`), M bytes of a message.
Sums over workers go in the order of their numbers and row by row, so that how the N workers are dealt to ranks changes
no bit. inf and NaN spread to the neighbours.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from custom_fp.formats.names import parse
from torch import Tensor

from cpdrun.comm.compressors.base import Compressor, Rounded
from cpdrun.comm.gossip.rows import Rows
from cpdrun.comm.gossip.topology import Topology
from cpdrun.comm.hybrid import FullPrecision
from cpdrun.comm.sums.scaling import APS
from cpdrun.comm.wire.messages import Messages
from cpdrun.comm.workers import Workers


@dataclass(frozen=True)
class Round:
    """The graph of a round: W (N, N), whose messages each worker receives, and who carries them."""

    matrix_NxN: np.ndarray
    neighbours: list[list[int]]
    messages: Messages


class Gossip(ABC):
    """A gossip rule; what it remembers between steps stands in `memory`, (W, D) tensors by name.

    The run gives format, scaling, world_size, seed, epochs, parameter_names and full_precision (those in full are
    sent as fp32), conf/sync/*.yaml the rest. Raises ValueError where they do not fit together.
    """

    def __init__(
        self,
        *,
        topology: Topology,
        compressor: Compressor,
        quasi_global_momentum: float | None,
        nesterov: bool,
        closing_rounds: int,
        worker_test_samples: int | None,
        world_size: int,
        parameter_names: Sequence[str],
        format: str = "fp32",
        scaling: Any = None,
        seed: int = 0,
        epochs: int | None = None,
        full_precision: Mapping[str, Any] | None = None,
        group: dist.ProcessGroup | None = None,
    ) -> None:
        if quasi_global_momentum is not None and not 0 < quasi_global_momentum < 1:
            raise ValueError(
                f"sync.quasi_global_momentum must lie between 0 and 1 or be null, not {quasi_global_momentum}"
            )
        if nesterov and quasi_global_momentum is None:
            raise ValueError("sync.nesterov=true: of which momentum? type sync.quasi_global_momentum=0.9")
        if not (isinstance(closing_rounds, int) and closing_rounds >= 0):
            raise ValueError(f"sync.closing_rounds={closing_rounds}: must be a whole number, at least 0")
        if worker_test_samples is not None and not (
            isinstance(worker_test_samples, int) and worker_test_samples >= 1
        ):
            raise ValueError(
                f"sync.worker_test_samples={worker_test_samples}: must be a whole number, at least 1, or null"
            )
        kind = type(compressor).__name__
        if scaling is not None and not _can_scale(compressor):
            raise ValueError(f"aps=true: {kind} has a scale of its own; type aps=false")
        if type(scaling) not in (type(None), APS):
            raise ValueError(
                f"scaling: {type(scaling).__name__} is for sums of gradients; a worker that gossips scales by its own "
                "largest value: type scaling=aps"
            )
        if not parse(format).is_fp32 and not compressor.in_format:
            raise ValueError(f"format={format}: {kind} sends values of its own kind; type format=fp32")
        self.names, self.seed, self.world_size = list(parameter_names), seed, world_size
        self.workers = Workers.of_group(world_size, group)
        self.mine = self.workers.mine
        self.rounds = [
            Round(matrix, of_round, Messages(of_round, self.workers))
            for matrix in self.matrices(topology, world_size)
            for of_round in [_neighbours(matrix)]
        ]
        self._enter(self.rounds[0])
        self.compressor, self.in_full = compressor, Rounded("fp32", False, "nearest_even")
        self.hybrid = FullPrecision(tuple(parameter_names), epochs=epochs, **dict(full_precision or {}))
        self.beta, self.nesterov = quasi_global_momentum, nesterov
        self.closing_rounds, self.worker_test_samples = closing_rounds, worker_test_samples
        self.memory: dict[str, Tensor] = {}
        self.bytes_sent = 0.0  # by a worker, on average, since the run began
        self._bytes = {"bytes_per_step_sent": 0, "bytes_per_step_real_worker": 0}

    # ---- what the training loop calls, in this order

    def begin(self, rows: Rows, x_WxD: Tensor) -> None:
        """Before the first step: the layout of the weights, and the weights all workers start with."""
        self.rows = rows
        for name in self.remembered():
            self.memory[name] = torch.zeros_like(x_WxD)
        if self.beta is not None:
            self.memory |= {"momentum": torch.zeros_like(x_WxD), "before": torch.zeros_like(x_WxD)}
            self._momenta = [rows.parameters(row) for row in self.memory["momentum"]]

    def before_step(self, x_WxD: Tensor, *, step: int, epoch: int) -> None:
        """With the weights that the gradients will be taken at."""
        if self.beta is not None:
            self.memory["before"].copy_(x_WxD)

    def correct(self, i: int, gradient_P: Sequence[Tensor], decay_P: Sequence[Tensor] = ()) -> None:
        """Changes the gradient of my i-th worker in place, before the optimizer sees it. decay_P: what the optimizer's
        weight decay will add to it; nesterov counts it in."""
        if self.beta is None:
            return
        if not self.nesterov:
            torch._foreach_add_(list(gradient_P), self._momenta[i], alpha=self.beta)
            return
        ahead_P = torch._foreach_mul(self._momenta[i], self.beta)
        torch._foreach_add_(ahead_P, list(gradient_P))
        if decay_P:
            torch._foreach_add_(ahead_P, list(decay_P))
        torch._foreach_add_(list(gradient_P), ahead_P, alpha=self.beta)

    def after_step(self, x_WxD: Tensor, *, lr: float, step: int, epoch: int) -> None:
        """From the weights after the workers' own steps to those after gossip, in place. Collective."""
        self.mix(x_WxD, step=step, epoch=epoch)
        if self.beta is not None and lr:
            for m_D, before_D, x_D in zip(self.memory["momentum"], self.memory["before"], x_WxD, strict=True):
                moved_D = torch.sub(before_D, x_D).div_(lr)
                m_D.mul_(self.beta).add_(moved_D, alpha=1 - self.beta)

    def close(self, x_WxD: Tensor, *, step: int, epoch: int) -> None:
        """After the last step, `step`: the closing rounds, in place. Collective."""
        for later in range(1, self.closing_rounds + 1):
            self.before_step(x_WxD, step=step + later, epoch=epoch)
            self.mix(x_WxD, step=step + later, epoch=epoch)

    # ---- what a rule says

    def matrices(self, topology: Topology, world_size: int) -> list[np.ndarray]:
        """W of each round; raises ValueError where the rule cannot use the graph."""
        return topology.matrices(world_size)

    def remembered(self) -> tuple[str, ...]:
        """Names of the (W, D) tensors of `memory` that the rule needs; they begin at 0."""
        return ()

    @abstractmethod
    def mix(self, x_WxD: Tensor, *, step: int, epoch: int) -> None:
        """Gossips with the neighbours and changes the weights in place. Collective."""

    # ---- what rules build on

    def exchange(self, x_WxD: Tensor, *, step: int, epoch: int) -> dict[int, Tensor]:
        """Sends C(x) to the neighbours of this round; C(x_j) (D,) of each j that is mine or a neighbour of one of
        mine."""
        self._enter(self.rounds[step % len(self.rounds)])
        layers = [
            self.in_full if self.hybrid.covers(p, epoch) else self.compressor for p in range(len(self.names))
        ]
        sizes = [c.message_bytes(n) if n else 0 for c, n in zip(layers, self.rows.numels, strict=True)]
        self._count(sum(sizes))
        if self.workers.ranks == 1 and all(c.lossless for c in layers):
            return dict(enumerate(x_WxD.clone()))
        mine_WxM = torch.cat(
            [
                c.compress(
                    self.rows.layer(x_WxD, p), [(self.seed, step, self.names[p], w) for w in self.mine]
                )
                for p, c in enumerate(layers)
                if self.rows.numels[p]
            ],
            dim=1,
        )
        workers, data_XxM = self.messages.exchange(mine_WxM)
        c_XxD = self.rows.zeros(len(workers), x_WxD.device)
        for p, (c, data) in enumerate(zip(layers, data_XxM.split(sizes, dim=1), strict=True)):
            if self.rows.numels[p]:
                self.rows.layer(c_XxD, p).copy_(c.decompress(data, self.rows.numels[p]))
        return dict(zip(workers, c_XxD, strict=True))

    def weighted_sum(self, worker: int, rows: Mapping[int, Tensor]) -> Tensor:
        """sum_j W[worker][j] rows[j] (D,), over the worker and its neighbours in the order of their numbers."""
        total = None
        for j in sorted([worker, *self.neighbours[worker]]):
            weight = float(self.matrix_NxN[worker, j])
            total = rows[j] * weight if total is None else total.add_(rows[j], alpha=weight)
        return total

    def _enter(self, now: Round) -> None:
        """The round whose graph holds until another is exchanged."""
        self.matrix_NxN, self.neighbours, self.messages = now.matrix_NxN, now.neighbours, now.messages

    def _count(self, message: int) -> None:
        copies = [0] * self.world_size
        for of_i in self.neighbours:
            for j in of_i:
                copies[j] += 1
        self._bytes = {
            "bytes_per_step_sent": message * self.messages.copies_sent,
            "bytes_per_step_real_worker": message * max(copies),
        }
        self.bytes_sent += message * sum(copies) / self.world_size

    # ---- the record

    def wire_bytes(self) -> dict[str, int]:
        """As `GradientSync.wire_bytes`; a real worker sends its message to each neighbour, and the one that sends most
        counts."""
        return dict(self._bytes)

    def state_dict(self) -> dict[str, Any]:
        """Everything remembered, by worker, whole on rank 0. Collective."""
        mine = {w: {name: x[i].clone() for name, x in self.memory.items()} for i, w in enumerate(self.mine)}
        return {"bytes_sent": self.bytes_sent, "memory": self.workers.gather(mine)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes what `state_dict` gave on rank 0, for the workers of this rank; after `begin`."""
        self.bytes_sent = state["bytes_sent"]
        for i, w in enumerate(self.mine):
            for name, x_WxD in self.memory.items():
                x_WxD[i].copy_(state["memory"][w][name])


class DPSGD(Gossip):
    """D-PSGD (Lian et al., arXiv 1705.09056): each worker's weights become the mean of its neighbours'.

        overlap       x_i = sum_j w_ij x_j(t) - (the step from x_i(t)): algorithm 1; the exchange needs no gradient
        not overlap   x_i = sum_j w_ij x_j(t + 1/2): first the step, then the mean, as in arXiv 2102.04761

    What differs: with a compressor the neighbours average C(x_j), their own x_i excepted. Nothing makes up for what is
    lost, so that it learns poorly with few bits (Koloskova et al., arXiv 1902.00340, section 3.2): the baseline.
    """

    def __init__(self, *, overlap: bool, **common: Any) -> None:
        super().__init__(**common)
        self.overlap = overlap
        self._mixed: list[Tensor] = []

    def before_step(self, x_WxD: Tensor, *, step: int, epoch: int) -> None:
        super().before_step(x_WxD, step=step, epoch=epoch)
        if self.overlap:
            means = self._means(x_WxD, step=step, epoch=epoch)
            self._mixed = [mean_D.sub_(x_D) for mean_D, x_D in zip(means, x_WxD, strict=True)]

    def mix(self, x_WxD: Tensor, *, step: int, epoch: int) -> None:
        if self.overlap:
            for x_D, difference_D in zip(x_WxD, self._mixed, strict=True):
                x_D.add_(difference_D)
            return
        for x_D, mean_D in zip(x_WxD, self._means(x_WxD, step=step, epoch=epoch), strict=True):
            x_D.copy_(mean_D)

    def _means(self, x_WxD: Tensor, *, step: int, epoch: int) -> list[Tensor]:
        sent = self.exchange(x_WxD, step=step, epoch=epoch)
        return [self.weighted_sum(w, {**sent, w: x_WxD[i]}) for i, w in enumerate(self.mine)]


def _neighbours(matrix_NxN: np.ndarray) -> list[list[int]]:
    return [[j for j in np.flatnonzero(row).tolist() if j != i] for i, row in enumerate(matrix_NxN)]


def _can_scale(compressor: Compressor) -> bool:
    return bool(getattr(compressor, "aps", False))
