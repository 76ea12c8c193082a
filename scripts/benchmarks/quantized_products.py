"""Time products of rounded operands as a share of torch.mm's rate, beside torchao, microxcaling and gfloat.

    python scripts/benchmarks/quantized_products.py                        # 1024^3, one thread
    python scripts/benchmarks/quantized_products.py --threads 2 --output results/reference/numerics/products.md
    PYTHONPATH=<a copy of github.com/microsoft/microxcaling> python scripts/benchmarks/quantized_products.py

The calls of a table are timed in turns and the fastest turn of each counts (numerics.py). `share` is the time of
the table's first row, float32 without rounding, over that of the row: 60 % means that the product runs at .6 of
torch.mm's rate, the rounding of its operands included. Others round as they are called for in training: torchao's
to_mx and to_nvfp4 and back to float32, microxcaling's quantize_mx_op on the CPU, gfloat's quantize_block on a 64th of
the values (its time is multiplied). What is not installed is left out, and said.
"""

import argparse
import importlib
import platform
from collections.abc import Callable
from pathlib import Path

import custom_fp
import torch
from numerics import Calls, optional, time_in_turns
from torch import Tensor, nn

OURS = ("bf16", "e4m3fn", "fp8_tensor", "int8_channel", "mxfp8_e4m3", "mxfp4", "nvfp4", "nf4_b64")
RECIPES = ("bf16", "fp8_tensorwise", "fp8_block128", "mxfp8", "nvfp4", "mxfp4_hadamard_sr", "int8")
GFLOAT_PART = 64  # of the values


def known(names: tuple[str, ...]) -> list[str]:
    found = []
    for name in names:
        try:
            found.append(str(custom_fp.parse(name)))
        except ValueError:
            print(f"{name} is no format of this custom_fp and was not timed.")
    return found


def others() -> dict[str, Callable[[Tensor], object]]:
    """By library and format, what rounds a tensor in blocks of its last dimension."""
    found: dict[str, Callable[[Tensor], object]] = {}
    if optional("torchao"):
        mx = importlib.import_module("torchao.prototype.mx_formats.mx_tensor").MXTensor
        nv = importlib.import_module("torchao.prototype.mx_formats.nvfp4_tensor").NVFP4Tensor
        found["torchao mxfp8_e4m3"] = lambda x: mx.to_mx(x, torch.float8_e4m3fn, 32).dequantize(torch.float32)
        found["torchao nvfp4"] = lambda x: nv.to_nvfp4(x).dequantize(torch.float32)
    if optional("mx.mx_ops"):
        ops, specs = importlib.import_module("mx.mx_ops"), importlib.import_module("mx.specs")
        settings = specs.finalize_mx_specs(
            specs.MxSpecs()
            | {"block_size": 32, "scale_bits": 8, "w_elem_format": "fp8_e4m3", "custom_cuda": False}
        )
        found["microxcaling mxfp8_e4m3"] = lambda x: ops.quantize_mx_op(
            x, settings, elem_format="fp8_e4m3", axes=[-1]
        )
    return found


def products(x: Tensor, w: Tensor, names: list[str]) -> Calls:
    """x w^T, without gradients."""
    calls: Calls = {"torch.mm": lambda: torch.mm(x, w.t())}
    for name in names:
        layer = linear(w, name)
        calls[f"custom_fp {name}"] = lambda layer=layer: layer(x)
    for name, rounded in others().items():
        calls[name] = lambda rounded=rounded: torch.mm(rounded(x), rounded(w).t())
    return {name: without_gradients(call) for name, call in calls.items()}


def training(x: Tensor, w: Tensor, names: list[str]) -> Calls:
    """The three products of a Linear layer, every operand rounded, each along what its product sums over."""
    error = torch.randn(x.shape[0], w.shape[0])

    def step(layer: nn.Module) -> Callable[[], None]:
        source = x.clone().requires_grad_()

        def run() -> None:
            source.grad = layer.weight.grad = None
            layer(source).backward(error)

        return run

    plain = nn.Linear(w.shape[1], w.shape[0], bias=False)
    plain.weight.data.copy_(w)
    return {"torch.nn.Linear": step(plain)} | {f"QuantLinear {name}": step(linear(w, name)) for name in names}


