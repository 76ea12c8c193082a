"""The result of an exchange depends on its settings and the number of workers only, not on how ranks share them.

Each rank stops before its last step and continues from rank 0's checkpoint. It cuts messages into shorter segments.
"""

import itertools

import pytest
import torch
import torch.distributed as dist
from bits import reduce, same_bits
from exchanges import EXCHANGES, SHAPES, gradients, knobs_of, make, odd_gradients
from ranks import run_ranks, through_a_file

from cpdrun.comm import AllReduceSync
from cpdrun.comm.sums import exchange as exchange_module
from cpdrun.comm.sums import requantized_sum as requantized_module
from cpdrun.comm.sums.scaling import APS, DelayedAPS
from cpdrun.comm.wire.communicator import Communicator
from cpdrun.comm.wire.transport import Collectives
from cpdrun.comm.workers import Workers

STEPS = 2


def train(world_size: int, names: list[str], stops: bool) -> dict[str, tuple]:
    """For each exchange: the results of all steps, real workers' bytes, nonfinite and statistics; and bytes sent."""
    if dist.is_initialized():
        exchange_module.SEGMENT_VALUES, requantized_module.PIECE_VALUES = 256, 200
    found = {}
    for name in names:
        sync, results = make(name, world_size), []
        workers = Workers.of_group(world_size).local
        for step in range(STEPS):
            if stops and step == STEPS - 1:
                state = through_a_file(sync.state_dict())
                sync = make(name, world_size)
                sync.load_state_dict(state)
            stacks = [torch.stack(s) for s in zip(*(odd_gradients(w, step) for w in workers), strict=True)]
            results.append([g.clone() for g in sync.reduce_stacked(stacks, step=step, epoch=0)])
        wire, statistics = sync.wire_bytes(), repr(sync.statistics(stacks, results[-1]))
        facts = wire["bytes_per_step_real_worker"], sync.nonfinite, statistics
        found[name] = results, facts, wire["bytes_per_step_sent"]
    return found


LEVELS = [name for name in EXCHANGES if name.split()[0] in ("hierarchical", "tree")]
ONE_PER_RANK = [*LEVELS, "rank aps", "codebook", "compressed random_k", "power_sgd"]


@pytest.mark.parametrize(
    ("world_size", "ranks", "names"),
    [(12, (1, 4), list(EXCHANGES)), (11, (11,), ONE_PER_RANK)],
)
def test_ranks_have_the_bits_of_one_process(
    world_size: int, ranks: tuple[int, ...], names: list[str]
) -> None:
    """12 workers: groups of 3; pairs of pairs with one left over. 11 is prime: groups of 4, 4 and 3."""
    expected = train(world_size, names, stops=False)
    for n in ranks:
        found = run_ranks(n, train, world_size, names, True) if n > 1 else [train(world_size, names, True)]
        for name, rank in ((name, rank) for name in names for rank in range(n)):
            (ours, facts, sent), (theirs, facts_of_one, _) = found[rank][name], expected[name]
            pairs = zip(itertools.chain(*ours), itertools.chain(*theirs), strict=True)
            for layer, pair in zip(STEPS * list(SHAPES), pairs, strict=True):
                assert same_bits(*pair), f"{name}, rank {rank} of {n}, layer {layer}"
            assert (facts, sent > 0) == (facts_of_one, n > 1), name
            if name.startswith("compressed"):  # each worker's message goes to each other rank
                assert sent * (world_size - 1) == facts[0] * world_size // n * (n - 1), name


BUCKETS = {"all at once": [[0, 1, 2, 3]], "one by one": [[3], [2], [1], [0]], "pairs": [[1, 3], [0, 2]]}
IN_BUCKETS = [
    f"{order} {rule}" for order in ("hierarchical", "tree", "exact") for rule in ("aps", "aps_delayed", "own")
]


def reduce_in_buckets(names: list[str]) -> dict[tuple[str, str], list[torch.Tensor]]:
    """The third step's sums of four layers, of which one is zero in the first step and another in the second.

    Workers' gradients differ by powers of two, so that each group has its own shift.
    """
    found = {}
    sizes, layers = (150, 50, 9, 33), ["a", "bb", "ccc", "dddd"]
    for name, bucket in ((name, bucket) for name in names for bucket in BUCKETS):
        sync = make(name, 12, format="e2m3", parameter_names=layers)
        for step in range(3):
            own = [
                gradients(w, step)[0].flatten()[: sum(sizes)] * 2.0 ** (3 * w + step)
                for w in sync.workers.local
            ]
            stacks = [stack.contiguous() for stack in torch.stack(own).split(sizes, dim=1)]
            if step < 2:
                stacks[step].zero_()
            out = [torch.empty(size) for size in sizes]
            for chosen in BUCKETS[bucket]:
                given, sums = ([them[p] for p in chosen] for them in (stacks, out))
                sync.reduce_layers(chosen, given, step=step, epoch=0, out=sums)
        found[name, bucket] = out
    return found


