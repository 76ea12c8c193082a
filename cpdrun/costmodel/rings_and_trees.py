"""Predict the seconds of a textbook all-reduce of k-bit values in the alpha-beta model, including the codec.

Legend: N workers, n values, b = n k/8 bytes, alpha latency and overhead of a message, beta seconds a byte. Hops follow
one another. Within a hop, libraries cut the message so that arithmetic overlaps with the wire, so a hop costs the
larger of the two. Each formula counts what the busiest worker does.
"""

import math

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
