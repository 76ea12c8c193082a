"""Messages that contain all layers of a worker.

Each layer is compressed separately. Layers in full precision are sent as fp32.

Shapes: W workers of this rank, X workers whose messages arrived, n values of a layer, M bytes of a message.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from custom_fp.formats.names import parse
from torch import Tensor

from cpdrun.comm.compressors.base import Compressor
from cpdrun.comm.compressors.rounded_values import Rounded
from cpdrun.comm.full_precision import FullPrecision
from cpdrun.comm.sums.scaling import APS, ScalingRule


class LayerCompression:
    """The compressor of a run, and the layers and epochs that are not compressed.

    Args:
        compressor: The compressor.
        parameter_names: The names of the parameters.
        format: The number format of the run. It must be fp32 if the compressor does not send values in a number format.
        scaling: The scaling rule of the run: None, or `APS` if the compressor scales its values.
        epochs: The number of epochs of the run.
        full_precision: The settings of `FullPrecision`.

    Raises:
        ValueError: The format or the scaling rule does not fit the compressor.
    """

    def __init__(
        self,
        compressor: Compressor,
        *,
        parameter_names: Sequence[str],
        format: str = "fp32",
        scaling: ScalingRule | None = None,
        epochs: int | None = None,
        full_precision: Mapping[str, Any] | None = None,
    ) -> None:
        kind = type(compressor).__name__
        if scaling is not None and not getattr(compressor, "aps", False):
            raise ValueError(f"aps=true: {kind} has its own scale. Set aps=false")
        if type(scaling) not in (type(None), APS):
            raise ValueError(
                f"scaling: the rule {type(scaling).__name__} cannot be combined with a compressor, because compressed "
                "gradients are scaled by each worker's own largest value. Set scaling=aps"
            )
        if not parse(format).is_fp32 and not compressor.in_format:
            raise ValueError(
                f"format={format}: {kind} does not send values in a number format. Set format=fp32"
            )
        self.compressor, self.in_full = compressor, Rounded("fp32", False, "nearest_even")
        self.names = tuple(parameter_names)
        self.hybrid = FullPrecision(self.names, epochs=epochs, **dict(full_precision or {}))

    def message(
        self, numels: Sequence[int], epoch: int, parameters: Sequence[int] | None = None
    ) -> "Message":
        """Return the structure of a message.

        Args:
            numels: The number of elements of each layer.
            epoch: The epoch. It determines which layers are in full precision.
            parameters: The indices of the parameters, by default all of them.
        """
        parameters = range(len(self.names)) if parameters is None else parameters
        covers = [self.hybrid.covers(p, epoch) for p in parameters]
        layers = tuple(self.in_full if full else self.compressor for full in covers)
        return Message(tuple(self.names[p] for p in parameters), tuple(numels), layers)


@dataclass(frozen=True)
class Message:
    """The structure of a message: the layers that it contains and the compressor of each layer."""

    names: tuple[str, ...]
    numels: tuple[int, ...]
    layers: tuple[Compressor, ...]

    @cached_property
    def sizes(self) -> list[int]:
        """The number of bytes of each compressed layer, which is 0 for an empty layer."""
        return [c.message_bytes(n) if n else 0 for c, n in zip(self.layers, self.numels, strict=True)]

    @property
    def length(self) -> int:
        """The number of bytes M of the whole message."""
        return sum(self.sizes)

    @property
    def lossless(self) -> bool:
        """Whether all layers are decompressed exactly."""
        return all(c.lossless for c in self.layers)

    def compress(self, stacks: Sequence[Tensor], key: tuple, workers: Sequence[int]) -> Tensor:
        """Compress all layers.

        Args:
            stacks: For each layer, the values (W, n), float32.
            key: The key of the random numbers, such as (seed, step). Random numbers also depend on the name of the
                layer and the index of the worker.
            workers: The indices of the W workers.

        Returns:
            The messages (W, M), uint8.
        """
        parts = [
            c.compress(stack_Wxn, [(*key, name, w) for w in workers])
            for c, stack_Wxn, name in zip(self.layers, stacks, self.names, strict=True)
            if stack_Wxn.shape[1]
        ]
        return torch.cat(parts, dim=1) if parts else torch.empty(len(workers), 0, dtype=torch.uint8)

    def decompress(self, data_XxM: Tensor) -> Iterator[tuple[int, Tensor]]:
        """Decompress messages. Yield the index and the values (X, n), float32, of each layer that is not empty."""
        parts = data_XxM.split(self.sizes, dim=1)
        for p, (c, data, n) in enumerate(zip(self.layers, parts, self.numels, strict=True)):
            if n:
                yield p, c.decompress(data, n)
