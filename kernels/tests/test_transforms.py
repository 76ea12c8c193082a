"""Every operator under torch's transforms: opcheck, fake tensors, functionalize, vmap, gradients, compile and export.

Each gives the results of plain calls, or an error that says why it cannot.
"""

import subprocess
import sys

import custom_fp
import pytest
import torch
from custom_fp import Rounding, parse
from tensors import same_bits
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

TERNARY = custom_fp.Codebook("ternary", (-1.0, 0.0, 0.25, 1.0), block=16)  # no name that parse knows
OWN = custom_fp.BlockFormat("own", "e2m2", 5)
FORMATS = [
    *("e5m2", "e5m10", "posit8", "mxfp4", "nvfp4", "linear_b64", "dynamic_tree", "int8_affine", TERNARY, OWN),
]
x_4x32 = torch.randn(4, 32)
SCALED = {fmt for fmt in FORMATS if parse(fmt).has_scales}
ROUNDED = {fmt for fmt in FORMATS if parse(fmt).takes_rounding}
SIZES = {fmt: custom_fp.packed_size(128, fmt) for fmt in FORMATS}


def as_tuple(result):
    return result if isinstance(result, tuple) else (result,)


def through_codes(x, fmt):
    codes = custom_fp.encode(x, fmt)
    return *as_tuple(codes), custom_fp.decode(codes, fmt)


def through_bytes(x, fmt):
    data = custom_fp.pack(x, fmt)
    return data, custom_fp.unpack(data, fmt, x.shape)


def along_axis(x, fmt):
    how = {"axis": -2} if fmt in SCALED else {}
    data, codes = custom_fp.pack(x, fmt, **how), custom_fp.encode(x, fmt, **how)
    decoded = custom_fp.decode(codes, fmt, **how), custom_fp.unpack(data, fmt, x.shape, **how)
    return custom_fp.quantize(x, fmt, **how), data, *decoded


def into_out(x, fmt):
    rounded, data = torch.empty_like(x), torch.empty(SIZES[fmt], dtype=torch.uint8)
    custom_fp.quantize(x, fmt, out=rounded)
    custom_fp.pack(x, fmt, out=data)
    back = custom_fp.unpack(data, fmt, x.shape, out=torch.empty_like(x))
    return rounded, data, back


def stochastic(x, fmt):
    if fmt not in ROUNDED:
        return x.clone()
    rule = {"rounding": Rounding.STOCHASTIC, "seed": 2**64 - 2}
    return custom_fp.quantize(x, fmt, **rule), custom_fp.pack(x, fmt, **rule)


def sums(x):
    total = custom_fp.accumulate([x, x * 3, -x], "e5m2", kahan=True)
    payloads = [custom_fp.pack(x, "e5m2"), custom_fp.pack(total, "e5m2")]
    return total, custom_fp.accumulate_packed(payloads, "e5m2", x.numel()), custom_fp.scale_pow2(x, 3)


def sums_into_out(x):
    total, scaled = torch.empty_like(x), torch.empty_like(x)
    codes, values = torch.empty(x.shape, dtype=torch.uint8), torch.empty_like(x)
    custom_fp.accumulate([x, x * 3], "e5m2", out=total)
    custom_fp.scale_pow2(x, 3, out=scaled)
    custom_fp.decode(custom_fp.encode(x, "e5m2", out=codes), "e5m2", out=values)
    payload = custom_fp.pack(x, "e5m2")
    data = custom_fp.accumulate_packed([payload] * 2, "e5m2", x.numel(), out=torch.empty_like(payload))
    return total, scaled, codes, values, data


def products(x):
    transformed = custom_fp.hadamard(x, 4, seed=9, axis=0), custom_fp.hadamard(x, 8, axis=-1, inverse=True)
    plain = custom_fp.matmul(x, x.mT, accumulator="e5m10")
    return plain, custom_fp.matmul(x, x.mT, accumulator="h100_bf16"), *transformed


