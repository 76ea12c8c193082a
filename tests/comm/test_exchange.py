"""The exchange between real processes equals the emulation in one process, bit for bit, on every rank."""

import itertools
import math
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import yaml
from bits import large, reduce, same_bits
from custom_fp import Format
from ranks import run_ranks

from cpdrun.comm import AllReduceSync
from cpdrun.comm.sums import exchange as exchange_module
from cpdrun.comm.sums.magnitudes import PreviousStep
from cpdrun.comm.sums.scaling import APS, DelayedAPS, ScalingRule
from cpdrun.comm.wire.transport import Collectives

KNOBS = yaml.safe_load((Path(__file__).parents[2] / "conf" / "sync" / "all_reduce.yaml").read_text())
del KNOBS["_target_"]
SIZES = {
    "wide": 1001,
    "one": 1,
    "tiny": 64,
    "huge": 130,
    "zero": 33,
    "inf": 40,
    "nan": 9,
    "seven": 7,
    "none": 0,
}
RULES = {"none": lambda: None, "aps": APS, "aps_delayed": DelayedAPS, "own": lambda: OwnRule()}


def gradients(worker: int, step: int = 0) -> list[torch.Tensor]:
    """One worker's: ordinary ones, a layer at 2^-140, one at 2^120, zeros, an inf, a NaN, an empty one."""
    generator = torch.Generator().manual_seed(100 * step + worker)
    grads = {name: torch.randn(size, generator=generator) * 1e-3 for name, size in SIZES.items()}
    grads["tiny"] = torch.randint(-600, 600, (64,), generator=generator) * 2.0**-149
    grads["huge"] = grads["huge"] * 2.0**65 * 2.0**64
    grads["zero"].zero_()
    grads["inf"][worker % 40] = float("inf")
    grads["nan"][0] = float("nan")
    return list(grads.values())


