"""Time custom_fp against copying memory and against other libraries; one table.

    python scripts/benchmarks/numerics.py                     # CPU, 2**24 values, 1 and 2 threads
    python scripts/benchmarks/numerics.py --only "tables of values" --threads 1
    python scripts/benchmarks/numerics.py --device cuda --log2n 26
    python scripts/benchmarks/numerics.py --output results/reference/numerics/bench.md

The calls of a table are timed in turns (A B C A B C ...) and the fastest turn of each counts, for what else runs on
the machine only ever slows a call down; `ratio` is to the table's first row. Input: normal(0, 1) * 1e-3, results
written into existing tensors. qtorch, ml_dtypes, torchao and gfloat are timed where installed.
"""

import argparse
import importlib
import platform
import time
from collections.abc import Callable
from pathlib import Path

import custom_fp
import torch

Calls = dict[str, Callable[[], object]]


def time_in_turns(calls: Calls, device: str, repeats: int) -> dict[str, float]:
    """Seconds of each call, the fastest of all turns."""

    def once(call: Callable[[], object]) -> float:
        if device == "cuda":
            torch.cuda.synchronize()
        started = time.perf_counter()
        call()
        if device == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - started

    for call in calls.values():
        call()
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(repeats):
        for name, call in calls.items():
            seconds[name].append(once(call))
    return {name: min(times) for name, times in seconds.items()}


def optional(module: str):
    try:
        return importlib.import_module(module)
    except ImportError:
        return None


def elementwise(x: torch.Tensor) -> Calls:
    out, packed = torch.empty_like(x), custom_fp.pack(x, "e5m2")
    calls: Calls = {"torch copy_": lambda: out.copy_(x)}
    for name in ("e5m2", "e4m3", "e4m3fn", "bf16"):
        calls[f"quantize {name}"] = lambda name=name: custom_fp.quantize(x, name, out=out)
    calls["quantize e5m2, stochastic"] = lambda: custom_fp.quantize(
        x, "e5m2", rounding="stochastic", seed=1, out=out
    )
    for name in ("mxfp8_e4m3", "mxfp4", "nvfp4", "nvfp4_4over6", "fp8_tensor", "int8_b128"):
        calls[f"quantize {name}"] = lambda name=name: custom_fp.quantize(x, name, out=out)
    calls["quantize nvfp4, stochastic"] = lambda: custom_fp.quantize(
        x, "nvfp4", rounding="stochastic", seed=1, out=out
    )
    rows = x.view(x.numel() >> 10, 1 << 10)
    for name in ("mxfp8_e4m3", "nvfp4"):
        calls[f"quantize {name}, axis=0"] = lambda name=name: custom_fp.quantize(
            rows, name, axis=0, out=out.view_as(rows)
        )
    for name in ("nvfp4_2d", "fp8_block128"):
        calls[f"quantize {name}"] = lambda name=name: custom_fp.quantize(rows, name, out=out.view_as(rows))
    for name in ("e5m2", "e3m2", "e2m1", "fp16", "mxfp8_e4m3", "mxfp4", "nvfp4"):
        data = custom_fp.pack(x, name)
        bits = custom_fp.parse(name).bits
        calls[f"pack {name} ({bits} bits)"] = lambda name=name, data=data: custom_fp.pack(x, name, out=data)
        calls[f"unpack {name} ({bits} bits)"] = lambda name=name, data=data: custom_fp.unpack(
            data, name, x.shape, out=out
        )
    calls["quantize e5m2, into a new tensor"] = lambda: custom_fp.quantize(x, "e5m2")
    codes = custom_fp.encode(x, "e5m2")
    calls["encode e5m2"] = lambda: custom_fp.encode(x, "e5m2", out=codes)
    calls["scale + quantize + pack e5m2"] = lambda: custom_fp.pack(x, "e5m2", shift=5, out=packed)
    calls["torch float8_e5m2 there and back"] = lambda: out.copy_(x.to(torch.float8_e5m2))
    return calls


