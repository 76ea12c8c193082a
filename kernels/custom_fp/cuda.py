"""The CUDA backend for formats without scales. It launches the kernels of csrc/custom_fp.cu, which nvrtc.py compiles.

The functions have the same arguments and results as those in reference.py. CuPy launches the kernels on PyTorch's
memory and current stream. Kernels receive the addresses of PyTorch tensors, so nothing is copied.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import cupy
import numpy as np
import torch
from torch import Tensor

from custom_fp import nvrtc, reference
from custom_fp.formats.scalar import Format
from custom_fp.formats.tabulated_format import Tabulated
from custom_fp.nvrtc import MODES
from custom_fp.rounding import Overflow, Rounding, Rule
from custom_fp.tabulated.step_arrays import table_of

_TABLE_MODES = ("plain", "random")
KERNELS = (
    *(f"quantize_{mode}_{size}" for mode in MODES for size in ("f32", "f64")),
    *(f"table_quantize_{mode}_{size}" for mode in _TABLE_MODES for size in ("f32", "f64")),
    *(
        f"{table}{kind}_{mode}"
        for table, modes in (("", MODES), ("table_", _TABLE_MODES))
        for kind in ("accumulate", "pack", "accumulate_packed")
        for mode in modes
    ),
    *(f"accumulate_bytes_{mode}" for mode in MODES),
    *(f"scaled_{kind}_{mode}" for kind in ("tiles", "runs", "whole") for mode in MODES),
    *(f"{kind}_{size}" for kind in ("encode", "decode", "table_decode") for size in (1, 4, 8)),
    *("table_encode_1", "table_encode_4", "unpack", "table_unpack"),
    *("scale_f32", "put_addresses", "max_magnitude_f32", "max_magnitude_f64", "hadamard"),
    *(f"{kind}_{size}" for kind in ("codebook", "affine") for size in ("tiles", "runs", "whole")),
    *("scaled_decode", "scaled_decode_runs"),
    *("matmul_plain", "matmul_kahan", "table_matmul"),
    *(f"dot_{mode}" for mode in MODES),
    "fused_sum",
)
_THREADS = 256
FEW = 480  # the most tensors whose addresses fit in the arguments of a kernel
_ADDRESSES = np.dtype([("first", np.uint64, FEW), ("table", np.uint64)])
HADAMARD_TILE = 4096  # values in the shared memory of a thread block: hadamard_tile in hadamard.cuh
NEAREST = Rule()


# ---- launching -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Stream:
    """A stand-in for a CuPy stream. It has only `ptr`, which CuPy reads when it launches a kernel."""

    ptr: int


def launch(name: str, like: Tensor, grid: tuple[int, ...], *args: object) -> None:
    """Launch a kernel on the device of `like`, on PyTorch's current stream there.

    The arguments are NumPy scalars or the result of `addresses`. Their types are those that the kernel declares.
    """
    device = like.device.index
    stream = _Stream(torch.cuda.current_stream(like.device).cuda_stream)
    with cupy.cuda.Device(device):
        nvrtc.kernel(name, device)(grid, (_THREADS,), args, stream=stream)


def address(tensor: Tensor) -> np.uint64:
    return np.uint64(tensor.data_ptr())


def blocks(n: int, per_thread: int) -> tuple[int]:
    """Return the number of thread blocks for n elements: enough to process all at once, but at most 2**12.

    With more elements, each thread processes several of them, so what they share (a Rounder) is computed only once.
    """
    return (max(1, min(-(-n // (_THREADS * per_thread)), 1 << 12)),)


def addresses(tensors: Sequence[Tensor]) -> tuple[np.ndarray, Tensor | None]:
    """Return the addresses of tensors as a kernel argument: the struct `Addresses` of csrc/custom_fp.cu, by value.

    CuPy passes a NumPy array by value only if the array has one element, so the struct is one structured element.

    Args:
        tensors: Tensors on the same device. Up to FEW addresses are stored in the struct itself. For more tensors, the
            struct contains the address of a table in device memory, which kernels fill from their arguments. Nothing is
            copied from the host, so there is no synchronization, and a CUDA graph can capture the launch.

    Returns:
        The struct and the table, or None instead of the table if there is none. The caller must keep the table alive
        until it has launched its kernel.
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


# ---- arguments of kernels --------------------------------------------------------------------------------------------


