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
    *("", "banana", "e9m2", "e0m2", "e5m24", "e5", "m2", "e5m2x", "E5M2", "e4m3nf", "e8m3fn", "e4m3uz"),
    *(None, 8),
]
FORMATS = {
    "ue4m3fnuz": "no format 'ue4m3fnuz': family fnuz needs a sign bit; for an unsigned format, use family",
    "e8m3fnuz": "no format 'e8m3fnuz': bias 128 puts values outside float32; allowed biases: none",
    "p3109_k8p8se": "P must be 1 to K",
    "p3109_k17p3se": "K must be 2 to 16",
    "posit17": "2 to 16 bits",
    "posit8es6": "es from 0 to 5",
    "takum7": "8 to 16 bits",
    "lns9_3": "i must be 2 to 8",
    "nvfp4_floor": "rule=floor requires scales in e8m0, not in e4m3fn; allowed rules for e4m3fn: amax, 4over6",
    "nvfp4_b16_b32": "the name sets block twice",
    "mxfp8_e4m3_4over6": "rule=4over6 is only for e2m1fn",
    "nvfp4_fast": "'fast' is not an option; allowed: _b<n>",
    "mxfp4_margin1": "margin=1 cannot be combined with rule=floor",
    "fp8_ceil": "must include the block; allowed: fp8_tensor",
    "nvfp4_b0": "'b0' is not an option",
    "fp8": "unknown format 'fp8' (did you mean e4m3fn (hardware FP8, maximum 448) or e5m2?)",
    "int8": "did you mean mxint8",
    "mxposit16": "elements of posit16 have 16 bits; allowed: elements of at most 8 bits",
    "posit8_e8m0": "the name must include the block; allowed: posit8_tensor",
    "mxposit8_even": "rule=even requires values of equally many digits, unlike those of posit8",
    "mxue4m3fn": "elements of ue4m3fn have no -0; allowed: formats with a sign",
    "mxp3109_k8p1uf": "have no negative values",
    "mxe1m0": "elements of e1m0 are always zero",
    "int8_affine_e8m0": "rule=minmax requires scales in fp32, not in e8m0",
    "int9_affine": "unknown format 'int9_affine'; allowed: ",
    "int8_affine_b0": "int8_affine_b0",
    "dynamic_twig": "unknown format 'dynamic_twig'; allowed: ",
    "nowhere.at_all.nf4": "unknown format 'nowhere.at_all.nf4'",
    "math.pi": "math.pi is a float, not a format",
    **dict.fromkeys(
        ("e\u0664m3", "e4m3b\u0667", "posit\u0668", "takum\u0668", "lns\u0664_3", "int\u0668_affine"),
        "unknown format",  # these digits are not ASCII
    ),
    "fp8_b\u0661": "is not an option; allowed: _b<n>",
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
    *((lambda b=block: BlockFormat("mine", "e2m1fn", b), "allowed: a whole number of at least 1")
      for block in (0, -8, True, 32.0, None, "32", "rows")),
    *((lambda w=width: Format(w, 3), "it must be a whole number") for width in ("4", 4.0, True, None)),
    *((lambda b=bias: Format(7, 2, b), "allowed biases: -1 to 127") for bias in (128, -5, 1000)),
    (mine(block=(4,)), "allowed: a whole number of at least 1, two such numbers, row, column, tensor"),
    (mine(element="fp16"), "elements of fp16 have 16 bits; allowed: elements of at most 8 bits"),
    (mine(element="nonsense"), "unknown element 'nonsense'; allowed: int2"),
    (mine(element="e4m3fnuz"), "elements of e4m3fnuz have no -0; allowed: formats with a sign and a -0"),
    (mine(scale="e5m3"), "unknown format of scales 'e5m3'; allowed: e8m0, e4m3fn, ue5m3, fp32, ue4m3"),
    (mine(rule="up"), "rule is 'up'; allowed: floor, ceil"),
    (mine(tensor_scale="fp32"), "scales in e8m0 cannot be combined with a scale of the tensor"),
    (mine(scale="e4m3fn", tensor_scale="bf16"), "tensor_scale is 'bf16'; allowed: None, fp32"),
    (mine(scale="fp32", margin=-1), "margin is -1"),
    (lambda: custom_fp.ScaledFormat.parse("mxfp5"), "unknown scaled format 'mxfp5'; allowed: mxfp8_e4m3"),
    (lambda: Codebook("one", (1.0,)), "has 1 values; allowed: 2 to 256 values"),
    (lambda: Codebook("many", tuple(i / 300 for i in range(300))), "has 300 values"),
    (lambda: Codebook("wide", (0.0, 1.5)), "has the value 1.5; values must be in [-1, 1]"),
    (lambda: Codebook("same", (0.5, 0.5)), "has only the value 0.5"),
    (lambda: Codebook("nan", (0.0, math.nan)), "finite numbers"),
    (lambda: Codebook("block", (0.0, 1.0), block=0), "block is 0"),
    (lambda: Affine("a", 9), "integers of 9 bits are not supported; allowed: 2 to 8 bits"),
    (lambda: Affine("a", 8, 0), "block is 0; allowed: a whole number of at least 1"),
    (lambda: Affine("a", 8, "all"), "block is 'all'"),
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
    "fp16-width_41": "width is 41; allowed: 1 to 40",
    "fp16-width_9-product_bf16": "requires exact products",
    "fp16-pairwise-exact": "sets order a second time",
    "fp16-block_3-chunk_4": "chunk=4 must be a multiple of block=3",
    "fp16-block_3-kahan": "one by one",
    "mxfp4-fused": "sum is mxfp4; allowed: eXmY, or a table",
    "posit16-width_9": "sum, but posit16 is a table",
    "posit16-fused-flush": "posit16 is not one",
    "fp16-width_9-flush": "without width",
    "fp16-block_4-join_9_9": "require width",
    "fp16-block_4-width_9-split_2": "requires join",
    "fp16-block_4-width_9-join_9_12": "the second number must not be larger",
    "fp16-toward_nowhere": "unknown word 'toward_nowhere'",
    "fp16-of_bf16": "no effect without width",
    "fp32-of_mxfp8_e4m3_rceil-block_32-width_25": "whose scales cannot be recovered",
    "fp32-of_nvfp4_4over6-block_64-width_35-group_16": "whose scales cannot be recovered",
    "fp32-of_nvfp4-block_64-width_35": "requires group_16",
    "fp32-of_mxfp4-block_60-width_25-group_16": "must divide block=60",
    "fp32-of_mxfp8_e4m3-block_64-width_35-group_16": "requires elements of e2m1fn",
    "fp32-of_bf16_mxfp4-width_9": "both must have scales, or neither",
    "fp32-of_mxfp4_mxfp4_b16-width_9": "blocks of the same size",
    "fp32-of_mxint8-width_9": "allowed with scales: floats",
    "fp32-of_mxfp8_e4m3-block_8-width_25-join_30_24": "without join",
    "fp16-width_9-group_4": "add of_mxfp4",
}