def doubles(x: torch.Tensor) -> Calls:
    """float64 input; the first row copies as many values, and rounds them to float32."""
    x, out = x.double(), torch.empty_like(x)
    codes, data = custom_fp.encode(x, "e5m2"), custom_fp.pack(x, "e5m2")
    terms = [x, x.flip(0)] * 2
    return {
        "torch copy_, float64 to float32": lambda: out.copy_(x),
        "quantize e5m2, float64": lambda: custom_fp.quantize(x, "e5m2", out=out),
        "scale_pow2, float64": lambda: custom_fp.scale_pow2(x, 3, out=out),
        "encode e5m2, float64": lambda: custom_fp.encode(x, "e5m2", out=codes),
        "pack e5m2, float64": lambda: custom_fp.pack(x, "e5m2", out=data),
        "accumulate 4, e5m2, float64": lambda: custom_fp.accumulate(terms, "e5m2", out=out),
    }


def transforms(x: torch.Tensor) -> Calls:
    out, matrix = torch.empty_like(x), x.view(-1, 1024)
    calls: Calls = {"torch copy_": lambda: out.copy_(x)}
    for size in (16, 128, 1024):
        calls[f"hadamard {size}"] = lambda size=size: custom_fp.hadamard(x, size, seed=1, out=out)
    across = out.view(-1, 1024)
    calls["hadamard 16, along the first axis"] = lambda: custom_fp.hadamard(
        matrix, 16, seed=1, axis=0, out=across
    )
    return calls


def codebooks(x: torch.Tensor) -> Calls:
    out = torch.empty_like(x)
    calls: Calls = {"torch copy_": lambda: out.copy_(x)}
    for name in ("dynamic_tree", "linear_b64", "nf4_b64", "int8_affine", "int4_affine_b32"):
        data = custom_fp.pack(x, name)
        calls[f"quantize {name}"] = lambda name=name: custom_fp.quantize(x, name, out=out)
        calls[f"encode {name}"] = lambda name=name: custom_fp.encode(x, name)
        calls[f"pack {name}"] = lambda name=name, data=data: custom_fp.pack(x, name, out=data)
        calls[f"unpack {name}"] = lambda name=name, data=data: custom_fp.unpack(data, name, x.shape, out=out)
    return calls


def tables(x: torch.Tensor) -> Calls:
    """Formats that are a table beside a codebook and a format whose bits are computed."""
    out = torch.empty_like(x)
    terms = [x.roll(i) for i in range(8)]
    calls: Calls = {"torch copy_": lambda: out.copy_(x)}
    for name in ("e4m3", "dynamic_tree", "posit8", "p3109_k8p3se", "takum8", "hif8", "lns4_3", "posit16"):
        data = custom_fp.pack(x, name)
        calls[f"quantize {name}"] = lambda name=name: custom_fp.quantize(x, name, out=out)
        calls[f"pack {name}"] = lambda name=name, data=data: custom_fp.pack(x, name, out=data)
        calls[f"unpack {name}"] = lambda name=name, data=data: custom_fp.unpack(data, name, x.shape, out=out)
    for name in ("e4m3", "posit8", "posit16"):
        calls[f"quantize {name}, stochastic"] = lambda name=name: custom_fp.quantize(
            x, name, rounding="stochastic", seed=1, out=out
        )
        calls[f"pack {name}, shift=9"] = lambda name=name: custom_fp.pack(x, name, shift=9)
        calls[f"accumulate 8, {name}"] = lambda name=name: custom_fp.accumulate(terms, name, out=out)
        calls[f"accumulate 8, {name}, kahan"] = lambda name=name: custom_fp.accumulate(
            terms, name, kahan=True, out=out
        )
    return calls


