"""Outer steps (`local/outer.py`) with the run's exchange: a sum in its format, or a compressor's messages."""

from dataclasses import fields
from typing import Any

import torch.distributed as dist
from custom_fp.formats.names import parse
from custom_fp.formats.protocol import NumberFormat

from cpdrun.comm.base import GradientSync
from cpdrun.comm.compressed_sync import CompressedSync
from cpdrun.comm.compressors.base import Compressor
from cpdrun.comm.compressors.rounded import Rounded
from cpdrun.comm.local.outer import OuterStep
from cpdrun.comm.sums.sum import Sum, takes_knobs
from cpdrun.comm.sync import AllReduceSync

KNOBS = tuple(knob.name for knob in fields(Sum)[1:])


class LocalSync(OuterStep):
    """The run gives what it gives `AllReduceSync`; conf/sync/local.yaml says what its own knobs do.

    compressor: None, or Rounded, which is but the run's format: pseudo-gradients go through the `Sum` of the knobs;
    any other one's messages are added in float32, and of the knobs error_feedback alone plays a part. Raises
    ValueError where settings are out of range or do not fit together.
    """

    @takes_knobs
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
        **given: Any,
    ) -> None:
        exchange = _exchange(format, compressor, world_size=world_size, group=group, **given)
        super().__init__(
            exchange,
            world_size=world_size,
            inner_steps=inner_steps,
            outer_lr=outer_lr,
            outer_momentum=outer_momentum,
            nesterov=nesterov,
        )


def summing(*, format: str | NumberFormat | Sum, **given: Any) -> AllReduceSync:
    """given: what the run gives, and knobs of the sum."""
    how = Sum.of(format, **{knob: given.pop(knob) for knob in KNOBS if knob in given})
    if how.fmt.is_fp32:
        how = Sum.of(how, error_feedback=False)  # nothing is taken, and a residual a worker would be kept
    return AllReduceSync(format=how, **given)


def _exchange(format: str | NumberFormat | Sum, compressor: Compressor | None, **given: Any) -> GradientSync:
    if compressor is None or isinstance(compressor, Rounded):
        return summing(format=format, **given)
    feedback = given.get("error_feedback", False)
    rest = {key: value for key, value in given.items() if key not in KNOBS}
    return CompressedSync(compressor=compressor, error_feedback=feedback, format=parse(format).name, **rest)
