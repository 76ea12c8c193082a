"""The CUDA backend: the kernels of custom_fp.cu, which compiled.py makes, launched by CuPy on torch's memory and
torch's current stream.

Same functions and same results as reference.py. Nothing is copied: kernels get the addresses of torch tensors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import cupy
import numpy as np
import torch
from torch import Tensor

from custom_fp import compiled, reference
from custom_fp.compiled import WAYS
from custom_fp.formats.scalar import Format
from custom_fp.rounding import Rule

KERNELS = (
    *(f"quantize_{rounding}_{size}" for rounding in WAYS for size in ("f32", "f64")),
    *(f"{kind}_{rounding}" for kind in ("accumulate", "pack", "accumulate_packed") for rounding in WAYS),
    *(f"scaled_{kind}_{rounding}" for kind in ("tiles", "runs", "whole") for rounding in WAYS),
    *(f"{kind}_{size}" for kind in ("encode", "decode") for size in (1, 4, 8)),
    *(
        "scale_f32",
        "put_addresses",
        "max_magnitude_f32",
        "max_magnitude_f64",
        "unpack",
        "hadamard",
        *(f"{kind}_{cut}" for kind in ("codebook", "affine") for cut in ("tiles", "runs", "whole")),
        *("scaled_decode", "scaled_decode_runs"),
        "matmul_plain",
        "matmul_kahan",
    ),
    *(f"dot_{rounding}" for rounding in WAYS),
    "add_at_once",
    *(f"table_quantize_{size}{way}" for size in ("f32", "f64") for way in ("", "_drawn")),
    *(
        f"table_{kind}_{way}"
        for kind in ("pack", "accumulate", "accumulate_packed")
        for way in ("plain", "drawn")
    ),
    *("table_encode_1", "table_encode_4", "table_decode_1", "table_decode_4", "table_decode_8"),
    *("table_unpack", "table_matmul"),
)
_THREADS = 256
FEW = 480  # tensors whose addresses a kernel takes with its arguments
_ADDRESSES = np.dtype([("first", np.uint64, FEW), ("table", np.uint64)])
HADAMARD_TILE = 4096  # values in a thread block's memory, as hadamard.cuh has it


@dataclass(frozen=True)
class _Stream:
    """All that CuPy asks of a stream to launch on it."""

    ptr: int


def launch(name: str, like: Tensor, grid: tuple[int, ...], *args: object) -> None:
    """Launch a kernel on the device of `like`, on torch's current stream there.

    The arguments are NumPy scalars and `addresses`, of the types that the kernel declares.
    """
    device = like.device.index
    stream = _Stream(torch.cuda.current_stream(like.device).cuda_stream)
    with cupy.cuda.Device(device):
        compiled.kernel(name, device)(grid, (_THREADS,), args, stream=stream)


def address(tensor: Tensor) -> np.uint64:
    return np.uint64(tensor.data_ptr())


def blocks(n: int, per_thread: int) -> tuple[int]:
    """Blocks for n elements; kernels stride over what 2**12 blocks leave, three waves and more of any GPU: what a
    thread works out first (a Rounder) then serves many elements: 33 PTX instructions an element of quantize, of 62."""
    return (max(1, min(-(-n // (_THREADS * per_thread)), 1 << 12)),)


def addresses(tensors: Sequence[Tensor]) -> tuple[np.ndarray, Tensor | None]:
    """Return the addresses of tensors as a kernel argument: the struct `Addresses` of csrc/custom_fp.cu, by value.

    CuPy passes a NumPy array by value only if its size is one, so the struct is one structured element.

    Args:
        tensors: tensors on one device. Up to FEW addresses fit in the struct. Of more, the struct holds the address of
            a table in device memory. Kernels fill that table from arguments of their own, so nothing waits, nothing is
            copied from the host, and a CUDA graph captures all of it.

    Returns:
        The struct, and the table if there is one. The caller keeps the table alive until it has launched its kernel.
    """
    struct = np.zeros(1, _ADDRESSES)
    if len(tensors) <= FEW:
        struct["first"][0, : len(tensors)] = [tensor.data_ptr() for tensor in tensors]
        return struct, None
    table = torch.empty(len(tensors), dtype=torch.int64, device=tensors[0].device)
    for start in range(0, len(tensors), FEW):
        some, _ = addresses(tensors[start : start + FEW])
        part = table[start : start + FEW]
        launch("put_addresses", table, (1,), some, address(part), np.int64(len(part)))
    struct["table"] = address(table)
    return struct, table


def _clamp(shift: int) -> np.int32:
    """Past 400 in either direction every float32 result is the same."""
    return np.int32(max(-400, min(400, shift)))


def quantize(x: Tensor, fmt: Format, rule: Rule, out: Tensor) -> None:
    n = x.numel()
    if n == 0:
        return
    name = f"quantize_{way(rule, fmt)}_{'f64' if x.dtype is torch.float64 else 'f32'}"
    grid = blocks(n, 8 if rule.is_stochastic else 4)
    args = (address(x), address(out), np.int64(n), np.uint32(fmt.spec), *told(rule))
    launch(name, x, grid, *args)


def way(rule: Rule, fmt: Format | None = None) -> str:
    """What a kernel's name says of a rule: three roundings have kernels to themselves, the others, and formats without
    a sign or a -0, share one (`otherwise` in csrc/custom_fp.h). fmt None: one with both."""
    is_plain = fmt is None or fmt.has_negative_zero
    is_own = rule.is_stochastic or (rule.rounding in WAYS and is_plain)
    return str(rule.rounding) if is_own and (rule.is_stochastic or not rule.propagates) else "otherwise"


def told(rule: Rule) -> tuple[np.int32, np.uint64, np.uint64, np.uint32]:
    """What a kernel is told: overflow and mode (`How` in csrc/custom_fp.cu), seed, offset, mask."""
    mode, overflow, seed, offset, mask = rule.flat
    return np.int32(mode << 8 | overflow), np.uint64(seed), np.uint64(offset), np.uint32(mask)


def scale_pow2(x: Tensor, shift: int, out: Tensor) -> None:
    n = x.numel()
    if x.dtype is torch.float64:
        reference.scale_pow2(x, shift, out)
    elif n:
        launch("scale_f32", x, blocks(n, 4), address(x), address(out), np.int64(n), _clamp(shift))


def max_exponent(x: Tensor) -> int | None:
    if x.numel() == 0:
        return None
    largest = torch.zeros((), dtype=torch.int64, device=x.device)
    name = "max_magnitude_f64" if x.dtype is torch.float64 else "max_magnitude_f32"
    launch(name, x, (min(blocks(x.numel(), 16)[0], 2048),), address(x), np.int64(x.numel()), address(largest))
    return reference.max_exponent(largest.view(torch.float64).cpu())


def accumulate(tensors: Sequence[Tensor], fmt: Format, kahan: bool, rule: Rule, out: Tensor) -> None:
    if any(tensor.dtype is torch.float64 for tensor in tensors):
        reference.accumulate(tensors, fmt, kahan, rule, out)
    elif out.numel():
        _accumulate("accumulate", tensors, fmt, out.numel(), 8 if rule.is_stochastic else 4, kahan, rule, out)


def accumulate_packed(
    payloads: Sequence[Tensor], fmt: Format, n: int, kahan: bool, rule: Rule, out: Tensor
) -> None:
    if n:
        _accumulate("accumulate_packed", payloads, fmt, n, 8, kahan, rule, out)


def _accumulate(
    kernel: str,
    terms: Sequence[Tensor],
    fmt: Format,
    n: int,
    per_thread: int,
    kahan: bool,
    rule: Rule,
    out: Tensor,
) -> None:
    (struct, _table), (how, *random) = addresses(terms), told(rule)
    args = (struct, np.int32(len(terms)), address(out), np.int64(n), np.uint32(fmt.spec))
    launch(f"{kernel}_{way(rule, fmt)}", out, blocks(n, per_thread), *args, how, np.int32(kahan), *random)


def encode(x: Tensor, fmt: Format, out: Tensor) -> None:
    n = x.numel()
    if x.dtype is torch.float64:
        reference.encode(x, fmt, out)
    elif n:
        args = (address(x), address(out), np.int64(n), np.uint32(fmt.spec))
        launch(f"encode_{out.element_size()}", x, blocks(n, 4), *args)


def decode(codes: Tensor, fmt: Format, out: Tensor) -> None:
    n = codes.numel()
    if codes.element_size() == 2:
        codes = codes.to(torch.int32)
    if n:
        args = (address(codes), address(out), np.int64(n), np.uint32(fmt.spec))
        launch(f"decode_{codes.element_size()}", codes, blocks(n, 4), *args)


def pack(x: Tensor, fmt: Format, shift: int, rule: Rule, out: Tensor) -> None:
    n = x.numel()
    if x.dtype is torch.float64:
        reference.pack(x, fmt, shift, rule, out)
    elif n:
        args = (address(x), address(out), np.int64(n), np.uint32(fmt.spec), _clamp(shift))
        launch(f"pack_{way(rule, fmt)}", x, blocks(n, 8), *args, *told(rule))


def unpack(data: Tensor, fmt: Format, shift: int, out: Tensor) -> None:
    n = out.numel()
    if n:
        args = (address(data), address(out), np.int64(n), np.uint32(fmt.spec), _clamp(shift))
        launch("unpack", data, blocks(n, 8), *args)


def hadamard(x: Tensor, size: int, seed: int | None, inverse: bool, out: Tensor) -> None:
    outer, length, inner = x.shape
    if size > HADAMARD_TILE:
        reference.hadamard(x, size, seed, inverse, out)
        return
    whole = length // size * size
    sizes = np.int64(outer), np.int64(length), np.int64(inner), np.int32(size)
    signs = np.int32(seed is not None), np.uint64((seed or 0) & (1 << 64) - 1)
    grid = blocks(outer * whole * inner, HADAMARD_TILE // _THREADS)
    launch("hadamard", x, grid, address(x), address(out), *sizes, np.int32(inverse), *signs)
    if whole < length:
        reference.write(x[:, whole:], out[:, whole:])


def matmul(a: Tensor, b: Tensor, fmt: Format, kahan: bool, out: Tensor) -> None:
    batch, rows, columns = out.shape
    depth = a.shape[-1]
    if out.numel() == 0:
        return
    if batch > 65535:
        raise ValueError(f"matmul on CUDA takes batches of at most 65535 matrices; got {batch}")
    launch(
        "matmul_kahan" if kahan else "matmul_plain",
        out,
        (-(-rows // 64) * -(-columns // 64), batch),
        address(a),
        address(b),
        address(out),
        np.int64(rows),
        np.int64(depth),
        np.int64(columns),
        np.int64(0 if a.shape[0] == 1 else rows * depth),
        np.int64(0 if b.shape[0] == 1 else depth * columns),
        np.uint32(fmt.spec),
    )
