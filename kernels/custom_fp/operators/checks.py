"""Check the arguments of operators, and compute the shapes and dtypes of encoded tensors."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from custom_fp.formats.protocol import NumberFormat

_WIDE = (torch.float32, torch.float64)
_NARROW = (torch.float16, torch.bfloat16)


def describe(x: object) -> str:
    """Return the type of an argument for an error message."""
    return f"a tensor of {x.dtype}" if isinstance(x, Tensor) else type(x).__name__


def check_float(x: object) -> None:
    """Raise TypeError unless x is a floating-point tensor that operators accept."""
    if not isinstance(x, Tensor) or (x.dtype not in _WIDE and x.dtype not in _NARROW):
        raise TypeError(f"expected a float32, float64, float16 or bfloat16 tensor; got {describe(x)}")
    check_dense(x)


def check_dense(x: Tensor) -> None:
    """Raise TypeError if x is a nested tensor, is sparse, or has an MKL-DNN layout."""
    if x.is_nested:
        raise TypeError(
            "expected a dense tensor; got a nested tensor; call torch.nested.to_padded_tensor(x, 0.0) first"
        )
    if x.layout is not torch.strided:
        raise TypeError(f"expected a dense tensor; got layout {x.layout}; call to_dense() first")


def check_integer(name: str, value: object) -> None:
    """Raise TypeError unless an argument is an integer or a symbolic integer of torch.compile."""
    if type(value) is int or isinstance(value, torch.SymInt):
        return
    try:
        operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise TypeError(f"{name} is {value!r}; it must be an integer") from None


def check_axis(axis: object, x: Tensor | Sequence[int]) -> int | None:
    """Return an axis of a tensor, or of a shape, as a nonnegative index. None stays None."""
    if axis is None:
        return None
    if not isinstance(axis, int) or isinstance(axis, bool):
        raise TypeError(f"axis is {axis!r}; it must be an integer or None")
    shape = list(x.shape if isinstance(x, Tensor) else x)
    if not shape:
        raise ValueError(f"axis is {axis}, but the tensor has no dimensions; allowed: None")
    if not -len(shape) <= axis < len(shape):
        raise ValueError(
            f"axis is {axis}; allowed for shape {shape}: {-len(shape)} to {len(shape) - 1}, or None"
        )
    return axis % len(shape)


def check_codes(encoded: Sequence[object], fmt: NumberFormat, axis: int | None = None) -> None:
    """Raise TypeError or ValueError unless `encoded` can be the result of `encode`: codes, followed by any scales."""
    x = encoded[0]
    if not isinstance(x, Tensor) or x.dtype.is_floating_point or x.dtype.is_complex or x.dtype is torch.bool:
        raise TypeError(f"decode requires integer codes; got {describe(x)}")
    check_dense(x)
    if fmt.has_scales and x.dtype is not torch.uint8:
        raise TypeError(f"decode requires uint8 codes for {fmt}; got {describe(x)}")
    expected = scale_shapes(fmt, x.shape, axis)
    if len(encoded) != 1 + len(expected):
        third = "zero points" if fmt.has_zero_point else "the tensor's scale"
        needed = ("codes alone", "codes and scales", f"codes, scales and {third}")[len(expected)]
        raise ValueError(f"decode requires {needed} of {fmt}; got {len(encoded)} tensors")
    for scales, (shape, dtype) in zip(encoded[1:], expected, strict=True):
        if not isinstance(scales, Tensor) or scales.dtype is not dtype or scales.shape != tuple(shape):
            what = "zero points" if scales is not encoded[1] and fmt.has_zero_point else "scales"
            number = f"{math.prod(shape)} {what}" if shape else "one tensor's scale"
            along = "" if len(shape) < 2 and axis is None else f" of shape {list(shape)}"
            raise ValueError(
                f"for {x.numel()} values of {fmt}, decode requires {number} of {dtype}{along}; got {describe(scales)}"
                + (f" of shape {list(scales.shape)}" if isinstance(scales, Tensor) else "")
            )


def check_terms(what: str, tensors: Sequence[Tensor]) -> None:
    """Raise ValueError unless there is at least one tensor, and all tensors have the same device and shape."""
    if not tensors:
        raise ValueError(f"{what} requires at least one tensor; got none")
    first = tensors[0]
    for tensor in tensors[1:]:
        if tensor.device != first.device:
            raise ValueError(f"{what} requires tensors on one device; got {first.device} and {tensor.device}")
        if tensor.shape != first.shape:
            raise ValueError(
                f"{what} requires tensors of one shape; got {list(first.shape)} and {list(tensor.shape)}"
            )


def check_bytes(
    what: str, data: object, shape: int | Sequence[int], fmt: NumberFormat, axis: int | None = None
) -> None:
    """Raise TypeError or ValueError unless `data` can be the packed values of a tensor of this shape."""
    if not isinstance(data, Tensor) or data.dtype is not torch.uint8:
        raise TypeError(f"{what} requires packed bytes of dtype uint8; got {describe(data)}")
    check_dense(data)
    size = fmt.packed_size(shape, axis)
    if data.dim() != 1 or data.numel() != size:
        n = shape if isinstance(shape, int) else math.prod(shape)
        raise ValueError(
            f"{what} requires {size} bytes for {n} values of {fmt}; got a tensor of shape {list(data.shape)}"
        )


def check_matrices(a: Tensor, b: Tensor) -> None:
    """Raise TypeError or ValueError unless a and b are matrices, or batches of matrices, that can be multiplied."""
    given: tuple[object, ...] = a, b
    for x in given:
        if not isinstance(x, Tensor) or x.dtype not in (torch.float32, *_NARROW):
            raise TypeError(f"matmul requires float32, float16 or bfloat16 tensors; got {describe(x)}")
        check_dense(x)
        if x.dim() < 2:
            raise ValueError(f"matmul requires matrices or batches of matrices; got shape {list(x.shape)}")
    if a.device != b.device:
        raise ValueError(f"matmul requires tensors on one device; got {a.device} and {b.device}")
    if a.shape[-1] != b.shape[-2]:
        raise ValueError(
            f"matrices of shapes {list(a.shape)} and {list(b.shape)} cannot be multiplied; "
            "the columns of the first must equal the rows of the second"
        )


def code_dtype(fmt: NumberFormat) -> torch.dtype:
    """Return the dtype of a format's codes. Codes are never negative."""
    if fmt.code_bits <= 8:
        return torch.uint8
    return torch.int32 if fmt.code_bits < 32 else torch.int64


