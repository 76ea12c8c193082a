"""Integration with torch: registered operators, autograd, torch.func and torch.compile, and layers that use them."""

import custom_fp
import pytest
import torch
from custom_fp.layers.products import Arithmetic, Nearest
from torch import nn

x_5x7 = torch.randn(5, 7)


@pytest.mark.parametrize(
    ("op", "args"),
    [
        ("quantize", (x_5x7.clone().requires_grad_(), "e5m2", "nearest_even", "infinity", None)),
        ("quantize", (x_5x7, "e4m3", "stochastic", "saturate", 3)),
        ("scale_pow2", (x_5x7, 3)),
        ("encode", (x_5x7, "e5m10")),
        ("decode", ([torch.arange(9)], "e5m2")),
        ("pack", (x_5x7, "e3m2", 0, "nearest_even", "infinity", None, 0)),
        ("unpack", (torch.zeros(6, dtype=torch.uint8), "e3m2", (2, 4), 0)),
        ("accumulate", ([x_5x7, x_5x7], "e5m2", True, "nearest_even", "infinity", None, 0)),
        (
            "accumulate_packed",
            ([torch.zeros(8, dtype=torch.uint8)] * 2, "e5m2", 8, False, "nearest_even", "saturate", None, 0),
        ),
        ("max_exponent", (x_5x7,)),
        ("quantize", (x_5x7.clone().requires_grad_(), "mxfp4", "nearest_even", "infinity", None)),
        ("encode", (x_5x7, "linear_b64")),
        ("decode", ([torch.zeros(40, dtype=torch.uint8), torch.ones(2, dtype=torch.uint8)], "mxfp4")),
        ("pack", (x_5x7, "mxfp4", 0, "nearest_even", "infinity", None, 0)),
        ("unpack", (torch.zeros(17, dtype=torch.uint8), "mxfp4", (4, 8), 0)),
        ("matmul", (x_5x7.clone().requires_grad_(), torch.randn(2, 7, 3), "e5m10", False, "e5m2")),
        (
            "matmul",
            (x_5x7.clone().requires_grad_(), torch.randn(2, 7, 3), "h100_fp8", False, "fp32-fused", 3),
        ),
    ],
)
def test_registration(op, args):
    torch.library.opcheck(getattr(torch.ops.custom_fp, op).default, args)


def test_quantize_passes_gradients_straight_through():
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        x = torch.randn(10).to(dtype).requires_grad_()
        weight = torch.randn(10)
        (custom_fp.quantize(x, "e3m0") * weight).sum().backward()
        assert x.grad.dtype is dtype and torch.equal(x.grad, weight.to(dtype))


FORMAT = custom_fp.Format.parse("e4m3")


def everything(x, w):
    h = custom_fp.quantize(x, FORMAT)
    h = custom_fp.matmul(h, custom_fp.quantize(w, "e5m2"), accumulator="e5m10")
    h = h + custom_fp.unpack(custom_fp.pack(h, "e5m2"), "e5m2", h.shape)
    h = h + custom_fp.accumulate([h, h * 2, h * 3], "e5m2", kahan=True)
    out = torch.empty_like(h)
    custom_fp.quantize(h.detach(), "e3m2", out=out)
    return h + out + custom_fp.decode(custom_fp.encode(h, "e4m3fn"), "e4m3fn")


def quantize_only(x, w):
    return custom_fp.quantize(x, "e5m2") * 2 + w.sum()


@pytest.mark.usefixtures("empty_compile_cache")
@pytest.mark.parametrize(("backend", "function"), [("aot_eager", everything), ("inductor", quantize_only)])
def test_compile_without_graph_breaks(backend, function):
    x, w = torch.randn(4, 6, requires_grad=True), torch.randn(6, 3, requires_grad=True)
    expected = function(x, w)
    expected.sum().backward()
    grads = x.grad.clone(), w.grad.clone()
    x.grad = w.grad = None
    got = torch.compile(function, fullgraph=True, backend=backend)(x, w)
    got.sum().backward()
    torch.testing.assert_close(got, expected, rtol=1e-6, atol=1e-6)  # inductor may reorder the float32 sum
    assert torch.equal(x.grad, grads[0]) and torch.equal(w.grad, grads[1])


