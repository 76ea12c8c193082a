"""Local training with outer steps.

Workers train separately. After a number of inner steps, their changes are averaged, and an outer optimizer applies the
average to the weights that all workers agree on. This is DiLoCo (Douillard et al., arXiv 2311.08105, algorithm 1). For
each parameter, let x be the agreed weights of the last outer step, and x_w the weights of worker w after H inner steps
from x with its own optimizer. With N workers:

    d_w = (x - x_w) / N                  The pseudo-gradient of worker w.
    d = sum of d_w                       Computed in a format, or from compressed messages, with or without error
                                         feedback.
    v = momentum * v + d                 v is initially 0.
    x = x - lr * (d + momentum * v)      With nesterov. Without nesterov: x = x - lr * v.

Then every worker continues from x. The state of its inner optimizer and its buffers (BatchNorm) remain separate. With
lr = 1 and without momentum, x becomes the mean of all x_w. This is local SGD (Stich, arXiv 1805.09767, algorithm 1).

Differences from the papers: d_w is divided by N before it is rounded or compressed, as gradients are in data
parallelism. After the last step of a run, there is always an outer step.

inf and NaN in a worker's weights spread to all workers at the outer step if the format of the sum has them. Otherwise,
they become finite numbers, which are counted in `nonfinite`.

Shapes: N workers, W of them on this rank, P parameters.
"""

import copy
from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import torch
import torch.distributed as dist
from custom_fp.formats.names import parse
from custom_fp.formats.protocol import NumberFormat
from torch import Tensor, nn

from cpdrun.comm.compressors.base import Compressor
from cpdrun.comm.compressors.rounded_values import Rounded
from cpdrun.comm.sums.sum import Sum, accepts_sum_options
from cpdrun.comm.sync.all_reduce import AllReduceSync
from cpdrun.comm.sync.base import GradientSync
from cpdrun.comm.sync.compressed_sync import CompressedSync


