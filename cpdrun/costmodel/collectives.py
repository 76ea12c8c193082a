"""Predict the seconds of collective operations on k-bit values: textbook algorithms, and the exchange of cpdrun.comm.

Ring, tree and hierarchical all-reduce follow the alpha-beta model. Hops follow one another. Within a hop, libraries cut
the message so that arithmetic overlaps with the wire, so a hop costs the larger of the two. Each formula counts what
the busiest worker does.

The direct exchange is that of cpdrun.comm. Every worker sends shard r of its packed gradient directly to worker r.
Worker r adds the N shards and sends the sum to all workers. This moves 2 (N-1)/N b bytes, as a ring does, but it pays
the latency twice and not 2 (N-1) times. Thakur, Rabenseifner and Gropp (2005), section 4.3, call this pairwise
exchange; here all messages are in flight at once. The price is N-1 messages for every processor in each segment and
stage, at message_s each. A shard travels in T segments through three stages, LAG segments apart, on one processor and
one link:

    A  pack the segment of every shard, send        needs nothing
    B  add, pack, send to all                       needs A's messages of this segment from everyone
    C  unpack the segment of every shard            needs B's messages of this segment from everyone

All workers do the same at the same time, so the message for which a worker waits arrives when the worker's own message
of that segment would. The clock of one worker is therefore enough. The loop is that of comm's exchange, `_pipeline`,
with times in place of work.

Legend: N workers, n values, b = n k/8 bytes, alpha latency and overhead of a message, beta seconds a byte, T segments,
s values of a segment of one shard.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

from cpdrun.costmodel.parameters import Codec, Network


def ring_reduce_scatter_s(values: float, workers: int, codec: Codec, network: Network) -> float:
    """Return the seconds of a ring reduce-scatter, (N-1) (alpha + b/N beta).

    In each of N-1 hops, a chunk of n/N values moves to the next worker. Patarasuk and Yuan, "Bandwidth optimal
    all-reduce algorithms for clusters of workstations" (JPDC 69, 2009), section 4: no algorithm can send less than
    (N-1)/N b. At each hop, the receiver adds its own value, rounded and packed, to the value that came in.
    """
    chunk = values / workers
    wire_s = network.wire_s(codec.packed_bytes(chunk))
    arithmetic_s = chunk * (codec.pack_s + 2 * codec.add_s + codec.sum_s)
    return chunk * codec.pack_s + (workers - 1) * (_alpha(network) + max(wire_s, arithmetic_s))


def ring_all_gather_s(values: float, workers: int, codec: Codec, network: Network) -> float:
    """Return the seconds of a ring all-gather, (N-1) (alpha + b/N beta).

    The finished chunks go around the ring. Each worker unpacks them as they arrive.
    """
    chunk = values / workers
    wire_s, unpack_s = network.wire_s(codec.packed_bytes(chunk)), chunk * codec.unpack_s
    return (workers - 1) * (_alpha(network) + max(wire_s, unpack_s)) + unpack_s


def ring_s(values: float, workers: int, codec: Codec, network: Network) -> float:
    """Return the seconds of a ring all-reduce, 2 (N-1) alpha + 2 (N-1)/N b beta: reduce-scatter, then all-gather."""
    if workers == 1:
        return 0.0
    return ring_reduce_scatter_s(values, workers, codec, network) + ring_all_gather_s(
        values, workers, codec, network
    )


def tree_s(values: float, workers: int, codec: Codec, network: Network) -> float:
    """Return the seconds of a tree all-reduce, 2 ceil(lg N) (alpha + b beta): up a binomial tree, then down.

    Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in MPICH" (IJHPCA 19, 2005),
    sections 4.2 and 4.4. The tree sends few messages, each with the whole gradient, which is best for small gradients.
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

    This is the cheaper of ring and tree, as libraries choose (Thakur et al., section 4.5).
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

    The stages are a reduce-scatter inside each group of g workers over the `inner` network, a ring all-reduce of each
    of its shards across the N/g groups, and an all-gather inside: Cho et al., "BlueConnect" (MLSys 2019), with two
    levels. Slow links carry 1/g of each worker's bytes. A group shares one link to the outside. Its g rings together
    move b bytes, so the bandwidth term remains that of a flat ring. The gain is latency, which is paid 2 (N/g - 1)
    times instead of 2 (N - 1) times. This is not cpdrun's order=hierarchical, which says how the owner of a shard adds
    and which uses the direct exchange.
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