@pytest.mark.parametrize("name", ACCUMULATORS)
def test_names_of_accumulators(name):
    refused(lambda: custom_fp.matmul(MATRIX, MATRIX.T, accumulator=name), ACCUMULATORS[name])


# ---- arguments of operators

RULES = [
    ({"rounding": "up"}, "rounding is 'up'; allowed: nearest_even, toward_zero, stochastic"),
    *(({"rounding": f"stochastic_{n}"}, "stochastic_1 to stochastic_31") for n in ("0", "32", "08", "")),
    *(({"rounding": f"stochastic_{form}"}, "stochastic_odd_1 to stochastic_odd_29")
      for form in ("odd_08", "odd_30", "even", "fastest_8", "even_")),
    ({"overflow": None}, "overflow is None; allowed: infinity, saturate"),
    ({"overflow": "wrap"}, "overflow is 'wrap'"),
    ({"offset": -1}, "offset is -1; it counts elements, from 0 to"),
    ({"offset": 1 << 63}, "it counts elements"),
    ({"seed": 2**64}, "allowed: -2**63 to 2**64 - 1"),
    ({"seed": -(2**63) - 1}, "allowed: -2**63 to 2**64 - 1"),
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
    (lambda: custom_fp.quantize(MATRIX, "mxfp4", axis=2), "axis is 2; allowed for shape [3, 4]: -2 to 1, or None"),
    (lambda: custom_fp.quantize(MATRIX, "e4m3", axis=-3), "axis is -3; allowed"),
    (lambda: custom_fp.quantize(X[0], "mxfp4", axis=0), "axis is 0, but the tensor has no dimensions; allowed: None"),
    *((lambda a=bad: custom_fp.quantize(MATRIX, "mxfp4", axis=a), "must be an integer or None")
      for bad in ("last", True, 1.0)),
    *((lambda c=call, n=name: c(X, n), "the tensor has shape [4]; use ")
      for name in ("nvfp4_2d", "fp8_column") for call in (custom_fp.quantize, custom_fp.encode, custom_fp.pack)),
    (lambda: custom_fp.quantize(X, "int8_affine_column"), "shape"),
    *((lambda n=name: custom_fp.quantize_rows(MATRIX, n), "last two dimensions") for name in ("nf4_2d", "nf4_column")),
    (lambda: custom_fp.pack(X, "linear", shift=1), "has its own scales"),
    *((lambda d=data: custom_fp.unpack(d, "e5m2", (9,)), word)
      for data, word in ((BYTES[:-1], "bytes"), (BYTES.view(2, 8), "bytes"), (BYTES.int(), "uint8"))),
    (lambda: custom_fp.unpack(BYTES, "e5m2", (17,)), "24 bytes"),
    (lambda: custom_fp.unpack(torch.zeros(3, dtype=torch.uint8), "linear", (8,)), "requires 12 bytes for 8 values"),
    (lambda: custom_fp.decode(torch.ones(3), "e5m2"), "codes"),
    (lambda: custom_fp.decode((CODES, SCALES), "nvfp4", axis=1),
     "codes, scales and the tensor's scale of nvfp4; got 2 tensors"),
    (lambda: custom_fp.decode((CODES, SCALES.view(-1), T), "nvfp4", axis=1),
     "for 128 values of nvfp4, decode requires 8 scales of torch.uint8 of shape [4, 2]"),
    (lambda: custom_fp.decode((CODES, SCALES, T.view(1)), "nvfp4", axis=1), "one tensor's scale of torch.float32"),
    (lambda: custom_fp.decode(AFFINE[:2], "int8_affine"), "requires codes, scales and zero points of int8_affine; got"),
    (lambda: custom_fp.accumulate([], "e5m2"), "at least one"),
    (lambda: custom_fp.accumulate([torch.ones(3), X], "e5m2"), "one shape"),
    (lambda: custom_fp.accumulate([X, torch.ones(4, device="meta")], "e5m2"), "one device"),
    (lambda: custom_fp.accumulate([X.int()], "e5m2"), "int"),
    (lambda: custom_fp.accumulate_packed([BYTES[:8]], "e5m2", 9), "16 bytes"),
    (lambda: custom_fp.accumulate([X.double()], "e4m3", order="exact"), "order=exact and order=aligned require float"),
    (lambda: custom_fp.accumulate([X[:1]] * 4097, "e4m3", order="aligned", width=40), "at most 4096 tensors; got"),
    (lambda: custom_fp.matmul(MATRIX, MATRIX, accumulator="e5m2"), "cannot be multiplied"),
    (lambda: custom_fp.matmul(MATRIX.double(), MATRIX.double().T, accumulator="e5m2"), "float64"),
    (lambda: custom_fp.matmul(MATRIX, MATRIX.T.to("meta"), accumulator="e5m2"), "one device"),
    (lambda: custom_fp.hadamard(MATRIX, 12), "must be a power of two; got 12"),
    (lambda: custom_fp.hadamard(MATRIX, 0), "got 0"),
    (lambda: custom_fp.hadamard(MATRIX, 16.0), "got 16.0"),
    (lambda: custom_fp.hadamard(MATRIX, axis=2), "axis is 2; allowed for shape [3, 4]: -2 to 1"),
    (lambda: custom_fp.hadamard(MATRIX, axis=1.0), "axis is 1.0; it must be an integer"),
    (lambda: custom_fp.hadamard(MATRIX, axis=None), "hadamard requires an axis"),
    (lambda: custom_fp.hadamard(MATRIX, seed=0.5), "seed is 0.5"),
    (lambda: custom_fp.hadamard(MATRIX.int()), "expected a float32"),
    (lambda: custom_fp.QuantLinear(4, 3, accumulator="linear"), "matmul is not defined for a ScaledFormat"),
    (lambda: custom_fp.quantize_model(MODEL, accumulator="e5m2", skip=("*",)), "all are skipped"),
    (lambda: custom_fp.quantize_model(MODEL, accumulator="e5m2", skip=("head",)), "none of the layers: 0, 1"),
    *((lambda d=device: custom_fp.backend(d), "is not a device; allowed: PyTorch devices, such as 'cpu', 'cuda'")
      for device in ("e4m3", "", "gpu", None, Format.parse("e4m3"))),
]  # fmt: skip


