"""Initial weights, and optionally the state of the optimizer, from a file (`init_from=PATH`, `init_optimizer=true`).

The file contains a state dict: written by torch.save and loaded with weights_only=True, or a .safetensors file, as
torchvision and timm provide them. In many checkpoints, including ours, the dict is stored under `state_dict` or
`model`. Prefixes that wrappers add to every name (module., _orig_mod.) are removed. A model of ours that only wraps
another model (net.) accepts names without that prefix.

All names must match. A name that is missing, unexpected or has another shape is an error unless a pattern of
`init_skip` matches it. The batch counters of normalization layers may be missing, as in files from before torch 0.4.1.

The state of the optimizer is stored under `optimizer` or `optimizer_state_dict`, as `torch.optim.Optimizer.state_dict`
returns it. Only the state is loaded. The settings, such as the weight decay, are those of the run.
"""

import json
import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

T = TypeVar("T")

PLACES = ("state_dict", "model", "model_state_dict")
OPTIMIZER_PLACES = ("optimizer", "optimizer_state_dict")
WRAPPERS = ("module.", "_orig_mod.")
MAY_BE_ABSENT = "num_batches_tracked"
LISTED = 3  # the largest number of names of each kind in a message
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
    """Settings for loading initial weights.

    Attributes:
        path: The file.
        digest: The expected SHA-256 of the file, or None to accept any.
        into: The submodule that gets the weights, such as "net.backbone", or None for the whole model.
        skip: Glob patterns of names that are not loaded.
    """

    path: Path
    digest: str | None
    into: str | None
    skip: Sequence[str]

    def load_into(self, model: nn.Module) -> None:
        """Copy the file's values to the model's parameters and buffers, converted to their dtypes.

        Raises:
            ValueError: The file cannot be read, has another digest, or does not match the model.
        """
        state = self._read(_state_dict)
        target = _target(model, self.into, state)
        own = target.state_dict()
        for pattern in self.skip:
            if not any(fnmatchcase(name, pattern) for name in (*state, *own)):
                raise ValueError(f"init_skip: {pattern!r} matches no name of {self.path} or of the model")
        mine = {name: value for name, value in own.items() if not self._skipped(name)}
        given = {name: value for name, value in state.items() if not self._skipped(name)}
        if problem := _differences(mine, given):
            raise ValueError(
                f"{self.path} does not match the model: {problem}; init_skip=['fc.*'] skips names"
            )
        with torch.no_grad():
            for name, value in given.items():
                mine[name].copy_(value)

    def load_into_optimizer(self, optimizer: Optimizer) -> None:
        """Copy the file's optimizer state to an optimizer of the same kind and with the same parameters.

        Raises:
            ValueError: The file cannot be read, has another digest, or its state does not fit the optimizer.
        """
        saved, own = self._read(_optimizer_state), optimizer.state_dict()
        if problem := _optimizer_differences(optimizer, saved):
            raise ValueError(f"{self.path}: {problem}. Type init_optimizer=false")
        optimizer.load_state_dict({"state": saved["state"], "param_groups": own["param_groups"]})

    def _read(self, part: Callable[[object], T]) -> T:
        """Return a part of the file's content. Raises ValueError if the file cannot be read or has no such part."""
        try:
            return part(self._content())
        except OSError as error:
            raise ValueError(
                f"{self.path} cannot be read: {error.strerror or type(error).__name__}"
            ) from None
        except (RuntimeError, ValueError, EOFError, KeyError, pickle.UnpicklingError) as error:
            reason = " ".join(str(error).split(". ")[0].split())
            raise ValueError(
                f"{self.path} is not a state dict written by torch.save or safetensors ({reason})"
            ) from None

    def _content(self) -> object:
        data = self.path.read_bytes()
        if self.digest is not None and sha256(data).hexdigest() != self.digest:
            raise ValueError(
                "it has changed since the run was planned, or init_sha256 belongs to another file"
            )
        if self.path.suffix == ".safetensors":
            return dict(_safetensors(data))
        return torch.load(self.path, map_location="cpu", weights_only=True)

    def _skipped(self, name: str) -> bool:
        return any(fnmatchcase(name, pattern) for pattern in self.skip)


