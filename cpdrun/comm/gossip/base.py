"""The common part of gossip algorithms.

In gossip, each worker has its own weights. After each step, a worker mixes its weights with those that its neighbors
send. An algorithm (`algorithms.py`) defines what is sent and how it is mixed. A topology (`topologies.py`) defines who
sends to whom, and the mixing weights W. A compressor turns a layer into bytes. All algorithms share the exchange,
quasi-global momentum, and closing rounds. Closing rounds are rounds of gossip after the last step, without further
steps, so that the final weights agree better (the code of arXiv 2111.09389 has 51 such rounds).

A topology may have a different graph in each round. With R graphs, step t uses graph t mod R. Closing rounds continue
the count of steps.

Quasi-global momentum: Lin, Karimireddy, Stich and Jaggi, arXiv 2102.04761, algorithm 1, QG-DSGDm. A step uses g + beta
m instead of the gradient g, and the optimizer has no momentum. After the gossip of round t, m = mu m + (1 - mu) (x_t -
x_{t+1}) / lr, with mu = beta. A difference from the paper: a round with learning rate 0 leaves m unchanged. With
nesterov (QG-DSGDm-N, used by Aketi, Kodge and Roy, arXiv 2111.09389), let d = g + weight decay of x. Then a step uses d
+ beta (beta m + d). On some graphs, this momentum is unstable by itself (see `Gossip.momentum_growth`).

Shapes: N workers, W of them on this rank, D values of all parameters of one worker, M bytes of a message, P parameters.
Sums over workers are computed row by row, in ascending order of workers, so the assignment of workers to ranks does not
change any bit. inf and NaN spread to the neighbors.
"""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from cpdrun.comm.compressors.base import Compressor
from cpdrun.comm.compressors.message import LayerCompression
from cpdrun.comm.gossip.topologies import Topology
from cpdrun.comm.wire.communicator import MessageExchange
from cpdrun.comm.workers import Workers

ALIGNED = 16  # float32 values


