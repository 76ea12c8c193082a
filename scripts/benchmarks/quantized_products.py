"""Measure the rate of products of rounded operands, as a share of the rate of torch.mm.

    python scripts/benchmarks/quantized_products.py                        # 1024^3, one thread
    python scripts/benchmarks/quantized_products.py --threads 2 --output results/reference/numerics/products.md
    PYTHONPATH=<a copy of github.com/microsoft/microxcaling> python scripts/benchmarks/quantized_products.py

`share` is the time of the first row, float32 without rounding, divided by the time of the row. 60% means that the
product, including the rounding of its operands, runs at 0.6 of the rate of torch.mm. Other libraries round as they do
in training: torchao with to_mx and to_nvfp4 and back to float32, microxcaling with quantize_mx_op on the CPU, and
gfloat with quantize_block on a 64th of the values, whose time is multiplied by 64. Libraries that are not installed are
skipped. The script takes about five minutes. The result is results/reference/numerics/products.md.
"""

import importlib
from collections.abc import Callable, Mapping

import custom_fp
import torch
from harness import UNITS, Report, describe_machine, make_parser, make_table, optional, time_fastest
from torch import Tensor, nn

Calls = dict[str, Callable[[], object]]
OURS = ("bf16", "e4m3fn", "fp8_tensor", "int8_channel", "mxfp8_e4m3", "mxfp4", "nvfp4", "nf4_b64")
RECIPES = ("bf16", "fp8_tensorwise", "fp8_block128", "mxfp8", "nvfp4", "mxfp4_hadamard_sr", "int8")
GFLOAT_PART = 64  # gfloat rounds only a 64th of the values


def known_formats() -> list[str]:
    """Return the formats that this version of custom_fp has, and print a line about each of the others."""
    found = []
    for name in OURS:
        try:
            found.append(str(custom_fp.parse(name)))
        except ValueError:
            print(f"This version of custom_fp has no format {name}, which is therefore not timed.")
    return found


def others() -> dict[str, Callable[[Tensor], object]]:
    """Return functions of other libraries that round a tensor in blocks along its last dimension."""
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
    """Time x w^T without gradients."""
    calls: Calls = {"torch.mm": lambda: torch.mm(x, w.t())}
    for name in names:
        layer = linear(w, name)
        calls[f"custom_fp {name}"] = lambda layer=layer: layer(x)
    for name, rounded in others().items():
        calls[name] = lambda rounded=rounded: torch.mm(rounded(x), rounded(w).t())
    return {name: without_gradients(call) for name, call in calls.items()}


def training(x: Tensor, w: Tensor, names: list[str]) -> Calls:
    """Time the three products of a Linear layer. Each operand is rounded along the axis that its product sums over."""
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
    """Time forward and backward of seven Linear layers. Some recipes leave the last layer in bf16."""
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
    """Time the rounding of one operand, into an existing tensor if the library supports it."""
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
    """Return the seconds of gfloat's quantize_block (mxfp8_e4m3) on all of x, or None if it is not installed."""
    if not (gfloat := optional("gfloat")):
        return None
    info = importlib.import_module("gfloat.formats").format_info_mxfp8_e4m3
    blocks = x.flatten()[: x.numel() // GFLOAT_PART].double().view(-1, 32).numpy()

    def run() -> None:
        for block in blocks:
            gfloat.quantize_block(info, block, gfloat.compute_scale_amax)

    return time_fastest({"gfloat": run}, 1)["gfloat"] * GFLOAT_PART


def share_table(title: str, seconds: Mapping[str, float], unit: str = "ms") -> str:
    """Return a table of times, and of the rate of each row as a share of that of the first row."""
    first = next(iter(seconds.values()))
    rows = [(name, f"{s / UNITS[unit]:.2f}", f"{first / s:.0%}") for name, s in seconds.items()]
    return make_table((title, unit, "share"), rows)


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--size", type=int, default=1024, help="size of the square operands (default: 1024)")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument(
        "--repeats", type=int, default=15, help="how many times each call is timed (default: 15)"
    )
    parser.add_argument(
        "--only", default="", help="make only the tables whose title starts with this text, such as 'forward'"
    )
    options = parser.parse_args()

    torch.manual_seed(0)
    torch.set_num_threads(options.threads)
    n, repeats, names = options.size, options.repeats, known_formats()
    x, w = torch.randn(n, n), torch.randn(n, n) * n**-0.5
    cases = {
        f"forward product, {n}^3": lambda: products(x, w, names),
        f"three products, {n}^3 each": lambda: training(x, w, names),
        f"seven layers, {n // 2}^3 each product": lambda: recipes(n // 2),
    }
    with Report(options.output, options.only) as report:
        report.add(describe_machine(threads=options.threads))
        for title, make_calls in cases.items():
            report.time(title, make_calls, repeats, table=share_table)
        if (title := f"one operand, {n} x {n}").startswith(options.only):
            seconds = time_fastest(roundings(x, names), repeats)
            if (gfloat_s := gfloat_seconds(x)) is not None:
                seconds["gfloat mxfp8_e4m3"] = gfloat_s
            report.add(share_table(title, seconds))
        libraries = {"torchao": "torchao", "microxcaling": "mx", "gfloat": "gfloat"}
        missing = [name for name, module in libraries.items() if optional(module) is None]
        if missing:
            report.add(f"Not installed, and therefore not timed: {', '.join(missing)}.")


if __name__ == "__main__":
    main()
