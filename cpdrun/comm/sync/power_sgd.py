"""The mean gradient of workers that send two thin factors of each matrix: PowerSGD (Vogels, Karimireddy and Jaggi,
"PowerSGD: Practical Low-Rank Gradient Compression for Distributed Optimization", arXiv 1905.13727, algorithms 1 and 2).

Per layer, a matrix of R rows and C columns (a parameter's first axis, and all others), with the gradients g_w of N
workers, already divided by N, and a Q (C, r) that all workers have:

    M_w = g_w + e_w                      e_w = 0 at first, and without error feedback
    P   = orthonormal(sum of M_w Q)      (R, r)
    Q_w = M_w^T P                        (C, r), what each worker sends; Q = sum of Q_w
    result = P Q^T
    e_w = M_w - P Q_w^T                  0 where not finite; of Q_w as it was sent, so that a format's rounding counts

The two sums are the run's: its format, scaling, order and rounding, fp32 and worker order by default. The next step
begins with orthonormal(Q) (warm start, one step of the power iteration a step of training). Vectors, scalars and
matrices of which too little would be saved (min_compression_rate) are summed whole, in the run's format; layers of
full_precision whole in fp32. Nothing but sums between workers: a byte that is sent does not grow with N, as messages of
`compressed_sync.py` do.

What differs: both factors are made orthonormal by Householder's QR in float64, where the paper has Gram-Schmidt on P
alone. The columns span the same space; but QR completes a P or Q that lacks full rank, as a layer of zeros does, with
columns that add nothing, where a division by their length would give NaN. torch's own hook (powerSGD_hook) keeps
e_w = M_w - result, in which each worker's deviation from the mean piles up; their sum is the same, and so, but for
float32's rounding, is the result.

Legend: N workers, L of them on this rank, n = R C values of a layer, r its rank.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from custom_fp.formats.protocol import NumberFormat
from torch import Tensor

from cpdrun.comm.compressors.base import check_whole
from cpdrun.comm.sums.error_feedback import ErrorFeedback
from cpdrun.comm.sums.scaling import ScalingRule
from cpdrun.comm.sums.sum import RandomStream, Sum, accepts_sum_options
from cpdrun.comm.sync.all_reduce import AllReduceSync
from cpdrun.comm.sync.base import GradientSync
from cpdrun.comm.sync.statistics import count_nonfinite

MOST = 2**15
ALIGNED = 64  # bytes: as torch allocates


class PowerSGDSync(GradientSync):
    """The run gives what it gives `AllReduceSync`; conf/sync/power_sgd.yaml the rest, the knobs of both sums with it.

    A layer with inf or NaN in it comes out as NaN throughout, and begins anew with the next step. Subnormals are those
    of float32 products; -0 may become +0. Raises ValueError for a rank or a rate out of range, and as AllReduceSync.
    """

    @accepts_sum_options
    def __init__(
        self,
        *,
        format: str | NumberFormat | Sum,
        world_size: int,
        parameter_names: Sequence[str],
        rank: int,
        min_compression_rate: float,
        warm_start: bool,
        error_feedback: bool,
        scaling: ScalingRule | None = None,
        seed: int = 0,
        full_precision: Mapping[str, Any] | None = None,
        epochs: int | None = None,
        group: dist.ProcessGroup | None = None,
        **knobs: Any,
    ) -> None:
        check_whole("rank", rank, MOST)
        if isinstance(min_compression_rate, bool) or not 0 <= min_compression_rate < float("inf"):
            raise ValueError(f"min_compression_rate must be a number from 0 on, not {min_compression_rate}")
        self.rank, self.min_compression_rate, self.warm_start = rank, min_compression_rate, warm_start
        self.seed, self.names = seed, list(parameter_names)
        how = Sum.of(format, **knobs, error_feedback=False)
        shared = {
            "world_size": world_size,
            "scaling": scaling,
            "seed": seed,
            "epochs": epochs,
            "group": group,
        }
        remember = error_feedback and not how.fmt.is_fp32  # else there is nothing to
        self.whole = AllReduceSync(
            format=how,
            error_feedback=remember,
            parameter_names=self.names,
            full_precision=full_precision,
            **shared,
        )
        factors = [f"{name} {side}" for side in "PQ" for name in self.names]
        self.factors = AllReduceSync(format=how, parameter_names=factors, **shared)
        self.workers, self.longest_chain = self.whole.workers, self.whole.longest_chain
        self.feedback = ErrorFeedback() if error_feedback else None
        self._right: dict[str, Tensor] = {}  # Q of each layer, as the latest step left it

    def reduce_stacked(self, stacks: Sequence[Tensor], *, step: int, epoch: int) -> list[Tensor]:
        flat = self.workers.rows(stacks, len(self.names))
        sums = [torch.empty(stack.shape[1:], device=stack.device) for stack in stacks]
        self.reduce_layers(range(len(self.names)), stacks, step=step, epoch=epoch, out=sums)
        hidden = sum(map(_hidden, sums, flat))
        total = self.workers.total(hidden, stacks[0].device) if stacks else 0
        self.nonfinite = count_nonfinite(sums) + total
        return sums

    def reduce_layers(
        self, layers: Sequence[int], stacks: Sequence[Tensor], *, step: int, epoch: int, out: Sequence[Tensor]
    ) -> None:
        """`reduce_stacked` for some of the parameters, as `CompressedSync` has it."""
        thin = [k for k, p in enumerate(layers) if self._factored(p, out[k].shape, epoch)]
        rest = [k for k in range(len(layers)) if k not in thin]
        flat = [self._with_what_is_owed(layers[k], stacks[k].detach()) for k in rest]
        sums = [torch.empty_like(stack_Lxn[0]) for stack_Lxn in flat]
        self.whole.reduce_layers([layers[k] for k in rest], flat, step=step, epoch=epoch, out=sums)
        sums += self._factor([layers[k] for k in thin], [stacks[k].detach() for k in thin], step)
        for k, total in zip(rest + thin, sums, strict=True):
            out[k].copy_(total.view(out[k].shape))

    def _with_what_is_owed(self, p: int, stack: Tensor) -> Tensor:
        """(L, n) gradients that go whole, with what an earlier epoch's factors left of them."""
        rows_Lxn = stack.reshape(self.workers.share, -1)
        owed_Lxn = self.feedback.take(self.names[p]) if self.feedback else None
        return rows_Lxn if owed_Lxn is None else rows_Lxn + owed_Lxn.to(rows_Lxn.device)

    def rank_of(self, rows: int, columns: int) -> int:
        """r of a matrix; 0 where it goes whole."""
        r = min(rows, columns, self.rank)
        return r if (rows + columns) * r * self.min_compression_rate < rows * columns else 0

    def _factored(self, p: int, shape: torch.Size, epoch: int) -> bool:
        if len(shape) < 2 or self.whole.hybrid.covers(p, epoch):
            return False
        return self.rank_of(shape[0], shape[1:].numel()) > 0

    def _factor(self, layers: Sequence[int], stacks: Sequence[Tensor], step: int) -> list[Tensor]:
        """P Q^T of each layer, (R, C) float32. stacks[k]: (L, R, ...)."""
        names = [self.names[p] for p in layers]
        matrices = [self._matrices(name, stack) for name, stack in zip(names, stacks, strict=True)]
        right = [
            orthonormal(self._start(name, of_workers[0], step))
            for name, of_workers in zip(names, matrices, strict=True)
        ]
        left = [[M @ Q for M in of_workers] for of_workers, Q in zip(matrices, right, strict=True)]
        left = list(map(orthonormal, self._sum(layers, left, step)))
        sent = [[M.T @ P for M in of_workers] for of_workers, P in zip(matrices, left, strict=True)]
        right = self._sum([len(self.names) + p for p in layers], sent, step)
        for k, name in enumerate(names):
            self._remember(name, right[k])
            if self.feedback:
                self._keep_residuals(name, matrices[k], left[k], sent[k], step)
        return [P @ Q.T for P, Q in zip(left, right, strict=True)]

    def _matrices(self, name: str, stack: Tensor) -> list[Tensor]:
        """M_w (R, C) of my workers, each where memory is as if it were its own: how a factor is aligned may change a
        product's last bits, and how many workers this process plays must not."""
        rows_Lxn = stack.reshape(len(stack), -1)
        if self.feedback:
            rows_Lxn = self.feedback.compensate(name, rows_Lxn)
        rows = [row_n.clone() if row_n.data_ptr() % ALIGNED else row_n for row_n in rows_Lxn]
        return [row_n.view(stack.shape[1], -1) for row_n in rows]

    def _start(self, name: str, matrix_RxC: Tensor, step: int) -> Tensor:
        """(C, r): the latest Q, or one drawn at random, the same on all ranks."""
        R, C = matrix_RxC.shape
        if name in self._right:
            return self._right[name].to(matrix_RxC.device)
        key = (self.seed, name, "Q") if self.warm_start else (self.seed, step, name, "Q")
        generator = torch.Generator().manual_seed(RandomStream(key).seed())
        return torch.randn(C, self.rank_of(R, C), generator=generator).to(matrix_RxC.device)

    def _remember(self, name: str, right_Cxr: Tensor) -> None:
        self._right.pop(name, None)
        if self.warm_start and torch.isfinite(right_Cxr).all():
            self._right[name] = right_Cxr

    def _sum(self, layers: Sequence[int], of_workers: Sequence[Sequence[Tensor]], step: int) -> list[Tensor]:
        """Of each layer's factors, one from each of my workers. Collective."""
        stacks = [torch.stack([factor.reshape(-1) for factor in factors]) for factors in of_workers]
        sums = [torch.empty_like(stack_Lxn[0]) for stack_Lxn in stacks]
        self.factors.reduce_layers(layers, stacks, step=step, epoch=0, out=sums)
        return [total.view(factors[0].shape) for total, factors in zip(sums, of_workers, strict=True)]

    def _keep_residuals(
        self, name: str, matrices: Sequence[Tensor], left: Tensor, sent: Sequence[Tensor], step: int
    ) -> None:
        for i, (M, Q_w) in enumerate(zip(matrices, sent, strict=True)):
            seen = self.factors.sent_by(f"{name} Q", i, Q_w.reshape(-1), step).view(Q_w.shape)
            self.feedback.keep(name, i, M.view(-1), (left @ seen.T).view(-1))

    def wire_bytes(self) -> dict[str, int]:
        of_factors = self.factors.wire_bytes()
        return {key: n + of_factors[key] for key, n in self.whole.wire_bytes().items()}

    def state_dict(self) -> dict[str, Any]:
        state = {"whole": self.whole.state_dict(), "factors": self.factors.state_dict()}
        state["right"] = {name: right_Cxr.clone() for name, right_Cxr in self._right.items()}
        if self.feedback:
            state["residuals"] = self.feedback.state_dict(self.workers)
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.whole.load_state_dict(state["whole"])
        self.factors.load_state_dict(state["factors"])
        self._right = dict(state["right"])
        if self.feedback:
            self.feedback.load_state_dict(state["residuals"], self.workers)


def orthonormal(factor: Tensor) -> Tensor:
    """Columns of length 1 at right angles that span those given and, where these depend on each other, more.

    (n, r) float32 with r <= n; QR in float64, rounded once. NaN throughout where inf or NaN is among the values.
    """
    if not torch.isfinite(factor).all():
        return torch.full_like(factor, torch.nan)
    return torch.linalg.qr(factor.double()).Q.float()


def _hidden(total: Tensor, gradients_Lxn: Tensor) -> int:
    """How many inf and NaN came out as numbers."""
    if not count_nonfinite([gradients_Lxn]):
        return 0
    return int((torch.isfinite(total).view(-1) & ~torch.isfinite(gradients_Lxn)).sum())
