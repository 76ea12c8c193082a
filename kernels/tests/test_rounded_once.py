"""An operand that two products round in the same way is rounded once, with the same bits as rounding it twice."""

import custom_fp
import pytest
import torch
from custom_fp.layers import products


@pytest.mark.parametrize(
    ("name", "calls"),  # x, w and the error: for both products of each, or once
    [("e4m3", 3), ("fp8_tensor", 3), ("int8_affine", 3), ("dynamic_map", 3), ("nvfp4_2d", 3), ("int4_affine_8x8", 3),
     ("mxfp8_e4m3", 6), ("int8_affine_channel", 6), ("nf4_b64", 6)],
)  # fmt: skip
def test_as_often_as_its_cuts_differ(name, calls, monkeypatch):
    seen = []

    def counted(x, fmt, **how):
        seen.append(how.get("axis"))
        return custom_fp.quantize(x, fmt, **how)

    monkeypatch.setattr(products, "quantize", counted)
    layer = custom_fp.QuantLinear(40, 24, bias=False, operands=name, gradients=name)
    x = torch.randn(48, 40, generator=torch.Generator().manual_seed(0)).requires_grad_()
    error = torch.randn(48, 24, generator=torch.Generator().manual_seed(1))
    y = layer(x)
    y.backward(error)
    assert len(seen) == calls

    def along(t, axis):
        return custom_fp.quantize(t.detach(), name, axis=axis)

    w = layer.weight
    assert torch.equal(y, along(x, 1) @ along(w, 1).t())
    assert torch.equal(x.grad, along(error, 1) @ along(w, 0))
    assert torch.equal(w.grad, along(error, 0).t() @ along(x, 0))


def test_tiles_of_other_shapes_are_cut_for_each_product():
    """(2, 20, 40): forward tiles lie in one of the two matrices, those of the weight's gradient in all 40 rows."""
    layer = custom_fp.QuantLinear(40, 24, bias=False, operands="nvfp4_2d", gradients="nvfp4_2d")
    x = torch.randn(2, 20, 40, generator=torch.Generator().manual_seed(0)).requires_grad_()
    layer(x).sum().backward()
    ones = custom_fp.quantize(torch.ones(40, 24), "nvfp4_2d")
    rows = custom_fp.quantize(x.detach().view(40, 40), "nvfp4_2d")
    assert torch.equal(layer.weight.grad, ones.t() @ rows)