def test_a_bad_format_fails_while_compiling_too():
    with pytest.raises(Exception, match="e9m2"):
        torch.compile(lambda x: custom_fp.quantize(x, "e9m2"), fullgraph=True, backend="eager")(x_5x7)


def test_vmap_and_grad():
    rows = torch.func.vmap(lambda row: custom_fp.quantize(row, "e5m2"))(x_5x7)
    assert torch.equal(rows, custom_fp.quantize(x_5x7, "e5m2"))
    grads = torch.func.vmap(torch.func.grad(lambda row: custom_fp.quantize(row, "e5m2").pow(2).sum()))(x_5x7)
    assert torch.equal(grads, 2 * rows)
    a, b = torch.randn(4, 2, 3, 5), torch.randn(5, 6)
    got = torch.func.vmap(lambda m: custom_fp.matmul(m, b, accumulator="e4m3"), in_dims=1, out_dims=1)(a)
    assert torch.equal(got, custom_fp.matmul(a, b, accumulator="e4m3"))


# ---- torch's own conversions ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("e5m2", torch.float8_e5m2),
        ("e4m3fn", torch.float8_e4m3fn),
        ("fp16", torch.float16),
        ("bf16", torch.bfloat16),
    ],
)
def test_torchs_conversions(name, dtype):
    """The same but for e4m3fn past its largest value: NaN to torch at first, and the largest value from 2.15 on."""
    g = torch.Generator().manual_seed(0)
    x = torch.randint(-(2**31), 2**31, (1 << 18,), generator=g).to(torch.int32).view(torch.float32)
    x = torch.cat([x, torch.linspace(-1000, 1000, 20_001), torch.tensor([torch.inf, -torch.inf, torch.nan])])
    theirs = x.to(dtype).float()
    saturates = name == "e4m3fn" and torch.tensor(1e9).to(dtype).isfinite().item()
    ours = custom_fp.quantize(x, name, overflow="saturate" if saturates else "infinity")
    assert torch.equal(ours.nan_to_num(7e37), theirs.nan_to_num(7e37))
    assert torch.equal(ours.isnan(), theirs.isnan())
    if name == "e4m3fn":
        past = x.abs() > 464
        assert custom_fp.quantize(x, name)[past].isnan().all()
        assert torch.equal(theirs[past].isnan(), x[past].isnan()) is saturates


# ---- layers ----------------------------------------------------------------------------------------------------

CONVOLUTIONS = [
    (
        nn.Conv1d,
        custom_fp.QuantConv1d,
        (2, 4, 11),
        {"kernel_size": 3, "stride": 2, "padding": 1, "groups": 2},
    ),
    (nn.Conv1d, custom_fp.QuantConv1d, (4, 11), {"kernel_size": 3, "dilation": 2, "bias": False}),
    (
        nn.Conv2d,
        custom_fp.QuantConv2d,
        (2, 4, 9, 8),
        {"kernel_size": (3, 2), "stride": (2, 1), "padding": (1, 2), "dilation": (1, 2), "groups": 4},
    ),
    (
        nn.Conv2d,
        custom_fp.QuantConv2d,
        (2, 4, 9, 8),
        {"kernel_size": 3, "padding": "same", "padding_mode": "reflect"},
    ),
    (
        nn.Conv3d,
        custom_fp.QuantConv3d,
        (2, 4, 5, 6, 7),
        {"kernel_size": 2, "stride": 2, "padding": 1, "groups": 2},
    ),
]


