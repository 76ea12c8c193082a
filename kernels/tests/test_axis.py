"""Blocks along a dimension: each row is quantized like a separate tensor."""

import custom_fp
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

SCALED = [
    "mxfp4",
    "mxfp8_e4m3",
    "mxint8",
    "linear_b64",
    "nvfp4_1level",
    "fp8_row",
    "int8_b128",
    "mxfp4_rceil",
]


def by_rows(x: torch.Tensor, fmt: str, axis: int) -> torch.Tensor:
    if x.numel() == 0:
        return torch.empty(x.shape)
    along = x.movedim(axis, -1)
    rows = [custom_fp.quantize(row.contiguous(), fmt) for row in along.reshape(-1, along.shape[-1])]
    return torch.stack(rows).view(along.shape).movedim(-1, axis)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(0, 5) | st.sampled_from([31, 32, 33, 48, 65]), min_size=1, max_size=4).filter(
        lambda shape: torch.Size(shape).numel() < 20_000
    ),
    st.data(),
)
def test_along_an_axis_every_row_is_a_tensor_of_its_own(shape, data):
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    fmt = data.draw(st.sampled_from(SCALED))
    x = torch.randn(shape, generator=torch.Generator().manual_seed(len(shape)))
    assert torch.equal(custom_fp.quantize(x, fmt, axis=axis), by_rows(x, fmt, axis))
    encoded, data = custom_fp.encode(x, fmt, axis=axis), custom_fp.pack(x, fmt, axis=axis)
    assert torch.equal(custom_fp.decode(encoded, fmt, axis=axis), custom_fp.quantize(x, fmt, axis=axis))
    assert torch.equal(custom_fp.unpack(data, fmt, shape, axis=axis), custom_fp.quantize(x, fmt, axis=axis))
    strided = x.expand(2, *shape).movedim(0, -1)[..., 1]
    assert torch.equal(custom_fp.quantize(strided, fmt, axis=axis), custom_fp.quantize(x, fmt, axis=axis))


def test_without_an_axis_blocks_are_cut_from_memory():
    x = torch.randn(64, 48, generator=torch.Generator().manual_seed(0))
    flat = custom_fp.quantize(x, "mxfp4")
    assert torch.equal(flat, custom_fp.quantize(x.view(-1), "mxfp4").view_as(x))
    assert (flat != custom_fp.quantize(x, "mxfp4", axis=-1)).any()
    assert torch.equal(custom_fp.quantize(x.view(-1), "mxfp4", axis=0), flat.view(-1))


@pytest.mark.parametrize("fmt", ["e4m3", "fp32", "dynamic_tree"])
def test_where_no_block_is_cut_an_axis_changes_nothing(fmt):
    x = torch.randn(5, 7)
    assert torch.equal(custom_fp.quantize(x, fmt, axis=0), custom_fp.quantize(x, fmt))


def test_out_and_the_gradient():
    x = torch.randn(40, 3, requires_grad=True)
    custom_fp.quantize(x, "mxfp4", axis=0).sum().backward()
    assert torch.equal(x.grad, torch.ones_like(x))
    expected, mine = custom_fp.quantize(x.detach(), "mxfp4", axis=0), x.detach().clone()
    assert custom_fp.quantize(mine, "mxfp4", axis=0, out=mine) is mine and torch.equal(mine, expected)


def test_compiled_and_vmapped():
    x = torch.randn(4, 33, 6)
    expected = custom_fp.quantize(x, "mxfp4", axis=1)
    compiled = torch.compile(
        lambda x: custom_fp.quantize(x, "mxfp4", axis=-2), fullgraph=True, backend="aot_eager"
    )
    assert torch.equal(compiled(x), expected)
    assert torch.equal(torch.func.vmap(lambda x: custom_fp.quantize(x, "mxfp4", axis=0))(x), expected)


def test_an_axis_is_a_dimension():
    x = torch.randn(3, 4)
    with pytest.raises(ValueError, match=r"axis is 2; allowed for shape \[3, 4\]: -2 to 1, or None"):
        custom_fp.quantize(x, "mxfp4", axis=2)
    with pytest.raises(ValueError, match=r"axis is -3; allowed"):
        custom_fp.quantize(x, "e4m3", axis=-3)
    with pytest.raises(ValueError, match="axis is 0, but the tensor has no dimensions; allowed: None"):
        custom_fp.quantize(torch.tensor(1.0), "mxfp4", axis=0)
    for bad in ("last", True, 1.0):
        with pytest.raises(TypeError, match="must be an integer or None"):
            custom_fp.quantize(x, "mxfp4", axis=bad)