def test_shifts_do_not_depend_on_buckets_and_ranks() -> None:
    expected = reduce_in_buckets(IN_BUCKETS)
    for results in (expected, *run_ranks(2, reduce_in_buckets, IN_BUCKETS)):
        for (name, bucket), ours in results.items():
            assert all(map(same_bits, ours, expected[name, "all at once"])), (name, bucket)


def reduce_with_collectives() -> list[torch.Tensor]:
    sync = make("hierarchical aps", 6)
    exchange_module.transport_for = Collectives  # in this rank's process
    return reduce(sync, [odd_gradients(w) for w in sync.workers.local])


def test_collectives_of_any_backend_give_the_same_bits() -> None:
    expected = reduce(make("hierarchical aps", 6), [odd_gradients(w) for w in range(6)])
    for results in run_ranks(3, reduce_with_collectives):
        assert all(map(same_bits, results, expected))


def reduce_through_host_memory() -> list[torch.Tensor]:
    # Copy tensors as if they were on a GPU, although they are on the CPU. This affects only this rank's process.
    Communicator._must_copy = lambda self, x: True
    sync = make("hierarchical aps", 6)
    return reduce(sync, [odd_gradients(w) for w in sync.workers.local])


def test_ranks_that_share_a_gpu_exchange_the_same_bits_through_host_memory() -> None:
    expected = reduce(make("hierarchical aps", 6), [odd_gradients(w) for w in range(6)])
    for results in run_ranks(3, reduce_through_host_memory):
        assert all(map(same_bits, results, expected))


def native_against_the_platform() -> tuple[list[torch.Tensor], torch.Tensor, int]:
    knobs = knobs_of("all_reduce") | {"order": "native"}
    del knobs["_target_"]
    sync = AllReduceSync(format="fp32", world_size=4, parameter_names=["a", "b"], **knobs)
    grads = [[torch.full((3,), 2.0**-w), torch.full((2, 2), float(w))] for w in sync.workers.local]
    platform = sum(g[1] for g in grads)
    dist.all_reduce(platform)
    return reduce(sync, grads), platform, sync.wire_bytes()["bytes_per_step_sent"]


def test_native_order_is_the_platforms_all_reduce() -> None:
    for (a, b), platform, sent in run_ranks(2, native_against_the_platform):
        assert torch.equal(a, torch.full((3,), 1.875)) and torch.equal(b, platform)
        assert sent == 7 * 4


AGREEMENTS = {
    (None, "rank"): 0,
    (APS, "rank"): 1,
    (DelayedAPS, "hierarchical"): 3 + 1,
    (APS, "tree"): 5 + 3 + 2 + 1,
}


def count_bytes() -> list[tuple[int, int]]:
    """Return the bytes that 9 workers send in the second step, for each of AGREEMENTS."""
    knobs, found = knobs_of("all_reduce"), []
    del knobs["_target_"]
    for rule, order in AGREEMENTS:
        given = knobs | {"format": "e4m3", "scaling": rule and rule(), "order": order}
        sync = AllReduceSync(world_size=9, parameter_names=["a", "b"], **given)
        for step in range(2):
            reduce(sync, [[torch.ones(7200), torch.ones(720)] for _ in sync.workers.local], step=step)
        wire = sync.wire_bytes()
        found.append((wire["bytes_per_step_sent"], wire["bytes_per_step_real_worker"]))
    return found


def test_sent_bytes_are_those_of_messages_and_of_the_agreement_on_shifts() -> None:
    """The agreement has 4 bytes for each of 2 layers and each group. P machines send 2 (P-1)/P of it each."""
    alone, *ranks = count_bytes(), *run_ranks(3, count_bytes)
    for k, groups in enumerate(AGREEMENTS.values()):
        agreement = 2 * 4 * groups
        real = 2 * 8 * 880 + -(-2 * 8 * agreement // 9)
        # a rank of three sends its three workers' payloads of the others' thirds, and its own third of the sum
        sent = 2 * 2640 * (3 + 1) + -(-2 * 2 * agreement // 3)
        assert alone[k] == (0, real) and all(rank[k] == (sent, real) for rank in ranks)
