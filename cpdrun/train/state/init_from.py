"""Initial weights from a file: `init_from=PATH`.

The file is what torch.save wrote of a state dict, loaded with weights_only=True, or a .safetensors file, as torchvision
and timm give them. Where the dict lies under `state_dict` or `model`, as in many checkpoints and in ours, that one is
taken. Prefixes that wrappers add to every name (module., _orig_mod.) are taken off, and a model of ours that holds
another one whole (net.) takes names without that prefix.

All names must fit: what the file lacks, has too much or has in another shape is an error, unless a pattern of
`init_skip` names it. Counts of batches that a norm has seen may be absent, as in files of before torch 0.4.1.
"""

import json
import pickle
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from hashlib import sha256
from pathlib import Path

import torch
from torch import Tensor, nn

PLACES = ("state_dict", "model", "model_state_dict")
WRAPPERS = ("module.", "_orig_mod.")
MAY_BE_ABSENT = "num_batches_tracked"
NAMED = 3  # names of each kind in a message
SAFETENSORS = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}


@dataclass(frozen=True)
class InitFrom:
    """What a run's config says of it: the file, its SHA-256, the part of the model that takes it ("net.backbone"; None:
    the whole), and glob patterns of names that are left as they are."""

    path: Path
    digest: str | None
    into: str | None
    skip: Sequence[str]

    def load_into(self, model: nn.Module) -> None:
        """Copies the file's values into the model's parameters and buffers, in their dtypes.

        Raises ValueError, in one line, for a file that cannot be read, is another than planned, or does not fit.
        """
        try:
            state = _state_dict(self._content())
        except OSError as error:
            raise ValueError(
                f"{self.path} cannot be read: {error.strerror or type(error).__name__}"
            ) from None
        except (RuntimeError, ValueError, EOFError, KeyError, pickle.UnpicklingError) as error:
            reason = " ".join(str(error).split(". ")[0].split())
            raise ValueError(
                f"{self.path} is no state dict that torch.save or safetensors wrote ({reason})"
            ) from None
        target = _target(model, self.into, state)
        own = target.state_dict()
        for pattern in self.skip:
            if not any(fnmatchcase(name, pattern) for name in (*state, *own)):
                raise ValueError(f"init_skip: {pattern!r} matches no name of {self.path} or of the model")
        mine = {name: value for name, value in own.items() if not self._skipped(name)}
        given = {name: value for name, value in state.items() if not self._skipped(name)}
        if problem := _differences(mine, given):
            raise ValueError(
                f"{self.path} does not fit the model: {problem}; init_skip=['fc.*'] leaves names out"
            )
        with torch.no_grad():
            for name, value in given.items():
                mine[name].copy_(value)

    def _content(self) -> object:
        data = self.path.read_bytes()
        if self.digest is not None and sha256(data).hexdigest() != self.digest:
            raise ValueError("it has changed since the run was planned, or init_sha256 is another file's")
        if self.path.suffix == ".safetensors":
            return dict(_safetensors(data))
        return torch.load(self.path, map_location="cpu", weights_only=True)

    def _skipped(self, name: str) -> bool:
        return any(fnmatchcase(name, pattern) for pattern in self.skip)


def _safetensors(data: bytes) -> Iterator[tuple[str, Tensor]]:
    """The format of huggingface.co/docs/safetensors: u64 length, a JSON header of that many bytes, then all values."""
    start = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:start])
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        first, end = entry["data_offsets"]
        dtype = SAFETENSORS[entry["dtype"]]
        shape = entry["shape"]
        values = bytearray(data[start + first : start + end])
        yield (
            name,
            (torch.frombuffer(values, dtype=dtype) if values else torch.empty(0, dtype=dtype)).view(shape),
        )


def _state_dict(content: object) -> dict[str, Tensor]:
    """Names and tensors, without what wrappers put before every name."""
    places = [content, *(content.get(place) for place in PLACES)] if isinstance(content, Mapping) else []
    for found in places:
        if (
            isinstance(found, Mapping)
            and found
            and all(isinstance(value, Tensor) for value in found.values())
        ):
            state = {str(name): value for name, value in found.items()}
            for wrapper in WRAPPERS:
                if all(name.startswith(wrapper) for name in state):
                    state = {name.removeprefix(wrapper): value for name, value in state.items()}
            return state
    raise ValueError("it holds no mapping of names to tensors, nor one under " + ", ".join(PLACES))


def _target(model: nn.Module, into: str | None, state: Mapping[str, Tensor]) -> nn.Module:
    """The module that takes the file: the one named, or the model, or the one that it holds whole."""
    if into is not None:
        try:
            return model.get_submodule(into)
        except AttributeError:
            there = ", ".join(name for name, _ in model.named_modules() if name.count(".") < 2 and name)
            raise ValueError(f"init_into={into} is no part of the model; there are {there}") from None
    inner = list(model.children())
    if len(inner) == 1 and not list(model.parameters(recurse=False)):
        fits = len(state.keys() & inner[0].state_dict().keys())
        if fits > len(state.keys() & model.state_dict().keys()):
            return inner[0]
    return model


def _differences(mine: Mapping[str, Tensor], given: Mapping[str, Tensor]) -> str:
    """`2 names are missing (fc.weight, fc.bias), 1 is unexpected (head.bias)`; "" where all fit."""
    missing = [name for name in mine if name not in given and not name.endswith(MAY_BE_ABSENT)]
    unexpected = [name for name in given if name not in mine]
    misshapen = [
        f"{name} is {_shape(given[name])}, the model's {_shape(mine[name])}"
        for name in given
        if name in mine and given[name].shape != mine[name].shape
    ]
    kinds = (("missing", missing), ("unexpected", unexpected), ("of another shape", misshapen))
    return ", ".join(_told(kind, names) for kind, names in kinds if names)


def _told(kind: str, names: Sequence[str]) -> str:
    some = ", ".join(names[:NAMED]) + (", ..." if len(names) > NAMED else "")
    return f"{len(names)} {'name is' if len(names) == 1 else 'names are'} {kind} ({some})"


def _shape(x: Tensor) -> str:
    return "x".join(map(str, x.shape)) or "a scalar"
