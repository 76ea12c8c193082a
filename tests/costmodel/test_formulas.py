"""The formulas at points with an answer by hand, and laws that always hold."""

import math
from dataclasses import replace

import pytest

from cpdrun.costmodel import (
    ALGORITHMS,
    Codec,
    Exchange,
    Network,
    Setup,
    Workload,
    exchange_s,
    speedup,
    step_cost,
)
from cpdrun.costmodel.collectives import (
    SEGMENT_VALUES,
    direct_processor_s,
    direct_s,
    hierarchical_s,
    ring_s,
    small_all_reduce_s,
    tree_s,
)
from cpdrun.costmodel.step import buckets

LINK = Network(latency_s=1e-3, bandwidth_bytes_per_s=1e8)
FREE_WIRE = Network(latency_s=0.0, bandwidth_bytes_per_s=math.inf)
VALUES = 8_000_000
WORK = Workload(numels=(6_000_000, 2_000_000), forward_s=0.02, backward_s=0.04, update_s=0.01)


def free(bits: int) -> Codec:
    return Codec(bits, 0.0, 0.0, 0.0, 0.0)


def costly(bits: int) -> Codec:
    return Codec(bits, pack_s=2e-9, add_s=1e-9, sum_s=3e-9, unpack_s=1e-9, largest_s=5e-10)


def setup(**changes) -> Setup:
    base = Setup(workers=4, workload=WORK, codec=costly(8), network=LINK)
    return replace(base, **changes)


def test_textbook_times_of_ring_tree_and_direct_exchange():
    """N workers exchange b bytes over a link with latency alpha and beta seconds per byte.

    Ring: 2 (N-1) alpha + 2 (N-1)/N b beta. Tree: 2 ceil(lg N) (alpha + b beta). Direct, one segment: 2 alpha +
    2 (N-1)/N b beta.
    """
    assert ring_s(VALUES, 4, free(32), LINK) == pytest.approx(6 * 1e-3 + 1.5 * 32e6 / 1e8)
    assert tree_s(VALUES, 5, free(32), LINK) == pytest.approx(2 * 3 * (1e-3 + 32e6 / 1e8))
    for workers in (2, 8, 64):
        values = workers * SEGMENT_VALUES
        expected = 2e-3 + 2 * (workers - 1) / workers * values / 1e8
        assert direct_s(values, workers, free(8), LINK) == pytest.approx(expected)


def test_many_segments_hide_all_but_one_latency_where_the_link_is_never_idle():
    values = 2 * 40 * SEGMENT_VALUES
    wire_s = values * 1 / 1e8
    assert wire_s < direct_s(values, 2, free(8), LINK) <= wire_s + 2 * 1e-3


def test_a_free_wire_leaves_the_processor():
    codec = costly(8)
    for workers in (2, 4, 16):
        expected = VALUES * (codec.pack_s + codec.add_s + codec.sum_s / workers + codec.unpack_s)
        assert direct_s(VALUES, workers, codec, FREE_WIRE) == pytest.approx(expected)
        assert direct_processor_s(VALUES, workers, codec, FREE_WIRE) == pytest.approx(expected)


def test_codec_and_wire_overlap():
    """Together they take longer than the longer of the two, and less than both in a row."""
    wire_s = direct_s(VALUES, 2, free(8), replace(LINK, latency_s=0.0))
    work_s = direct_processor_s(VALUES, 2, costly(8), LINK)
    both_s = direct_s(VALUES, 2, costly(8), replace(LINK, latency_s=0.0))
    assert max(wire_s, work_s) < both_s < max(wire_s, work_s) + 0.5 * min(wire_s, work_s)


def test_a_burst_lets_the_first_bytes_through_at_once():
    """A full token bucket of depth s: (b - s) / rate."""
    values, link = 2 * 20 * SEGMENT_VALUES, Network(0.0, 1e8, burst_bytes=1e6)
    assert direct_s(values, 2, free(8), link) == pytest.approx((values - 1e6) / 1e8)


def test_the_overhead_of_messages_grows_with_the_workers_and_latency_does_not():
    link = Network(latency_s=1e-4, bandwidth_bytes_per_s=math.inf, message_s=1e-5)
    assert direct_s(1024 * 100, 1024, free(8), link) == pytest.approx(2 * 1e-4 + 2 * 1023 * 1e-5)