class WeightLayout:
    """The layout of several workers' weights in one tensor, with one row (D,) per worker.

    A row contains all parameters, one after the other. Each parameter begins at a multiple of 64 bytes in every
    process, because the rounding in linear algebra kernels may depend on the alignment. The padding between parameters
    is 0.

    Args:
        shapes: The shapes of the parameters.
    """

    def __init__(self, shapes: Sequence[torch.Size]):
        self.shapes = list(shapes)
        self.numels = [shape.numel() for shape in self.shapes]
        *self.starts, self.length = [0, *accumulate(-(-n // ALIGNED) * ALIGNED for n in self.numels)]

    def zeros(self, W: int, device: torch.device) -> Tensor:
        """Return float32 zeros of shape (W, D)."""
        return torch.zeros(W, self.length, device=device)

    def layer(self, x_WxD: Tensor, p: int) -> Tensor:
        """Return a view (W, n) of parameter p."""
        return x_WxD[:, self.starts[p] : self.starts[p] + self.numels[p]]

    def stacked(self, x_WxD: Tensor) -> list[Tensor]:
        """Return a view (W, *shape) of each parameter."""
        return [
            self.layer(x_WxD, p).unflatten(1, shape or (1,)).view(-1, *shape)
            for p, shape in enumerate(self.shapes)
        ]

    def parameters(self, x_D: Tensor) -> list[Tensor]:
        """Return a view of each parameter in one row, with the parameter's shape."""
        return [
            x_D[start : start + n].view(shape)
            for start, n, shape in zip(self.starts, self.numels, self.shapes, strict=True)
        ]


class QuasiGlobalMomentum:
    """The quasi-global momentum of the W workers of this rank.

    Raises:
        ValueError: beta is out of range.
    """

    def __init__(self, beta: float, nesterov: bool) -> None:
        if not 0 < beta < 1:
            raise ValueError(f"sync.quasi_global_momentum must lie between 0 and 1 or be null, not {beta}")
        self.beta, self.nesterov = beta, nesterov

    def begin(self, rows: WeightLayout, x_WxD: Tensor) -> dict[str, Tensor]:
        """Allocate the state. Return its tensors by name, for checkpoints."""
        self.momentum_WxD, self.before_WxD = torch.zeros_like(x_WxD), torch.zeros_like(x_WxD)
        self._momenta = [rows.parameters(row) for row in self.momentum_WxD]
        return {"momentum": self.momentum_WxD, "before": self.before_WxD}

    def before_step(self, x_WxD: Tensor) -> None:
        """Store the weights before the step."""
        self.before_WxD.copy_(x_WxD)

    def correct(self, i: int, gradient_P: Sequence[Tensor], decay_P: Sequence[Tensor]) -> None:
        """Add the momentum to the gradient of this rank's i-th worker in place."""
        if not self.nesterov:
            torch._foreach_add_(list(gradient_P), self._momenta[i], alpha=self.beta)
            return
        ahead_P = torch._foreach_mul(self._momenta[i], self.beta)
        torch._foreach_add_(ahead_P, list(gradient_P))
        if decay_P:
            torch._foreach_add_(ahead_P, list(decay_P))
        torch._foreach_add_(list(gradient_P), ahead_P, alpha=self.beta)

    def after_gossip(self, x_WxD: Tensor, lr: float) -> None:
        """Update the momentum from the change of the weights in this round."""
        if lr:
            for m_D, before_D, x_D in zip(self.momentum_WxD, self.before_WxD, x_WxD, strict=True):
                moved_D = torch.sub(before_D, x_D).div_(lr)
                m_D.mul_(self.beta).add_(moved_D, alpha=1 - self.beta)

    def step_matrix(self, weights_NxN: np.ndarray, momentum_NxN: np.ndarray) -> np.ndarray:
        """Return the matrix (2N, 2N) by which a step without gradients multiplies N weights and their N momenta.

        Args:
            weights_NxN: The mixing matrix of the weights from before the step.
            momentum_NxN: The mixing matrix of the step itself.
        """
        eye = np.eye(len(weights_NxN))
        step = -(self.beta**2 if self.nesterov else self.beta) * momentum_NxN
        return np.block(
            [
                [weights_NxN, step],
                [(1 - self.beta) * (eye - weights_NxN), self.beta * eye - (1 - self.beta) * step],
            ]
        )


@dataclass(frozen=True)
class Round:
    """The graph of a round.

    Attributes:
        matrix_NxN: The mixing weights W.
        neighbours: For each worker, the workers whose messages it receives.
        messages: The object that exchanges the messages of this round.
    """

    matrix_NxN: np.ndarray
    neighbours: list[list[int]]
    messages: MessageExchange

    @classmethod
    def of(cls, matrix_NxN: np.ndarray, workers: Workers) -> "Round":
        """Create the round with the given mixing weights."""
        neighbours = [[j for j in np.flatnonzero(row).tolist() if j != i] for i, row in enumerate(matrix_NxN)]
        return cls(matrix_NxN, neighbours, MessageExchange(neighbours, workers))

    @cached_property
    def copies(self) -> list[int]:
        """For each worker, the number of other workers to which it sends its message."""
        received = Counter(j for of_i in self.neighbours for j in of_i)
        return [received[j] for j in range(len(self.neighbours))]


class Gossip(ABC):
    """The base class of gossip algorithms.

    The attribute `memory` contains the state between steps: tensors (W, D) by name.

    Args:
        topology: The graph of workers.
        compressor: The compressor of messages.
        quasi_global_momentum: The coefficient beta of quasi-global momentum, or None for no momentum.
        nesterov: Whether to use Nesterov momentum.
        closing_rounds: The number of rounds of gossip after the last step.
        worker_test_samples: The number of test samples on which each worker's own weights are evaluated, or None for
            all.
        world_size: The number of workers N.
        seed: The run's seed.
        group: The process group.
        run_settings: Further settings of the run, see `LayerCompression`. Layers in full precision are sent as fp32.

    Raises:
        ValueError: The settings do not fit together.
    """

    learner = "cpdrun.train.learners.separate_weights.GossipWeights"
    eta = 1.0  # the consensus step size

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
        **run_settings: Any,
    ) -> None:
        if nesterov and quasi_global_momentum is None:
            raise ValueError(
                "sync.nesterov=true needs momentum. Set sync.quasi_global_momentum=0.9, or sync.nesterov=false"
            )
        _check_count("closing_rounds", closing_rounds, 0)
        if worker_test_samples is not None:
            _check_count("worker_test_samples", worker_test_samples, 1, ", or null")
        self.compression = LayerCompression(compressor, **run_settings)
        self.beta, self.nesterov = quasi_global_momentum, nesterov
        self.momentum = None if self.beta is None else QuasiGlobalMomentum(self.beta, nesterov)
        self.seed, self.world_size = seed, world_size
        self.workers = Workers.of_group(world_size, group)
        self.mine = self.workers.local
        self.rounds = [Round.of(matrix, self.workers) for matrix in self.matrices(topology, world_size)]
        self.round = self.rounds[0]  # the latest round
        self.closing_rounds, self.worker_test_samples = closing_rounds, worker_test_samples
        self.memory: dict[str, Tensor] = {}
        self.bytes_sent = 0.0  # per worker on average, since the beginning of the run
        self._bytes = {"bytes_per_step_sent": 0, "bytes_per_step_real_worker": 0}

    # ---- methods that the training loop calls, in this order

    def begin(self, rows: WeightLayout, x_WxD: Tensor) -> None:
        """Allocate the state before the first step.

        Args:
            rows: The layout of the weights.
            x_WxD: The initial weights, equal for all workers.
        """
        self.rows = rows
        for name in self.remembered():
            self.memory[name] = torch.zeros_like(x_WxD)
        if self.momentum:
            self.memory |= self.momentum.begin(rows, x_WxD)

    def before_step(self, x_WxD: Tensor, *, step: int, epoch: int) -> None:
        """Prepare a step. `x_WxD` contains the weights at which the gradients will be computed."""
        if self.momentum:
            self.momentum.before_step(x_WxD)

    def correct(self, i: int, gradient_P: Sequence[Tensor], decay_P: Sequence[Tensor] = ()) -> None:
        """Add the momentum to the gradient of this rank's i-th worker in place, before the optimizer step.

        Args:
            i: The index of the worker on this rank.
            gradient_P: The gradient of each parameter.
            decay_P: The weight decay term that the optimizer will add to each gradient. Nesterov momentum includes it.
        """
        if self.momentum:
            self.momentum.correct(i, gradient_P, decay_P)

    def after_step(self, x_WxD: Tensor, *, lr: float, step: int, epoch: int) -> None:
        """Run a round of gossip after the optimizer steps of all workers. Update the weights in place. Collective."""
        self.mix(x_WxD, step=step, epoch=epoch)
        if self.momentum:
            self.momentum.after_gossip(x_WxD, lr)

    def close(self, x_WxD: Tensor, *, step: int, epoch: int) -> None:
        """Run the closing rounds and update the weights in place. `step` is the last step. Collective."""
        for later in range(1, self.closing_rounds + 1):
            self.before_step(x_WxD, step=step + later, epoch=epoch)
            self.mix(x_WxD, step=step + later, epoch=epoch)

    def momentum_growth(self) -> float | None:
        """Return the factor by which the differences between workers grow per step because of quasi-global momentum.

        The momentum follows every change of the weights, including those by gossip. On graphs in which messages travel
        in one direction, such as long directed rings, this can amplify differences between workers. If the factor is
        above 1, training diverges at any learning rate. It is the spectral radius of a step without gradients or
        compression. If the graph changes between rounds, it is the geometric mean over a period.

        Returns:
            The factor, or None without quasi-global momentum, for a single worker, for mixing matrices that are not
            doubly stochastic, and for more than 256 workers, because the computation would take too long.
        """
        matrices = [round_.matrix_NxN for round_ in self.rounds]
        doubly_stochastic = all(np.allclose(W_NxN.sum(axis=1), 1) for W_NxN in matrices)
        if self.momentum is None or not 1 < self.world_size <= 256 or not doubly_stochastic:
            return None
        without_mean = np.kron(np.eye(2), np.eye(self.world_size) - 1 / self.world_size)
        period = without_mean
        for matrix_NxN in matrices:
            period = self.momentum.step_matrix(*self.step_mixing(matrix_NxN)) @ period
        radius = np.abs(np.linalg.eigvals(without_mean @ period)).max()
        return float(radius ** (1 / len(matrices)))

    # ---- methods that an algorithm overrides

    def step_mixing(self, matrix_NxN: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the mixing matrix of the weights from before the step, and the mixing matrix of the step."""
        mixing_NxN = np.eye(len(matrix_NxN)) * (1 - self.eta) + matrix_NxN * self.eta
        return mixing_NxN, mixing_NxN

    def matrices(self, topology: Topology, world_size: int) -> list[np.ndarray]:
        """Return the mixing weights of each round.

        Raises:
            ValueError: The algorithm cannot use the graph.
        """
        return topology.matrices(world_size)

    def remembered(self) -> tuple[str, ...]:
        """Return the names of the tensors (W, D) that the algorithm needs in `memory`. They are initialized to 0."""
        return ()

    @abstractmethod
    def mix(self, x_WxD: Tensor, *, step: int, epoch: int) -> None:
        """Exchange messages with the neighbors and update the weights in place. Collective."""

    # ---- methods that algorithms use

    def exchange(self, x_WxD: Tensor, *, step: int, epoch: int) -> dict[int, Tensor]:
        """Send C(x) to the neighbors of this round.

        Returns:
            C(x_j), of shape (D,), for each worker j of this rank and each neighbor of such a worker.
        """
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
        """Return sum_j W[worker][j] rows[j], of shape (D,).

        The sum includes the worker itself and its neighbors in this round, in ascending order.
        """
        total: Tensor | None = None
        for j in sorted([worker, *self.round.neighbours[worker]]):
            weight = float(self.round.matrix_NxN[worker, j])
            total = rows[j] * weight if total is None else total.add_(rows[j], alpha=weight)
        assert total is not None  # The sum contains at least the worker itself.
        return total

    def _count(self, message: int) -> None:
        copies = self.round.copies
        self._bytes = {
            "bytes_per_step_sent": message * self.round.messages.copies_sent,
            "bytes_per_step_real_worker": message * max(copies),
        }
        self.bytes_sent += message * sum(copies) / self.world_size

    # ---- byte counts and checkpoints

    def wire_bytes(self) -> dict[str, int]:
        """Return the payload bytes of the latest step, as `GradientSync.wire_bytes` does.

        On separate machines, each worker would send its message to each of its neighbors. The value
        bytes_per_step_real_worker is the number of bytes of the worker that would send the most.
        """
        return dict(self._bytes)

    def state_dict(self) -> dict[str, Any]:
        mine = {w: {name: x[i].clone() for name, x in self.memory.items()} for i, w in enumerate(self.mine)}
        return {"bytes_sent": self.bytes_sent, "memory": self.workers.gather(mine)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load the state of this rank's workers. Call this after `begin`."""
        self.bytes_sent = state["bytes_sent"]
        for i, w in enumerate(self.mine):
            for name, x_WxD in self.memory.items():
                x_WxD[i].copy_(state["memory"][w][name])


def _check_count(key: str, value: Any, least: int, or_else: str = "") -> None:
    if not (isinstance(value, int) and value >= least):
        raise ValueError(f"sync.{key}={value}: must be a whole number, at least {least}{or_else}")


def checked_eta(eta: float) -> float:
    """Return the given consensus step size if it is valid.

    Raises:
        ValueError: The step size is not above 0 and at most 1.
    """
    if not 0 < eta <= 1:
        raise ValueError(f"sync.eta must be above 0 and at most 1, not {eta}")
    return eta
