"""PowerSGD: synchronization of workers that send two low-rank factors of each gradient matrix.

Vogels, Karimireddy and Jaggi, "PowerSGD: Practical Low-Rank Gradient Compression for Distributed Optimization", arXiv
1905.13727, algorithms 1 and 2. Each layer is a matrix of R rows (the parameter's first axis) and C columns (all other
axes). With the gradients g_w of N workers, already divided by N, and a matrix Q (C, r) that is equal on all workers:

    M_w = g_w + e_w                      e_w is initially 0, and always 0 without error feedback.
    P   = orthonormal(sum of M_w Q)      (R, r)
    Q_w = M_w^T P                        (C, r). Each worker sends Q_w.
    Q   = sum of Q_w
    result = P Q^T
    e_w = M_w - P Q_w^T                  Q_w includes the rounding of the format. Errors that are not finite become 0.

The two sums use the run's format, scaling, order and rounding, by default fp32 and worker order. The next step begins
with orthonormal(Q) (warm start: one step of power iteration per training step). Vectors, scalars, and matrices that
would be compressed too little (min_compression_rate) are summed as a whole in the run's format. Layers in full
precision are summed in fp32. Workers only exchange sums, so the number of bytes that each worker sends does not grow
with N, unlike with the messages of `compressed_sync.py`.

Differences from the paper: both factors are made orthonormal with Householder's QR in float64. The paper uses
Gram-Schmidt for P only. The columns span the same space. But if P or Q does not have full rank (a layer of zeros),
Gram-Schmidt would divide by zero and produce NaN, whereas QR completes the factor with columns that do not change the
result. torch's own hook (powerSGD_hook) uses e_w = M_w - result, in which each worker's deviation from the mean
accumulates. The sum of all e_w is the same, and so is the result, except for float32 rounding.

Shapes: N workers, L of them on this rank, n = R C values of a layer, r its rank.
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
ALIGNED = 64  # the alignment in bytes of the memory that torch allocates


class PowerSGDSync(GradientSync):
    """Computes the mean gradient from two low-rank factors of each matrix.

    If a layer contains inf or NaN, its whole result becomes NaN, and its factors are initialized again in the next
    step. Subnormals are those of float32 products. -0 may become +0. The settings are those of `AllReduceSync` and of
    conf/sync/power_sgd.yaml.

    Raises:
        ValueError: A setting is out of range, or the settings do not fit together.
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
        **options: Any,
    ) -> None:
        check_whole("rank", rank, MOST)
        if isinstance(min_compression_rate, bool) or not 0 <= min_compression_rate < float("inf"):
            raise ValueError(
                f"min_compression_rate must be a number of at least 0, not {min_compression_rate}"
            )
        self.rank, self.min_compression_rate, self.warm_start = rank, min_compression_rate, warm_start
        self.seed, self.names = seed, list(parameter_names)
        how = Sum.of(format, **options, error_feedback=False)
        shared = {
            "world_size": world_size,
            "scaling": scaling,
            "seed": seed,
            "epochs": epochs,
            "group": group,
        }
        remember = error_feedback and not how.fmt.is_fp32  # With fp32, there are no rounding errors.
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
        self._right: dict[str, Tensor] = {}  # Q of each layer after the latest step

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
        """Reduce the gradients of some parameters, as `CompressedSync.reduce_layers` does. Collective."""
        thin = [k for k, p in enumerate(layers) if self._factored(p, out[k].shape, epoch)]
        rest = [k for k in range(len(layers)) if k not in thin]
        flat = [self._with_residuals(layers[k], stacks[k].detach()) for k in rest]
        sums = [torch.empty_like(stack_Lxn[0]) for stack_Lxn in flat]
        self.whole.reduce_layers([layers[k] for k in rest], flat, step=step, epoch=epoch, out=sums)
        sums += self._factor([layers[k] for k in thin], [stacks[k].detach() for k in thin], step)
        for k, total in zip(rest + thin, sums, strict=True):
            out[k].copy_(total.view(out[k].shape))

    def _with_residuals(self, p: int, stack: Tensor) -> Tensor:
        """Return the gradients (L, n) of a parameter that is summed as a whole, plus its residuals.

        There are residuals if the parameter was factored in an earlier epoch.
        """
        rows_Lxn = stack.reshape(self.workers.share, -1)
        residual_Lxn = self.feedback.take(self.names[p]) if self.feedback else None
        return rows_Lxn if residual_Lxn is None else rows_Lxn + residual_Lxn.to(rows_Lxn.device)

    def rank_of(self, rows: int, columns: int) -> int:
        """Return the rank r of the factors of a matrix of this size, or 0 if the matrix is summed as a whole."""
        r = min(rows, columns, self.rank)
        return r if (rows + columns) * r * self.min_compression_rate < rows * columns else 0

    def _factored(self, p: int, shape: torch.Size, epoch: int) -> bool:
        if len(shape) < 2 or self.whole.hybrid.covers(p, epoch):
            return False
        return self.rank_of(shape[0], shape[1:].numel()) > 0

    def _factor(self, layers: Sequence[int], stacks: Sequence[Tensor], step: int) -> list[Tensor]:
        """Return the result P Q^T (R, C), float32, for each layer. The stacks have shape (L, R, ...)."""
        names = [self.names[p] for p in layers]
        matrices = [self._matrices(name, stack) for name, stack in zip(names, stacks, strict=True)]
        right = [
            orthonormal(self._start(name, of_workers[0], step))
            for name, of_workers in zip(names, matrices, strict=True)
        ]
        products = [[M @ Q for M in of_workers] for of_workers, Q in zip(matrices, right, strict=True)]
        left = list(map(orthonormal, self._sum(layers, products, step)))
        sent = [[M.T @ P for M in of_workers] for of_workers, P in zip(matrices, left, strict=True)]
        right = self._sum([len(self.names) + p for p in layers], sent, step)
        for k, name in enumerate(names):
            self._remember(name, right[k])
            if self.feedback:
                self._keep_residuals(name, matrices[k], left[k], sent[k], step)
        return [P @ Q.T for P, Q in zip(left, right, strict=True)]

    def _matrices(self, name: str, stack: Tensor) -> list[Tensor]:
        """Return M_w (R, C) for each worker of this rank, aligned like newly allocated memory.

        The alignment of a factor may change the last bits of a product. With equal alignment, the result does not
        depend on the number of workers in a process.
        """
        rows_Lxn = stack.reshape(len(stack), -1)
        if self.feedback:
            rows_Lxn = self.feedback.compensate(name, rows_Lxn)
        rows = [row_n.clone() if row_n.data_ptr() % ALIGNED else row_n for row_n in rows_Lxn]
        return [row_n.view(stack.shape[1], -1) for row_n in rows]

    def _start(self, name: str, matrix_RxC: Tensor, step: int) -> Tensor:
        """Return Q (C, r), which is equal on all ranks: the latest Q if there is one, otherwise a random matrix."""
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
        """Sum each layer's factors over all workers. Collective."""
        stacks = [torch.stack([factor.reshape(-1) for factor in factors]) for factors in of_workers]
        sums = [torch.empty_like(stack_Lxn[0]) for stack_Lxn in stacks]
        self.factors.reduce_layers(layers, stacks, step=step, epoch=0, out=sums)
        return [total.view(factors[0].shape) for total, factors in zip(sums, of_workers, strict=True)]

    def _keep_residuals(
        self, name: str, matrices: Sequence[Tensor], left: Tensor, sent: Sequence[Tensor], step: int
    ) -> None:
        assert self.feedback is not None
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
    """Return a matrix (n, r) with orthonormal columns that span the columns of the given matrix.

    The given matrix is float32, with r <= n. If its columns are linearly dependent, the result spans a larger space. QR
    is computed in float64 and rounded once. If any value is inf or NaN, all values of the result are NaN.
    """
    if not torch.isfinite(factor).all():
        return torch.full_like(factor, torch.nan)
    return torch.linalg.qr(factor.double()).Q.float()


def _hidden(total: Tensor, gradients_Lxn: Tensor) -> int:
    """Return the number of inf and NaN that became finite numbers."""
    if not count_nonfinite([gradients_Lxn]):
        return 0
    return int((torch.isfinite(total).view(-1) & ~torch.isfinite(gradients_Lxn)).sum())