def mode_name(rule: Rule, fmt: Format | None = None) -> str:
    """Return the rounding mode as it appears in the name of a kernel.

    Three rounding modes have their own kernels. Other rounding modes, and formats without a sign or without -0, share
    the kernels named "otherwise" (`template_of` in csrc/custom_fp.h). If fmt is None, a format with both is assumed.
    """
    is_plain = fmt is None or fmt.has_negative_zero
    has_kernels = rule.is_stochastic or (rule.rounding in MODES and is_plain and not rule.propagates)
    return str(rule.rounding) if has_kernels else "otherwise"


def rule_args(rule: Rule) -> tuple[np.int32, np.uint64, np.uint64, np.uint32]:
    """Return the kernel arguments of a rule: `RoundingMode` (csrc/custom_fp.cu), seed, offset and mask."""
    mode, overflow, seed, offset, mask = rule.flat
    return np.int32(mode << 8 | overflow), np.uint64(seed), np.uint64(offset), np.uint32(mask)


@dataclass(frozen=True)
class _Arguments:
    """The parts of kernel names and arguments that depend on the format, the rule and the device."""

    prefix: str
    """The prefix of the kernel names, "" or "table_"."""
    mode: str
    """The rounding mode in the kernel names."""
    format: tuple[Any, ...]
    """The format alone, for encode, decode and unpack."""
    rounding: tuple[Any, ...]
    """The format and how to round to it."""
    random: tuple[Any, ...]
    """The seed, the offset and the mask of random bits."""


def _arguments(fmt: Format | Tabulated, like: Tensor, rule: Rule = NEAREST) -> _Arguments:
    packed, *random = rule_args(rule)
    if isinstance(fmt, Format):
        spec = np.uint32(fmt.spec)
        return _Arguments("", mode_name(rule, fmt), (spec,), (spec, packed), tuple(random))
    device = str(like.device)
    table = address(table_of(fmt, rule.rounding, rule.overflow, device))
    nearest = address(table_of(fmt, Rounding.NEAREST_EVEN, Overflow.INFINITY, device))
    mode = "random" if rule.is_stochastic else "plain"
    return _Arguments("table_", mode, (nearest,), (table, nearest), tuple(random))


def _shift(shift: int) -> np.int32:
    """Limit a shift to -400 to 400. A larger shift gives the same float32 results as the limit."""
    return np.int32(max(-400, min(400, shift)))


def _is_wide(x: Tensor) -> bool:
    return x.dtype is torch.float64


# ---- operators -------------------------------------------------------------------------------------------------------


def quantize(x: Tensor, fmt: Format | Tabulated, rule: Rule, out: Tensor) -> None:
    if n := x.numel():
        a = _arguments(fmt, x, rule)
        name = f"{a.prefix}quantize_{a.mode}_{'f64' if _is_wide(x) else 'f32'}"
        grid = blocks(n, 8 if rule.is_stochastic else 4)
        launch(name, x, grid, address(x), address(out), np.int64(n), *a.rounding, *a.random)


def scale_pow2(x: Tensor, shift: int, out: Tensor) -> None:
    n = x.numel()
    if _is_wide(x):
        reference.scale_pow2(x, shift, out)
    elif n:
        launch("scale_f32", x, blocks(n, 4), address(x), address(out), np.int64(n), _shift(shift))


def max_exponent(x: Tensor) -> int | None:
    return reference.max_exponent(largest_magnitude(x).cpu()) if x.numel() else None


def largest_magnitude(x: Tensor) -> Tensor:
    """Return the largest finite magnitude of a nonempty float32 or float64 tensor, as a float64 scalar tensor."""
    bits = torch.zeros((), dtype=torch.int64, device=x.device)
    name = "max_magnitude_f64" if _is_wide(x) else "max_magnitude_f32"
    launch(name, x, (min(blocks(x.numel(), 16)[0], 2048),), address(x), np.int64(x.numel()), address(bits))
    return bits.view(torch.float64)


def accumulate(
    tensors: Sequence[Tensor], fmt: Format | Tabulated, kahan: bool, rule: Rule, out: Tensor
) -> None:
    if any(map(_is_wide, tensors)):
        reference.accumulate(tensors, fmt, kahan, rule, out)
    elif n := out.numel():
        _accumulate("accumulate", tensors, fmt, n, 8 if rule.is_stochastic else 4, kahan, rule, out)


def accumulate_packed(
    payloads: Sequence[Tensor], fmt: Format | Tabulated, n: int, kahan: bool, rule: Rule, out: Tensor
) -> None:
    if n:
        as_bytes = _adds_bytes((*payloads, out), fmt, kahan, rule)
        kernel = "accumulate_bytes" if as_bytes else "accumulate_packed"
        per_thread = 32 if as_bytes and rule.is_stochastic else 8
        _accumulate(kernel, payloads, fmt, n, per_thread, kahan, rule, out)


