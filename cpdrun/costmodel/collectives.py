"""Predict the seconds of all-reduce algorithms for k-bit values.

Ring, tree, and hierarchical all-reduce follow the alpha-beta model: a sequence of hops. Libraries split a hop's message
so that arithmetic overlaps with the transfer, so a hop takes the longer of the two. Each formula counts what the
busiest worker does.

In the direct exchange, every worker sends shard r of its packed gradient to worker r, which adds the N shards and sends
the sum to all workers. Each worker sends 2 (N-1)/N b bytes, as in a ring, but pays the latency 2 times instead of 2
(N-1) times. In return, every processor handles N-1 messages per segment and stage, each of which takes message_s.
Thakur, Rabenseifner, and Gropp (2005), section 4.3, call this pairwise exchange; here, all messages are in flight at
once.

A shard is split into T segments. Each passes through three stages on one processor and one link, and a stage works on
segment t while the previous stage works on segment t + LAG:

    A  pack the segment of every shard, send        needs nothing
    B  add, pack, send to all                       needs A's messages of this segment from all workers
    C  unpack the segment of every shard            needs B's messages of this segment from all workers

All workers do the same work at the same time, so simulating one worker's clock suffices. The loop mirrors `_pipeline`
in cpdrun.comm's exchange, but adds up times instead of doing the work.

Symbols: N workers, n values, k bits per value, b = n k/8 bytes, alpha the latency and overhead of a message in seconds,
beta the seconds per byte, T segments.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

from cpdrun.costmodel.parameters import Codec, Network


def ring_reduce_scatter_s(values: float, workers: int, codec: Codec, network: Network) -> float:
    """Return the seconds of a ring reduce-scatter, (N-1) (alpha + b/N beta).

    In each of N-1 hops, every worker sends a chunk of n/N values to the next worker, which adds its own rounded and
    packed values. No algorithm sends fewer than (N-1)/N b bytes per worker (Patarasuk and Yuan, "Bandwidth optimal
    all-reduce algorithms for clusters of workstations", JPDC 69, 2009, section 4).
    """
    chunk = values / workers
    wire_s = network.wire_s(codec.packed_bytes(chunk))
    arithmetic_s = chunk * (codec.pack_s + 2 * codec.add_s + codec.sum_s)
    return chunk * codec.pack_s + (workers - 1) * (_alpha(network) + max(wire_s, arithmetic_s))


def ring_all_gather_s(values: float, workers: int, codec: Codec, network: Network) -> float:
    """Return the seconds of a ring all-gather, (N-1) (alpha + b/N beta). Chunks are unpacked as they arrive."""
    chunk = values / workers
    wire_s, unpack_s = network.wire_s(codec.packed_bytes(chunk)), chunk * codec.unpack_s
    return (workers - 1) * (_alpha(network) + max(wire_s, unpack_s)) + unpack_s


def ring_s(values: float, workers: int, codec: Codec, network: Network) -> float:
    """Return the seconds of a ring all-reduce, 2 (N-1) alpha + 2 (N-1)/N b beta."""
    if workers == 1:
        return 0.0
    return ring_reduce_scatter_s(values, workers, codec, network) + ring_all_gather_s(
        values, workers, codec, network
    )


def tree_s(values: float, workers: int, codec: Codec, network: Network) -> float:
    """Return the seconds of a tree all-reduce, 2 ceil(lg N) (alpha + b beta).

    Gradients are added on the way up a binomial tree, and the sum is sent back down (Thakur, Rabenseifner, and Gropp,
    "Optimization of collective communication operations in MPICH", IJHPCA 19, 2005, sections 4.2 and 4.4). The few
    messages, each with the whole gradient, suit small gradients best.
    """
    if workers == 1:
        return 0.0
    levels = math.ceil(math.log2(workers))
    wire_s = network.wire_s(codec.packed_bytes(values))
    add_s = values * (2 * codec.add_s + codec.sum_s)
    up_s = levels * (_alpha(network) + max(wire_s, add_s))
    down_s = levels * (_alpha(network) + wire_s)
    return values * codec.pack_s + up_s + down_s + values * codec.unpack_s


def small_all_reduce_s(n_bytes: float, workers: int, network: Network) -> float:
    """Return the seconds to all-reduce a few integers, such as the exponents of APS.

    A ring or a tree is used, whichever is faster, as in MPI libraries (Thakur et al., section 4.5).
    """
    if workers == 1:
        return 0.0
    levels = math.ceil(math.log2(workers))
    return min(
        2 * levels * network.hop_s(n_bytes),
        2 * (workers - 1) * network.hop_s(n_bytes / workers),
    )


def hierarchical_s(
    values: float, workers: int, codec: Codec, network: Network, *, group_size: int, inner: Network
) -> float:
    """Return the seconds of a hierarchical all-reduce, RS(g, b, inner) + AR(N/g, b/g, outer) + AG(g, b, inner).

    This is "BlueConnect" (Cho et al., MLSys 2019) with two levels:

    1. A reduce-scatter (RS) over the `inner` network inside each group of g workers.
    2. A ring all-reduce (AR) of each shard across the N/g groups.
    3. An all-gather (AG) over the `inner` network inside each group.

    The g workers of a group share one link to the other groups. Each sends 1/g of its bytes over this link, so the
    bandwidth term equals that of a flat ring. Only latency is saved: 2 (N/g - 1) instead of 2 (N - 1) times across
    groups.

    cpdrun's order=hierarchical is different: it uses the direct exchange, and sets the order in which a shard's owner
    adds.
    """
    groups = workers // group_size
    shared = Network(
        network.latency_s, network.bandwidth_bytes_per_s / group_size, network.message_s, network.burst_bytes
    )
    inside_s = 0.0
    if group_size > 1:
        inside_s += ring_reduce_scatter_s(values, group_size, codec, inner)
        inside_s += ring_all_gather_s(values, group_size, codec, inner)
    return inside_s + ring_s(values / group_size, groups, codec, shared)


def _alpha(network: Network) -> float:
    return network.latency_s + network.message_s


# Copies of the constants in cpdrun.comm.sums.exchange, which a report cannot import. A test compares them.
SEGMENT_VALUES = 512 * 1024
LAG = 2


@dataclass
class _Link:
    """A worker's outgoing link with a token bucket. Messages leave in order.

    Attributes:
        network: The network.
        busy_s: The time at which the link would be free without bursts (virtual scheduling).
    """

    network: Network
    busy_s: float = 0.0

    def send(self, ready_s: float, n_bytes: float) -> float:
        """Return the time at which a message that is ready at `ready_s` arrives."""
        self.busy_s = max(self.busy_s, ready_s) + self.network.wire_s(n_bytes)
        burst_s = self.network.wire_s(self.network.burst_bytes)
        return max(ready_s, self.busy_s - burst_s) + self.network.latency_s


def direct_s(values: float, workers: int, codec: Codec, network: Network) -> float:
    """Return the seconds of the direct exchange. Each worker runs on a separate machine."""
    return _pipeline_s(
        values,
        workers,
        codec,
        network,
        lambda size: workers * size * codec.pack_s,
        lambda size: size * (workers * codec.add_s + codec.sum_s),
        lambda size: workers * size * codec.unpack_s,
    )


def reduce_scatter_s(values: float, workers: int, codec: Codec, network: Network) -> float:
    """Return the seconds of a direct reduce-scatter, the first half of the direct exchange.

    It consists of stage A and the additions of stage B. Each worker sends (N-1)/N b bytes. Sums stay in float32 with
    their owners, as sharded training requires.
    """
    return _pipeline_s(
        values,
        workers,
        codec,
        network,
        lambda size: workers * size * codec.pack_s,
        lambda size: workers * size * codec.add_s,
    )


def all_gather_s(values: float, workers: int, codec: Codec, network: Network) -> float:
    """Return the seconds of a direct all-gather, the second half of the direct exchange.

    Each owner packs its shard and sends it to all workers, which unpack it. Each worker sends (N-1)/N b bytes.
    """
    return _pipeline_s(
        values,
        workers,
        codec,
        network,
        lambda size: size * codec.pack_s,
        lambda size: workers * size * codec.unpack_s,
    )


def _pipeline_s(
    values: float, workers: int, codec: Codec, network: Network, *stages_s: Callable[[float], float]
) -> float:
    """Return the seconds of the stages of a direct exchange.

    Each stage computes for a time that depends on the segment's values in one shard. Then, each but the last sends a
    message to every other worker, which the next stage waits for.
    """
    if workers == 1:
        return 0.0
    shard = values / workers
    segments = math.ceil(shard / SEGMENT_VALUES)
    link, clock = _Link(network), 0.0
    arrived = [[0.0] * segments for _ in stages_s]
    for i in range(segments + LAG * (len(stages_s) - 1)):
        for stage, compute_s in enumerate(stages_s):
            if not 0 <= (t := i - LAG * stage) < segments:
                continue
            size = min(SEGMENT_VALUES, shard - t * SEGMENT_VALUES)
            clock = max(clock, arrived[stage][t]) + compute_s(size)
            if stage + 1 < len(stages_s):
                clock += (workers - 1) * network.message_s
                arrived[stage + 1][t] = link.send(clock, (workers - 1) * codec.packed_bytes(size))
    return clock


def direct_processor_s(values: float, workers: int, codec: Codec, network: Network) -> float:
    """Return the processor time of the direct exchange."""
    if workers == 1:
        return 0.0
    messages = 2 * (workers - 1) * math.ceil(values / workers / SEGMENT_VALUES)
    arithmetic_s = values * (codec.pack_s + codec.add_s + codec.sum_s / workers + codec.unpack_s)
    return arithmetic_s + messages * network.message_s
