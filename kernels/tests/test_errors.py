"""Errors say what was given and what is allowed, in one line."""

import math

import custom_fp
import pytest
import torch
from custom_fp import Affine, BlockFormat, Codebook, Format, Rule, parse
from custom_fp.recipe.parsing import read_rule
from torch import nn

X = torch.ones(4)
MATRIX = torch.ones(3, 4)


def refused(call, message):
    with pytest.raises((ValueError, TypeError)) as error:
        call()
    assert message in str(error.value) and "\n" not in str(error.value)


# ---- names of formats

SCALARS = [
    "",
    "banana",
    "e9m2",
    "e0m2",
    "e5m24",
    "e5",
    "m2",
    "e5m2x",
    "E5M2",
    "e4m3nf",
    "e8m3fn",
    "e4m3uz",
    None,
    8,
]
FORMATS = {
    "ue4m3fnuz": "no format 'ue4m3fnuz': family fnuz needs a sign bit; without one take ieee, fn, fo",
    "e8m3fnuz": "no format 'e8m3fnuz': bias 128 puts values outside float32; biases that fit: none",
    "p3109_k8p8se": "P is 1..K",
    "p3109_k17p3se": "K is 2..16",
    "posit17": "2..16 bits",
    "posit8es6": "es 0..5",
    "takum7": "8..16 bits",
    "lns9_3": "i is 2..8",
    "nvfp4_floor": "rule=floor and scales in e4m3fn; that rule is for e8m0; allowed: amax, 4over6",
    "nvfp4_b16_b32": "it says block twice",
    "mxfp8_e4m3_4over6": "that rule is e2m1fn's",
    "nvfp4_fast": "'fast' is none of the options; allowed: _b<n>",
    "mxfp4_margin1": "margin=1 and rule=floor",
    "fp8_ceil": "does not say what shares a scale; allowed: fp8_tensor",
    "nvfp4_b0": "'b0' is none of the options",
    "fp8": "unknown format 'fp8' (did you mean e4m3fn (hardware FP8, maximum 448) or e5m2?)",
    "int8": "did you mean mxint8",
    "mxposit16": "16 bits; allowed: elements of at most 8 bits",
    "posit8_e8m0": "it does not say what shares a scale; allowed: posit8_tensor",
    "mxposit8_even": "rule=even and elements of posit8",
    "mxue4m3fn": "elements of ue4m3fn; allowed: formats with a sign",
    "mxp3109_k8p1uf": "which has no negative values",
    "mxe1m0": "which has no value but zero",
    "int8_affine_e8m0": "rule=minmax and scales in e8m0",
    "int9_affine": "unknown format 'int9_affine'; allowed: ",
    "int8_affine_b0": "int8_affine_b0",
    "dynamic_twig": "unknown format 'dynamic_twig'; allowed: ",
    "nowhere.at_all.nf4": "unknown format 'nowhere.at_all.nf4'",
    "math.pi": "math.pi is a float; a format is",
}
MEANT = {
    "E4M3": "e4m3fn",
    "float8_e4m3": "e4m3",
    "bfloat16": "bf16",
    "torch.bfloat16": "bf16",
    "torch.float8_e5m2": "e5m2",
    "MXFP4": "mxfp4",
    "half": "fp16",
    "torch.float8_e4m3fnuz": "e4m3fnuz",
    "torch.float8_e4m3fn": "e4m3fn",
    "float8_e4m3b11fnuz": "e4m3b11fnuz",
}
UNKNOWN = ["banana", "float8_e8m0fnu", "e4m3uz", None, 8, ["e4m3", "e5m2"], {"e4m3": 1}]


@pytest.mark.parametrize("name", SCALARS)
def test_names_of_scalar_formats(name):
    with pytest.raises(ValueError, match=r"allowed|fit"):
        Format.parse(name)


@pytest.mark.parametrize("name", FORMATS)
def test_names_of_formats(name):
    refused(lambda: parse(name), FORMATS[name])


@pytest.mark.parametrize("name", MEANT)
def test_names_of_other_libraries_and_capitals_are_suggested(name):
    refused(lambda: parse(name), f"unknown format '{name}' (did you mean '{MEANT[name]}'")
    assert parse(MEANT[name])


@pytest.mark.parametrize("name", UNKNOWN, ids=str)
def test_an_unknown_name_gets_a_short_line(name):
    with pytest.raises(ValueError, match="allowed: ") as error:
        parse(name)
    assert "did you mean" not in str(error.value) and len(str(error.value)) < 240


def mine(**options):
    return lambda: BlockFormat("mine", **{"element": "e2m1fn", **options})


