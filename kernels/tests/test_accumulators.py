"""Accumulators: their names, their results compared with rational arithmetic and between backends, and their uses."""

import itertools
import math
from dataclasses import replace

import custom_fp
import dot_oracle
import oracle
import pytest
import torch
from backend_choice import in_cuda
from custom_fp import Accumulator, accumulator
from custom_fp.accumulators import reference
from custom_fp.accumulators.machines import MACHINES
from custom_fp.formats.scalar import Format
from custom_fp.reference import random_words
from tensors import normal, same_bits

native = pytest.importorskip("custom_fp.accumulators.native")

SEED = 5
NO_GPU = [pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")]
WORDS = [
    *("fp32-fused", "fp32-exact", "e4m3fn-product_e5m2-exact-stochastic", "fp16-pairwise"),
    *("bf16-fused-pairwise", "e5m7-fused-block_3-pairwise-toward_zero", "bf16-block_8"),
    *("e4m3-fused-toward_zero", "e4m3fn-stochastic_8-saturate", "fp16-stochastic-kahan"),
    *("e4m3-stochastic_even_2", "fp16-product_e5m2-stochastic_odd_3"),
    *("e5m3-block_4-pairwise-stochastic_fast_2", "e5m3-block_4-pairwise-stochastic_5-chunk_12"),
    *("fp16-product_bf16-kahan", "bf16-chunk_5_fp16", "e3m2fn-saturate", "e4m3-fused-to_odd-propagate"),
    *("e4m3-nearest_away", "e4m3fn-block_4-pairwise-toward_positive"),
    *("e5m2-block_8-width_9-toward_negative", "fp32-block_8-width_24", "e5m7-of_fp16-block_16-width_12"),
    *("e4m3-block_5-width_40-stochastic_3", "e4m3fn-width_6-saturate-toward_zero"),
    "e5m7-of_e4m3fn-block_4-width_9-toward_zero-chunk_8",
    "e5m7-of_e4m3fn-block_8-width_9-join_14_11-split_2",
    *("e5m3-of_e4m3fnuz-block_3-width_12-join_12_9-toward_zero", "e5m3-of_e4m3-flush"),
    *("bf16-fused-flush-toward_zero", "e4m3-of_bf16_e4m3-product_e5m2-flush-pairwise-stochastic"),
    *("e4m3fnuz-kahan-saturate", "e4m3fnuz-fused-toward_zero", "e5m2fnuz-product_e4m3fo-pairwise-to_odd"),
    *("e4m3fo-block_4-stochastic_4", "e5m3fnuz-of_e4m3fnuz-block_8-width_9-toward_zero"),
    *("fp32-product_e4m3fnuz-chunk_5_e5m2fnuz", "ue5m6-fused", "ue5m6-product_e5m6-toward_zero"),
    *("ue4m3-exact-saturate", "ue5m3-block_4-width_9", "posit8-product_posit16", "posit16-exact"),
    *("posit8-fused-stochastic", "posit16-pairwise-toward_zero", "takum8-pairwise-product_bf16"),
    *("lns4_3-exact-toward_zero", "lns4_3-fused-kahan", "hif8-block_4-to_odd"),
    *("p3109_k8p3se-fused-saturate", "p3109_k8p4uf-exact", "fp16-chunk_4_posit16"),
]
PANELS = [  # of csrc/accumulators/lane_sums.h, in float32 and in float64
    *("mi250_fp16", "fp32-of_bf16-block_2-flush-pairwise"),
    *("fp16-pairwise", "bf16-chunk_4", "e4m3fn-saturate", "bf16-saturate-pairwise", "fp16-fused"),
    "fp32-kahan",
    *("bf16-fused-pairwise", "e8m22-pairwise", "e8m13-fused", "fp32-saturate-kahan", "fp16-chunk_7"),
    "fp32-pairwise",
    *("fp16-toward_zero", "bf16-fused-toward_zero", "fp32-pairwise-toward_zero"),
    "e4m3fn-saturate-toward_zero",
    *("fp16-stochastic_8", "fp16-stochastic_12", "fp16-stochastic_13", "bf16-stochastic-pairwise"),
    "e4m3-stochastic",
    *("e8m20-stochastic", "e8m21-fused-stochastic", "e5m2-block_4-pairwise-stochastic_5-saturate"),
    "fp16-stochastic_3-kahan",
    *("fp16-stochastic_fast_4", "e4m3-stochastic_even_6"),  # which only the general panels compute
]
BLOCKS = [  # of csrc/accumulators/cpu_blocks.h, in float32 and in float64
    *("h100_fp8", "deepseek_v3", "h100_fp8_e5m2_by_e4m3", "b200_fp8", "h100_fp16", "a100_bf16", "v100_fp16"),
    *(
        f"fp32-of_e4m3fn-block_{k}-width_{w}-toward_zero"
        for k, w in ((3, 14), (32, 14), (32, 15), (33, 14), (7, 1))
    ),
    *(
        f"e8m9-of_bf16-block_{k}-width_{w}-toward_zero-chunk_{2 * k}"
        for k, w in ((5, 27), (32, 27), (4, 28), (6, 12))
    ),
    "fp32-of_e2m1fn-block_6-width_9-toward_zero-chunk_12",
    "bf16-of_e5m2-block_9-width_13-saturate-toward_zero",
    *("fp16-of_e4m3fn-block_8-width_12-toward_zero", "a100_tf32"),
    "fp32-of_e4m3fn-block_1-width_9-toward_zero",
    *("mi300_fp16", "mi300_fp8", "mi300_xf32", "fp16-of_fp16-block_16-width_40-saturate"),  # cpu_aligned.h
    "fp32-of_fp16-block_8-width_30-join_40_20",
]
CUDA = [  # of every kind of a kernel's rounding
    *("fp32-exact", "fp16-pairwise", "bf16-fused-toward_zero", "fp16-stochastic_5-kahan"),
    "fp16-stochastic_even_5",
    *("e4m3-block_4-pairwise-stochastic", "h100_fp16", "deepseek_v3", "mi250_fp16", "mi300_fp8"),
    "b200_mxfp8",
    *("b200_mxfp4", "b200_nvfp4", "posit16-exact", "posit8-product_e4m3fnuz-pairwise-stochastic"),
    "ue5m6-fused-toward_zero-chunk_5_takum8",
]
OWN = {name: Accumulator.parse(name) for name in MACHINES}  # test_block_scales.py has those with scales
ALL = WORDS + [name for name, how in OWN.items() if how.name == name and not how.scales]


def operands(how, scales, depth=37, columns=5, seed=0):
    """Values of the machine's formats, a row for each scale, subnormals and zeros among them."""
    g = torch.Generator().manual_seed(seed)
    kinds = how.operands or ("bf16", "e4m3")
    made = []
    for fmt, shape in zip(kinds, ((len(scales), depth), (depth, columns)), strict=True):
        x = torch.randn(shape, generator=g) * 2.0 ** torch.randint(-9, 3, shape, generator=g)
        x = x * torch.tensor(scales)[:, None] if not made else x
        made.append(custom_fp.quantize(x, fmt, overflow="saturate"))
    made[0][:, 3] = 0.0
    return made


def word_of(how, row, column, columns):
    wide = -(-columns // reference.ROW) * reference.ROW

    def word(stream):
        at = row * wide + column
        return int(random_words(1, stream, SEED, torch.device("cpu"), at)[0]) if how.is_stochastic else 0

    return word


def by_reference(a, b, how):
    out = torch.empty(1, a.shape[0], b.shape[1])
    reference.matmul(a[None], b[None], how, replace(how.rule, seed=SEED), out)
    return out[0]


def test_names_are_read_back():
    for name in ALL:
        how = Accumulator.parse(name)
        assert how == Accumulator.parse(how.name) == Accumulator.parse(how.spelling)
        assert accumulator.spelled(name) == how.name and accumulator.read(name) == (how, False)
        assert not set(how.spelling) & set(" ,=()[]{}:*?/'\"")  # of a command line, an axis, a file's name


def test_reference_equals_rational_arithmetic():
    for name in ALL:
        how = Accumulator.parse(name)
        a, b = operands(how, (1.0, 2.0**-70, 2.0**12, 1.0, 1.0), depth=19, columns=1)
        a[3, 6], a[4, 6], a[4, 7] = math.inf, math.inf, -math.inf
        got = by_reference(a, b, how)
        for i in range(len(a)):
            want = dot_oracle.dot(a[i].tolist(), b[:, 0].tolist(), how, word_of(how, i, 0, 1))
            assert oracle.same(got[i, 0].item(), want), (name, i, want)


def test_native_equals_the_reference():
    for name in ALL:
        how = Accumulator.parse(name)
        a, b = operands(how, (1.0, 2.0**-60, 2.0**9, 1.0), columns=70)
        a[3, 5], b[6, 67] = math.inf, math.nan  # of the second panel of columns
        a = torch.cat([a, torch.randn(1, 37)])  # no fast path computes products of so many digits
        want = by_reference(a, b, how)
        for isa in native._native.isas():
            native._native.use_isa(isa)
            got = custom_fp.matmul(a, b, accumulator=how, seed=SEED)
            assert same_bits(got, want), (name, isa)


@pytest.mark.parametrize("formats", [("e4m3fn", "e4m3fn"), ("e5m2", "e4m3fn")])
def test_h100_mma_fp8_adds_the_results_of_fp16_instructions_that_start_at_zero(formats):
    g = torch.Generator().manual_seed(0)
    x, y = torch.randn(40, 96, generator=g) * 2.0**-5, torch.randn(96, 40, generator=g)
    a, b = (custom_fp.quantize(value, fmt) for value, fmt in zip((x, y), formats, strict=True))
    total = torch.zeros(40, 40)
    for k in range(0, 96, 32):
        total = total + custom_fp.matmul(a[:, k : k + 32], b[k : k + 32], accumulator="h100_fp16")
    assert same_bits(custom_fp.matmul(a, b, accumulator="h100_mma_fp8"), total)
    assert not same_bits(custom_fp.matmul(a, b, accumulator="h100_fp8"), total)


@pytest.mark.parametrize(
    "name",
    [
        *("h100_fp8", "a100_bf16", "mi250_fp16", "mi300_fp16", "mi300_fp8"),
        *("fp16-fused", "e8m13-fused", "fp32-exact", "e8m20-stochastic"),
    ],
)
def test_every_path_returns_the_same_bits(name):
    how = Accumulator.parse(name)
    a, b = operands(how, (1.0, 2.0**-60, 2.0**9, 1.0), columns=70)
    a[3, 5] = math.inf
    want = by_reference(a, b, how)
    try:
        for blocks, panels in itertools.product((True, False), repeat=2):
            native._native.use_paths(blocks, panels)
            assert same_bits(custom_fp.matmul(a, b, accumulator=how, seed=SEED), want), (blocks, panels)
    finally:
        native._native.use_paths(True, True)


def test_sums_at_the_edges_of_the_fast_paths():
    """Test partial sums that cancel, exceed 32 bits, exceed the format's range, and that no block adds to."""
    for name in (
        "h100_fp16",
        "h100_fp16_to_fp16",
        "h100_fp8",
        "b200_fp8",
        "deepseek_v3",
        "e5m7-block_16-width_25",
    ):
        how = Accumulator.parse(name)
        largest = Format.parse((how.operands or ("fp16",))[0]).max
        a = torch.ones(6, 64)
        a[0] = largest  # sums of the largest significands
        a[1, 1::2] = -1.0
        a[2, 16:] = 0.0
        a[3, 32:] *= 2.0**-6
        a[4] = torch.randn(64, generator=torch.Generator().manual_seed(1)).bfloat16() * 2.0**-5
        a[5, :] = 2.0**-9
        b = a.t().contiguous() * torch.tensor([1.0, 1.0, -1.0, 2.0, 1.0, 0.0])
        assert same_bits(custom_fp.matmul(a, b, accumulator=name), by_reference(a, b, how)), name


def test_panels_leave_rows_that_they_cannot_compute_to_the_general_path():
    """Test rows that fast panels do not take or must not trust, among rows that they compute: sums that exceed the
    largest value or that of float32, infinities, NaN, -0, subnormals, products of more digits than float32 has."""
    for name in PANELS:
        how = Accumulator.parse(name)
        a, b = operands(how, (1.0, 2.0**-30, 2.0**7, 2.0**60, 2.0**-120, 1.0, 1.0, 1.0, 1.0), columns=70)
        a[5, 4], a[6, 4], a[7] = math.inf, math.nan, -0.0
        a[8] = torch.randn(37, generator=torch.Generator().manual_seed(2))
        a = torch.cat([a, torch.full((2, 37), how.sum.max), torch.full((1, 37), 3.0e38)])
        for depth in (1, 5, 37):  # a tree of one term, odd trees
            x, y = a[:, :depth].contiguous(), b[:depth].contiguous()
            want = by_reference(x, y, how)
            for isa in native._native.isas():
                native._native.use_isa(isa)
                got = custom_fp.matmul(x, y, accumulator=how, seed=SEED)
                assert same_bits(got, want), (name, depth, isa)


def test_aligned_blocks_at_the_limits_of_their_path():
    """Test blocks and widths up to the limits of cpu_blocks.h and beyond.

    The rows contain zeros of both signs, blocks of zeros, and largest values that cancel. The fast paths compute some
    of them and leave the others to dot.h.
    """
    for name in BLOCKS:
        how = Accumulator.parse(name)
        largest = Format.parse(how.operands[0]).max if how.operands[0].emin > -100 else 2.0**40
        a, b = operands(how, (1.0,) * 5 + (2.0**-6, 1.0, 2.0**-20, 1.0, 1.0, 1.0), depth=67, columns=66)
        a[1] = a[1].abs()
        a[2], a[2, 1::2] = largest, -largest
        a[3, 32:64], a[3, 5] = 0.0, -0.0
        a[4], a[6] = largest, -a[6].abs()
        a[8, ::7] = Format.parse(how.operands[0]).smallest_subnormal
        a[9], a[10, 40:] = -0.0, largest
        b[:, 0], b[:, 1], b[::2, 2], b[32:64, 3] = 1.0, -1.0, -0.0, 0.0
        want = by_reference(a, b, how)
        for isa in native._native.isas():
            native._native.use_isa(isa)
            assert same_bits(custom_fp.matmul(a, b, accumulator=how), want), (name, isa)


@pytest.mark.parametrize("device", ["host", pytest.param("cuda", marks=[pytest.mark.gpu, *NO_GPU])])
@pytest.mark.parametrize("name", CUDA)
def test_cuda_kernels_return_the_bits_of_the_cpu(name, device, request):
    how = Accumulator.parse(name)
    for a_shape, b_shape in (((2, 5, 37), (2, 37, 9)), ((1, 5, 37), (3, 37, 9)), ((2, 4, 0), (1, 0, 3))):
        a, b = normal(*a_shape).bfloat16().float(), normal(*b_shape, seed=1)
        if how.scales:
            pairs = zip((a, b), how.operands, (2, 1), strict=True)
            a, b = (custom_fp.quantize(x, f, axis=i) for x, f, i in pairs)
        want = custom_fp.matmul(a, b, accumulator=how, seed=SEED)
        if device == "host":
            launched = request.getfixturevalue("launched")
            with in_cuda():
                got = custom_fp.matmul(a, b, accumulator=how, seed=SEED)
            assert any(kernel.startswith("dot_") for kernel in launched)
        else:
            got = custom_fp.matmul(a.cuda(), b.cuda(), accumulator=how, seed=SEED).cpu()
        assert same_bits(got, want)


def test_a_plain_format_is_an_accumulator():
    a, b = torch.randn(9, 40), torch.randn(40, 70)
    for name in ("fp16", "e4m3", "bf16", "fp32"):
        want = custom_fp.matmul(a, b, accumulator=name)
        how = Accumulator(name)
        assert how.is_plain and how.name == name and accumulator.read(how) == (Format.parse(name), False)
        assert same_bits(custom_fp.matmul(a, b, accumulator=how), want)
        assert same_bits(by_reference(a, b, how), want)  # the two definitions agree
        carried = custom_fp.matmul(a, b, accumulator=name, kahan=True)
        assert same_bits(custom_fp.matmul(a, b, accumulator=f"{name}-kahan"), carried)
        assert same_bits(by_reference(a, b, replace(how, kahan=True)), carried)


def test_random_bits_depend_on_the_seed_row_and_column():
    a, b = torch.randn(4, 30), torch.randn(30, 130)
    name = "e5m3-stochastic"
    torch.manual_seed(3)
    one, other = (custom_fp.matmul(a, b, accumulator=name) for _ in range(2))
    torch.manual_seed(3)
    assert same_bits(custom_fp.matmul(a, b, accumulator=name), one) and not same_bits(one, other)
    whole = custom_fp.matmul(a, b, accumulator=name, seed=1)
    assert same_bits(custom_fp.matmul(a[:2], b, accumulator=name, seed=1), whole[:2])
    assert same_bits(custom_fp.matmul(a, b[:, :128], accumulator=name, seed=1)[0], whole[0, :128])


def test_batches_gradients_and_layers():
    a, b = torch.randn(2, 3, 40, requires_grad=True), torch.randn(40, 5, requires_grad=True)
    custom_fp.matmul(a, b, accumulator="h100_bf16", backward_accumulator="fp32-fused").sum().backward()
    ones = torch.ones(6, 5)
    assert same_bits(a.grad.view(6, 40), custom_fp.matmul(ones, b.detach().mT, accumulator="fp32-fused"))
    layer = custom_fp.QuantLinear(40, 5, accumulator="a100_tf32", bias=False)
    want = custom_fp.matmul(a.view(6, 40), layer.weight.t(), accumulator="a100_tf32")
    assert same_bits(layer(a).view(6, 5), want) and "accumulator=a100_tf32" in repr(layer)
    drawing = custom_fp.QuantLinear(40, 5, accumulator="fp16-stochastic")
    assert same_bits(drawing.eval()(a), drawing(a)) and not same_bits(drawing.train()(a), drawing(a))


def test_a_rule_takes_an_accumulator():
    model = torch.nn.Sequential(torch.nn.Linear(8, 4, bias=False))
    x = torch.randn(3, 8)
    want = custom_fp.matmul(x, model[0].weight.detach().t(), accumulator="h100_fp8")
    rule = {"modules": "*", "role": "accumulator", "format": "h100_fp8", "product": "forward"}
    custom_fp.apply_recipe(model, [rule])
    assert same_bits(model(x), want) and "h100_fp8" in repr(model)