OF_A_FORMAT = [custom_fp.quantize, through_codes, through_bytes, along_axis, into_out, stochastic]
CALLS = {
    f"{call.__name__} {fmt}": (lambda x, call=call, fmt=fmt: call(x, fmt))
    for call in OF_A_FORMAT
    for fmt in FORMATS
} | {"sums": sums, "into_out sums": sums_into_out, "products": products}
each_call = pytest.mark.parametrize("call", CALLS)


def assert_same(got, expected):
    for ours, theirs in zip(as_tuple(got), as_tuple(expected), strict=True):
        assert same_bits(ours.detach(), theirs.detach())


def compiled(function, **how):
    torch._dynamo.reset()
    return torch.compile(function, fullgraph=True, **{"backend": "aot_eager", **how})


@each_call
def test_fake_tensors_have_the_shapes_and_dtypes_of_real_ones(call):
    expected = as_tuple(CALLS[call](x_4x32))
    with FakeTensorMode():
        got = as_tuple(CALLS[call](torch.randn(4, 32)))
    for ours, theirs in zip(got, expected, strict=True):
        assert (ours.shape, ours.dtype, ours.device) == (theirs.shape, theirs.dtype, theirs.device)


@each_call
def test_functionalize(call):
    assert_same(torch.func.functionalize(CALLS[call])(x_4x32), CALLS[call](x_4x32))


# vmap cannot write into tensors that are not batched. Random bits depend on an element's index in the whole batch.
@pytest.mark.parametrize(
    "call", [call for call in CALLS if call.split()[0] not in ("into_out", "stochastic")]
)
def test_vmap_is_one_call_after_the_other(call):
    x = torch.randn(3, 4, 32)
    each = [as_tuple(CALLS[call](one)) for one in x]
    expected = tuple(torch.stack(parts) for parts in zip(*each, strict=True))
    assert_same(torch.func.vmap(CALLS[call])(x), expected)
    assert_same(torch.func.vmap(CALLS[call], in_dims=2)(x.movedim(0, 2)), expected)


def test_vmap_of_operands_that_are_not_all_batched():
    x, fixed = torch.randn(3, 8), torch.randn(8)
    got = torch.func.vmap(lambda row: custom_fp.accumulate([row, fixed, row], "e4m3"))(x)
    assert torch.equal(got, torch.stack([custom_fp.accumulate([row, fixed, row], "e4m3") for row in x]))
    a, b = torch.randn(4, 2, 3, 5), torch.randn(5, 6)
    got = torch.func.vmap(lambda m: custom_fp.matmul(m, b, accumulator="e4m3"), in_dims=1, out_dims=1)(a)
    assert torch.equal(got, custom_fp.matmul(a, b, accumulator="e4m3"))


# One format of each kind: scalar, tabulated, block scales, a named codebook, an unnamed codebook, zero points.
@pytest.mark.parametrize(
    "fmt", ["e5m2", "posit8", "nvfp4", "linear_b64", TERNARY, "int8_affine", None], ids=str
)
def test_compile_without_graph_breaks(fmt):
    calls = [lambda x, c=call: c(x, fmt) for call in OF_A_FORMAT] if fmt else [sums, sums_into_out, products]

    def everything(x):
        return tuple(part for call in calls for part in as_tuple(call(x)))

    function, x = compiled(everything), x_4x32.clone().requires_grad_()
    assert_same(function(x), everything(x))
    assert_same(function(x_4x32), everything(x_4x32))


@pytest.mark.usefixtures("empty_compile_cache")
def test_compile_with_inductor():
    def function(x, w):
        return custom_fp.quantize(x, "e5m2") * 2 + w.sum()

    x, w = torch.randn(4, 6, requires_grad=True), torch.randn(6, 3, requires_grad=True)
    expected = function(x, w)
    grads = torch.autograd.grad(expected.sum(), (x, w))
    got = compiled(function, backend="inductor")(x, w)
    torch.testing.assert_close(got, expected, rtol=1e-6, atol=1e-6)  # inductor may reorder the float32 sum
    assert all(map(torch.equal, torch.autograd.grad(got.sum(), (x, w)), grads))


