"""All-reduce of k-bit values as textbooks build it: seconds in the alpha-beta model, the codec included.

Legend: N workers, n values, b = n k/8 bytes, alpha latency and overhead of a message, beta seconds a byte.
Hops follow one another. Inside a hop, libraries cut the message so that arithmetic overlaps with the wire:
a hop costs the larger of the two. Each formula counts what the busiest worker does.
"""

import math

from cpdrun.costmodel.parameters import Codec, Network


def ring_reduce_scatter_s(values: float, workers: int, codec: Codec, network: Network) -> float:
    """(N-1) (alpha + b/N beta): in each of N-1 hops a chunk of n/N values moves one worker on.

    Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations" (JPDC 69,
    2009), section 4; (N-1)/N b is the least that any algorithm must send. At each hop the receiver adds its
    own value, rounded and packed, to what came.
    """
    chunk = values / workers
    wire_s = network.wire_s(codec.packed_bytes(chunk))
    arithmetic_s = chunk * (codec.pack_s + 2 * codec.add_s + codec.sum_s)
    return chunk * codec.pack_s + (workers - 1) * (_alpha(network) + max(wire_s, arithmetic_s))


def ring_all_gather_s(values: float, workers: int, codec: Codec, network: Network) -> float:
    """(N-1) (alpha + b/N beta): the finished chunks go round; each worker unpacks them as they come."""
    chunk = values / workers
    wire_s, unpack_s = network.wire_s(codec.packed_bytes(chunk)), chunk * codec.unpack_s
    return (workers - 1) * (_alpha(network) + max(wire_s, unpack_s)) + unpack_s


def ring_s(values: float, workers: int, codec: Codec, network: Network) -> float:
    """2 (N-1) alpha + 2 (N-1)/N b beta: reduce-scatter, then all-gather, each round the ring."""
    if workers == 1:
        return 0.0
    return ring_reduce_scatter_s(values, workers, codec, network) + ring_all_gather_s(
        values, workers, codec, network
    )


def tree_s(values: float, workers: int, codec: Codec, network: Network) -> float:
    """2 ceil(lg N) (alpha + b beta): up a binomial tree, then down.

    Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in MPICH" (IJHPCA
    19, 2005), sections 4.2 and 4.4: few messages, each of the whole gradient; best for small ones.
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
    """A few integers, such as APS's exponents: the cheaper of ring and tree, as libraries choose (Thakur et
    al., section 4.5)."""
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
    """RS(g, b, inner) + AR(N/g, b/g, outer) + AG(g, b, inner): slow links carry 1/g of each worker's bytes.

    Reduce-scatter inside each group of g workers over the `inner` network, ring all-reduce of each of its
    shards across the N/g groups, all-gather inside: Cho et al., "BlueConnect" (MLSys 2019), with two
    levels. A group shares one link to the outside: its g rings together move b, so the bandwidth term stays
    that of a flat ring, and what is won is latency, 2 (N/g - 1) times instead of 2 (N - 1). This is not
    cpdrun's order=hierarchical, which says how the owner of a shard adds and travels the direct way.
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