@pytest.mark.parametrize(("plain", "quantized", "shape", "arguments"), CONVOLUTIONS)
def test_convolutions_equal_torchs_in_float32(plain, quantized, shape, arguments):
    layer = plain(4, 8, **arguments)
    twin = quantized(4, 8, accumulator="fp32", **arguments)
    twin.load_state_dict(layer.state_dict())
    x = torch.randn(shape)
    results = []
    for module in (layer, twin):
        x_module = x.clone().requires_grad_()
        result = module(x_module)
        (result * torch.arange(result.numel()).view(result.shape).cos()).sum().backward()
        results.append([result, x_module.grad, *(p.grad for p in module.parameters())])
    for expected, got in zip(*results, strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)  # another order of float32 sums


def test_linear_is_the_product_it_says():
    layer = custom_fp.QuantLinear(
        6, 3, accumulator="e5m10", backward_accumulator="e5m7", operands="e4m3", gradients="e5m2"
    )
    x = torch.randn(4, 6, requires_grad=True)
    grad = torch.randn(4, 3)
    y = layer(x)
    y.backward(grad)
    q_x, q_w = custom_fp.quantize(x.detach(), "e4m3"), custom_fp.quantize(layer.weight.detach(), "e4m3")
    q_grad = custom_fp.quantize(grad, "e5m2")
    assert torch.equal(y, custom_fp.matmul(q_x, q_w.t(), accumulator="e5m10") + layer.bias)
    assert torch.equal(x.grad, custom_fp.matmul(q_grad, q_w, accumulator="e5m7"))
    assert torch.equal(layer.weight.grad, custom_fp.matmul(q_x.t(), q_grad, accumulator="e5m7").t())
    assert torch.equal(layer.bias.grad, grad.sum(0))


def test_quantizer():
    x = torch.randn(20, requires_grad=True)
    grad = torch.randn(20)
    y = custom_fp.Quantizer(forward="e4m3", backward="e5m2")(x)
    y.backward(grad)
    assert torch.equal(y, custom_fp.quantize(x.detach(), "e4m3"))
    assert torch.equal(x.grad, custom_fp.quantize(grad, "e5m2"))
    assert torch.equal(custom_fp.Quantizer()(x), x)


def network():
    shared = nn.Linear(8, 8)
    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(2 * 36, 8), shared, nn.ReLU(), shared)


def test_quantize_model():
    model = network()
    swapped = custom_fp.quantize_model(model, accumulator="e5m10", operands="e4m3", skip=("2",))
    assert type(model[0]) is nn.Conv2d  # the model itself is left alone
    assert [type(module).__name__ for module in swapped] == [
        "QuantConv2d",
        "Flatten",
        "Linear",
        "QuantLinear",
        "ReLU",
        "QuantLinear",
    ]
    assert swapped[3] is swapped[5] and list(swapped.state_dict()) == list(model.state_dict())
    assert "accumulator=fp16" in repr(swapped)

    parameters = list(model.parameters())
    assert custom_fp.quantize_model_(model, accumulator="e5m10") is model
    assert all(a is b for a, b in zip(parameters, model.parameters(), strict=True))
    assert isinstance(custom_fp.quantize_model(nn.Linear(2, 2), accumulator="e5m10"), custom_fp.QuantLinear)


def test_a_quantized_model_learns():
    torch.manual_seed(0)
    model = custom_fp.quantize_model(
        nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1)), accumulator="e5m10", operands="e4m3"
    )
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    x = torch.randn(64, 8)
    target = x[:, :1] - x[:, 1:2]
    losses = []
    for _ in range(60):
        loss = (model(x) - target).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.2 * losses[0]


def test_layers_compile_and_vmap():
    model = custom_fp.quantize_model(network(), accumulator="e5m10", operands="e4m3", gradients="e5m2")
    model[2].arithmetic = Arithmetic(
        {("input", "forward"): Nearest("e4m3"), ("weight", "forward"): Nearest("e3m2")}
    )
    x = torch.randn(2, 1, 8, 8)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(x), model(x))
    weight = model[0].weight.detach()

    def loss(weight, sample):
        return torch.func.functional_call(model, {"0.weight": weight}, (sample[None],)).sum()

    per_sample = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(weight, x)
    for i in range(2):
        assert torch.equal(per_sample[i], torch.func.grad(loss)(weight, x[i]))
