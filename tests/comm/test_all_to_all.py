"""Test the all-to-all exchange of tokens, and of their gradients, in number formats."""

import custom_fp
import pytest
import torch
from bits import same_bits
from ranks import run_ranks

from cpdrun.comm import all_to_all, emulate_all_to_all

# COUNTS[i][j] is the number of rows that rank i sends to rank j. Some of these numbers are 0.
COUNTS = [[2, 0, 3], [1, 4, 0], [0, 0, 5]]
FORMATS = ["fp32", "bf16", "e4m3", "mxfp4", "int4_affine_b32"]


def rows_of(rank: int, width: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(rank)
    return torch.randn(sum(COUNTS[rank]), width, generator=generator) * 10.0 ** torch.arange(-3, width - 3)


def exchange(rank: int, width: int, fmt: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the rows that a rank receives, and the gradient of the rows that it sent.

    In the backward pass, element i of the received rows has the gradient `(rank + 1) * sin(i + 0.1)`.
    """
    x = rows_of(rank, width).requires_grad_()
    output_splits = [counts[rank] for counts in COUNTS]
    y = all_to_all(x, output_splits, COUNTS[rank], fmt, gradient_format="e5m2")
    y.backward(torch.sin(torch.arange(y.numel()) + 0.1).view_as(y) * (rank + 1))
    return y.detach(), x.grad


def exchange_all(width: int) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    return {fmt: exchange(torch.distributed.get_rank(), width, fmt) for fmt in FORMATS}


@pytest.mark.parametrize("width", [7, 40])
def test_rows_and_gradients_arrive_rounded_once(width: int) -> None:
    found = run_ranks(3, exchange_all, width)
    for fmt in found[0]:
        pieces = [
            emulate_all_to_all(rows_of(rank, width), fmt).split(COUNTS[rank]) for rank in range(len(COUNTS))
        ]
        for rank, results in enumerate(found):
            y, _ = results[fmt]
            assert same_bits(y, torch.cat([piece[rank] for piece in pieces])), (fmt, rank)
        sent_back = []
        for rank, (y, _) in enumerate(results[fmt] for results in found):
            grad = torch.sin(torch.arange(y.numel()) + 0.1).view_as(y) * (rank + 1)
            sent_back.append(custom_fp.quantize(grad, "e5m2").split([counts[rank] for counts in COUNTS]))
        for rank, results in enumerate(found):
            expected = torch.cat([back[rank] for back in sent_back])
            assert same_bits(results[fmt][1], expected), (fmt, rank)


def with_wrong_splits() -> list[str]:
    said = []
    for output_splits, input_splits in (([1], [1, 1]), ([1, -1], [1, 1]), ([1, 1], [1, 2])):
        with pytest.raises(ValueError) as caught:
            all_to_all(torch.ones(2, 4), output_splits, input_splits, "e4m3")
        said.append(str(caught.value))
    return said


def test_splits_that_do_not_fit_are_errors() -> None:
    for said in run_ranks(2, with_wrong_splits):
        assert (
            said[0] == "output_splits=[1] must contain a number of rows, at least 0, for each of the 2 ranks"
        )
        assert said[1].startswith("output_splits=[1, -1]")
        assert said[2].startswith("input_splits=[1, 2] must add up") and said[2].endswith("(2, 4)")


def test_the_emulation_rounds_rows_and_gradients() -> None:
    x = rows_of(0, 64).bfloat16().requires_grad_()
    y = emulate_all_to_all(x, "mxfp4", gradient_format="mxfp8_e5m2")
    assert y.dtype is torch.bfloat16 and same_bits(
        y.float(), custom_fp.quantize(x.float(), "mxfp4", axis=-1).detach()
    )
    grad = torch.randn(y.shape, generator=torch.Generator().manual_seed(1)).bfloat16()
    y.backward(grad)
    assert same_bits(
        x.grad.float(), custom_fp.quantize(grad.float(), "mxfp8_e5m2", axis=-1).bfloat16().float()
    )
