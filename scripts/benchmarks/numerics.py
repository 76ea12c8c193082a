"""Time custom_fp, compared with copying memory and with other libraries.

    python scripts/benchmarks/numerics.py                     # CPU, 2**24 values, 1 and 2 threads
    python scripts/benchmarks/numerics.py --only "tables of values" --threads 1
    python scripts/benchmarks/numerics.py --device cuda --log2n 26
    python scripts/benchmarks/numerics.py --output results/reference/numerics/bench.md

`ratio` is relative to the first row of a table. Inputs are normal(0, 1) * 1e-3, and results are written into existing
tensors. qtorch, ml_dtypes, torchao and gfloat are timed if they are installed. The script takes about ten minutes. The
result is results/reference/numerics/bench.md.
"""

import importlib
from collections.abc import Callable

import custom_fp
import torch
from harness import Report, describe_machine, make_parser, optional

Calls = dict[str, Callable[[], object]]
LIBRARIES = ("qtorch", "ml_dtypes", "torchao", "gfloat")


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
    """Time float64 inputs. The first row copies as many values and rounds them to float32."""
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
    """Time formats that are implemented as tables, and for comparison, a codebook and a computed format."""
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
        calls |= torchao_calls(rows)
    if gfloat := optional("gfloat"):
        info = importlib.import_module("gfloat.formats").format_info_ocp_e5m2
        values_64 = x.double().numpy()
        calls["gfloat round_ndarray e5m2"] = lambda: gfloat.round_ndarray(info, values_64)
    return calls


def torchao_calls(rows: torch.Tensor) -> Calls:
    """Time the conversion to codes and scales and back with torchao's eager code."""
    mx = importlib.import_module("torchao.prototype.mx_formats.mx_tensor")
    nv = importlib.import_module("torchao.prototype.mx_formats.nvfp4_tensor").NVFP4Tensor

    def round_trip(dtype: torch.dtype) -> Callable[[], object]:
        return lambda: mx.MXTensor.to_mx(rows, dtype, 32).dequantize(torch.float32)

    def nvfp4() -> object:
        scale = rows.abs().max() / (448 * 6)
        return nv.to_nvfp4(rows, per_tensor_scale=scale).dequantize(torch.float32)

    return {
        "torchao mxfp8_e4m3 there and back": round_trip(torch.float8_e4m3fn),
        "torchao mxfp4 there and back": round_trip(torch.float4_e2m1fn_x2),
        "torchao nvfp4 there and back": nvfp4,
    }


def sums(x: torch.Tensor) -> Calls:
    terms = [x.roll(i) for i in range(8)]
    rounded = [custom_fp.quantize(term, "e5m2") for term in terms]  # as in a training step
    out = torch.empty_like(x)
    payloads = [custom_fp.pack(term, "e5m2") for term in terms]
    data = torch.empty_like(payloads[0])

    def seven_adds() -> None:
        for term in terms[1:]:
            out.add_(term)

    return {
        "torch add_, seven times": seven_adds,
        "accumulate 8, e5m2": lambda: custom_fp.accumulate(rounded, "e5m2", out=out),
        "accumulate 8, e5m2, any float32 values": lambda: custom_fp.accumulate(terms, "e5m2", out=out),
        "accumulate 8, fp32": lambda: custom_fp.accumulate(terms, "fp32", out=out),
        "accumulate 8, e8m11, any float32 values": lambda: custom_fp.accumulate(terms, "e8m11", out=out),
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
    """Time the overhead of a call: 1,000 calls on 1,000 elements."""
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
    if custom_fp.backend(device) == "native":
        extension = importlib.import_module("custom_fp._native")
        native = importlib.import_module("custom_fp.native")
        rule = native.pack_rule(custom_fp.Format.parse("e5m2"), native.NEAREST)
        source, target = x.data_ptr(), out.data_ptr()
        calls["the bare extension"] = lambda: extension.quantize(source, False, target, 1000, rule, 1)
    return {name: thousand(call) for name, call in calls.items()}


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument(
        "--log2n", type=int, default=24, help="base-2 logarithm of the number of values (default: 24)"
    )
    parser.add_argument(
        "--threads", type=int, nargs="*", default=[1, 2], help="numbers of threads on the CPU"
    )
    parser.add_argument(
        "--repeats", type=int, default=15, help="how many times each call is timed (default: 15)"
    )
    parser.add_argument(
        "--only",
        default="",
        help="make only the tables whose title starts with this text, such as 'tables of values'",
    )
    options = parser.parse_args()
    device, repeats, is_cpu = options.device, options.repeats, options.device == "cpu"
    x = (torch.randn(2**options.log2n) * 1e-3).to(device)
    cases: dict[str, Callable[[], Calls]] = {
        "elementwise": lambda: elementwise(x),
        "float64": lambda: doubles(x),
        "Hadamard transforms": lambda: transforms(x),
        "codebooks and affine integers": lambda: codebooks(x),
        "tables of values": lambda: tables(x),
        "sums": lambda: sums(x),
        "products": lambda: products(device),
    }
    if not is_cpu:
        for name in ("float64", "Hadamard transforms", "codebooks and affine integers"):
            del cases[name]
    with Report(options.output, options.only) as report:
        report.add(f"{describe_machine(device)}, n = 2**{options.log2n}")
        for threads in options.threads if is_cpu else [1]:
            torch.set_num_threads(threads)
            suffix = f", {threads} thread{'s'[: threads > 1]}" if is_cpu else ", GPU"
            for name, make_calls in cases.items():
                report.time(name + suffix, make_calls, repeats, device=device)
        torch.set_num_threads(1)
        if is_cpu:
            report.time("other libraries, 1 thread", lambda: other_libraries(x), 3)
        report.time("one call", lambda: small_calls(device), 5, device=device, unit="us")
        missing = [name for name in LIBRARIES if is_cpu and not options.only and optional(name) is None]
        if missing:
            report.add(f"Not installed, and therefore not timed: {', '.join(missing)}.")


if __name__ == "__main__":
    main()