PARTS = [
    *((lambda b=block: BlockFormat("mine", "e2m1fn", b), "allowed: a whole number from 1")
      for block in (0, -8, True, 32.0, None, "32", "rows")),
    *((lambda w=width: Format(w, 3), "a whole number is needed") for width in ("4", 4.0, True, None)),
    *((lambda b=bias: Format(7, 2, b), "biases that fit: -1..127") for bias in (128, -5, 1000)),
    (mine(block=(4,)), "allowed: a whole number from 1, two of them, row, column, tensor"),
    (mine(element="fp16"), "fp16, 16 bits; allowed: elements of at most 8 bits"),
    (mine(element="nonsense"), "elements in 'nonsense'; allowed: int2"),
    (mine(element="e4m3fnuz"), "with elements of e4m3fnuz; allowed: formats with a sign and a -0"),
    (mine(scale="e5m3"), "scales in 'e5m3'; allowed: e8m0, e4m3fn, ue5m3, fp32, ue4m3"),
    (mine(rule="up"), "rule='up'; allowed: floor, ceil"),
    (mine(tensor_scale="fp32"), "others in e8m0, which need none"),
    (mine(scale="e4m3fn", tensor_scale="bf16"), "tensor_scale='bf16'; allowed: None, fp32"),
    (mine(scale="fp32", margin=-1), "margin=-1"),
    (lambda: custom_fp.ScaledFormat.parse("mxfp5"), "unknown scaled format 'mxfp5'; allowed: mxfp8_e4m3"),
    (lambda: Codebook("one", (1.0,)), "has 1 values; allowed: 2..256"),
    (lambda: Codebook("many", tuple(i / 300 for i in range(300))), "has 300 values"),
    (lambda: Codebook("wide", (0.0, 1.5)), "holds 1.5; values lie in [-1, 1]"),
    (lambda: Codebook("same", (0.5, 0.5)), "one value only"),
    (lambda: Codebook("nan", (0.0, math.nan)), "finite numbers"),
    (lambda: Codebook("block", (0.0, 1.0), block=0), "block=0"),
    (lambda: Affine("a", 9), "integers of 9 bits; allowed: 2 .. 8"),
    (lambda: Affine("a", 8, 0), "block=0; allowed: a whole number from 1"),
    (lambda: Affine("a", 8, "all"), "block='all'"),
    (lambda: Format.parse("fp32").values(), "16"),
    (lambda: parse("ue4m3").check_flat(), "format=ue4m3fn has no negative numbers, but gradients do"),
    (lambda: parse("nvfp4_2d").check_flat(), "format=nvfp4_2d has a scale for each tile or column"),
    (lambda: parse("fp8_column").check_flat(), "format=fp8_column has a scale for each tile or column"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "message"), PARTS)
def test_parts_of_formats(call, message):
    refused(call, message)


# ---- names of accumulators

ACCUMULATORS = {
    "h100_fp9": "did you mean 'h100_fp8'",
    "fp16-fusd": "did you mean 'fused'",
    "fp16-width_41": "width is 41; allowed: 1..40",
    "fp16-width_9-product_bf16": "aligns exact products",
    "fp16-pairwise-exact": "sets order again",
    "fp16-block_3-chunk_4": "chunk=4 must be a multiple of block=3",
    "fp16-block_3-kahan": "one by one",
    "mxfp4-fused": "sum is mxfp4; allowed: eXmY, or a table",
    "posit16-width_9": "sum=posit16 is a table",
    "posit16-fused-flush": "posit16 is not one",
    "fp16-width_9-flush": "without width",
    "fp16-block_4-join_9_9": "go with width",
    "fp16-block_4-width_9-split_2": "goes with join",
    "fp16-block_4-width_9-join_9_12": "the second number must not be larger",
    "fp16-toward_nowhere": "unknown word 'toward_nowhere'",
    "fp16-of_bf16": "it goes with width",
    "fp32-of_mxfp8_e4m3_rceil-block_32-width_25": "whose scales float32 values do not determine",
    "fp32-of_nvfp4_4over6-block_64-width_35-group_16": "whose scales float32 values do not determine",
    "fp32-of_nvfp4-block_64-width_35": "go with group_16",
    "fp32-of_mxfp4-block_60-width_25-group_16": "must divide block=60",
    "fp32-of_mxfp8_e4m3-block_64-width_35-group_16": "adds products of e2m1fn exactly",
    "fp32-of_bf16_mxfp4-width_9": "both have scales, or neither",
    "fp32-of_mxfp4_mxfp4_b16-width_9": "blocks of one size",
    "fp32-of_mxint8-width_9": "allowed with scales: floats",
    "fp32-of_mxfp8_e4m3-block_8-width_25-join_30_24": "without join",
    "fp16-width_9-group_4": "it goes with of_mxfp4",
}


