"""With error feedback, what was sent and the residual are the gradient. What is not finite leaves no residual."""

import math

import pytest
import torch
from bits import reduce, same_bits
from exchanges import EXCHANGES, SHAPES, WITH_RESIDUALS, bounded_gradients, make


@pytest.mark.parametrize("name", WITH_RESIDUALS)
def test_the_sent_values_and_the_residual_are_the_gradient(name: str) -> None:
    """Bit for bit; with PowerSGD up to the last bits of M - P Q^T, twice 2^-24 of the larger."""
    sync = make(name, world_size=1)
    owed = [torch.zeros(shape) for shape in SHAPES.values()]
    for step in range(4):
        compensated = [g + e for g, e in zip(bounded_gradients(0, step), owed, strict=True)]
        sent = reduce(sync, [bounded_gradients(0, step)], step=step)
        state = sync.state_dict()
        residuals = state["residuals"] | state.get("whole", {}).get("residuals", {})
        owed = [residuals.get(f"0/{n}", torch.zeros(s)).view(s) for n, s in SHAPES.items()]
        for c, s, e in zip(compensated, sent, owed, strict=True):
            slack = 2.0**-22 * c.abs().max() if name.startswith("power_sgd") and c.numel() else 0
            assert ((c - s - e).abs() <= slack).all()
    assert any(e.any() for e in owed) == (name != "compressed none")


@pytest.mark.parametrize("name", EXCHANGES)
def test_nonfinite_gradients_are_counted_and_forgotten_and_zeros_stay_zero(name: str) -> None:
    sync = make(name, world_size=2)
    for value in (math.nan, math.inf):
        broken = [bounded_gradients(w) for w in range(2)]
        broken[1][0][2, 7] = value
        results = reduce(sync, broken)
        counter = sync.gradients if name == "sharded" else sync  # the owners' sums are counted
        assert counter.nonfinite >= 1 and all(g.isfinite().all() for g in results[1:])
        results = reduce(sync, [bounded_gradients(w, 1) for w in range(2)], step=1)
        assert counter.nonfinite == 0 and all(g.isfinite().all() for g in results)
    sync = make(name, world_size=2)
    for step in range(2):
        for total in reduce(sync, [[torch.zeros(shape) for shape in SHAPES.values()]] * 2, step=step):
            assert same_bits(total, torch.zeros_like(total))