def recipes(size: int) -> Calls:
    """A step, forward and backward, of seven Linear layers; some recipes leave the last one in bf16."""
    x = torch.randn(size, size)

    def step(model: nn.Module) -> Callable[[], None]:
        def run() -> None:
            model.zero_grad()
            model(x).sum().backward()

        return run

    def layers() -> nn.Module:
        return nn.Sequential(*(nn.Linear(size, size, bias=False) for _ in range(7)))

    calls: Calls = {"no recipe": step(layers())}
    for name in RECIPES:
        custom_fp.apply_recipe(model := layers(), name)
        calls[f"recipe {name}"] = step(model)
    return calls


def roundings(x: Tensor, names: list[str]) -> Calls:
    """Of one operand, into an existing tensor where a library can."""
    out = torch.empty_like(x)
    calls: Calls = {"torch copy_": lambda: out.copy_(x)}
    for name in names:
        for axis in (1, 0):
            calls[f"custom_fp {name}, axis {axis}"] = lambda name=name, axis=axis: custom_fp.quantize(
                x, name, axis=axis, out=out
            )
    calls |= {name: lambda rounded=rounded: rounded(x) for name, rounded in others().items()}
    return {name: without_gradients(call) for name, call in calls.items()}


def linear(w: Tensor, name: str) -> nn.Module:
    layer = custom_fp.QuantLinear(w.shape[1], w.shape[0], bias=False, operands=name, gradients=name)
    layer.weight.data.copy_(w)
    return layer


def without_gradients(call: Callable[[], object]) -> Callable[[], None]:
    def run() -> None:
        with torch.no_grad():
            call()

    return run


def gfloat_seconds(x: Tensor) -> float | None:
    """Of quantize_block, mxfp8_e4m3, on all of x."""
    if not (gfloat := optional("gfloat")):
        return None
    info = importlib.import_module("gfloat.formats").format_info_mxfp8_e4m3
    blocks = x.flatten()[: x.numel() // GFLOAT_PART].double().view(-1, 32).numpy()

    def run() -> None:
        for block in blocks:
            gfloat.quantize_block(info, block, gfloat.compute_scale_amax)

    return time_in_turns({"gfloat": run}, "cpu", 1)["gfloat"] * GFLOAT_PART


def table(title: str, seconds: dict[str, float]) -> list[str]:
    first = next(iter(seconds.values()))
    rows = [f"| {title} | ms | share |", "| --- | ---: | ---: |"]
    rows += [f"| {name} | {t * 1e3:.2f} | {first / t:.0%} |" for name, t in seconds.items()]
    return [*rows, ""]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", type=int, default=1024, help="of the square operands")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()

    torch.manual_seed(0)
    torch.set_num_threads(options.threads)
    n, names = options.size, known(OURS)
    x, w = torch.randn(n, n), torch.randn(n, n) * n**-0.5
    lines = [
        f"{platform.processor() or platform.machine()}, torch {torch.__version__}, {options.threads} thread(s), "
        f"backend {custom_fp.backend()}",
        "",
    ]
    lines += table(f"forward product, {n}^3", time_in_turns(products(x, w, names), "cpu", options.repeats))
    lines += table(
        f"three products, {n}^3 each", time_in_turns(training(x, w, names), "cpu", options.repeats)
    )
    by_recipe = time_in_turns(recipes(n // 2), "cpu", options.repeats)
    lines += table(f"seven layers, {n // 2}^3 each product", by_recipe)
    seconds = time_in_turns(roundings(x, names), "cpu", options.repeats)
    if (by_gfloat := gfloat_seconds(x)) is not None:
        seconds["gfloat mxfp8_e4m3"] = by_gfloat
    lines += table(f"one operand, {n} x {n}", seconds)
    lines += [
        f"{name} is not installed and was not timed."
        for name, module in (("torchao", "torchao"), ("microxcaling", "mx"), ("gfloat", "gfloat"))
        if optional(module) is None
    ]
    text = "\n".join(lines)
    print(text)
    if options.output:
        options.output.parent.mkdir(parents=True, exist_ok=True)
        options.output.write_text(text.rstrip() + "\n")


if __name__ == "__main__":
    main()