def scale_dtype(fmt: NumberFormat) -> torch.dtype:
    """Return the dtype of encoded scales: uint8 for scales of 8 bits, and otherwise float32."""
    return torch.float32 if fmt.scale_bits == 32 else torch.uint8


def scale_shapes(
    fmt: NumberFormat, shape: Sequence[int], axis: int | None = None
) -> list[tuple[tuple[int, ...], torch.dtype]]:
    """Return the shape and dtype of each tensor that `encode` returns after the codes.

    These are the scales of the blocks, followed by the zero points or by the scale of the tensor if the format has
    them.
    """
    if not fmt.has_scales:
        return []
    found = [(fmt.layout(shape, axis).shape, scale_dtype(fmt))]
    if fmt.has_zero_point:
        return [*found, (found[0][0], torch.uint8)]
    return [*found, ((), torch.float32)] if fmt.has_tensor_scale else found


def dense(x: Tensor) -> Tensor:
    """Return x as a contiguous tensor without PyTorch's lazy negation bit, so that its memory contains its values."""
    x = x if x.is_contiguous() else x.contiguous()
    return x.resolve_neg() if x.is_neg() else x


def as_source(x: Tensor) -> Tensor:
    """Return x in the form that backends require: dense, and float32 or float64. Smaller dtypes are widened exactly."""
    if x.dtype is torch.float32 and x.is_contiguous() and not x.is_neg():
        return x
    return dense(x.float() if x.dtype in _NARROW else x)


def check_out(out: object, shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> None:
    """Raise TypeError or ValueError unless `out` has the shape, dtype and device of the result."""
    if not isinstance(out, Tensor) or out.dtype is not dtype:
        raise TypeError(f"out must be a tensor of {dtype}; got {describe(out)}")
    check_dense(out)
    if out.shape != tuple(shape) or out.device != device:
        raise ValueError(
            f"out must have shape {list(shape)} on {device}; got {list(out.shape)} on {out.device}"
        )


def can_be_written(out: Tensor, inputs: Sequence[Tensor]) -> bool:
    """Return whether a backend may write its result directly to `out`.

    It may not if `out` is not dense. It also may not if `out` is an input other than the first one, because a backend
    still reads these inputs while it writes.

    Raises:
        RuntimeError: `out` shares a part of its memory with an input. PyTorch's own operators also raise this error.
    """
    for x in inputs:
        if _overlaps_partly(out, x):
            raise RuntimeError(
                "out overlaps an input in memory without being the same tensor; call clone() on one of them first"
            )
    is_read_later = len(inputs) > 1 and any(x.data_ptr() == out.data_ptr() for x in inputs[1:])
    return out.is_contiguous() and not out.is_neg() and not is_read_later


def _overlaps_partly(a: Tensor, b: Tensor) -> bool:
    """Return whether two tensors share memory without being the same view.

    Return False for tensors with gaps, because their elements may interleave without sharing memory.
    """
    start_a, start_b = a.data_ptr(), b.data_ptr()
    distance = start_b - start_a if start_a <= start_b else start_a - start_b
    if distance >= _extent(a if start_a <= start_b else b) or a.device != b.device:
        return False
    if distance == 0 and (a.dtype, a.shape, a.stride()) == (b.dtype, b.shape, b.stride()):
        return False
    if a.numel() == 0 or b.numel() == 0:
        return False
    return all(_extent(x) == x.nbytes for x in (a, b))


def _extent(x: Tensor) -> int:
    """Return the number of bytes from the start of the first element of x to the end of the last element."""
    if x.is_contiguous():
        return x.nbytes
    last = sum((size - 1) * stride for size, stride in zip(x.shape, x.stride(), strict=True))
    return (last + 1) * x.element_size()


def check_seed(seed: Any) -> int | None:
    """Return a seed as the signed 64-bit integer that operators require. None stays None.

    Like torch.manual_seed, this function accepts any signed or unsigned 64-bit integer.
    """
    if seed is None:
        return None
    try:
        # operator.index is called only if necessary, because torch.compile would make its result a constant.
        number = seed if type(seed) is int else operator.index(seed)
    except TypeError:
        raise TypeError(f"seed is {seed!r}; it must be an integer or None") from None
    if not -(1 << 63) <= number < 1 << 64:
        raise ValueError(f"seed is {number}; allowed: -2**63 to 2**64 - 1")
    return number if number < 1 << 63 else number - (1 << 64)