def _safetensors(data: bytes) -> Iterator[tuple[str, Tensor]]:
    """Yield names and tensors of a safetensors file: a u64 length, a JSON header of that length, then all values.

    The format is described at huggingface.co/docs/safetensors.
    """
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
    """Return the state dict in the file's content, without the prefixes that wrappers add to every name."""
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
    raise ValueError("it contains no mapping of names to tensors, nor one under " + ", ".join(PLACES))


def _optimizer_state(content: object) -> dict[str, Any]:
    """Return the state dict of the optimizer in the file's content."""
    found = [content.get(place) for place in OPTIMIZER_PLACES] if isinstance(content, Mapping) else []
    for state in found:
        if isinstance(state, dict) and state.keys() >= {"state", "param_groups"}:
            return state
    raise ValueError("it contains no optimizer state under " + ", ".join(OPTIMIZER_PLACES))


def _optimizer_differences(optimizer: Optimizer, saved: Mapping[str, Any]) -> str:
    """Describe why a saved state does not fit an optimizer, or return "" if it fits.

    The kind of an optimizer is recognized by its settings, because a state dict does not name the class.
    """
    kind, groups = type(optimizer).__name__, saved["param_groups"]
    missing = set(optimizer.defaults) - set(groups[0] if groups else ())
    if missing:
        return f"its optimizer is no {kind}: it has no setting {', '.join(sorted(missing))}"
    sizes = [len(group["params"]) for group in groups]
    own = [len(group["params"]) for group in optimizer.param_groups]
    if sizes != own:
        return f"its optimizer has parameter groups of {sizes} parameters, the run's has groups of {own}"
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    for i, state in saved["state"].items():
        for name, value in state.items():
            if isinstance(value, Tensor) and value.dim() and value.shape != parameters[i].shape:
                return f"{name} of parameter {i} is {_shape(value)}, the parameter {_shape(parameters[i])}"
    return ""


def _target(model: nn.Module, into: str | None, state: Mapping[str, Tensor]) -> nn.Module:
    """Return the module that gets the weights: the named submodule, the model, or the only model that it wraps."""
    if into is not None:
        try:
            return model.get_submodule(into)
        except AttributeError:
            names = ", ".join(name for name, _ in model.named_modules() if name.count(".") < 2 and name)
            raise ValueError(f"init_into={into} is not a part of the model. Its parts: {names}") from None
    inner = list(model.children())
    if len(inner) == 1 and not list(model.parameters(recurse=False)):
        fits = len(state.keys() & inner[0].state_dict().keys())
        if fits > len(state.keys() & model.state_dict().keys()):
            return inner[0]
    return model


def _differences(mine: Mapping[str, Tensor], given: Mapping[str, Tensor]) -> str:
    """Describe the differences between two state dicts, or return "" if there are none.

    Example: `2 names are missing (fc.weight, fc.bias), 1 name is unexpected (head.bias)`
    """
    missing = [name for name in mine if name not in given and not name.endswith(MAY_BE_ABSENT)]
    unexpected = [name for name in given if name not in mine]
    misshapen = [
        f"{name} is {_shape(given[name])}, in the model {_shape(mine[name])}"
        for name in given
        if name in mine and given[name].shape != mine[name].shape
    ]
    kinds = (("missing", missing), ("unexpected", unexpected), ("of another shape", misshapen))
    return ", ".join(_describe(kind, names) for kind, names in kinds if names)


def _describe(kind: str, names: Sequence[str]) -> str:
    some = ", ".join(names[:LISTED]) + (", ..." if len(names) > LISTED else "")
    return f"{len(names)} {'name is' if len(names) == 1 else 'names are'} {kind} ({some})"


def _shape(x: Tensor) -> str:
    return "x".join(map(str, x.shape)) or "a scalar"
