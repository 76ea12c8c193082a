"""Validate the arguments of `assert_matmul` and convert them to batches of float32 matrices on the CPU.

Shapes: Z matrices of a batch, M rows, N columns, K terms, S scales of blocks of K, G groups of K, E elements.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

import custom_fp
from custom_fp.accumulator import Accumulator, read
from custom_fp.accumulators.encodings import Operands, find
from custom_fp.backends import function
from custom_fp.formats.protocol import NumberFormat
from custom_fp.formats.scalar import Format

OUTPUT_FORMATS = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}
_INPUTS = (
    *OUTPUT_FORMATS,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.float8_e4m3fnuz,
    torch.float8_e5m2fnuz,
)

Place = tuple[Tensor, Tensor, Tensor]
"""The batch indices, rows and columns of some elements, one tensor each."""


@dataclass(frozen=True)
class Problem:
    """A matrix product and the result of a kernel for it."""

    got: Tensor
    """(Z, M, N): the kernel's result, in the kernel's output dtype."""
    a: Tensor
    """(Z, M, K) float32: the values that the machine multiplies, before any scale of the whole tensor."""
    bt: Tensor
    """(Z, N, K) float32: the transpose of b."""
    a_exponents: Tensor | None
    """(Z, M, S) int32: the exponents of a's block scales, or None if the machine's operands have no block scales."""
    b_exponents: Tensor | None
    """(Z, N, S) int32: the same for b."""
    how: Accumulator
    """The accumulator that models the machine."""
    names: tuple[str, ...]
    """The name of each factor."""
    factors: tuple[Tensor, ...]
    """The factors of the result, in float32. Each can be broadcast to (Z, M, N)."""
    group_scales: tuple[Tensor, Tensor] | None
    """(Z, M, G) and (Z, N, G) float32: the scales of groups of terms, or None."""
    unit: int
    """The number of terms that a split must keep together: a block of the machine, a chunk, or a group."""
    parts: tuple[int, ...] | None
    """The number of terms in each part of K, or None if every split is allowed."""
    places: Place
    """The batch indices, rows and columns of the original result that this problem contains."""
    shape: torch.Size
    """The shape of the original result."""

    @property
    def depth(self) -> int:
        return self.a.shape[-1]

    @property
    def dtype(self) -> torch.dtype:
        return self.got.dtype

    @property
    def output(self) -> Format:
        return Format.parse(OUTPUT_FORMATS[self.dtype])

    def submatrix(self, elements: int, generator: torch.Generator | None = None) -> Problem:
        """Return a smaller problem of about `elements` elements.

        Its rows and columns are chosen at random, one from each of equally wide strips.
        """
        z, m, n = self.got.shape
        if z * m * n <= elements:
            return self
        batches = min(z, max(1, elements // 256))
        side = max(1, math.isqrt(elements // batches))
        rows = min(m, max(side, elements // batches // max(1, n)))
        columns = min(n, max(1, elements // batches // rows))
        picked = [
            _strips(total, count, generator) for total, count in ((z, batches), (m, rows), (n, columns))
        ]
        return self.select(*picked)

    def select(self, z: Tensor, rows: Tensor, columns: Tensor) -> Problem:
        """Return the problem of the given batch indices, rows and columns."""

        def of(x: Tensor, *indices: Tensor) -> Tensor:
            for dimension, index in enumerate(indices):
                x = x.index_select(dimension, index) if x.shape[dimension] > 1 else x
            return x

        return replace(
            self,
            got=of(self.got, z, rows, columns),
            a=self.a[z][:, rows],
            bt=self.bt[z][:, columns],
            a_exponents=None if self.a_exponents is None else self.a_exponents[z][:, rows],
            b_exponents=None if self.b_exponents is None else self.b_exponents[z][:, columns],
            factors=tuple(of(x, z, rows, columns) for x in self.factors),
            group_scales=self.group_scales
            and (self.group_scales[0][z][:, rows], self.group_scales[1][z][:, columns]),
            places=(self.places[0][z], self.places[1][rows], self.places[2][columns]),
        )

    def index(self, z: int, row: int, column: int) -> tuple[int, ...]:
        """Return the index of an element in the tensor that was passed to the check."""
        place = [int(p[i]) for p, i in zip(self.places, (z, row, column), strict=True)]
        batch = []
        for size in reversed(self.shape[:-2]):
            batch.append(place[0] % size)
            place[0] //= size
        return (*reversed(batch), place[1], place[2])

    def chain(self, first: int, last: int, how: Accumulator | None = None) -> Tensor:
        """Return the machine's sum of terms first to last - 1, added in ascending order, of shape (Z, M, N)."""
        how = how or self.how
        a, b = self.a[..., first:last].contiguous(), self.bt[..., first:last].mT.contiguous()
        if self.a_exponents is None or self.b_exponents is None or not how.scales:
            return custom_fp.matmul(a, b, accumulator=how)
        scales = slice(first // how.scales, -(-last // how.scales))
        exponents = self.a_exponents[..., scales].contiguous(), self.b_exponents[..., scales].mT.contiguous()
        out = torch.empty(self.got.shape)
        function("product", Accumulator.BACKENDS, "cpu")(Operands(a, b, *exponents), how, how.rule, out)
        return out


def read_problem(got: Any, a: Any, b: Any, machine: Any, k_split: Any, scale_a: Any, scale_b: Any) -> Problem:
    """Return the problem that the arguments of `assert_matmul` describe, or raise ValueError."""
    for name, x, allowed in (("got", got, OUTPUT_FORMATS), ("a", a, _INPUTS), ("b", b, _INPUTS)):
        if not isinstance(x, Tensor) or x.dtype not in allowed:
            kinds = ", ".join(str(dtype).removeprefix("torch.") for dtype in allowed)
            raise ValueError(f"{name} is {_kind(x)}; it must be a tensor of one of the dtypes {kinds}")
        if x.dim() < 2:
            raise ValueError(f"{name} has shape {tuple(x.shape)}; it must have at least 2 dimensions")
    if a.shape[-1] != b.shape[-2]:
        raise ValueError(f"a has {a.shape[-1]} columns but b has {b.shape[-2]} rows; they must be equal")
    if a.shape[-1] == 0:
        raise ValueError("a has no columns; it must have at least one")
    try:
        batch = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    except RuntimeError:
        raise ValueError(
            f"the batch dimensions of a and b, {tuple(a.shape[:-2])} and {tuple(b.shape[:-2])}, "
            "cannot be broadcast to one shape"
        ) from None
    shape = torch.Size((*batch, a.shape[-2], b.shape[-1]))
    if got.shape != shape:
        raise ValueError(f"got has shape {tuple(got.shape)}, but a @ b has shape {tuple(shape)}")
    how = _accumulator(machine)
    formats: Any = how.operands or (None, None)
    a3, b3 = (
        x.detach().cpu().float().expand(*batch, *x.shape[-2:]).reshape(-1, *x.shape[-2:]) for x in (a, b)
    )
    factors: list[tuple[str, Tensor]] = []
    exponents: tuple[Tensor | None, Tensor | None] = (None, None)
    if how.scales:
        found_a, found_b = find(a3, formats[0], 2, how), find(b3.contiguous(), formats[1], 1, how)
        a3, b3 = found_a.values, found_b.values
        exponents = found_a.scales, found_b.scales.mT
        if found_a.of_tensor is not None and found_b.of_tensor is not None:
            factors.append(("the tensors' scales", (found_a.of_tensor * found_b.of_tensor).view(1, 1, 1)))
    else:
        for name, x, fmt in zip("ab", (a3, b3), formats, strict=True):
            if isinstance(fmt, Format) and not _has_values_of(x, fmt):
                raise ValueError(
                    f"{name} has values that {fmt}, the input format of {how}, does not represent; "
                    f"round them first, with custom_fp.quantize({name}, {fmt.name!r})"
                )
    z, m, n = len(a3), shape[-2], shape[-1]
    depth = a3.shape[-1]
    scales = [
        _scale("scale_a", scale_a, (*batch, m), batch),
        _scale("scale_b", scale_b, (*batch, n), batch, True),
    ]
    groups = max([x.shape[-1] for x in scales if x is not None], default=1)
    group_scales, unit = None, how.chunk or how.block
    if groups > 1:
        group = _group(depth, groups, unit)
        if how.chunk not in (None, group):
            raise ValueError(
                f"a scale covers {group} terms, but {how} adds chunks of {how.chunk}; they must be equal"
            )
        ones = torch.ones(z, 1, groups)
        s_a, s_b = (ones if x is None else x for x in scales)
        group_scales = s_a.expand(z, m, groups), s_b.expand(z, n, groups)
        unit, how = group, replace(how, chunk=None)
    else:
        factors += [("scale_a", scales[0])] if scales[0] is not None else []
        factors += [("scale_b", scales[1].mT)] if scales[1] is not None else []
    places = torch.arange(z), torch.arange(m), torch.arange(n)
    parts = _parts(k_split, depth, unit)
    got = got.detach().cpu().reshape(z, m, n)
    bt = b3.mT.contiguous()
    names, values = tuple(name for name, _ in factors), tuple(x for _, x in factors)
    return Problem(got, a3, bt, *exponents, how, names, values, group_scales, unit, parts, places, shape)


def _accumulator(machine: Any) -> Accumulator:
    if not isinstance(machine, str | NumberFormat | Accumulator):
        raise ValueError(f"machine is {machine!r}; it must be a name such as 'h100_bf16', or an Accumulator")
    how, kahan = read(machine)
    how = how if isinstance(how, Accumulator) else Accumulator(how, kahan=kahan)  # type: ignore[arg-type]
    for fmt in how.roundings:
        if not getattr(fmt, "is_signed", True):
            raise ValueError(
                f"machine is {how}, which sums in the unsigned format {fmt}; choose a signed format"
            )
    return how


def _kind(x: Any) -> str:
    return f"a tensor of {str(x.dtype).removeprefix('torch.')}" if isinstance(x, Tensor) else type(x).__name__


def _has_values_of(x: Tensor, fmt: NumberFormat) -> bool:
    rounded = custom_fp.quantize(x, fmt)
    return bool(((rounded == x) | x.isnan()).all())


def _scale(
    name: str, scale: Any, lead: tuple[int, ...], batch: torch.Size, last: bool = False
) -> Tensor | None:
    """Return a scale in float32, or None if `scale` is None.

    `scale` is a number or has shape (..., M, G), or (..., G, N) with `last`. Rows come first in the result, which has
    shape (Z, M, G), (Z, N, G) with `last`, or (1, 1, 1) for a number.
    """
    if scale is None:
        return None
    x = torch.as_tensor(scale, dtype=torch.float32).detach().cpu()
    if x.dim() == 0:
        return x.view(1, 1, 1)
    allowed = "a number, or a tensor of shape " + ("(..., groups, N)" if last else "(..., M, groups)")
    if x.dim() < 2:
        raise ValueError(f"{name} has shape {tuple(x.shape)}; it must be {allowed}")
    x = x.mT if last else x
    try:
        return x.expand(*lead, x.shape[-1]).reshape(-1, lead[-1], x.shape[-1])
    except RuntimeError:
        raise ValueError(
            f"{name} has shape {tuple(torch.as_tensor(scale).shape)}; it must be {allowed}"
        ) from None


def _group(depth: int, groups: int, unit: int) -> int:
    """Return how many terms each of `groups` scales covers. A power of two is preferred."""
    fitting = [g for g in range(-(-depth // groups), depth) if g % unit == 0 and -(-depth // g) == groups]
    if not fitting:
        raise ValueError(
            f"{groups} scales do not divide {depth} terms into groups of whole blocks of {unit} terms"
        )
    return min(fitting, key=lambda g: (g & (g - 1) != 0, g))


def _parts(k_split: Any, depth: int, unit: int) -> tuple[int, ...] | None:
    """Return the number of terms in each part of K, or None if every split is allowed."""
    if k_split == "any":
        return None
    if isinstance(k_split, int) and not isinstance(k_split, bool) and k_split >= 1:
        return equal_parts(k_split, depth, unit)
    if isinstance(k_split, tuple | list) and k_split and all(isinstance(n, int) and n > 0 for n in k_split):
        if sum(k_split) != depth:
            raise ValueError(
                f"the parts in k_split have {sum(k_split)} terms together, but a has {depth} terms"
            )
        if any(n % unit for n in k_split[:-1]):
            raise ValueError(
                f"k_split is {k_split}; every part but the last must be a multiple of {unit} terms"
            )
        return tuple(k_split)
    raise ValueError(
        f"k_split is {k_split!r}; it must be 'any', a number of equal parts, or a list of the lengths of the parts"
    )


def equal_parts(count: int, depth: int, unit: int) -> tuple[int, ...]:
    """Divide K into at most `count` parts of equally many whole units. The last part may be shorter."""
    units = math.ceil(depth / unit)
    length = math.ceil(units / count) * unit
    return tuple(min(length, depth - start) for start in range(0, depth, length))


def _strips(total: int, count: int, generator: torch.Generator | None) -> Tensor:
    """Choose `count` of `total` indices: the first, the last, and a random one from each strip in between."""
    if count >= total:
        return torch.arange(total)
    starts = torch.arange(count) * total // count
    ends = torch.cat([starts[1:], torch.tensor([total])])
    drawn = starts + (torch.rand(count, generator=generator) * (ends - starts)).long()
    if count >= 2:
        drawn[0], drawn[-1] = 0, total - 1
    return drawn