def _adds_bytes(tensors: Sequence[Tensor], fmt: Format | Tabulated, kahan: bool, rule: Rule) -> bool:
    """Return whether csrc/byte_sums.cuh can add these tensors. It is faster than accumulate_packed."""
    if not isinstance(fmt, Format) or fmt.bits != 8 or fmt.exponent_bits > 5 or not fmt.has_negative_zero:
        return False
    has_kernel = rule.rounding is not Rounding.NEAREST_EVEN or not rule.propagates
    is_aligned = all(tensor.data_ptr() % 8 == 0 for tensor in tensors) and rule.offset % 4 == 0
    return has_kernel and is_aligned and not kahan


def _accumulate(
    kernel: str,
    terms: Sequence[Tensor],
    fmt: Format | Tabulated,
    n: int,
    per_thread: int,
    kahan: bool,
    rule: Rule,
    out: Tensor,
) -> None:
    struct, _table = addresses(terms)
    a = _arguments(fmt, out, rule)
    args = struct, np.int32(len(terms)), address(out), np.int64(n), *a.rounding, np.int32(kahan), *a.random
    launch(f"{a.prefix}{kernel}_{a.mode}", out, blocks(n, per_thread), *args)


def encode(x: Tensor, fmt: Format | Tabulated, out: Tensor) -> None:
    if _is_wide(x):
        reference.encode(x, fmt, out)
    elif n := x.numel():
        a = _arguments(fmt, x)
        name = f"{a.prefix}encode_{out.element_size()}"
        launch(name, x, blocks(n, 4), address(x), address(out), np.int64(n), *a.format)


def decode(codes: Tensor, fmt: Format | Tabulated, out: Tensor) -> None:
    codes = codes.to(torch.int32) if codes.element_size() == 2 else codes
    if n := codes.numel():
        a = _arguments(fmt, codes)
        name = f"{a.prefix}decode_{codes.element_size()}"
        launch(name, codes, blocks(n, 4), address(codes), address(out), np.int64(n), *a.format)


def pack(x: Tensor, fmt: Format | Tabulated, shift: int, rule: Rule, out: Tensor) -> None:
    if _is_wide(x):
        reference.pack(x, fmt, shift, rule, out)
    elif n := x.numel():
        a = _arguments(fmt, x, rule)
        args = address(x), address(out), np.int64(n), *a.rounding, _shift(shift), *a.random
        launch(f"{a.prefix}pack_{a.mode}", x, blocks(n, 8), *args)


def unpack(data: Tensor, fmt: Format | Tabulated, shift: int, out: Tensor) -> None:
    if n := out.numel():
        a = _arguments(fmt, data)
        args = address(data), address(out), np.int64(n), *a.format, _shift(shift)
        launch(f"{a.prefix}unpack", data, blocks(n, 8), *args)


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


def matmul(a: Tensor, b: Tensor, fmt: Format | Tabulated, kahan: bool, out: Tensor) -> None:
    batch, rows, columns = out.shape
    if out.numel() == 0:
        return
    format_args = _arguments(fmt, out).format
    if isinstance(fmt, Tabulated):
        args = *product_args(a, b, out), *format_args, np.int32(kahan)
        launch("table_matmul", out, blocks(out.numel(), 1), *args)
        return
    if batch > 65535:
        raise ValueError(f"on CUDA, matmul allows batches of at most 65535 matrices, but got {batch}")
    a_address, b_address, to, _, *sizes = product_args(a, b, out)
    grid = -(-rows // 64) * -(-columns // 64), batch
    args = a_address, b_address, to, *sizes, *format_args
    launch("matmul_kahan" if kahan else "matmul_plain", out, grid, *args)


def product_args(a: Tensor, b: Tensor, out: Tensor) -> tuple[Any, ...]:
    """Return the operands of a batch of matrix products as kernel arguments.

    The arguments are the addresses of a, b and out, the sizes batch, M, K and N, and the distances in elements from one
    matrix to the next, for a and for b. A distance is 0 if the whole batch shares one matrix.
    """
    batch, rows, columns = out.shape
    depth = a.shape[-1]
    steps = 0 if a.shape[0] == 1 else rows * depth, 0 if b.shape[0] == 1 else depth * columns
    return *map(address, (a, b, out)), *map(np.int64, (batch, rows, depth, columns, *steps))
