"""Names and properties of formats with scales, and errors for invalid ones."""

import pickle

import custom_fp
import pytest
import torch
from custom_fp import BlockFormat
from custom_fp.formats.names import parse, read, spelled

CANONICAL = {
    "nvfp4_b16": "nvfp4",
    "nvfp4_4over6_b32": "nvfp4_b32_4over6",
    "nvfp4_16x16": "nvfp4_2d",
    "nvfp4_ue4m3": "nvfp4",
    "nvfp4_e8m0_1level": "nvfp4_e8m0",
    "fp8_1x128": "fp8_b128",
    "fp8_128x128": "fp8_block128",
    "int8_row": "int8_channel",
    "mxfp4_e2m1": "mxfp4",
    "mxfp8_e5m2_rceil_b16": "mxfp8_e5m2_b16_rceil",
    "mxfp4_ue5m3_amax": "mxfp4_ue5m3",
}
BITS = {
    "nvfp4": 4.5,
    "nvfp4_2d": 4 + 8 / 256,
    "mxfp4": 4.25,
    "mxint4": 4.25,
    "nvint4": 4.5,
    "nvfp4_fp32": 6,
    "fp8_block128": 8 + 32 / 128**2,
    "fp8_b128": 8.25,
    "fp8_tensor": 8,
    "fp8_row": 8,
    "int8_channel": 8,
}
WRONG = {
    "nvfp4_floor": "rule=floor requires scales in e8m0, not in e4m3fn; allowed rules for e4m3fn: amax, 4over6",
    "nvfp4_b16_b32": "the name sets block twice",
    "mxfp8_e4m3_4over6": "rule=4over6 is only for e2m1fn",
    "nvfp4_fast": "'fast' is not an option; allowed: _b<n>",
    "mxfp4_margin1": "margin=1 cannot be combined with rule=floor",
    "fp8_ceil": "must include the block; allowed: fp8_tensor",
    "nvfp4_b0": "'b0' is not an option",
    "fp8": "did you mean e4m3fn (hardware FP8, maximum 448) or e5m2?",
    "int8": "did you mean mxint8",
}


def test_each_format_has_one_name_and_is_read_back():
    for typed, name in CANONICAL.items():
        assert parse(typed) == parse(name) and parse(typed).name == name
    for name in (*BITS, *CANONICAL.values()):
        assert read(spelled(parse(name))) == parse(name)
    own = BlockFormat("mine", "int4", (3, 5), "ue5m3", tensor_scale="fp32")
    assert read(spelled(own)) == own
    assert "_hash" in vars(own) and "_hash" not in vars(pickle.loads(pickle.dumps(own)))


def test_bits_count_the_share_of_a_scale():
    assert {name: parse(name).bits for name in BITS} == BITS


@pytest.mark.parametrize("name", WRONG)
def test_a_name_that_is_wrong_says_what_is_allowed(name):
    with pytest.raises(ValueError, match="format") as raised:
        parse(name)
    assert WRONG[name] in str(raised.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"element": "fp16"}, "elements of fp16 have 16 bits; allowed: elements of at most 8 bits"),
        ({"block": (4,)}, "allowed: a whole number of at least 1, two such numbers, row, column, tensor"),
        ({"block": "rows"}, "block is 'rows'; allowed: a whole number of at least 1"),
        ({"scale": "e5m3"}, "unknown format of scales 'e5m3'; allowed: e8m0, e4m3fn, ue5m3, fp32, ue4m3"),
        ({"rule": "up"}, "rule is 'up'; allowed: floor, ceil"),
        ({"tensor_scale": "fp32"}, "scales in e8m0 cannot be combined with a scale of the tensor"),
        ({"scale": "e4m3fn", "tensor_scale": "bf16"}, "tensor_scale is 'bf16'; allowed: None, fp32"),
        ({"scale": "fp32", "margin": -1}, "margin is -1"),
    ],
)
def test_parts_that_do_not_fit_are_refused(options, message):
    with pytest.raises(ValueError, match="format 'mine'") as raised:
        BlockFormat("mine", **{"element": "e2m1fn", **options})
    assert message in str(raised.value)


def test_scales_exactly():
    """The values of each scale's codes, from their definition."""
    from custom_fp.formats.scale import SCALES
    from custom_fp.scaled.scales import values

    codes = torch.arange(256, dtype=torch.uint8)
    e8m0, e4m3fn, ue5m3 = (values(SCALES[name], codes) for name in ("e8m0", "e4m3fn", "ue5m3"))
    assert torch.equal(e8m0[:255].double(), torch.arange(-127, 128).double().exp2()) and e8m0[255].isnan()
    assert (
        torch.equal(e4m3fn[:127], codes[:127].view(torch.float8_e4m3fn).float())
        and e4m3fn[127:].isnan().all()
    )
    field, mantissa = codes.long() >> 3, codes.long() & 7
    exact = torch.where(field > 0, (8 + mantissa) * (field - 18).double().exp2(), mantissa * 2.0**-17)
    assert torch.equal(ue5m3[:255].double(), exact[:255]) and ue5m3[255].isnan() and ue5m3[254] == 114688


def test_a_tile_needs_a_matrix_and_the_wire_has_none():
    x = torch.randn(40)
    for name in ("nvfp4_2d", "fp8_column"):
        for call in (custom_fp.quantize, custom_fp.encode, custom_fp.pack):
            with pytest.raises(ValueError, match=rf"{name} .*the tensor has shape \[40\]; use .*_b"):
                call(x, name)
        with pytest.raises(ValueError, match=f"format={name} has a scale for each tile or column"):
            parse(name).check_flat()
    flat = custom_fp.quantize(x, "fp8_row")
    assert torch.equal(flat, custom_fp.quantize(x, "fp8_tensor"))  # all of it is one row
    parse("nvfp4").check_flat()


def test_decode_says_what_it_needs():
    codes, scales, t = custom_fp.encode(torch.randn(4, 32), "nvfp4", axis=1)
    assert scales.shape == (4, 2) and t.shape == ()
    with pytest.raises(ValueError, match="codes, scales and the tensor's scale of nvfp4; got 2 tensors"):
        custom_fp.decode((codes, scales), "nvfp4", axis=1)
    with pytest.raises(
        ValueError,
        match=r"for 128 values of nvfp4, decode requires 8 scales of torch.uint8 of shape \[4, 2\]",
    ):
        custom_fp.decode((codes, scales.view(-1), t), "nvfp4", axis=1)
    with pytest.raises(ValueError, match=r"one tensor's scale of torch\.float32"):
        custom_fp.decode((codes, scales, t.view(1)), "nvfp4", axis=1)