def test_compile_with_sizes_that_change():
    def to_bytes_and_back(x):
        return tuple(
            custom_fp.unpack(custom_fp.pack(x, f), f, x.shape) for f in ("e5m2", "mxfp4", "linear_b64")
        )

    function = compiled(to_bytes_and_back, dynamic=True)
    for n in (100, 37, 2):
        x = torch.randn(3, n)
        assert_same(function(x), to_bytes_and_back(x))


def test_an_unknown_format_fails_while_compiling_too():
    with pytest.raises(Exception, match="e9m2"):
        compiled(lambda x: custom_fp.quantize(x, "e9m2"), backend="eager")(x_4x32)


NEAREST = ("nearest_even", "infinity", None)


@pytest.mark.parametrize(
    ("op", "args"),
    [
        ("quantize", (x_4x32.clone().requires_grad_(), "e5m2", *NEAREST)),
        ("quantize", (x_4x32, "e4m3", "stochastic", "saturate", 3)),
        ("quantize", (x_4x32.clone().requires_grad_(), "mxfp4", *NEAREST)),
        ("scale_pow2", (x_4x32, 3)),
        ("encode", (x_4x32, "e5m10")),
        ("encode", (x_4x32, "linear_b64")),
        ("decode", ([torch.arange(9)], "e5m2")),
        ("decode", ([torch.zeros(40, dtype=torch.uint8), torch.ones(2, dtype=torch.uint8)], "mxfp4")),
        ("pack", (x_4x32, "e3m2", 0, *NEAREST, 0)),
        ("unpack", (torch.zeros(6, dtype=torch.uint8), "e3m2", (2, 4), 0)),
        ("unpack", (torch.zeros(17, dtype=torch.uint8), "mxfp4", (4, 8), 0)),
        ("accumulate", ([x_4x32, x_4x32], "e5m2", True, *NEAREST, 0)),
        ("accumulate_packed", ([torch.zeros(8, dtype=torch.uint8)] * 2, "e5m2", 8, False, *NEAREST, 0)),
        ("max_exponent", (x_4x32,)),
        ("matmul", (x_4x32.clone().requires_grad_(), torch.randn(2, 32, 3), "e5m10", False, "e5m2")),
        (
            "matmul",
            (x_4x32.clone().requires_grad_(), torch.randn(2, 32, 3), "h100_fp8", False, "fp32-fused", 3),
        ),
    ],
)
def test_registration(op, args):
    torch.library.opcheck(getattr(torch.ops.custom_fp, op).default, args)


# ---- gradients


@pytest.mark.parametrize("fmt", FORMATS, ids=str)
def test_gradients_and_tangents_pass_straight_through_quantize(fmt):
    weight = torch.randn(4, 32)
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        x = x_4x32.to(dtype, copy=True).requires_grad_()
        (custom_fp.quantize(x, fmt) * weight).sum().backward()
        assert x.grad.dtype is dtype and torch.equal(x.grad, weight.to(dtype))
        given = x.detach(), weight.to(dtype)
        value, moved = torch.func.jvp(lambda x: custom_fp.quantize(x, fmt), (given[0],), (given[1],))
        assert torch.equal(value, custom_fp.quantize(given[0], fmt)) and torch.equal(moved, given[1].float())
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(x_4x32, weight)
        for result in (custom_fp.quantize(dual, fmt), custom_fp.Quantizer(forward=fmt, backward=fmt)(dual)):
            assert torch.equal(torch.autograd.forward_ad.unpack_dual(result).tangent, weight)

    def loss(x):
        return custom_fp.quantize(x, fmt).pow(2).sum()

    assert torch.equal(torch.func.jacfwd(loss)(x_4x32), torch.func.grad(loss)(x_4x32))
    rows = torch.stack([custom_fp.quantize(row, fmt) for row in x_4x32])
    assert torch.equal(torch.func.vmap(torch.func.grad(loss))(x_4x32), 2 * rows)
    for both in (
        torch.func.functionalize(torch.func.grad(loss)),
        torch.func.grad(torch.func.functionalize(loss)),
    ):
        with pytest.raises(RuntimeError):  # torch does not support this; a gradient of zero would be worse
            both(x_4x32)


# ---- max_exponent, which needs values


