"""Check a kernel's rounding of single values, and find a likely cause if the rounding is wrong."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

import custom_fp
from custom_fp.formats.protocol import NumberFormat
from custom_fp.formats.scalar import Format
from custom_fp.testing.failure import Cause, cause_lines

_LEAST_SHARE = 0.5


def check_quantize(
    got: Any,
    x: Any,
    fmt: NumberFormat | str,
    rounding: str,
    overflow: str,
    axis: int | None,
    seed: int | None,
) -> str | None:
    """Return a message that says what is wrong with the result, or None if the result is right."""
    fmt = custom_fp.parse(fmt)
    for name, tensor in (("got", got), ("x", x)):
        if not isinstance(tensor, Tensor) or not tensor.is_floating_point():
            kind = f"a tensor of {tensor.dtype}" if isinstance(tensor, Tensor) else type(tensor).__name__
            raise ValueError(f"{name} is {kind}; it must be a tensor of floating-point values")
    if got.shape != x.shape:
        raise ValueError(
            f"got has shape {tuple(got.shape)}, but x has shape {tuple(x.shape)}; they must be equal"
        )
    x = x.detach().cpu()
    x = x if x.dtype in (torch.float64, torch.float16, torch.bfloat16) else x.float()
    got = got.detach().cpu().float()
    rule: dict[str, Any] = {"rounding": rounding, "overflow": overflow, "axis": axis}
    if rounding.startswith("stochastic") and seed is None:
        if fmt.has_scales:
            raise ValueError(
                f"{fmt} has scales, so stochastic rounding can be checked only with a seed; pass seed=..."
            )
        ends = [
            custom_fp.quantize(x, fmt, **{**rule, "rounding": word})
            for word in ("toward_negative", "toward_positive")
        ]
        low, high = torch.fmin(*ends), torch.fmax(*ends)
        right = same_bits(got, low) | same_bits(got, high)
    else:
        low = high = custom_fp.quantize(x, fmt, **rule, seed=seed)
        right = same_bits(got, low)
    if right.all():
        return None
    return _message(got, x, fmt, rule, low, high, ~right)


def same_bits(x: Tensor, y: Tensor) -> Tensor:
    """Compare the bits of two float32 tensors, element by element. NaN equals NaN."""
    return (x.view(torch.int32) == y.view(torch.int32)) | (x.isnan() & y.isnan())


def _message(
    got: Tensor, x: Tensor, fmt: NumberFormat, rule: dict, low: Tensor, high: Tensor, wrong: Tensor
) -> str:
    distance = torch.where(wrong, (got.double() - low.double()).abs().nan_to_num(torch.inf), -1.0)
    worst = int(distance.argmax())
    index = tuple(int(i) for i in torch.unravel_index(torch.tensor(worst), x.shape))
    at = [t.flatten()[worst].item() for t in (got, x, low, high)]
    expected = f"{at[2]:.9g}" if same_bits(low, high).flatten()[worst] else f"{at[2]:.9g} or {at[3]:.9g}"
    count, total = int(wrong.sum()), wrong.numel()
    lines = [
        f"The result is not x rounded to {fmt} ({rule['rounding']}, overflow {rule['overflow']})!",
        "",
        f"Mismatched elements: {count} / {total} ({100 * count / total:.1f}%)",
        f"Worst element: {at[0]:.9g} at index {index}, where x is {at[1]:.9g}",
        f"Expected there: {expected}{_steps(at[0], at[2], fmt)}",
    ]
    causes = [
        Cause(text, matches[wrong].double().mean().item()) for text, matches in _causes(got, x, fmt, rule)
    ]
    best = max(causes, key=lambda cause: cause.share)
    return "\n".join([*lines, *cause_lines(best if best.share >= _LEAST_SHARE else None)])


def _steps(got: float, expected: float, fmt: NumberFormat) -> str:
    """Return text that gives the distance in units in the last place, or "" for long formats, tables and NaN."""
    if not isinstance(fmt, Format) or got != got or expected != expected or fmt.bits > 16:
        return ""
    values = torch.tensor(fmt.values(), dtype=torch.float64)
    values = values[~values.isnan()].unique()
    at = [int(torch.searchsorted(values, v)) for v in torch.tensor([got, expected], dtype=torch.float64)]
    if any(i >= len(values) or values[i] != v for i, v in zip(at, (got, expected), strict=True)):
        return f" (got is not a value of {fmt})"
    steps = abs(at[0] - at[1])
    return (
        f", {steps} unit{'s' * (steps != 1)} in the last place away" if steps else ", which differs in sign"
    )


def _causes(got: Tensor, x: Tensor, fmt: NumberFormat, rule: dict) -> Iterator[tuple[str, Tensor]]:
    """Yield hypotheses, each with a mask of the elements at which it reproduces the kernel's result."""

    def rounded(x: Tensor, fmt: NumberFormat = fmt, **other: Any) -> Tensor:
        return custom_fp.quantize(x, fmt, **{**rule, "seed": 0, **other})

    expected = rounded(x)
    yield "the result is x itself, which was not rounded", got == x.float()
    if not fmt.has_scales:
        yield "the sign of zero was lost", (got == 0) & same_bits(rounded(x.abs()), got)
        for word, text in {
            "saturate": "values past the largest one were saturated instead of becoming infinity or NaN",
            "infinity": "values past the largest one became infinity or NaN instead of being saturated",
            "propagate": "infinite inputs were kept, and finite ones were saturated",
        }.items():
            if word != rule["overflow"]:
                yield text, same_bits(rounded(x, overflow=word), got)
        if isinstance(fmt, Format) and fmt.smallest_normal is not None:
            small = expected.abs() < fmt.smallest_normal
            for zero, text in ((torch.copysign(torch.zeros_like(expected), expected), "zero"), (0.0, "+0")):
                yield (
                    f"subnormal results were flushed to {text}",
                    same_bits(torch.where(small, zero, expected), got),
                )
    for word, text in {
        "nearest_away": "ties were rounded away from zero instead of to even",
        "toward_zero": "values were rounded toward zero (truncated)",
        "toward_positive": "values were rounded up",
        "toward_negative": "values were rounded down",
        "nearest_even": "values were rounded to nearest even",
    }.items():
        if word != rule["rounding"]:
            try:
                yield text, same_bits(rounded(x, rounding=word), got)
            except ValueError:
                continue  # some formats with scales do not support all rounding modes
    for name in ("bf16", "fp16", "tf32", "fp32"):
        if name != "fp32" or x.dtype == torch.float64:
            twice = rounded(custom_fp.quantize(x, name))
            yield f"values were rounded to {name} first (double rounding)", same_bits(twice, got)
    smallest = 2.0**-14 if x.dtype == torch.float16 else 2.0**-126
    flushed = rounded(torch.where(x.abs() < smallest, torch.zeros_like(x), x))
    yield "subnormal inputs were flushed to zero", same_bits(flushed, got)
    yield "NaN became 0", same_bits(rounded(torch.nan_to_num(x, 0.0)), got) & x.isnan()
    yield "NaN became another value", x.isnan() & ~got.isnan()
    for power in (-4, -3, -2, -1, 1, 2, 3, 4):
        text = f"the scale is wrong: the result is 2^{power} times the expected one"
        yield text, same_bits(expected * 2.0**power, got)
    if fmt.has_scales:
        yield from _other_scales(got, x, fmt, {**rule, "seed": 0})


def _other_scales(got: Tensor, x: Tensor, fmt: NumberFormat, rule: dict) -> Iterator[tuple[str, Tensor]]:
    """Yield hypotheses about the scales: blocks that run along another axis, or another rule that chooses scales."""
    for axis in [None, *range(x.dim())]:
        if axis != rule["axis"]:
            where = "the order in memory" if axis is None else f"dimension {axis}"
            other = custom_fp.quantize(x, fmt, **{**rule, "axis": axis})
            yield f"blocks run along {where}", same_bits(other, got)
    for suffix in ("floor", "rceil", "ceil", "nearest", "even", "amax", "4over6"):
        try:
            other = custom_fp.quantize(x, f"{fmt.name}_{suffix}", **rule)
        except ValueError:
            continue
        yield f"scales were chosen by the rule {suffix}", same_bits(other, got)