class OuterStep:
    """The weights that all workers agree on, and the outer optimizer.

    Args:
        exchange: The method that sums the pseudo-gradients of the workers.
        world_size: The number of workers.
        inner_steps: The number of inner steps H.
        outer_lr: The learning rate of the outer optimizer.
        outer_momentum: The momentum of the outer optimizer.
        nesterov: Whether to use Nesterov momentum.

    Raises:
        ValueError: A setting is out of range.
    """

    learner = "cpdrun.train.learners.separate_weights.LocalWeights"

    def __init__(
        self,
        exchange: GradientSync,
        *,
        world_size: int,
        inner_steps: int,
        outer_lr: float,
        outer_momentum: float,
        nesterov: bool,
    ) -> None:
        if isinstance(inner_steps, bool) or not (isinstance(inner_steps, int) and inner_steps >= 1):
            raise ValueError(f"inner_steps={inner_steps}: must be a whole number, at least 1")
        if not (_is_number(outer_lr) and outer_lr > 0):
            raise ValueError(
                f"outer_lr={outer_lr}: must be a number above 0. To average the weights, set outer_lr=1 and "
                "outer_momentum=0"
            )
        if not (_is_number(outer_momentum) and 0 <= outer_momentum < 1):
            raise ValueError(f"outer_momentum={outer_momentum}: must be at least 0 and below 1")
        if not isinstance(nesterov, bool):
            raise ValueError(f"nesterov={nesterov}: choose true or false")
        self.exchange, self.world_size, self.inner_steps = exchange, world_size, inner_steps
        # torch's SGD does not accept nesterov=True without momentum, although it would have no effect.
        self._settings: dict[str, Any] = {
            "lr": outer_lr,
            "momentum": outer_momentum,
            "nesterov": nesterov and outer_momentum > 0,
        }
        self.exchanged = False  # whether an outer step followed the latest step

    @property
    def longest_chain(self) -> int | None:
        """The largest number of rounded additions that one worker's value passes through, or None if unknown."""
        return self.exchange.longest_chain

    @property
    def nonfinite(self) -> int:
        """The number of inf and NaN in pseudo-gradients, as in `GradientSync`.

        It is 0 if no outer step followed the latest step.
        """
        return self.exchange.nonfinite if self.exchanged else 0

    def begin(self, start_P: Sequence[Tensor]) -> None:
        """Copy the initial weights, which are equal on all ranks, before the first step."""
        weights = [x.detach().to(torch.float32, copy=True).contiguous() for x in start_P]
        self.agreed = [nn.Parameter(x, requires_grad=False) for x in weights]
        self.optimizer = torch.optim.SGD(self.agreed, **self._settings)

    def is_due(self, step: int) -> bool:
        """Return whether an outer step follows inner step `step`, counted from 0."""
        return (step + 1) % self.inner_steps == 0

    def pseudo_gradients(self, x_PxW: Sequence[Tensor]) -> list[Tensor]:
        """Return the pseudo-gradients d_w (W, ...), float32, for each parameter.

        Args:
            x_PxW: The weights (W, ...) of each parameter, with any floating-point dtype. Weights in a dtype with fewer
                bits than float32 started from the agreed weights rounded to that dtype. The pseudo-gradient is
                therefore the difference from the rounded agreed weights.
        """
        return [
            (agreed.to(x_W.dtype).float() - x_W.detach().float()).div_(self.world_size)
            for agreed, x_W in zip(self.agreed, x_PxW, strict=True)
        ]

    @torch.no_grad()
    def after_step(
        self, x_PxW: Sequence[Tensor], *, step: int, epoch: int, last: bool = False
    ) -> tuple[list[Tensor], list[Tensor]] | None:
        """Perform an outer step if it is due after inner step `step`. Collective.

        Every x_w then becomes the new agreed weights, in place.

        Args:
            x_PxW: The weights (W, ...) of each parameter.
            step: The number of the inner step.
            epoch: The epoch.
            last: Whether this is the last step of the run, after which an outer step is always due.

        Returns:
            The pseudo-gradients and their sum, or None if no outer step was due.
        """
        self.exchanged = last or self.is_due(step)
        if not self.exchanged:
            return None
        stacks = self.pseudo_gradients(x_PxW)
        mean = self.exchange.reduce_stacked(stacks, step=step, epoch=epoch)
        for agreed, d in zip(self.agreed, mean, strict=True):
            agreed.grad = d
        self.optimizer.step()
        for agreed, x_W in zip(self.agreed, x_PxW, strict=True):
            agreed.grad = None  # The exchange may reuse its memory.
            x_W.copy_(agreed)
        return stacks, mean

    def wire_bytes(self) -> dict[str, int]:
        """Return the payload bytes of the latest step, which are 0 if no outer step followed it.

        On average, a step takes the bytes of an outer step divided by H.
        """
        of_exchange = self.exchange.wire_bytes()
        return of_exchange if self.exchanged else dict.fromkeys(of_exchange, 0)

    def memory_bytes(self) -> int:
        """Return the bytes of the agreed weights and the outer momentum, which a worker stores besides its weights."""
        momentum = 4 if self._settings["momentum"] else 0
        return (4 + momentum) * sum(agreed.numel() for agreed in self.agreed)

    def state_dict(self) -> dict[str, Any]:
        """Return the state of outer steps, except the workers' weights, on rank 0. Collective."""
        return {
            "agreed": [agreed.detach().clone() for agreed in self.agreed],
            "optimizer": copy.deepcopy(self.optimizer.state_dict()),
            "exchange": self.exchange.state_dict(),
        }

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load the state that `state_dict` returned on rank 0. Call this on every rank, after `begin`."""
        for agreed, kept in zip(self.agreed, state["agreed"], strict=True):
            agreed.copy_(kept)
        self.optimizer.load_state_dict(state["optimizer"])
        self.exchange.load_state_dict(state["exchange"])


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


SUM_OPTIONS = tuple(option.name for option in fields(Sum)[1:])


class LocalSync(OuterStep):
    """Performs outer steps in a run, with a sum in the run's format or with compressed messages.

    conf/sync/local.yaml describes the settings. The other arguments are those of `AllReduceSync`.

    Args:
        inner_steps: The number of inner steps between two outer steps.
        outer_lr: The learning rate of the outer optimizer.
        outer_momentum: The momentum of the outer optimizer.
        nesterov: Whether to use Nesterov momentum.
        world_size: The number of workers.
        format: The format of the sum.
        compressor: The compressor of messages. With None or `Rounded`, pseudo-gradients are summed in the format. The
            messages of other compressors are decoded and added in float32, so that error_feedback is the only setting
            of the sum that has an effect.
        group: The process group.
        run_settings: Further settings of the run and of the sum.

    Raises:
        ValueError: Settings are out of range or do not fit together.
    """

    @accepts_sum_options
    def __init__(
        self,
        *,
        inner_steps: int,
        outer_lr: float,
        outer_momentum: float,
        nesterov: bool,
        world_size: int,
        format: str | NumberFormat | Sum = "fp32",
        compressor: Compressor | None = None,
        group: dist.ProcessGroup | None = None,
        **run_settings: Any,
    ) -> None:
        exchange = _exchange(format, compressor, world_size=world_size, group=group, **run_settings)
        super().__init__(
            exchange,
            world_size=world_size,
            inner_steps=inner_steps,
            outer_lr=outer_lr,
            outer_momentum=outer_momentum,
            nesterov=nesterov,
        )


def make_all_reduce_sync(*, format: str | NumberFormat | Sum, **run_settings: Any) -> AllReduceSync:
    """Create an `AllReduceSync` from the settings of the run and of the sum."""
    how = Sum.of(
        format, **{option: run_settings.pop(option) for option in SUM_OPTIONS if option in run_settings}
    )
    if how.fmt.is_fp32:
        how = Sum.of(how, error_feedback=False)  # With fp32, there are no rounding errors to store.
    return AllReduceSync(format=how, **run_settings)


def _exchange(
    format: str | NumberFormat | Sum, compressor: Compressor | None, **run_settings: Any
) -> GradientSync:
    if compressor is None or isinstance(compressor, Rounded):
        return make_all_reduce_sync(format=format, **run_settings)
    fmt = format.fmt if isinstance(format, Sum) else parse(format)
    feedback = run_settings.get("error_feedback", False)
    rest = {key: value for key, value in run_settings.items() if key not in SUM_OPTIONS}
    return CompressedSync(compressor=compressor, error_feedback=feedback, format=fmt.name, **rest)