def test_max_exponent_needs_values():
    x = torch.tensor([0.5, -3.0])
    assert torch.func.functionalize(lambda x: x * custom_fp.max_exponent(x))(x).tolist() == [1.0, -6.0]
    is_none = torch.func.functionalize(lambda x: x + (custom_fp.max_exponent(x * 0) is None))
    assert is_none(x).tolist() == [1.5, -2.0]
    message = "max_exponent returns a Python integer"
    with FakeTensorMode(), pytest.raises(RuntimeError, match=message):
        custom_fp.max_exponent(torch.randn(3))
    with pytest.raises(RuntimeError, match=message):
        torch.func.vmap(lambda x: x * custom_fp.max_exponent(x))(x_4x32)
    with pytest.raises(RuntimeError, match=message):
        custom_fp.max_exponent(torch.empty(3, device="meta"))
    breaking = torch.compile(lambda x: x * custom_fp.max_exponent(x), backend="aot_eager")  # breaks the graph
    assert breaking(x).tolist() == [1.0, -6.0]


# ---- stochastic rounding without a seed


def two_draws(x):
    rule = {"rounding": "stochastic"}
    a, b = custom_fp.quantize(x, "e5m2", **rule), custom_fp.quantize(x, "e5m2", **rule)
    packed = [custom_fp.pack(a, "e3m0", **rule) for _ in range(2)]
    total = [custom_fp.accumulate([a, b, x], "e3m1", **rule) for _ in range(2)]
    joined = [custom_fp.accumulate_packed(packed, "e3m0", x.numel(), **rule) for _ in range(2)]
    return a, b, *packed, *total, *joined


@pytest.mark.usefixtures("empty_compile_cache")
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_two_draws_without_a_seed_stay_two(backend):
    x = torch.randn(1000, requires_grad=True)
    torch.manual_seed(5)
    expected = two_draws(x)
    assert not any(torch.equal(a, b) for a, b in zip(expected[::2], expected[1::2], strict=True))
    function = compiled(two_draws, backend=backend)
    torch.manual_seed(5)
    got = function(x)
    assert_same(got, expected)
    (got[0].sum() + got[1].sum()).backward()
    assert torch.equal(x.grad, torch.full((1000,), 2.0))


def test_a_new_seed_compiles_no_new_graph():
    def draws(x, number):
        rule = {"rounding": "stochastic", "seed": number, "offset": number}
        data = custom_fp.pack(x, "e5m2", **rule)
        return custom_fp.quantize(x, "e5m2", **rule), data, custom_fp.accumulate([x, x], "e3m1", **rule)

    function = compiled(draws, backend="eager")  # torch fails if it has to compile more than 8 graphs
    for number in range(2, 14):
        assert_same(function(x_4x32, number), draws(x_4x32, number))


def test_random_operators_are_tagged():
    for operator in ("quantize", "pack", "accumulate", "accumulate_packed"):
        assert torch.Tag.nondeterministic_seeded in getattr(torch.ops.custom_fp, operator).default.tags


# ---- programs that leave the process

LOAD = """
import sys, torch
import custom_fp.ops
program = torch.export.load(sys.argv[1])
x, expected = torch.load(sys.argv[2])
assert torch.equal(program.module()(x), expected)
"""


def test_an_exported_program_runs_in_another_process(tmp_path, monkeypatch):
    (tmp_path / "exported_formats.py").write_text(
        "from custom_fp import Codebook\nMINE = Codebook('exported_formats.MINE', (-1.0, 0.0, 0.5, 1.0))\n"
    )
    monkeypatch.chdir(tmp_path)
    formats = ("mxfp4", "linear_b64", TERNARY, OWN, parse("exported_formats.MINE"), "e4m3")
    layers = [custom_fp.Quantizer(forward=fmt) for fmt in formats]
    model, x = nn.Sequential(nn.Linear(8, 8), *layers), torch.randn(3, 8)
    torch.export.save(torch.export.export(model, (x,)), "program.pt2")
    torch.save((x, model(x).detach()), "values.pt")
    code = [sys.executable, "-c", LOAD, "program.pt2", "values.pt"]
    done = subprocess.run(code, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
