"""PowerSGDSync: low-rank sums, residuals and bytes, and a comparison with torch's own hook."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
import yaml
from bits import reduce, same_bits
from hydra.utils import instantiate
from ranks import run_ranks
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook

from cpdrun.comm import AllReduceSync, emulate_all_reduce
from cpdrun.comm.sums.scaling import APS
from cpdrun.comm.sync.power_sgd import PowerSGDSync, orthonormal

CONF = Path(__file__).parents[2] / "conf"
SHAPES = {"conv": (6, 4, 2, 2), "bias": (6,), "nothing": (0, 2), "fc": (20, 30), "small": (2, 3), "scale": ()}
MATRICES = {"conv": (6, 16), "fc": (20, 30)}
LOW = {"format": "e4m3", "scaling": APS()}
STOCHASTIC = {"format": "e3m2", "rounding": "stochastic", "warm_start": False}


def make(world_size: int = 4, **changes: Any) -> PowerSGDSync:
    knobs = yaml.safe_load((CONF / "sync" / "power_sgd.yaml").read_text())
    knobs |= {"format": "fp32", "world_size": world_size, "parameter_names": list(SHAPES), **changes}
    return instantiate(knobs, _convert_="object")


def gradients(worker: int, step: int = 0) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1000 * step + worker)
    return [torch.randn(shape, generator=generator) for shape in SHAPES.values()]


def everyone(step: int = 0, workers: int = 4) -> list[list[torch.Tensor]]:
    return [gradients(w, step) for w in range(workers)]


def mean_of(workers: list[list[torch.Tensor]]) -> list[torch.Tensor]:
    """Return the sum over workers in float64. It is the mean, because gradients are already divided by N."""
    return [torch.stack(of_layer).double().sum(0) for of_layer in zip(*workers, strict=True)]


# ---- torch's hook


class Bucket:
    """The methods of DDP's buckets that powerSGD_hook calls."""

    def __init__(self, tensors: list[torch.Tensor]) -> None:
        self.flat = torch.cat([tensor.reshape(-1) for tensor in tensors])
        self.shapes = [tensor.shape for tensor in tensors]

    def buffer(self) -> torch.Tensor:
        return self.flat

    def gradients(self) -> list[torch.Tensor]:
        parts = self.flat.split([shape.numel() for shape in self.shapes])
        return [part.view(shape) for part, shape in zip(parts, self.shapes, strict=True)]

    def index(self) -> int:
        return 0

    def is_last(self) -> bool:
        return True


RANKS = (2, 3)  # torch uses Gram-Schmidt up to rank 2, and QR above


def of_torch() -> list[list[list[torch.Tensor]]]:
    """Return the mean gradients of fc and bias in each step, for each of RANKS. Runs in a rank."""
    found = []
    for rank in RANKS:
        state = PowerSGDState(dist.group.WORLD, rank, start_powerSGD_iter=2, random_seed=5)
        state.iter = 2
        buckets = [Bucket([gradients(dist.get_rank(), step)[p] for p in (3, 1)]) for step in range(4)]
        for bucket in buckets:
            powerSGD_hook(state, bucket).wait()
        found.append([bucket.gradients() for bucket in buckets])
    return found


def test_torchs_own_hook_gives_the_same():
    """The results may differ by the rounding errors of float32.

    A product of 30 terms has an error of up to 30 * 2^-24, relative to the magnitudes of its terms. With
    three products per step and four steps whose residuals add up, this is 4 * 3 * 30 * 2^-24 = 2.1e-5 of the
    gradient's norm.
    """
    theirs = run_ranks(2, of_torch)[0]
    for rank, steps in zip(RANKS, theirs, strict=True):
        torch.manual_seed(np.random.RandomState(5).randint(1_000_000_000))  # as PowerSGDState draws
        sync = make(2, rank=rank)
        sync.load_state_dict(sync.state_dict() | {"right": {"fc": torch.randn(1, 30, rank)[0]}})
        for step, expected in enumerate(steps):
            halves = [[g / 2 for g in gradients(w, step)] for w in range(2)]
            found = reduce(sync, halves, step=step)
            for ours, of_torch_s in zip((found[3], found[1]), expected, strict=True):
                assert (ours - of_torch_s).norm() <= 2.1e-5 * of_torch_s.norm()
            assert found[3].norm() > 0.3 * mean_of(halves)[3].norm()


@pytest.mark.parametrize("rank", [12, 100])
def test_a_rank_of_the_shorter_side_gives_the_mean(rank):
    """With this many columns, only rounding errors remain. 12 columns are enough for all layers but fc.

    Three products of at most 30 terms, with an error of 2^-24 per term, and matrices whose magnitudes are
    bounded by their norm give an error of at most 3 * 30 * 2^-24 * |M|.
    """
    sync = make(rank=rank, min_compression_rate=0)
    for step in range(3):
        found = reduce(sync, everyone(step), step=step)
        for name, total, mean in zip(SHAPES, found, mean_of(everyone(step)), strict=True):
            if name != "fc" or rank >= 20:
                assert (total - mean).norm() <= 90 * 2.0**-24 * mean.norm(), name