def other_libraries(x: torch.Tensor) -> Calls:
    out = torch.empty_like(x)
    calls: Calls = {
        "torch copy_": lambda: out.copy_(x),
        "custom_fp quantize e5m2": lambda: custom_fp.quantize(x, "e5m2", out=out),
    }
    if qtorch := optional("qtorch.quant"):
        calls["qtorch float_quantize e5m2"] = lambda: qtorch.float_quantize(x, 5, 2, rounding="nearest")
    if ml_dtypes := optional("ml_dtypes"):
        values = x.numpy()
        calls["ml_dtypes float8_e5m2 there and back"] = lambda: values.astype(ml_dtypes.float8_e5m2).astype(
            "f4"
        )
    rows = x.view(x.numel() >> 10, 1 << 10)
    for name in ("mxfp8_e4m3", "mxfp4", "nvfp4"):
        calls[f"custom_fp quantize {name}, axis=-1"] = lambda name=name: custom_fp.quantize(
            rows, name, axis=-1, out=out.view_as(rows)
        )
    if optional("torchao"):
        calls |= by_torchao(rows)
    if gfloat := optional("gfloat"):
        info = importlib.import_module("gfloat.formats").format_info_ocp_e5m2
        values_64 = x.double().numpy()
        calls["gfloat round_ndarray e5m2"] = lambda: gfloat.round_ndarray(info, values_64)
    return calls


def by_torchao(rows: torch.Tensor) -> Calls:
    """Codes and scales, and back: its eager code."""
    mx = importlib.import_module("torchao.prototype.mx_formats.mx_tensor")
    nv = importlib.import_module("torchao.prototype.mx_formats.nvfp4_tensor").NVFP4Tensor

    def there_and_back(dtype: torch.dtype) -> Callable[[], object]:
        return lambda: mx.MXTensor.to_mx(rows, dtype, 32).dequantize(torch.float32)

    def nvfp4() -> object:
        scale = rows.abs().max() / (448 * 6)
        return nv.to_nvfp4(rows, per_tensor_scale=scale).dequantize(torch.float32)

    return {
        "torchao mxfp8_e4m3 there and back": there_and_back(torch.float8_e4m3fn),
        "torchao mxfp4 there and back": there_and_back(torch.float4_e2m1fn_x2),
        "torchao nvfp4 there and back": nvfp4,
    }


def sums(x: torch.Tensor) -> Calls:
    terms = [x.roll(i) for i in range(8)]
    rounded = [custom_fp.quantize(term, "e5m2") for term in terms]  # what a step of training adds up
    out = torch.empty_like(x)
    payloads = [custom_fp.pack(term, "e5m2") for term in terms]
    data = torch.empty_like(payloads[0])

    def seven_adds() -> None:
        for term in terms[1:]:
            out.add_(term)

    return {
        "torch add_, seven times": seven_adds,
        "accumulate 8, e5m2": lambda: custom_fp.accumulate(rounded, "e5m2", out=out),
        "accumulate 8, e5m2, of any float32 values": lambda: custom_fp.accumulate(terms, "e5m2", out=out),
        "accumulate 8, fp32": lambda: custom_fp.accumulate(terms, "fp32", out=out),
        "accumulate 8, e8m11, of any float32 values": lambda: custom_fp.accumulate(terms, "e8m11", out=out),
        "accumulate 8, e8m11, kahan": lambda: custom_fp.accumulate(terms, "e8m11", kahan=True, out=out),
        "accumulate 8, e5m2, kahan": lambda: custom_fp.accumulate(terms, "e5m2", kahan=True, out=out),
        "unpack + accumulate 8 + pack, e5m2": lambda: custom_fp.accumulate_packed(
            payloads, "e5m2", x.numel(), out=data
        ),
    }


def products(device: str) -> Calls:
    a, b = torch.randn(256, 256, device=device), torch.randn(256, 256, device=device)
    return {
        "torch mm fp32, 256^3": lambda: torch.mm(a, b),
        "matmul e5m10": lambda: custom_fp.matmul(a, b, accumulator="e5m10"),
        "matmul e5m10, kahan": lambda: custom_fp.matmul(a, b, accumulator="e5m10", kahan=True),
        "matmul e8m11": lambda: custom_fp.matmul(a, b, accumulator="e8m11"),
        "matmul e8m11, kahan": lambda: custom_fp.matmul(a, b, accumulator="e8m11", kahan=True),
        "matmul bf16": lambda: custom_fp.matmul(a, b, accumulator="bf16"),
        "matmul posit8": lambda: custom_fp.matmul(a, b, accumulator="posit8"),
        "matmul posit8, kahan": lambda: custom_fp.matmul(a, b, accumulator="posit8", kahan=True),
        "matmul takum16": lambda: custom_fp.matmul(a, b, accumulator="takum16"),
        "matmul lns4_3": lambda: custom_fp.matmul(a, b, accumulator="lns4_3"),
    }