def test_the_hierarchy_pays_the_slow_latency_once_per_group():
    inner = Network(0.0, math.inf)
    of_8, of_1 = (hierarchical_s(VALUES, 64, free(8), LINK, group_size=n, inner=inner) for n in (8, 1))
    assert of_8 == pytest.approx(2 * 7 * 1e-3 + 2 * 7 / 8 * 8e6 / 1e8)
    assert of_1 == ring_s(VALUES, 64, free(8), LINK)


def test_a_few_integers_take_the_cheaper_algorithm():
    assert small_all_reduce_s(4, 2, LINK) == pytest.approx(2e-3, rel=1e-3)
    assert small_all_reduce_s(4, 1024, LINK) == pytest.approx(20e-3, rel=1e-3)
    assert small_all_reduce_s(1e9, 1024, LINK) < 2 * 10 * 1e9 / 1e8


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_one_worker_exchanges_nothing(algorithm):
    cost = step_cost(setup(workers=1, algorithm=algorithm, aps=True))
    assert cost.total_s == WORK.compute_s and cost.exchange_s == cost.agreement_s == 0.0
    assert speedup(setup(workers=1, algorithm=algorithm)) == 1.0
    assert exchange_s(Exchange("direct", 1, VALUES, 0.0, costly(8)), LINK) == 0


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_less_of_anything_is_never_slower(algorithm):
    for overlap in (False, True):
        base = setup(algorithm=algorithm, overlap=overlap, aps=True, workers=8)
        better = [{"codec": costly(4)}, {"codec": free(8)}, {"aps": False}, {"overlap": True}]
        better += [
            {"network": replace(LINK, **link)}
            for link in ({"bandwidth_bytes_per_s": 2e8}, {"latency_s": 1e-5})
        ]
        for change in (*better, {"shared_processor": False}):
            assert step_cost(replace(base, **change)).total_s <= step_cost(base).total_s


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_speedup_is_at_most_the_number_of_workers(algorithm):
    for workers in (1, 2, 4, 64, 1024):
        for bits in (4, 8, 32):
            assert 0.0 < speedup(setup(algorithm=algorithm, codec=costly(bits), workers=workers)) <= workers


def test_on_a_slow_wire_the_speedup_is_the_ratio_of_bits():
    slow = Network(0.0, 1e5)
    fp32, e2m1 = (step_cost(setup(network=slow, codec=free(bits))).exchange_s for bits in (32, 4))
    assert fp32 / e2m1 == pytest.approx(8.0)


def test_aps_costs_a_pass_and_a_round():
    plain, scaled = step_cost(setup()), step_cost(setup(aps=True))
    assert scaled.agreement_s == pytest.approx(VALUES * 5e-10 + 4 * (1e-3 + 8 / 1e8))
    assert scaled.total_s == pytest.approx(plain.total_s + scaled.agreement_s)


def test_overlap_hides_all_but_the_last_bucket_behind_a_long_backward():
    fast = Network(0.0, 1e12)
    long = replace(WORK, backward_s=10.0)
    cost = step_cost(setup(workload=long, network=fast, overlap=True, shared_processor=False))
    last_bucket = step_cost(setup(workload=replace(long, numels=(6_000_000,)), network=fast)).exchange_s
    assert cost.exposed_s == pytest.approx(last_bucket)  # nothing is left to hide the last one behind


def test_a_ddp_script_does_not_pay_for_the_checks_of_our_loop():
    checked = replace(WORK, check_s=1.0)
    assert step_cost(setup(workload=checked)).compute_s == pytest.approx(1.07)
    assert step_cost(setup(workload=checked, overlap=True)) == step_cost(setup(overlap=True))
    assert speedup(setup(workload=checked, workers=1, overlap=True)) == 1.0


def test_a_shared_processor_does_the_work_of_both():
    fast = replace(setup(overlap=True), network=FREE_WIRE)
    shared, own = step_cost(fast), step_cost(replace(fast, shared_processor=False))
    exchange = direct_processor_s(VALUES, 4, costly(8), FREE_WIRE)
    assert own.total_s < shared.total_s == pytest.approx(WORK.compute_s + exchange)


def test_an_inconsistent_setup_is_refused():
    with pytest.raises(ValueError, match="choose one of direct, ring, tree, hierarchical"):
        setup(algorithm="butterfly")
    with pytest.raises(ValueError, match="not a multiple of group_size"):
        setup(workers=6, group_size=4)


def test_a_million_workers_and_no_values_are_still_finite():
    nothing = replace(WORK, numels=(0, 0))
    assert step_cost(setup(workload=nothing, workers=2)).total_s >= WORK.compute_s
    assert math.isfinite(step_cost(setup(workers=1 << 20, aps=True)).total_s)