@pytest.mark.parametrize(("call", "message"), CALLS)
def test_arguments_of_operators(call, message):
    refused(call, message)


ORDERS = [
    ({"order": "best"}, "order is 'best'; allowed: sequential, exact, aligned"),
    ({"order": "exact", "kahan": True}, "order=exact rounds once, so there is no error to compensate"),
    ({"order": "exact", "width": 4}, "width=4 requires order=aligned, not order=exact"),
    ({"order": "aligned"}, "width is None; order=aligned requires a width from 1 to 40"),
    ({"order": "aligned", "width": 41}, "width is 41; order=aligned requires a width from 1 to 40"),
]


@pytest.mark.parametrize(("options", "message"), ORDERS)
def test_orders_of_sums(options, message):
    refused(lambda: custom_fp.accumulate([X, X], "e4m3", **options), message)
    refused(
        lambda: custom_fp.accumulate_packed([custom_fp.pack(X, "e4m3")] * 2, "e4m3", 4, **options), message
    )


LAYOUTS = {
    "layout torch.sparse_coo; call to_dense() first": lambda x: x.to_sparse(),
    "layout torch.sparse_csr; call to_dense() first": lambda x: x.to_sparse_csr(),
    "layout torch._mkldnn; call to_dense() first": lambda x: x.to_mkldnn(),
    "a nested tensor; call torch.nested.to_padded_tensor": lambda x: torch.nested.nested_tensor(
        [x[0], x[1, :2]]
    ),
    "a nested tensor; call torch.nested.to_padded_tensor(x, 0.0) first": lambda x: torch.nested.nested_tensor(
        [x[0], x[1, :2]], layout=torch.jagged
    ),
}