def small_calls(device: str) -> Calls:
    """1,000 elements: what a call costs beside its arithmetic (1,000 calls a timing)."""
    x = torch.randn(1000, device=device)
    out = torch.empty_like(x)
    op = torch.ops.custom_fp.quantize.default

    def thousand(call: Callable[[], object]) -> Callable[[], None]:
        def run() -> None:
            for _ in range(1000):
                call()

        return run

    calls = {
        "torch copy_, 1,000 values": lambda: out.copy_(x),
        "custom_fp.quantize": lambda: custom_fp.quantize(x, "e5m2"),
        "custom_fp.quantize, out=": lambda: custom_fp.quantize(x, "e5m2", out=out),
        "torch.ops.custom_fp.quantize": lambda: op(x, "e5m2", "nearest_even", "infinity", None),
    }
    if device == "cpu":
        native = importlib.import_module("custom_fp._native")
        spec, source, target = custom_fp.Format.parse("e5m2").spec, x.data_ptr(), out.data_ptr()
        calls["the bare extension"] = lambda: native.quantize(
            source, False, target, 1000, spec, 0, 0, 0, 0, 0, 1
        )
    return {name: thousand(call) for name, call in calls.items()}


def table(title: str, seconds: dict[str, float], unit: float, unit_name: str) -> list[str]:
    yardstick = next(iter(seconds.values()))
    rows = [f"| {title} | {unit_name} | ratio |", "| --- | ---: | ---: |"]
    rows += [f"| {name} | {t / unit:.2f} | {t / yardstick:.2f} |" for name, t in seconds.items()]
    return [*rows, ""]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--log2n", type=int, default=24)
    parser.add_argument("--threads", type=int, nargs="*", default=[1, 2])
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--only", default="", help="the tables whose title begins so: 'tables of values'")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()

    device, n = options.device, 2**options.log2n
    name = torch.cuda.get_device_name() if device == "cuda" else platform.processor() or platform.machine()
    lines = [
        f"{name}, torch {torch.__version__}, backend {custom_fp.backend(device)}, n = 2**{options.log2n}",
        "",
    ]
    x = (torch.randn(n) * 1e-3).to(device)
    where, repeats = "", options.repeats

    def add(title: str, calls: Callable[[], Calls], repeats: int, unit: str = "ms") -> None:
        if title.startswith(options.only):
            lines.extend(table(f"{title}{where}", time_in_turns(calls(), device, repeats), 1e-3, unit))

    for threads in options.threads if device == "cpu" else [1]:
        torch.set_num_threads(threads)
        where = f", {threads} thread{'s'[: threads > 1]}" if device == "cpu" else ", GPU"
        add("elementwise", lambda: elementwise(x), repeats)
        if device == "cpu":
            add("float64", lambda: doubles(x), repeats)
            add("Hadamard transforms", lambda: transforms(x), repeats)
            add("codebooks and affine integers", lambda: codebooks(x), repeats)
        add("tables of values", lambda: tables(x), repeats)
        add("sums", lambda: sums(x), repeats)
        add("products", lambda: products(device), repeats)
    torch.set_num_threads(1)
    where = ""
    if device == "cpu":
        add("other libraries, 1 thread", lambda: other_libraries(x), 3)
    add("one call", lambda: small_calls(device), 5, "us")
    for library in ("qtorch", "ml_dtypes", "torchao", "gfloat"):
        if device == "cpu" and not options.only and optional(library) is None:
            lines.append(f"{library} is not installed and was not timed.")
    text = "\n".join(lines)
    print(text)
    if options.output:
        options.output.parent.mkdir(parents=True, exist_ok=True)
        options.output.write_text(text.rstrip() + "\n")


if __name__ == "__main__":
    main()
