"""Predict the seconds of a step's exchange from its pattern: who sends what to whom.

What is sent is given, as a run recorded it. The patterns are:

    direct      reduce-scatter and all-gather in shards: each value is sent to its owner and comes back
    ring        the same bytes around a ring: the platform's own all_reduce of fp32 or bf16
    messages    whole messages to the N-1 others, which decode all N: compressed gradients (top-k, QSGD, sign)
    neighbours  whole messages to D neighbors: gossip
    sharded     reduce-scatter of gradients, optimizer step, all-gather of weights: FSDP, ZeRO
    factors     two all-reduces of fp32 matrices, one after the other: PowerSGD

All patterns share these assumptions. Each worker is a machine with one processor and one full-duplex link. A switch in
the middle has room for all links at once. Workers are equally fast. Nothing overlaps with forward or backward. An
exchange every H steps costs 1/H of itself per step.

Legend: N workers, n values, S bytes that a worker sends per exchange, alpha latency, o message_s, beta seconds a byte.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from cpdrun.costmodel.collectives import all_gather_s, direct_s, reduce_scatter_s, ring_s, small_all_reduce_s
from cpdrun.costmodel.parameters import Codec, Network

# APS agrees on one int32 for each layer.
MAGNITUDE_BYTES = 4


@dataclass(frozen=True)
class Exchange:
    """What the workers of a run exchange, as the run recorded it.

    Attributes:
        pattern: The key of the pattern in PATTERNS.
        workers: The number of workers.
        values: The number of values.
        sent_bytes: The bytes that a real worker sends per step, on average over steps.
        codec: The processor time per value that is sent.
        every: The number of steps from one exchange to the next.
        gather: The processor time per value that comes back, if it is in another format (sharded).
        layers: The number of layers for which APS agrees on a scale, or 0 without APS.
        neighbours: The number of neighbors, D.
    """

    pattern: str
    workers: int
    values: float
    sent_bytes: float
    codec: Codec
    every: int = 1
    gather: Codec | None = None
    layers: int = 0
    neighbours: int = 0

    @property
    def bytes_of_one(self) -> float:
        """The bytes that a worker sends per exchange, S."""
        return self.sent_bytes * self.every


def exchange_s(what: Exchange, network: Network) -> float:
    """Return the seconds per step, averaged over the steps from one exchange to the next, or 0 for a single worker.

    Raises:
        KeyError: The pattern is not in PATTERNS.
    """
    if what.workers == 1:
        return 0.0
    agreed_s = 0.0
    if what.layers:
        found_s = what.values * what.codec.largest_s
        agreed_s = found_s + small_all_reduce_s(what.layers * MAGNITUDE_BYTES, what.workers, network)
    return (agreed_s + PATTERNS[what.pattern](what, network)) / what.every


def _bits(what: Exchange) -> float:
    """Return the bits k for which a textbook all-reduce, 2 (N-1)/N n k/8 bytes, sends as many bytes as the run sent."""
    N = what.workers
    return 8 * what.bytes_of_one / what.values / (2 * (N - 1) / N)


def _direct_s(what: Exchange, network: Network) -> float:
    """Return the seconds of comm's own exchange, segment by segment, with codec and wire at once."""
    return direct_s(what.values, what.workers, replace(what.codec, bits=_bits(what)), network)


def _ring_s(what: Exchange, network: Network) -> float:
    """Return the seconds of the platform's all_reduce: a ring without a codec of cpdrun.

    At each hop, a worker adds the values that it receives to its own. This is assumed to cost as much as `add` does.
    bf16 values are converted before and after.
    """
    codec = Codec(_bits(what), 0.0, what.codec.add_s / 2, 0.0, 0.0)
    converted_s = 0.0 if what.codec.bits == 32 else what.values * (what.codec.pack_s + what.codec.unpack_s)
    return converted_s + ring_s(what.values, what.workers, codec, network)


def _messages_s(what: Exchange, network: Network, others: int | None = None) -> float:
    """Return n pack + D o + alpha + S beta + (D+1) n unpack seconds, with D = N-1.

    In comm, a worker compresses all layers, sends, waits for the messages of all others and then decodes them one
    after the other, its own message included (`wire/messages.py`). S = D M for a message of M bytes, so this cost
    grows with N, while the cost of shards does not. Every link receives as many bytes as it sends.
    """
    D = what.workers - 1 if others is None else others
    wire_s = network.latency_s + D * network.message_s + _wire_s(what.bytes_of_one, network)
    return what.values * (what.codec.pack_s + (D + 1) * what.codec.unpack_s) + wire_s


def _neighbours_s(what: Exchange, network: Network) -> float:
    """Return the same for the D neighbors of a worker. D is that of the worker with the most neighbors."""
    return _messages_s(what, network, others=max(1, what.neighbours))


def _sharded_s(what: Exchange, network: Network) -> float:
    """Return the seconds of the two halves of the direct exchange, with the optimizer's step between them.

    The weights take S_w = (N-1)/N n k_w/8 bytes in the gather's format, and the gradients take S - S_w. Weights are
    gathered once per step. The model does not include resharding after forward, which gathers again for backward, or
    prefetching, which hides the gather.
    """
    N, n, gather = what.workers, what.values, what.gather or what.codec
    share = (N - 1) / N * n / 8  # Bytes sent for each bit of a value.
    weights = min(what.bytes_of_one, share * gather.bits)
    gradients = replace(what.codec, bits=(what.bytes_of_one - weights) / share)
    gathered = all_gather_s(n, N, replace(gather, bits=weights / share), network)
    return reduce_scatter_s(n, N, gradients, network) + gathered


def _factors_s(what: Exchange, network: Network) -> float:
    """Return the seconds of exchanging P and Q of every matrix, each with half of the bytes.

    Each uses the cheaper of ring and tree, as libraries choose. Pack and unpack are the products that make the factors
    and apply them.
    """
    # The payload of one of the two all-reduces.
    half = what.bytes_of_one / 2 * what.workers / (2 * (what.workers - 1))
    return what.values * (what.codec.pack_s + what.codec.unpack_s) + 2 * small_all_reduce_s(
        half, what.workers, network
    )


def _wire_s(n_bytes: float, network: Network) -> float:
    """Return the seconds of bytes on an idle link, which lets a burst through at once."""
    return network.wire_s(max(0.0, n_bytes - network.burst_bytes))


PATTERNS: dict[str, Callable[[Exchange, Network], float]] = {
    "direct": _direct_s,
    "ring": _ring_s,
    "messages": _messages_s,
    "neighbours": _neighbours_s,
    "sharded": _sharded_s,
    "factors": _factors_s,
}
