"""Test the multiply-accumulates of a step, which are counted for one sample and grouped by formats."""

from functools import partial

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from cpdrun.models.gpt import GPT
from cpdrun.sweep import plan
from cpdrun.train.build import build
from cpdrun.train.preflight.products import coverage_of, step_operations

CPU = torch.device("cpu")


def counted_by_torch(model: nn.Module, x: torch.Tensor) -> float:
    """Return the multiply-accumulates of a forward and a backward pass as PyTorch counts them."""
    with FlopCounterMode(display=False) as flops:
        model(x).sum().backward()
    return flops.get_total_flops() / 2


def test_layers_are_counted_as_torch_counts_them():
    convs = nn.Conv2d(3, 6, 3, stride=2), nn.BatchNorm2d(6), nn.ConvTranspose2d(6, 4, 3), nn.Flatten()
    model = nn.Sequential(nn.Sequential(*convs), nn.Linear(4 * 6 * 6, 5, bias=False), nn.LayerNorm(5)).train()
    x = torch.ones(2, 3, 9, 9)
    coverage = coverage_of(model, partial(model, x))
    assert coverage.total == counted_by_torch(model, x) and not coverage.uncounted
    assert model.training and all(p.grad is not None for p in model.parameters())


def test_attention_is_two_products_and_their_gradients():
    model = GPT(num_classes=16, context=8, layers=2, heads=2, width=8, dropout=0.0)
    x = torch.zeros(1, 8).long()
    coverage = coverage_of(model, partial(model, x))
    of_attention = sum(n for product, n in coverage.macs.items() if "scaled_dot_product" in product.operator)
    assert of_attention == 2 * 2 * 3 * (2 * 8 * 8 * 4), (
        "layers, products, their gradients, 2 heads of width 4"
    )
    # PyTorch also counts the product that its attention kernel computes again in the backward pass.
    again = 2 * (2 * 8 * 8 * 4)
    assert coverage.total == counted_by_torch(model, x) - again


def found(*words: str) -> dict:
    (run,) = plan([*words, "seed=0", "results_dir=/nowhere"]).runs
    return step_operations(build(run.config, CPU), run.config["batch_size"])


def kinds(products: dict) -> dict[tuple[str, str, str], float]:
    return {(k["a"], k["b"], k["accumulator"]): k["macs"] for k in products["by_format"]}


@pytest.fixture(scope="module")
def plain() -> dict:
    return found("exp=digits_bits", "format=fp32", "aps=false")


def test_a_step_in_float32(plain):
    macs = plain["macs_per_step"]
    assert kinds(plain) == {("fp32", "fp32", "fp32"): macs} and macs > 10**6
    assert plain["bit_operations_per_step"] == macs * 32 * 32 and plain["mean_operand_bits"] == 32


@pytest.mark.parametrize(
    ("words", "operands", "accumulator", "bits", "mean"),
    [
        ([f"precision.{key}=e4m3" for key in ("activations", "weights", "errors")], "e4m3", "fp32", 64, 8),
        (["recipe=mxfp8", "ingredients.head=null"], "e4m3fn", "fp32", 64, 8.25),
        (["recipe=pure_fp16"], "fp16", "fp16", 256, 16),
    ],
)
def test_a_step_in_one_format(plain, words, operands, accumulator, bits, mean):
    products = found("exp=digits_bits", "format=fp32", "aps=false", *words)
    macs = plain["macs_per_step"]
    assert products["macs_per_step"] == macs and kinds(products) == {(operands, operands, accumulator): macs}
    assert products["bit_operations_per_step"] == macs * bits and products["mean_operand_bits"] == mean


def test_formats_that_differ_by_operand_or_step(plain):
    macs = plain["macs_per_step"]
    banner = kinds(found("exp=digits_bits", "format=fp32", "aps=false", "precision=int8"))
    assert set(banner) == {("int8", "int8", "fp32"), ("int8", "fp32", "fp32")}
    assert sum(banner.values()) == macs
    delayed = kinds(found("exp=digits_bits", "format=fp32", "aps=false", "recipe=fp8_delayed"))
    assert set(delayed) == {("e4m3fn", "e4m3fn", "fp32"), ("e4m3fn", "e5m2", "fp32")}
    rule = "precision.rules=[{modules: '*', role: [input, weight], format: e4m3, steps: [0, 5]}]"
    counted = found("exp=digits_bits", "format=fp32", "aps=false", "max_steps=20", "epochs=1", rule)
    early = kinds(counted)
    forward = delayed["e4m3fn", "e4m3fn", "fp32"]
    assert early["e4m3", "e4m3", "fp32"] == forward * 5 / 20, "a mean over the steps"
    assert early["fp32", "fp32", "fp32"] == macs * 15 / 20
    assert early["e4m3", "fp32", "fp32"] == (macs - forward) * 5 / 20
    share = forward / macs
    assert counted["mean_operand_bits"] == pytest.approx((32 * 15 + 5 * (8 * share + 20 * (1 - share))) / 20)


def test_a_model_that_does_not_accept_one_sample_is_a_problem_and_not_an_error(monkeypatch):
    (run,) = plan(["exp=digits_bits", "format=fp32", "aps=false", "seed=0", "results_dir=/nowhere"]).runs
    parts = build(run.config, CPU)
    monkeypatch.setattr(parts.task, "outputs", lambda *_: torch.ones(1) @ torch.ones(2))
    assert step_operations(parts, 8)["problem"].startswith("RuntimeError: ")
