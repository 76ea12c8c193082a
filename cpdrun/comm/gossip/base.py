"""Gossip: workers keep weights of their own and, after each step, mix them with what their neighbours send.

A rule says what is sent and how it is mixed (`dpsgd.py`, `choco.py`, `deep_squeeze.py`, `push_sum.py`); a topology says
who sends to whom, and with which weights W; a compressor turns a layer into bytes. Shared by all rules: the exchange,
quasi-global momentum (`momentum.py`), and

    closing rounds: after the last step workers gossip without steps, so that the accuracy is that of weights which
    agree better (the code of arXiv 2111.09389 has 51 of them).

A topology may have another graph each round: the round of step t is the one of place t mod their number, closing rounds
going on from the last step.

Legend: N workers, W of them on this rank, D values of all parameters in a row (`rows.py`), M bytes of a message.
Sums over workers go in the order of their numbers and row by row, so that how the N workers are dealt to ranks changes
no bit. inf and NaN spread to the neighbours.
"""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from cpdrun.comm.compressors.base import Compressor
from cpdrun.comm.compressors.compression import Compression
from cpdrun.comm.gossip.momentum import QuasiGlobalMomentum
from cpdrun.comm.gossip.rows import Rows
from cpdrun.comm.gossip.topology.base import Topology
from cpdrun.comm.wire.messages import Messages
from cpdrun.comm.workers import Workers


@dataclass(frozen=True)
class Round:
    """The graph of a round: W (N, N), whose messages each worker receives, and who carries them."""

    matrix_NxN: np.ndarray
    neighbours: list[list[int]]
    messages: Messages

    @classmethod
    def of(cls, matrix_NxN: np.ndarray, workers: Workers) -> "Round":
        neighbours = [[j for j in np.flatnonzero(row).tolist() if j != i] for i, row in enumerate(matrix_NxN)]
        return cls(matrix_NxN, neighbours, Messages(neighbours, workers))

    @cached_property
    def copies(self) -> list[int]:
        """To how many others each worker sends its message."""
        received = Counter(j for of_i in self.neighbours for j in of_i)
        return [received[j] for j in range(len(self.neighbours))]


class Gossip(ABC):
    """A gossip rule; what it remembers between steps stands in `memory`, (W, D) tensors by name.

    The run gives world_size, seed and given (see `Compression`: layers in full precision are sent as fp32),
    conf/sync/*.yaml the rest. Raises ValueError where they do not fit together. `learner`: as `GradientSync.learner`.
    """

    learner = "cpdrun.train.learners.separate_weights.GossipWeights"

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
        seed: int = 0,
        group: dist.ProcessGroup | None = None,
        **given: Any,
    ) -> None:
        if nesterov and quasi_global_momentum is None:
            raise ValueError("sync.nesterov=true: of which momentum? type sync.quasi_global_momentum=0.9")
        _check_count("closing_rounds", closing_rounds, 0)
        if worker_test_samples is not None:
            _check_count("worker_test_samples", worker_test_samples, 1, ", or null")
        self.compression = Compression(compressor, **given)
        self.beta, self.nesterov = quasi_global_momentum, nesterov
        self.momentum = None if self.beta is None else QuasiGlobalMomentum(self.beta, nesterov)
        self.seed, self.world_size = seed, world_size
        self.workers = Workers.of_group(world_size, group)
        self.mine = self.workers.mine
        self.rounds = [Round.of(matrix, self.workers) for matrix in self.matrices(topology, world_size)]
        self.round = self.rounds[0]  # whose graph holds until another is exchanged
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
        if self.momentum:
            self.memory |= self.momentum.begin(rows, x_WxD)

    def before_step(self, x_WxD: Tensor, *, step: int, epoch: int) -> None:
        """With the weights that the gradients will be taken at."""
        if self.momentum:
            self.momentum.before_step(x_WxD)

    def correct(self, i: int, gradient_P: Sequence[Tensor], decay_P: Sequence[Tensor] = ()) -> None:
        """Changes the gradient of my i-th worker in place, before the optimizer sees it. decay_P: what the optimizer's
        weight decay will add to it; nesterov counts it in."""
        if self.momentum:
            self.momentum.correct(i, gradient_P, decay_P)

    def after_step(self, x_WxD: Tensor, *, lr: float, step: int, epoch: int) -> None:
        """From the weights after the workers' own steps to those after gossip, in place. Collective."""
        self.mix(x_WxD, step=step, epoch=epoch)
        if self.momentum:
            self.momentum.after_gossip(x_WxD, lr)

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
        self.round = self.rounds[step % len(self.rounds)]
        message = self.compression.message(self.rows.numels, epoch)
        self._count(message.length)
        if self.workers.ranks == 1 and message.lossless:
            return dict(enumerate(x_WxD.clone()))
        stacks = [self.rows.layer(x_WxD, p) for p in range(len(self.rows.numels))]
        mine_WxM = message.compress(stacks, (self.seed, step), self.mine)
        workers, data_XxM = self.round.messages.exchange(mine_WxM)
        c_XxD = self.rows.zeros(len(workers), x_WxD.device)
        for p, layer_Xxn in message.decompress(data_XxM):
            self.rows.layer(c_XxD, p).copy_(layer_Xxn)
        return dict(zip(workers, c_XxD, strict=True))

    def weighted_sum(self, worker: int, rows: Mapping[int, Tensor]) -> Tensor:
        """sum_j W[worker][j] rows[j] (D,), over the worker and its neighbours in this round, by their numbers."""
        total: Tensor | None = None
        for j in sorted([worker, *self.round.neighbours[worker]]):
            weight = float(self.round.matrix_NxN[worker, j])
            total = rows[j] * weight if total is None else total.add_(rows[j], alpha=weight)
        assert total is not None  # the worker itself is one of them
        return total

    def _count(self, message: int) -> None:
        copies = self.round.copies
        self._bytes = {
            "bytes_per_step_sent": message * self.round.messages.copies_sent,
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


def _check_count(key: str, value: Any, least: int, or_else: str = "") -> None:
    if not (isinstance(value, int) and value >= least):
        raise ValueError(f"sync.{key}={value}: must be a whole number, at least {least}{or_else}")


def checked_eta(eta: float) -> float:
    """A rule's consensus step. Raises ValueError where it is out of range."""
    if not 0 < eta <= 1:
        raise ValueError(f"sync.eta must be above 0 and at most 1, not {eta}")
    return eta