@pytest.mark.parametrize("name", ACCUMULATORS)
def test_names_of_accumulators(name):
    refused(lambda: custom_fp.matmul(MATRIX, MATRIX.T, accumulator=name), ACCUMULATORS[name])


# ---- arguments of operators

RULES = [
    ({"rounding": "up"}, "rounding is 'up'; allowed: nearest_even, toward_zero, stochastic"),
    *(({"rounding": f"stochastic_{n}"}, "stochastic_1 .. stochastic_31") for n in ("0", "32", "08", "")),
    *(({"rounding": f"stochastic_{form}"}, "stochastic_odd_1 .. stochastic_odd_29")
      for form in ("odd_08", "odd_30", "even", "fastest_8", "even_")),
    ({"overflow": None}, "overflow is None; allowed: infinity, saturate"),
    ({"overflow": "wrap"}, "overflow is 'wrap'"),
    ({"offset": -1}, "offset is -1; it counts elements, from 0"),
    ({"offset": 1 << 63}, "it counts elements"),
    ({"seed": 2**64}, "allowed: -2**63 .. 2**64 - 1"),
    ({"seed": -(2**63) - 1}, "allowed: -2**63 .. 2**64 - 1"),
    ({"seed": 1.5}, "seed is 1.5"),
]  # fmt: skip


@pytest.mark.parametrize(("rule", "message"), RULES)
def test_rules_of_rounding(rule, message):
    rule = {"rounding": "stochastic", **rule}
    data = custom_fp.pack(X, "e5m2")
    refused(lambda: custom_fp.quantize(X, "e4m3", **rule), message)
    refused(lambda: custom_fp.quantize(X.clone().requires_grad_(), "e4m3", **rule), message)
    refused(lambda: custom_fp.pack(X, "e4m3", **rule), message)
    refused(lambda: custom_fp.accumulate([X, X], "e4m3", **rule), message)
    refused(lambda: custom_fp.accumulate_packed([data], "e5m2", 4, **rule), message)
    if "seed" not in rule:
        refused(lambda: Rule(**rule), message)
    if rule["rounding"] != "stochastic":
        name = {"modules": "*", "role": "weight", "format": "e5m2", "rounding": rule["rounding"]}
        refused(lambda: read_rule("rules[0]", name), rule["rounding"])