def share(world_size: int) -> range:
    """The workers that this process plays."""
    rank, ranks = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    return range(rank * world_size // ranks, (rank + 1) * world_size // ranks)


def reduce_cases(world_size: int, cases: list[dict], steps: int = 1) -> list[list[torch.Tensor]]:
    """The results of the last step on this rank, for every case."""
    results = []
    for case in cases:
        rule = RULES[case.get("rule", "none")]()
        knobs = KNOBS | {key: value for key, value in case.items() if key != "rule"}
        sync = AllReduceSync(scaling=rule, world_size=world_size, parameter_names=list(SIZES), **knobs)
        for step in range(steps):
            mine = [gradients(w, step) for w in share(world_size)]
            result = reduce(sync, mine, step=step)
        results.append([g.clone() for g in result])
    return results


def assert_split_changes_no_bit(
    world_size: int, splits: list[int], cases: list[dict], steps: int = 1
) -> None:
    expected = reduce_cases(world_size, cases, steps)
    for ranks in splits:
        for rank, results in enumerate(run_ranks(ranks, reduce_cases, world_size, cases, steps)):
            for case, ours, emulated in zip(cases, results, expected, strict=True):
                for name, a, b in zip(SIZES, ours, emulated, strict=True):
                    assert same_bits(a, b), f"{ranks} ranks, rank {rank}, {case}, layer {name}"


ORDERS = [
    {"order": "rank"},
    {"order": "ring"},
    {"order": "hierarchical", "group_size": 2},
    {"order": "tree"},
    {"order": "exact"},
    {"order": "aligned_4"},
]
AT_ONCE = ("exact", "aligned_4")
FORMATS = ["e1m1", "e3m0", "e4m1", "e3m2", "e2m1fn", "e4m3fn", "e4m3", "e5m2", "e5m6", "e8m7", "fp32"]


@pytest.mark.parametrize(("world_size", "ranks"), [(2, 2), (3, 3), (4, 4), (6, 3)])
def test_every_rank_gets_the_emulated_bits(world_size: int, ranks: int) -> None:
    cases = [
        {"format": fmt, "rule": rule, "kahan": kahan, **order}
        for fmt, rule, order, kahan in itertools.product(FORMATS, ["none", "aps"], ORDERS, [False, True])
        if order["order"] != "hierarchical" or world_size % 2 == 0
        if not (kahan and order["order"] in AT_ONCE)
    ]
    assert_split_changes_no_bit(world_size, [ranks], cases)


def test_eight_workers_as_1_2_4_and_8_ranks_with_all_that_has_a_memory() -> None:
    cases = [
        {
            "format": "e4m1",
            "rule": rule,
            "rounding": rounding,
            "overflow": overflow,
            "error_feedback": feedback,
            **order,
        }
        for rule, (rounding, overflow), feedback, order in itertools.product(
            ["aps", "aps_delayed"],
            [("stochastic", "infinity"), ("toward_zero", "saturate"), ("nearest_even", "saturate")],
            [False, True],
            [{"order": "ring"}, {"order": "hierarchical", "group_size": 4}, {"order": "exact"}],
        )
    ]
    cases += [
        {"format": "e4m3fnuz", "order": "exact"},
        {"format": "posit8", "order": "aligned_5", "rule": "aps"},
    ]
    cases += [{"format": "e3m2", "rule": "aps", "rounding": "stochastic", "kahan": True, "seed": 5}]
    cases += [{"format": "e3m2", "full_precision": {"layers": ["w*", "tiny"]}}]
    assert_split_changes_no_bit(8, [2, 4, 8], cases, steps=3)


LEVELS = [
    {
        "format": "e3m0",
        "kahan": kahan,
        "rule": rule,
        "rounding": rounding,
        "error_feedback": feedback,
        **order,
    }
    for kahan, rule, (rounding, feedback), order in itertools.product(
        [False, True],
        ["none", "aps", "aps_delayed"],
        [("nearest_even", False), ("stochastic", True)],
        [{"order": "tree"}, {"order": "hierarchical"}],
    )
]


def test_levels_of_an_order_know_nothing_of_the_split() -> None:
    """12 workers: groups of 3; pairs, 6 of them, 3, 1 and one left over, 1."""
    assert_split_changes_no_bit(12, [2, 4], LEVELS, steps=2)


def test_a_prime_number_of_workers() -> None:
    """11 workers: groups of 4, 4 and 3; a worker left over at once."""
    assert_split_changes_no_bit(11, [11], LEVELS[2:8], steps=2)


def test_sums_as_the_authors_of_aps_form_them_know_nothing_of_the_split() -> None:
    cases = [
        {"format": fmt, "kahan": kahan, "rule": rule, "compat": "cpd", **order}
        for fmt, kahan, rule, order in itertools.product(
            ["e4m1", "fp32"],
            [False, True],
            ["none", "aps"],
            [{"order": "rank"}, {"order": "hierarchical", "group_size": 4}],
        )
    ]
    assert_split_changes_no_bit(8, [2, 4], cases)


class OwnRule(ScalingRule):
    """What a user may write: by the layer's name, its magnitude of the step before, and how many are added."""

    magnitudes = PreviousStep

    def shift(self, layer: str, magnitude: float, summands: int, fmt: Format) -> int:
        return fmt.emax - math.frexp(magnitude)[1] - summands + len(layer)


LAW = {"rule": ["aps", "aps_delayed", "own"], "order": ["rank", "hierarchical", "tree", "ring", *AT_ONCE]}
BUCKETS = {"all at once": [[0, 1, 2, 3]], "one by one": [[3], [2], [1], [0]], "pairs": [[1, 3], [0, 2]]}


def reduce_in_buckets(world_size: int) -> dict[tuple, list[torch.Tensor]]:
    """The third step's sums in every case. Workers differ by powers of two, so that each group has a shift of its own;
    one layer is all zero in the first step, another in the second."""
    found = {}
    for rule, order, bucket in itertools.product(*LAW.values(), BUCKETS):
        sizes = (150, 50, 9, 33)
        names = ["a", "bb", "ccc", "dddd"]
        knobs = KNOBS | {"order": order}
        sync = AllReduceSync(
            format="e2m3", scaling=RULES[rule](), world_size=world_size, parameter_names=names, **knobs
        )
        for step in range(3):
            own = [large(10 * step + w)[: sum(sizes)] * 2.0 ** (3 * w + step) for w in share(world_size)]
            stacks = [stack.contiguous() for stack in torch.stack(own).split(sizes, dim=1)]
            if step < 2:
                stacks[step].zero_()
            out = [torch.empty(size) for size in sizes]
            for layers in BUCKETS[bucket]:
                chosen = [[them[p] for p in layers] for them in (stacks, out)]
                sync.reduce_layers(layers, chosen[0], step=step, epoch=0, out=chosen[1])
        found[rule, order, bucket] = out
    return found


def test_a_shift_belongs_to_a_layer_whatever_the_rule_the_order_the_split_and_the_buckets() -> None:
    expected = reduce_in_buckets(12)
    for results in (expected, *run_ranks(2, reduce_in_buckets, 12)):
        for (rule, order, bucket), ours in results.items():
            whole = expected[rule, order, "all at once"]
            assert all(map(same_bits, ours, whole)), (rule, order, bucket)


def reduce_with_collectives() -> list[torch.Tensor]:
    sync = AllReduceSync(format="e4m1", scaling=APS(), world_size=6, parameter_names=list(SIZES), **KNOBS)
    exchange_module.transport_for = Collectives  # in this rank's process
    return reduce(sync, [gradients(w) for w in share(6)])


def test_collectives_of_any_backend_give_the_same_bits() -> None:
    (expected,) = reduce_cases(6, [{"format": "e4m1", "rule": "aps"}])
    for results in run_ranks(3, reduce_with_collectives):
        assert all(same_bits(a, b) for a, b in zip(results, expected, strict=True))


def native_against_rank_order() -> tuple[list[torch.Tensor], torch.Tensor, int]:
    knobs = KNOBS | {"order": "native"}
    sync = AllReduceSync(format="fp32", world_size=4, parameter_names=["a", "b"], **knobs)
    grads = [[torch.full((3,), 2.0**-w), torch.full((2, 2), float(w))] for w in share(4)]
    platform = sum(g[1] for g in grads)
    dist.all_reduce(platform)
    return reduce(sync, grads), platform, sync.wire_bytes()["bytes_per_step_sent"]


def test_native_order_is_the_platforms_all_reduce() -> None:
    for (a, b), platform, sent in run_ranks(2, native_against_rank_order):
        assert torch.equal(a, torch.full((3,), 1.875)) and torch.equal(b, platform)
        assert sent == 7 * 4


def count_bytes() -> list[int]:
    found = []
    for fmt in ("e4m3", "e2m1"):
        sync = AllReduceSync(format=fmt, world_size=4, parameter_names=["a"], **KNOBS)
        reduce(sync, [[torch.ones(80_000)] for _ in share(4)])
        found.append(sync.wire_bytes())
    return found


def test_bytes_sent_and_bytes_of_a_real_worker() -> None:
    # a rank of two sends both its workers' payloads of the other's half, and its own half of the sum
    for eight_bits, four_bits in run_ranks(2, count_bytes):
        assert eight_bits == {
            "bytes_per_step_sent": 2 * 40_000 + 40_000,
            "bytes_per_step_real_worker": 2 * 3 * 20_000,
        }
        assert four_bits == {key: value // 2 for key, value in eight_bits.items()}


AGREEMENTS = {("aps", "rank"): 1, ("aps_delayed", "hierarchical"): 3 + 1, ("aps", "tree"): 5 + 3 + 2 + 1}


def count_bytes_with_a_rule() -> list[dict[str, int]]:
    """9 workers, for each of AGREEMENTS; of the second step."""
    found = []
    for rule, order in AGREEMENTS:
        knobs = KNOBS | {"format": "e4m3", "scaling": RULES[rule](), "order": order}
        sync = AllReduceSync(world_size=9, parameter_names=["a", "b"], **knobs)
        for step in range(2):
            reduce(sync, [[torch.ones(7200), torch.ones(720)] for _ in share(9)], step=step)
        found.append(sync.wire_bytes())
    return found


def test_the_agreement_on_shifts_is_counted() -> None:
    """2 layers and 4 bytes for every group: each of P machines sends 2 (P-1)/P of that, whatever the split."""
    alone, *ranks = count_bytes_with_a_rule(), *run_ranks(3, count_bytes_with_a_rule)
    for k, groups in enumerate(AGREEMENTS.values()):
        agreement = 2 * 4 * groups
        of_a_worker = 2 * 8 * 880 + math.ceil(2 * 8 * agreement / 9)
        assert alone[k] == {"bytes_per_step_sent": 0, "bytes_per_step_real_worker": of_a_worker}
        sent = 2 * 2640 * (3 + 1) + math.ceil(2 * 2 * agreement / 3)
        for rank in ranks:
            assert rank[k] == {"bytes_per_step_sent": sent, "bytes_per_step_real_worker": of_a_worker}


def statistics_of_this_split() -> list[dict]:
    sync = AllReduceSync(format="e4m1", scaling=APS(), world_size=4, parameter_names=list(SIZES), **KNOBS)
    stacks = [torch.stack(grads) for grads in zip(*(gradients(w) for w in share(4)), strict=True)]
    return sync.statistics(stacks, sync.reduce_stacked(stacks, step=0, epoch=0))


def test_statistics_are_those_of_all_workers_on_every_rank() -> None:
    expected = statistics_of_this_split()
    assert [row["nonfinite"] for row in expected] == [0, 0, 0, 0, 0, 4, 4, 0, 0]
    assert 0 < expected[0]["sum_error"] < 0.5 and 0 < expected[0]["underflow"] < 0.5
    assert run_ranks(2, statistics_of_this_split) == [expected, expected]


def count_nonfinite_of(fmt: str, overflow: str, order: str) -> tuple[int, list[int]]:
    """Worker 1 has a NaN and two inf in one layer, worker 3 a NaN in the other, which is in full precision."""
    sync = AllReduceSync(
        format=fmt,
        scaling=APS(),
        world_size=4,
        parameter_names=["a", "b"],
        full_precision={"layers": ["b"]},
        **KNOBS | {"overflow": overflow, "order": order},
    )
    workers = [[torch.ones(20), torch.ones(5)] for _ in range(4)]
    workers[1][0][:3] = torch.tensor([float("nan"), float("inf"), float("-inf")])
    workers[3][1][2] = float("nan")
    mine = [workers[w] for w in share(4)]
    result = reduce(sync, mine)
    stacks = [torch.stack(grads) for grads in zip(*mine, strict=True)]
    return sync.nonfinite, [row["nonfinite"] for row in sync.statistics(stacks, result)]


@pytest.mark.parametrize("order", ["rank", "tree"])
@pytest.mark.parametrize(
    ("fmt", "overflow"),
    [
        ("e2m1fn", "infinity"),  # has neither: 6.0
        ("e3m0", "infinity"),  # has no NaN: inf
        ("e4m3fn", "infinity"),  # has no inf: NaN
        ("e4m3", "saturate"),  # inf becomes the largest value, NaN stays
        ("e3m0", "saturate"),  # NaN becomes inf, and that the largest value
        ("e4m3", "infinity"),
    ],
)
def test_inf_and_nan_are_counted_where_the_format_makes_numbers_of_them(
    fmt: str, overflow: str, order: str
) -> None:
    assert count_nonfinite_of(fmt, overflow, order) == (4, [3, 1])
    if (fmt, order) in (("e2m1fn", "tree"), ("e4m3", "rank")):
        for counted in run_ranks(2, count_nonfinite_of, fmt, overflow, order):
            assert counted == (4, [3, 1])


def continue_run(state: dict | None, steps: range) -> tuple[list[torch.Tensor], dict]:
    """Takes up the state, reduces some steps; the last result and the state to go on from."""
    knobs = KNOBS | {"error_feedback": True, "rounding": "stochastic"}
    sync = AllReduceSync(
        format="e4m1", scaling=DelayedAPS(), world_size=4, parameter_names=list(SIZES), **knobs
    )
    if state is not None:
        sync.load_state_dict(state)
    for step in steps:
        result = reduce(sync, [gradients(w, step) for w in share(4)], step=step)
    return result, sync.state_dict()


def test_a_run_resumes_with_another_number_of_ranks() -> None:
    expected, _ = continue_run(None, range(6))
    _, state = run_ranks(2, continue_run, None, range(3))[0]
    _, state = run_ranks(4, continue_run, state, range(3, 5))[0]
    result, _ = continue_run(state, range(5, 6))
    assert all(same_bits(a, b) for a, b in zip(result, expected, strict=True))