# The same as in cpdrun.comm.sums.summations.exchange, which the report cannot import. A test compares the two.
SEGMENT_VALUES = 512 * 1024
LAG = 2


@dataclass
class _Link:
    """The outgoing link of a worker. Messages leave in order, at the rate of a token bucket (virtual scheduling).

    Attributes:
        network: The network.
        busy_s: When the link would be free if it had no burst.
    """

    network: Network
    busy_s: float = 0.0

    def send(self, ready_s: float, n_bytes: float) -> float:
        """Return when bytes that are handed over at `ready_s` arrive."""
        self.busy_s = max(self.busy_s, ready_s) + self.network.wire_s(n_bytes)
        burst_s = self.network.wire_s(self.network.burst_bytes)
        return max(ready_s, self.busy_s - burst_s) + self.network.latency_s


def direct_s(values: float, workers: int, codec: Codec, network: Network) -> float:
    """Return the seconds from the first value packed to the last value unpacked.

    Every worker has a machine of its own.
    """
    if workers == 1:
        return 0.0
    shard = values / workers
    segments = math.ceil(shard / SEGMENT_VALUES)
    sizes = [min(SEGMENT_VALUES, shard - t * SEGMENT_VALUES) for t in range(segments)]
    link, clock = _Link(network), 0.0
    at_owners, at_all = [0.0] * segments, [0.0] * segments

    def send(t: int) -> float:
        nonlocal clock
        clock += (workers - 1) * network.message_s
        return link.send(clock, (workers - 1) * codec.packed_bytes(sizes[t]))

    for i in range(segments + 2 * LAG):
        if (t := i) < segments:
            clock += workers * sizes[t] * codec.pack_s
            at_owners[t] = send(t)
        if 0 <= (t := i - LAG) < segments:
            clock = max(clock, at_owners[t]) + sizes[t] * (workers * codec.add_s + codec.sum_s)
            at_all[t] = send(t)
        if 0 <= (t := i - 2 * LAG) < segments:
            clock = max(clock, at_all[t]) + workers * sizes[t] * codec.unpack_s
    return clock


def reduce_scatter_s(values: float, workers: int, codec: Codec, network: Network) -> float:
    """Return the seconds of the first half: stage A, and stage B up to its additions.

    Each worker sends (N-1)/N b bytes. The sums stay with their owners in float32, as sharded training needs them.
    """

    def pack_s(size: float) -> float:
        return workers * size * codec.pack_s

    def add_s(size: float) -> float:
        return workers * size * codec.add_s

    return _half_s(values, workers, codec, network, pack_s, add_s)


def all_gather_s(values: float, workers: int, codec: Codec, network: Network) -> float:
    """Return the seconds of the second half: every owner packs its shard and sends it to all, and all unpack it.

    Each worker sends (N-1)/N b bytes.
    """

    def pack_s(size: float) -> float:
        return size * codec.pack_s

    def unpack_s(size: float) -> float:
        return workers * size * codec.unpack_s

    return _half_s(values, workers, codec, network, pack_s, unpack_s)


def _half_s(
    values: float,
    workers: int,
    codec: Codec,
    network: Network,
    before_s: Callable[[float], float],
    after_s: Callable[[float], float],
) -> float:
    """Return the seconds of one half of the exchange.

    In each segment, a worker works for `before_s` and sends a message to every other worker. LAG segments later, it
    works for `after_s` on the messages that came in.
    """
    if workers == 1:
        return 0.0
    shard = values / workers
    segments = math.ceil(shard / SEGMENT_VALUES)
    sizes = [min(SEGMENT_VALUES, shard - t * SEGMENT_VALUES) for t in range(segments)]
    link, clock, arrived = _Link(network), 0.0, [0.0] * segments
    for i in range(segments + LAG):
        if (t := i) < segments:
            clock += before_s(sizes[t]) + (workers - 1) * network.message_s
            arrived[t] = link.send(clock, (workers - 1) * codec.packed_bytes(sizes[t]))
        if 0 <= (t := i - LAG) < segments:
            clock = max(clock, arrived[t]) + after_s(sizes[t])
    return clock


def direct_processor_s(values: float, workers: int, codec: Codec, network: Network) -> float:
    """Return the seconds that the processor works: the time of the exchange if the wire costs nothing."""
    if workers == 1:
        return 0.0
    messages = 2 * (workers - 1) * math.ceil(values / workers / SEGMENT_VALUES)
    arithmetic_s = values * (codec.pack_s + codec.add_s + codec.sum_s / workers + codec.unpack_s)
    return arithmetic_s + messages * network.message_s