def test_buckets_fill_from_the_last_layer():
    numels = (10, 7_000_000, 300_000, 20)
    assert list(buckets(numels)) == [[20, 300_000], [7_000_000], [10]]
    assert sum(sum(bucket) for bucket in buckets(numels)) == sum(numels)


def exchanged(pattern: str, k: float, workers: int = 4, **more) -> Exchange:
    """Return an exchange with the bytes of an all-reduce of k bits per value, and a free codec by default."""
    sent = 2 * (workers - 1) / workers * VALUES * k / 8
    return Exchange(pattern, workers, VALUES, sent, more.pop("codec", free(k)), **more)


@pytest.mark.parametrize("workers", [2, 4, 9])
def test_patterns_with_equal_bytes_differ_only_in_latency(workers):
    """All pay S beta. Shards pay alpha twice, a ring 2 (N-1) times, and messages once."""
    wire_s = 2 * (workers - 1) / workers * VALUES / 1e8
    hops = {"direct": 2, "sharded": 2, "ring": 2 * (workers - 1), "messages": 1, "neighbours": 1}
    for pattern, latencies in hops.items():
        what = exchanged(pattern, 8, workers, gather=free(8), neighbours=2)
        tolerance = 0.05 if pattern == "direct" else 1e-9
        assert exchange_s(what, LINK) == pytest.approx(latencies * 1e-3 + wire_s, rel=tolerance), pattern


def test_every_worker_decodes_all_messages_but_each_shard_once():
    codec = Codec(8, pack_s=1e-9, add_s=0.0, sum_s=0.0, unpack_s=1e-9)
    for workers in (2, 8, 32):
        messages = exchange_s(exchanged("messages", 8, workers, codec=codec), FREE_WIRE)
        assert messages == pytest.approx(VALUES * (1 + workers) * 1e-9)
        shards = exchange_s(exchanged("direct", 8, workers, codec=codec), FREE_WIRE)
        assert shards == pytest.approx(VALUES * 2e-9)
        three = exchange_s(exchanged("neighbours", 8, workers, codec=codec, neighbours=3), FREE_WIRE)
        assert three == pytest.approx(VALUES * 5e-9)


def test_the_cost_of_a_rare_exchange_is_shared_by_its_steps():
    """The record has the mean bytes per step. An outer step sends H times as many."""
    once = exchanged("direct", 8, codec=costly(8))
    seldom = replace(once, sent_bytes=once.sent_bytes / 16, every=16)
    assert exchange_s(seldom, LINK) == pytest.approx(exchange_s(once, LINK) / 16)


def test_sharded_exchange_sends_gradients_and_weights_in_their_formats():
    """A worker sends (N-1)/N n (k + k_w)/8 bytes: with e4m3 and bf16, as many as a 12-bit all-reduce."""
    what = exchanged("sharded", 12, codec=free(8), gather=free(16))
    assert exchange_s(what, LINK) == pytest.approx(2e-3 + 0.75 * VALUES * 3 / 1e8)
    codec, gather = Codec(8, 1e-9, 2e-9, 0.0, 9.0), Codec(16, 4e-9, 9.0, 9.0, 1e-9)
    found = exchange_s(exchanged("sharded", 12, codec=codec, gather=gather), FREE_WIRE)
    assert found == pytest.approx(VALUES * (1e-9 + 2e-9 + 4e-9 / 4 + 1e-9))


def test_aps_agrees_before_it_sends():
    plain = exchanged("direct", 4, codec=costly(4))
    agreed_s = VALUES * 5e-10 + small_all_reduce_s(40, 4, LINK)
    assert exchange_s(replace(plain, layers=10), LINK) == pytest.approx(exchange_s(plain, LINK) + agreed_s)


def test_factors_are_two_small_sums():
    """Each sends half of the bytes. An all-reduce of 1 kB takes 2 lg N (alpha + b beta), and a ring takes longer."""
    what = Exchange("factors", 4, VALUES, 2 * 1.5 * 1000, Codec(0, 1e-9, 0, 0, 0))
    assert exchange_s(what, LINK) == pytest.approx(VALUES * 1e-9 + 2 * 4 * (1e-3 + 1000 / 1e8))


def test_the_ring_of_the_platform_converts_bf16_and_adds_once_per_hop():
    codec = Codec(16, pack_s=1e-9, add_s=4e-9, sum_s=9.0, unpack_s=1e-9)
    found = exchange_s(exchanged("ring", 16, codec=codec), FREE_WIRE)
    assert found == pytest.approx(VALUES * 2e-9 + 3 / 4 * VALUES * 4e-9)
