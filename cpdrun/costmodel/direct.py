"""Predict the seconds of the exchange that cpdrun.comm does: direct reduce-scatter and all-gather, in segments.

Every worker sends shard r of its packed gradient directly to worker r. Worker r adds the N shards and sends the sum to
all workers. This moves 2 (N-1)/N b bytes, as a ring does, but it pays the latency twice and not 2 (N-1) times. Thakur,
Rabenseifner and Gropp (2005), section 4.3, call this pairwise exchange; here all messages are in flight at once. The
price is N-1 messages for every processor in each segment and stage, at message_s each.

A shard travels in T segments through three stages, LAG segments apart, on one processor and one link:

    A  pack the segment of every shard, send        needs nothing
    B  add, pack, send to all                       needs A's messages of this segment from everyone
    C  unpack the segment of every shard            needs B's messages of this segment from everyone

All workers do the same at the same time, so the message for which a worker waits arrives when the worker's own message
of that segment would. The clock of one worker is therefore enough. The loop below is the loop of comm's exchange,
`_pipeline`, with times in place of work. If the codec costs nothing, the time of the wire (the b/beta terms) is left.
If the wire costs nothing, the time of the codec is left.

Legend: N workers, n values, b = n k/8 bytes, T segments, s values of a segment of one shard.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

from cpdrun.costmodel.parameters import Codec, Network

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
