"""Every operator under what torch puts between a call and the memory: fake tensors, functionalize, vmap, forward-mode
gradients, torch.compile and torch.export. Each gives what it gives without, or says why it cannot.
"""

import subprocess
import sys

import custom_fp
import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

SCALED = ["mxfp4", "mxint8", "linear_b64", "dynamic_tree"]
FORMATS = ["e5m2", "e5m10", *SCALED]
TERNARY = custom_fp.Codebook("ternary", (-1.0, 0.0, 0.25, 1.0), block=16)  # no name that parse knows
OWN = custom_fp.BlockFormat("own", "e2m2", 5)
x_4x32 = torch.randn(4, 32)
SIZES = {fmt: custom_fp.packed_size(128, fmt) for fmt in (*FORMATS, TERNARY, OWN)}


def encode(x, fmt):
    codes = custom_fp.encode(x, fmt)
    return codes if isinstance(codes, tuple) else (codes,)


def there_and_back(x, fmt):
    return custom_fp.decode(custom_fp.encode(x, fmt), fmt)


def through_bytes(x, fmt):
    return custom_fp.unpack(custom_fp.pack(x, fmt), fmt, x.shape)


def into_out(x, fmt):
    rounded, data = torch.empty_like(x), torch.empty(SIZES[fmt], dtype=torch.uint8)
    custom_fp.quantize(x, fmt, out=rounded)
    custom_fp.pack(x, fmt, out=data)
    back = custom_fp.unpack(data, fmt, x.shape, out=torch.empty_like(x))
    return rounded, data, back


ANY_FORMAT = {
    "quantize": custom_fp.quantize,
    "encode": encode,
    "decode": there_and_back,
    "pack": custom_fp.pack,
    "unpack": through_bytes,
    "out": into_out,
}


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


CALLS = {
    f"{operator} {fmt}": (lambda x, call=call, fmt=fmt: call(x, fmt))
    for operator, call in ANY_FORMAT.items()
    for fmt in (*FORMATS, TERNARY, OWN)
} | {
    "sums": sums,
    "sums out": sums_into_out,
    "matmul": lambda x: custom_fp.matmul(x, x.mT, accumulator="e5m10"),
}


def as_tuple(result):
    return result if isinstance(result, tuple) else (result,)


def assert_same(got, expected):
    for ours, theirs in zip(as_tuple(got), as_tuple(expected), strict=True):
        assert ours.dtype is theirs.dtype and torch.equal(ours, theirs)


@pytest.mark.parametrize("call", CALLS)
def test_fake_tensors_have_the_shapes_and_dtypes_of_real_ones(call):
    expected = as_tuple(CALLS[call](x_4x32))
    with FakeTensorMode():
        got = as_tuple(CALLS[call](torch.randn(4, 32)))
    for ours, theirs in zip(got, expected, strict=True):
        assert (ours.shape, ours.dtype, ours.device) == (theirs.shape, theirs.dtype, theirs.device)


@pytest.mark.parametrize("call", CALLS)
def test_functionalize(call):
    assert_same(torch.func.functionalize(CALLS[call])(x_4x32), CALLS[call](x_4x32))


# vmap cannot write into tensors that are not batched
@pytest.mark.parametrize("call", [call for call in CALLS if "out" not in call.split()])
def test_vmap_is_one_call_after_the_other(call):
    x = torch.randn(3, 4, 32)
    each = [as_tuple(CALLS[call](one)) for one in x]
    expected = tuple(torch.stack(parts) for parts in zip(*each, strict=True))
    assert_same(torch.func.vmap(CALLS[call])(x), expected)
    assert_same(torch.func.vmap(CALLS[call], in_dims=2)(x.movedim(0, 2)), expected)


def test_vmap_of_accumulate_with_terms_that_are_not_batched():
    x, fixed = torch.randn(3, 8), torch.randn(8)
    got = torch.func.vmap(lambda row: custom_fp.accumulate([row, fixed, row], "e4m3"))(x)
    assert torch.equal(got, torch.stack([custom_fp.accumulate([row, fixed, row], "e4m3") for row in x]))


@pytest.mark.parametrize("fmt", [*FORMATS, TERNARY], ids=str)
def test_compile_without_graph_breaks(fmt):
    def everything(x):
        return tuple(part for call in ANY_FORMAT.values() for part in as_tuple(call(x, fmt)))

    x = x_4x32.clone().requires_grad_()
    torch._dynamo.reset()
    compiled = torch.compile(everything, fullgraph=True, backend="aot_eager")
    assert_same(compiled(x), everything(x))
    assert_same(compiled(x_4x32), everything(x_4x32))


def test_compile_with_sizes_that_change():
    def bytes_of(x):
        return tuple(
            custom_fp.unpack(custom_fp.pack(x, fmt), fmt, x.shape) for fmt in ("e5m2", "mxfp4", "linear_b64")
        )

    torch._dynamo.reset()
    compiled = torch.compile(bytes_of, fullgraph=True, dynamic=True, backend="aot_eager")
    for n in (100, 37, 2):
        x = torch.randn(3, n)
        assert_same(compiled(x), bytes_of(x))