def test_low_rank_matrices_are_exact_and_other_layers_are_summed_in_the_format():
    sync = make(rank=2, **LOW)
    low_rank = [[g.clone() for g in of_worker] for of_worker in everyone()]
    exact = AllReduceSync(world_size=4, parameter_names=list(SHAPES), order="hierarchical", **LOW)
    found, whole = reduce(sync, low_rank), reduce(exact, low_rank)
    for name, a, b in zip(SHAPES, found, whole, strict=True):
        assert same_bits(a, b) == (name not in MATRICES), name
    sync, generator = make(rank=2), torch.Generator().manual_seed(1)
    left, right = torch.randn(20, 2, generator=generator), torch.randn(2, 30, generator=generator)
    for w, of_worker in enumerate(low_rank):
        of_worker[3] = (w - 0.5) * (left @ right)
    (mean,) = mean_of(low_rank)[3:4]
    assert (reduce(sync, low_rank)[3] - mean).norm() <= 90 * 2.0**-24 * mean.norm()


def test_residuals_bring_a_constant_gradient_back():
    """The mean tends to the gradient with residuals, and to its two largest directions without."""
    errors = []
    for error_feedback in (True, False):
        sync = make(error_feedback=error_feedback)
        given = everyone()
        found = [reduce(sync, given, step=step)[3].double() for step in range(40)]
        mean = mean_of(given)[3]
        errors.append(((sum(found) / 40 - mean).norm() / mean.norm()).item())
    assert errors[0] < 0.2 < 0.5 < errors[1]


def test_residuals_of_factors_are_sent_with_the_first_whole_gradient():
    hybrid = {"layers": [], "first_epochs": 0, "last_epochs": 1}
    sync = make(2, full_precision=hybrid, epochs=2)
    factored = reduce(sync, everyone(workers=2), step=0, epoch=0)[3]
    owed = mean_of(everyone(workers=2))[3] - factored
    whole = reduce(sync, everyone(1, workers=2), step=1, epoch=1)[3]
    expected = mean_of(everyone(1, workers=2))[3] + owed
    assert (whole - expected).abs().max() <= 2.0**-20 * expected.abs().max() and owed.norm() > 1
    again = reduce(sync, everyone(1, workers=2), step=2, epoch=1)[3]
    plain = [of_worker[3] for of_worker in everyone(1, workers=2)]
    assert same_bits(again, emulate_all_reduce(plain, "fp32")) and not sync.state_dict()["residuals"]


@pytest.mark.parametrize("settings", [{}, LOW, STOCHASTIC], ids=["fp32", "e4m3", "stochastic"])
def test_a_factor_recovers_from_zero_gradients(settings):
    sync = make(rank=3, min_compression_rate=0, **settings)
    for step in range(2):
        reduce(sync, [[torch.zeros(shape) for shape in SHAPES.values()]] * 4, step=step)
    assert reduce(sync, everyone(), step=2)[3].norm() > 1


def test_an_inf_makes_its_matrix_nonfinite():
    broken = everyone()
    broken[1][3][2, 7] = math.inf
    for settings, counted in (({}, 600), (LOW, 600), ({"format": "e2m1fn", "scaling": APS()}, 1)):
        sync = make(**settings)
        reduce(sync, broken)
        assert sync.nonfinite == counted


def test_columns_are_orthonormal_for_any_input():
    x = torch.randn(40, 4, generator=torch.Generator().manual_seed(0)) * torch.tensor(
        [1e-30, 1e30, 1.0, 1e-44]
    )
    for given in (x, x[:, [0, 0, 2, 2]], torch.zeros(40, 4), x[:4], x[:, 3:]):
        q = orthonormal(given).double()
        torch.testing.assert_close(q.T @ q, torch.eye(q.shape[1], dtype=torch.float64), rtol=0, atol=1e-6)
        lost = given.double() - q @ (q.T @ given.double())
        assert (lost.norm(dim=0) <= 2.0**-22 * given.double().norm(dim=0)).all()
    assert orthonormal(torch.tensor([[1.0], [math.nan]])).isnan().all()


def test_bytes_are_the_sizes_of_factors_and_whole_layers():
    """Each group is padded to blocks of 8 values per rank, and a rank sends 2 (N - 1) / N of its values."""
    for bits, settings in ((32, {}), (8, {"format": "e4m3"})):
        sync = make(8, rank=2, **settings)
        reduce(sync, everyone(workers=8))
        # layers that are sent whole (bias, nothing, small, scale), factors P, factors Q
        values = [(6 + 2 + 6 + 1), (6 + 20) * 2, (16 + 30) * 2]
        at_least = sum(values[1:]) + 6 + 6 + 1
        real = sync.wire_bytes()["bytes_per_step_real_worker"]
        assert 2 * 7 / 8 * at_least * bits / 8 <= real <= 2 * 7 / 8 * (at_least + 8 * 8 * 3) * bits / 8
        assert sync.longest_chain == 7
    whole = make(8, full_precision={"layers": ["*"]})
    reduce(whole, everyone(workers=8))
    dense = AllReduceSync(format="fp32", world_size=8, parameter_names=list(SHAPES))
    reduce(dense, everyone(workers=8))
    assert whole.wire_bytes() == dense.wire_bytes()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rank": 0}, "rank must be a whole number between 1 and"),
        ({"rank": 1.5}, "rank must be a whole number"),
        ({"min_compression_rate": -1}, "min_compression_rate must be a number of at least 0, not -1"),
        ({"order": "spiral"}, "order"),
        ({"compat": "cpd", "format": "e4m3"}, "error_feedback=true with compat=cpd"),
        ({"full_precision": {"layers": ["fd*"]}}, "'fd\\*' matches no parameter"),
    ],
)
def test_settings_that_do_not_fit_are_refused(settings, message):
    with pytest.raises(Exception, match=message):
        make(**settings)
