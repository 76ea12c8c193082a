"""N workers in one process: the definition of a low-precision gradient sum, in tensor operations.

This is what the exchange between processes (`exchange.py`) must equal bit for bit; it packs nothing and sends nothing.

Per layer (one parameter tensor of n elements), with the gradients g_w of N workers:

    1. shift = rule(max|g|)               one power of two, agreed by all workers (`scaling.py`)
    2. q_w = Q(g_w * 2^shift)             one rounding of the exact product
    3. s = accumulate(q_0 .. q_{N-1})     each partial sum rounded to the format, in the recipe's order (`recipe.py`)
    4. result = s * 2^-shift              float32, one rounding (none unless it leaves float32's range)

NaN stays NaN where the format has one; inf, overflow, ties, subnormals and -0 are those of `custom_fp.quantize` and
`custom_fp.accumulate`. A layer of zeros gives zeros.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from cpdrun.comm.codec import accumulate, quantize_scaled, scale
from cpdrun.comm.recipe import Recipe
from cpdrun.comm.scaling import APS, Magnitudes, NoScaling, ScalingRule, largest_magnitude
from custom_fp import Format


def emulate_all_reduce(
    tensors: Sequence[Tensor],
    fmt: Format | str,
    *,
    aps: bool = False,
    kahan: bool = False,
    order: str = "rank",
    group_size: int | None = None,
    rounding: str = "nearest_even",
    overflow: str = "infinity",
    seed: int = 0,
) -> Tensor:
    """The sum of N equally shaped tensors as N machines form it; float32, of their shape. Inputs are not written.

    Bit for bit what `cpdrun.comm.all_reduce` gives on each of N ranks that pass one of the tensors each.
    """
    fmt = Format.parse(fmt) if isinstance(fmt, str) else fmt
    recipe = Recipe(fmt, order, group_size, kahan, rounding, overflow)
    stack_Nxn = torch.stack([tensor.detach().to(torch.float32).reshape(-1) for tensor in tensors])
    (result_n,), _ = emulate_layers([stack_Nxn], ["tensor"], recipe, APS() if aps else NoScaling())
    return result_n.reshape(tensors[0].shape)


def emulate_layers(
    stacks: Sequence[Tensor], names: Sequence[str], recipe: Recipe, rule: ScalingRule
) -> tuple[list[Tensor], list[list[int]]]:
    """Sums stacks[p], the (N, n_p) float32 gradients of layer p.

    Returns the (n_p,) sums and, for each group of the hierarchical order (one group in the other orders), the shift
    of each layer with which its workers' gradients were rounded.
    """
    if recipe.order != "hierarchical":
        sums, shifts = _sum_layers(stacks, names, recipe, rule)
        return sums, [shifts]
    group_sums, group_shifts = [], []
    for j, workers in enumerate(recipe.groups(len(stacks[0]))):
        members = [stack[workers.start : workers.stop] for stack in stacks]
        sums, shifts = _sum_layers(members, [f"{name}@group{j}" for name in names], recipe, rule)
        group_sums.append(sums)
        group_shifts.append(shifts)
    sums, _ = _sum_layers([torch.stack(sums) for sums in zip(*group_sums, strict=True)], names, recipe, rule)
    return sums, group_shifts


def _sum_layers(
    stacks: Sequence[Tensor], names: Sequence[str], recipe: Recipe, rule: ScalingRule
) -> tuple[list[Tensor], list[int]]:
    magnitudes = Magnitudes(lambda: [largest_magnitude(stack) for stack in stacks])
    shifts = rule.shifts(names, magnitudes, len(stacks[0]), recipe.fmt)
    return [_sum_layer(stack, shift, recipe) for stack, shift in zip(stacks, shifts, strict=True)], shifts


def _sum_layer(stack_Nxn: Tensor, shift: int, recipe: Recipe) -> Tensor:
    n_workers, numel = stack_Nxn.shape
    q_Nxn = quantize_scaled(stack_Nxn, shift, recipe)
    sums_n = torch.empty(numel, dtype=torch.float32, device=stack_Nxn.device)
    for start, stop, workers in recipe.spans(n_workers, numel, 0, numel):
        sums_n[start:stop] = accumulate([q_Nxn[w, start:stop] for w in workers], recipe)
    return scale(sums_n, -shift)