# ---- forward-mode gradients ------------------------------------------------------------------------------------


@pytest.mark.parametrize("fmt", ["e5m2", "mxfp4", "linear_b64"])
def test_tangents_pass_straight_through_quantize(fmt):
    tangent = torch.randn(4, 32)
    value, moved = torch.func.jvp(lambda x: custom_fp.quantize(x, fmt), (x_4x32,), (tangent,))
    assert torch.equal(value, custom_fp.quantize(x_4x32, fmt)) and torch.equal(moved, tangent)
    value, moved = torch.func.jvp(
        lambda x: custom_fp.quantize(x, fmt), (x_4x32.double(),), (tangent.double(),)
    )
    assert torch.equal(moved, tangent)

    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(x_4x32, tangent)
        for result in (custom_fp.quantize(dual, fmt), custom_fp.Quantizer(forward=fmt, backward=fmt)(dual)):
            assert torch.equal(torch.autograd.forward_ad.unpack_dual(result).tangent, tangent)

    forwards = torch.func.jacfwd(lambda x: custom_fp.quantize(x, fmt).pow(2).sum())(x_4x32)
    backwards = torch.func.grad(lambda x: custom_fp.quantize(x, fmt).pow(2).sum())(x_4x32)
    assert torch.equal(forwards, backwards)


def test_functionalize_and_gradients_together_are_an_error():
    """torch has no rule for that. A gradient of zero would be worse."""

    def loss(x):
        return custom_fp.quantize(x, "e5m2").pow(2).sum()

    for function in (
        torch.func.functionalize(torch.func.grad(loss)),
        torch.func.grad(torch.func.functionalize(loss)),
    ):
        with pytest.raises(RuntimeError):
            function(x_4x32)


# ---- max_exponent, which needs values --------------------------------------------------------------------------


def test_max_exponent():
    x = torch.tensor([0.5, -3.0])
    assert torch.func.functionalize(lambda x: x * custom_fp.max_exponent(x))(x).tolist() == [1.0, -6.0]
    assert torch.func.functionalize(lambda x: x + (custom_fp.max_exponent(x * 0) is None))(x).tolist() == [
        1.5,
        -2,
    ]
    message = "max_exponent returns a Python integer"
    with FakeTensorMode(), pytest.raises(RuntimeError, match=message):
        custom_fp.max_exponent(torch.randn(3))
    with pytest.raises(RuntimeError, match=message):
        torch.func.vmap(lambda x: x * custom_fp.max_exponent(x))(x_4x32)
    with pytest.raises(RuntimeError, match=message):
        custom_fp.max_exponent(torch.empty(3, device="meta"))
    compiled = torch.compile(lambda x: x * custom_fp.max_exponent(x), backend="aot_eager")  # breaks the graph
    assert compiled(x).tolist() == [1.0, -6.0]


# ---- draws without a seed --------------------------------------------------------------------------------------


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
    torch._dynamo.reset()
    compiled = torch.compile(two_draws, fullgraph=True, backend=backend)
    torch.manual_seed(5)
    got = compiled(x)
    assert_same(got, expected)
    (got[0].sum() + got[1].sum()).backward()
    assert torch.equal(x.grad, torch.full((1000,), 2.0))


def test_a_seed_a_step_compiles_no_graph_a_step():
    def draws(x, number):
        rule = {"rounding": "stochastic", "seed": number, "offset": number}
        data = custom_fp.pack(x, "e5m2", **rule)
        return custom_fp.quantize(x, "e5m2", **rule), data, custom_fp.accumulate([x, x], "e3m1", **rule)

    torch._dynamo.reset()
    compiled = torch.compile(draws, fullgraph=True, backend="eager")  # more than 8 graphs of it are an error
    for number in range(2, 14):
        assert_same(compiled(x_4x32, number), draws(x_4x32, number))


def test_draws_are_tagged():
    for operator in ("quantize", "pack", "accumulate", "accumulate_packed"):
        assert torch.Tag.nondeterministic_seeded in getattr(torch.ops.custom_fp, operator).default.tags


# ---- programs that leave the process ---------------------------------------------------------------------------

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
    mine = custom_fp.parse("exported_formats.MINE")
    layers = [custom_fp.Quantizer(forward=fmt) for fmt in ("mxfp4", "linear_b64", TERNARY, OWN, mine, "e4m3")]
    model, x = nn.Sequential(nn.Linear(8, 8), *layers), torch.randn(3, 8)
    torch.export.save(torch.export.export(model, (x,)), "program.pt2")
    torch.save((x, model(x).detach()), "values.pt")
    code = [sys.executable, "-c", LOAD, "program.pt2", "values.pt"]
    done = subprocess.run(code, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr


def test_a_format_is_spelled_so_that_any_process_reads_it():
    from custom_fp.formats.names import read, spelled

    for fmt in (custom_fp.parse("mxfp4"), custom_fp.parse("linear_b64"), TERNARY, OWN):
        assert read(spelled(fmt)) == fmt
    assert (
        spelled(custom_fp.parse("mxfp4_e2m1")) == "mxfp4" and spelled(custom_fp.parse("linear")) == "linear"
    )
    assert read("e5m2").name == "e5m2"