BYTES = custom_fp.pack(torch.ones(9), "e5m2")
MODEL = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
CODES, SCALES, T = custom_fp.encode(torch.ones(4, 32), "nvfp4", axis=1)
AFFINE = custom_fp.encode(torch.ones(3), "int8_affine")
CALLS = [
    (lambda: custom_fp.quantize(X.int(), "e5m2"), "float32"),
    (lambda: custom_fp.quantize(X.to(torch.complex64), "e5m2"), "float32"),
    (lambda: custom_fp.quantize([1.0], "e5m2"), ""),
    (lambda: custom_fp.quantize(X, "e9m2"), "e9m2"),
    (lambda: custom_fp.quantize(X, "e5m2", out=X.double()), "float32"),
    (lambda: custom_fp.quantize(X, "e5m2", out=X[:2]), "[2]"),
    (lambda: custom_fp.quantize(X, "e5m2", out=X.to("meta")), "meta"),
    (lambda: custom_fp.quantize(X, "linear", rounding="stochastic"), "rounds to nearest only"),
    (lambda: custom_fp.quantize(MATRIX, "mxfp4", axis=2), "axis is 2; allowed for shape [3, 4]: -2..1, or None"),
    (lambda: custom_fp.quantize(MATRIX, "e4m3", axis=-3), "axis is -3; allowed"),
    (lambda: custom_fp.quantize(X[0], "mxfp4", axis=0), "axis is 0, but the tensor has no dimensions; allowed: None"),
    *((lambda a=bad: custom_fp.quantize(MATRIX, "mxfp4", axis=a), "must be an integer or None")
      for bad in ("last", True, 1.0)),
    *((lambda c=call, n=name: c(X, n), "shape [4] has not got them; take ")
      for name in ("nvfp4_2d", "fp8_column") for call in (custom_fp.quantize, custom_fp.encode, custom_fp.pack)),
    (lambda: custom_fp.quantize(X, "int8_affine_column"), "shape"),
    *((lambda n=name: custom_fp.quantize_rows(MATRIX, n), "last two dimensions") for name in ("nf4_2d", "nf4_column")),
    (lambda: custom_fp.pack(X, "linear", shift=1), "has scales of its own"),
    *((lambda d=data: custom_fp.unpack(d, "e5m2", (9,)), word)
      for data, word in ((BYTES[:-1], "bytes"), (BYTES.view(2, 8), "bytes"), (BYTES.int(), "uint8"))),
    (lambda: custom_fp.unpack(BYTES, "e5m2", (17,)), "24 bytes"),
    (lambda: custom_fp.unpack(torch.zeros(3, dtype=torch.uint8), "linear", (8,)), "linear are 12 bytes"),
    (lambda: custom_fp.decode(torch.ones(3), "e5m2"), "codes"),
    (lambda: custom_fp.decode((CODES, SCALES), "nvfp4", axis=1),
     "codes, scales and the tensor's scale of nvfp4; got 2 tensors"),
    (lambda: custom_fp.decode((CODES, SCALES.view(-1), T), "nvfp4", axis=1),
     "128 values of nvfp4 have 8 scales of torch.uint8 of shape [4, 2]"),
    (lambda: custom_fp.decode((CODES, SCALES, T.view(1)), "nvfp4", axis=1), "one tensor's scale of torch.float32"),
    (lambda: custom_fp.decode(AFFINE[:2], "int8_affine"), "codes, scales and zero points of int8_affine; got 2"),
    (lambda: custom_fp.accumulate([], "e5m2"), "at least one"),
    (lambda: custom_fp.accumulate([torch.ones(3), X], "e5m2"), "one shape"),
    (lambda: custom_fp.accumulate([X, torch.ones(4, device="meta")], "e5m2"), "one device"),
    (lambda: custom_fp.accumulate([X.int()], "e5m2"), "int"),
    (lambda: custom_fp.accumulate_packed([BYTES[:8]], "e5m2", 9), "16 bytes"),
    (lambda: custom_fp.accumulate([X.double()], "e4m3", order="exact"), "order=exact and order=aligned add float32"),
    (lambda: custom_fp.accumulate([X[:1]] * 4097, "e4m3", order="aligned", width=40), "up to 4096 tensors; got 4097"),
    (lambda: custom_fp.matmul(MATRIX, MATRIX, accumulator="e5m2"), "cannot be multiplied"),
    (lambda: custom_fp.matmul(MATRIX.double(), MATRIX.double().T, accumulator="e5m2"), "float64"),
    (lambda: custom_fp.matmul(MATRIX, MATRIX.T.to("meta"), accumulator="e5m2"), "one device"),
    (lambda: custom_fp.hadamard(MATRIX, 12), "a size that is a power of two; got 12"),
    (lambda: custom_fp.hadamard(MATRIX, 0), "got 0"),
    (lambda: custom_fp.hadamard(MATRIX, 16.0), "got 16.0"),
    (lambda: custom_fp.hadamard(MATRIX, axis=2), "axis is 2; allowed for shape [3, 4]: -2..1"),
    (lambda: custom_fp.hadamard(MATRIX, axis=1.0), "axis is 1.0; it must be an integer"),
    (lambda: custom_fp.hadamard(MATRIX, axis=None), "hadamard needs an axis"),
    (lambda: custom_fp.hadamard(MATRIX, seed=0.5), "seed is 0.5"),
    (lambda: custom_fp.hadamard(MATRIX.int()), "expected a float32"),
    (lambda: custom_fp.QuantLinear(4, 3, accumulator="linear"), "matmul is not defined for a ScaledFormat"),
    (lambda: custom_fp.quantize_model(MODEL, accumulator="e5m2", skip=("*",)), "all are skipped"),
    (lambda: custom_fp.quantize_model(MODEL, accumulator="e5m2", skip=("head",)), "none of the layers: 0, 1"),
    *((lambda d=device: custom_fp.backend(d), "is no device; allowed: torch's, such as 'cpu', 'cuda' or 'cuda:1'")
      for device in ("e4m3", "", "gpu", None, Format.parse("e4m3"))),
]  # fmt: skip


@pytest.mark.parametrize(("call", "message"), CALLS)
def test_arguments_of_operators(call, message):
    refused(call, message)


ORDERS = [
    ({"order": "best"}, "order is 'best'; allowed: sequential, exact, aligned"),
    ({"order": "exact", "kahan": True}, "order=exact rounds once, so there is no error to compensate"),
    ({"order": "exact", "width": 4}, "width=4 goes with order=aligned, not exact"),
    ({"order": "aligned"}, "width is None; order=aligned needs one of 1..40"),
    ({"order": "aligned", "width": 41}, "width is 41; order=aligned needs one of 1..40"),
]


@pytest.mark.parametrize(("options", "message"), ORDERS)
def test_orders_of_sums(options, message):
    refused(lambda: custom_fp.accumulate([X, X], "e4m3", **options), message)
    refused(
        lambda: custom_fp.accumulate_packed([custom_fp.pack(X, "e4m3")] * 2, "e4m3", 4, **options), message
    )