@pytest.mark.parametrize("message", LAYOUTS)
@pytest.mark.filterwarnings("ignore:Sparse CSR|The PyTorch API of nested tensors")
def test_unsupported_layouts_of_tensors(message):
    x = LAYOUTS[message](MATRIX)
    for call in (
        lambda: custom_fp.quantize(x, "e4m3"),
        lambda: custom_fp.quantize(x.detach().requires_grad_(), "mxfp8_e4m3"),
        lambda: custom_fp.quantize(MATRIX, "e4m3", out=x),
        lambda: custom_fp.encode(x, "fp8_tensor"),
        lambda: custom_fp.decode(x, "e4m3"),
        lambda: custom_fp.pack(x, "e4m3"),
        lambda: custom_fp.max_exponent(x),
        lambda: custom_fp.scale_pow2(x, 1),
        lambda: custom_fp.hadamard(x, 4),
        lambda: custom_fp.accumulate([x, x], "e4m3"),
        lambda: custom_fp.matmul(x, MATRIX.T, accumulator="e4m3"),
        lambda: nn.functional.linear(MATRIX, custom_fp.quantize(x, "e4m3")),
    ):
        refused(call, message)


@pytest.mark.parametrize("given", [1.5, "1", None])
def test_arguments_that_are_not_integers(given):
    must = f"is {given!r}; it must be an integer"
    refused(lambda: custom_fp.quantize(X, "e4m3", offset=given), f"offset {must}")
    refused(lambda: custom_fp.accumulate([X], "e4m3", offset=given), f"offset {must}")
    refused(lambda: custom_fp.pack(X, "e4m3", shift=given), f"shift {must}")
    refused(lambda: custom_fp.scale_pow2(X, given), f"shift {must}")
