"""All layers of a worker in one message, each compressed by itself; those in full precision as fp32.

Legend: W workers of this rank, X workers whose messages came, n values of a layer, M bytes of a message.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from custom_fp.formats.names import parse
from torch import Tensor

from cpdrun.comm.compressors.base import Compressor
from cpdrun.comm.compressors.rounded import Rounded
from cpdrun.comm.full_precision import FullPrecision
from cpdrun.comm.sums.scaling import APS, ScalingRule


class LayerCompression:
    """A run's compressor, and which layers go without it in which epochs.

    format, scaling, parameter_names, epochs and full_precision are those of the run. Raises ValueError where they do
    not fit the compressor.
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
            raise ValueError(f"aps=true: {kind} has a scale of its own; type aps=false")
        if type(scaling) not in (type(None), APS):
            raise ValueError(
                f"scaling: {type(scaling).__name__} is for sums of gradients; a worker that compresses scales by its "
                "own largest value: type scaling=aps"
            )
        if not parse(format).is_fp32 and not compressor.in_format:
            raise ValueError(f"format={format}: {kind} sends values of its own kind; type format=fp32")
        self.compressor, self.in_full = compressor, Rounded("fp32", False, "nearest_even")
        self.names = tuple(parameter_names)
        self.hybrid = FullPrecision(self.names, epochs=epochs, **dict(full_precision or {}))

    def message(
        self, numels: Sequence[int], epoch: int, parameters: Sequence[int] | None = None
    ) -> "Message":
        """Of layers of these sizes in this epoch: of all parameters, or of some by their numbers."""
        parameters = range(len(self.names)) if parameters is None else parameters
        covers = [self.hybrid.covers(p, epoch) for p in parameters]
        layers = tuple(self.in_full if full else self.compressor for full in covers)
        return Message(tuple(self.names[p] for p in parameters), tuple(numels), layers)


@dataclass(frozen=True)
class Message:
    """How layers, each with its compressor, become one message, and back."""

    names: tuple[str, ...]
    numels: tuple[int, ...]
    layers: tuple[Compressor, ...]

    @cached_property
    def sizes(self) -> list[int]:
        """Bytes of each layer; 0 for empty ones."""
        return [c.message_bytes(n) if n else 0 for c, n in zip(self.layers, self.numels, strict=True)]

    @property
    def length(self) -> int:
        """M."""
        return sum(self.sizes)

    @property
    def lossless(self) -> bool:
        return all(c.lossless for c in self.layers)

    def compress(self, stacks: Sequence[Tensor], key: tuple, workers: Sequence[int]) -> Tensor:
        """(W, M) uint8 of stacks[p]: (W, n_p) float32. key: with the layer's name and the worker's number, what random
        numbers depend on."""
        parts = [
            c.compress(stack_Wxn, [(*key, name, w) for w in workers])
            for c, stack_Wxn, name in zip(self.layers, stacks, self.names, strict=True)
            if stack_Wxn.shape[1]
        ]
        return torch.cat(parts, dim=1) if parts else torch.empty(len(workers), 0, dtype=torch.uint8)

    def decompress(self, data_XxM: Tensor) -> Iterator[tuple[int, Tensor]]:
        """p and (X, n_p) float32 of one layer after the other, empty ones left out."""
        parts = data_XxM.split(self.sizes, dim=1)
        for p, (c, data, n) in enumerate(zip(self.layers, parts, self.numels, strict=True)):
            if n:
                yield p, c.decompress(data, n)
