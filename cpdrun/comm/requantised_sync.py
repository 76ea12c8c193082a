"""AllReduceSync with a choice of how often sums are rounded: see requantised.py for the definition."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch.distributed as dist
from custom_fp.formats.names import AnyFormat, parse

from cpdrun.comm.sums.requantised import Requantised
from cpdrun.comm.sums.scaling import ScalingRule
from cpdrun.comm.sync import AllReduceSync


class RequantisedSync(AllReduceSync):
    """The mean gradient of N workers, decoded, added in float32 and quantised again: per hop or once.

    The run gives what it gives `AllReduceSync`; conf/sync/requantised.yaml the rest. Formats with scales and without.
    Raises ValueError for a scaling rule.
    """

    def __init__(
        self,
        *,
        format: str | AnyFormat,
        world_size: int,
        parameter_names: Sequence[str],
        requantise: str,
        error_feedback: bool,
        scaling: ScalingRule | None = None,
        seed: int = 0,
        full_precision: Mapping[str, Any] | None = None,
        epochs: int | None = None,
        group: dist.ProcessGroup | None = None,
    ) -> None:
        if scaling is not None:
            raise ValueError("sync=requantised adds in float32, nothing overflows: it takes aps=false")
        super().__init__(
            format=Requantised(parse(format), requantise),
            world_size=world_size,
            parameter_names=parameter_names,
            order="rank",
            group_size=None,
            kahan=False,
            rounding="nearest_even",
            overflow="infinity",
            error_feedback=error_feedback,
            seed=seed,
            full_precision=full_precision,
            epochs=epochs,
            group=group,
        )
