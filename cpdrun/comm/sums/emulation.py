"""N workers in one process: the definition of a low-precision gradient sum, in tensor operations.

This is what the exchange between processes (`exchange.py`) must equal bit for bit; it packs nothing and
sends nothing.

Per layer (one parameter tensor of n elements), with the gradients g_w of N workers:

    1. shift = rule(max|g|)            one power of two, agreed by all workers (`scaling.py`)
    2. q_w = Q(g_w * 2^shift)          one rounding of the exact product
    3. s = accumulate(q_0 .. q_{N-1})  each partial sum rounded to the format, in the recipe's order
    4. result = s * 2^-shift           float32, one rounding (none unless it leaves float32's range)

NaN stays NaN where the format has one; inf, overflow, ties, subnormals and -0 are those of
`custom_fp.quantize` and `custom_fp.accumulate`. A layer of zeros gives zeros.
"""

from collections.abc import Sequence

import torch
from custom_fp.checks import check_float, check_terms
from custom_fp.formats.names import AnyFormat
from torch import Tensor

from cpdrun.comm.sums.codec import Draw, accumulate, quantize_scaled, scale
from cpdrun.comm.sums.recipe import AUTO, Level, Recipe
from cpdrun.comm.sums.requantised import Requantised, emulate, recipe_for
from cpdrun.comm.sums.scaling import (
    APS,
    Magnitudes,
    NoScaling,
    ScalingRule,
    largest_magnitude,
    shifts_of_level,
)


def emulate_all_reduce(
    tensors: Sequence[Tensor],
    fmt: AnyFormat | str,
    *,
    aps: bool = False,
    kahan: bool = False,
    order: str = "rank",
    group_size: int | str | None = AUTO,
    rounding: str = "nearest_even",
    overflow: str = "infinity",
    seed: int = 0,
) -> Tensor:
    """The sum of N equally shaped tensors as N machines form it: float32, of their shape.

    Bit for bit what `cpdrun.comm.all_reduce` gives on each of N ranks that pass one of the tensors each. Raises
    TypeError where one is not floating point, ValueError for none, for unequal shapes, and as `all_reduce` does.
    """
    check_terms("emulate_all_reduce", tensors)
    for tensor in tensors:
        check_float(tensor)
    recipe = recipe_for(
        fmt,
        order=order,
        group_size=group_size,
        kahan=kahan,
        rounding=rounding,
        overflow=overflow,
        scaled=aps,
        n_workers=len(tensors),
    )
    if isinstance(recipe, Requantised):
        return emulate([tensor.detach().to(torch.float32) for tensor in tensors], recipe)
    stack_Nxn = torch.stack([tensor.detach().to(torch.float32).reshape(-1) for tensor in tensors])
    rule = APS() if aps else NoScaling()
    (result_n,), _, _ = emulate_layers([stack_Nxn], ["0"], recipe, rule, key=(seed,))
    return result_n.reshape(tensors[0].shape)


def emulate_layers(
    stacks: Sequence[Tensor], names: Sequence[str], recipe: Recipe, rule: ScalingRule, *, key: tuple = ()
) -> tuple[list[Tensor], list[list[int]], int]:
    """Sums stacks[p], the (N, n_p) float32 gradients of layer p.

    key: what stochastic rounding depends on besides a layer's name, a worker and an element, such as (seed,
    step). Returns the (n_p,) sums; for each group of the order's first level (one group in rank and ring
    order) the shift of each layer with which its workers' gradients were rounded; and how many magnitudes the
    workers agreed on.
    """
    if recipe.order == "native":
        return [stack.sum(0) for stack in stacks], [[0] * len(stacks)], 0
    shifts_of_workers: list[list[int]] = []
    agreed = 0
    for level in recipe.levels(len(stacks[0])):
        stacks, shifts, asked = _add_level(stacks, names, level, recipe, rule, key)
        shifts_of_workers = shifts_of_workers or shifts
        agreed += asked
    return [stack[0] for stack in stacks], shifts_of_workers, agreed


def _add_level(
    stacks: Sequence[Tensor],
    names: Sequence[str],
    level: Level,
    recipe: Recipe,
    rule: ScalingRule,
    key: tuple,
) -> tuple[list[Tensor], list[list[int]], int]:
    """The sums of the level's G groups, (G, n_p) of each layer, their shifts, how many magnitudes were agreed on."""
    members = [[stack[group.start : group.stop] for stack in stacks] for group in level.groups]
    magnitudes = Magnitudes(lambda: [largest_magnitude(rows) for of_group in members for rows in of_group])
    shifts = shifts_of_level(rule, level, names, magnitudes, recipe.fmt)
    sums = [
        [
            rows[0] if level.passes_on(j) else _sum_layer(rows, shift, recipe.at(level), (*key, name))
            for rows, shift, name in zip(of_group, shifts[j], level.names(names, j), strict=True)
        ]
        for j, of_group in enumerate(members)
    ]
    if len(sums) == 1:
        return [total[None] for total in sums[0]], shifts, magnitudes.agreed
    return [torch.stack(of_layer) for of_layer in zip(*sums, strict=True)], shifts, magnitudes.agreed


def _sum_layer(stack_Nxn: Tensor, shift: int, recipe: Recipe, key: tuple) -> Tensor:
    n_workers, numel = stack_Nxn.shape
    stochastic = recipe.rounding == "stochastic"
    if recipe.unrounded:
        rows = stack_Nxn.unbind()
    elif stochastic:
        rows = [
            quantize_scaled(grad_n, shift, recipe, Draw((*key, "worker", w)))
            for w, grad_n in enumerate(stack_Nxn)
        ]
    else:
        rows = quantize_scaled(stack_Nxn, shift, recipe).unbind()
    sum_n = torch.empty(numel, dtype=torch.float32, device=stack_Nxn.device)
    for start, stop, workers in recipe.spans(n_workers, numel, 0, numel):
        draw = Draw((*key, "sum", 0), start) if stochastic else None
        whole = stop - start == numel
        terms = [rows[w] if whole else rows[w][start:stop] for w in workers]
        sum_n[start:stop] = accumulate(terms, recipe, draw)
    return scale(sum_n, -shift)
