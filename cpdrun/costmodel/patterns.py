"""Predict the seconds of a step's exchange from its pattern.

A pattern is who sends what to whom. A run recorded the bytes that a worker sends.

    direct      Reduce-scatter and all-gather in shards: each value goes to its owner, and the sum comes back.
    ring        The same bytes around a ring, as in PyTorch's all_reduce of fp32 or bf16.
    messages    Each worker sends a whole message to the N-1 others and decodes all N (top-k, QSGD, sign).
    neighbours  Each worker sends a whole message to its D neighbors (gossip).
    sharded     Reduce-scatter of gradients, optimizer step, all-gather of weights (FSDP, ZeRO).
    factors     Two consecutive all-reduces of fp32 matrices (PowerSGD).

All patterns assume:

- Each worker runs on its own machine with one processor and one full-duplex link.
- A central switch carries the full bandwidth of all links at once.
- All workers are equally fast.
- The exchange does not overlap with the forward or backward pass.
- With an exchange every H steps, each step takes 1/H of its time.

Symbols: N workers, n values, k bits per value, D neighbors, S bytes that a worker sends per exchange, alpha latency_s,
o message_s, beta seconds per byte.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from cpdrun.costmodel.collectives import all_gather_s, direct_s, reduce_scatter_s, ring_s, small_all_reduce_s
from cpdrun.costmodel.parameters import Codec, Network

# APS exchanges one int32 for each layer.
MAGNITUDE_BYTES = 4


@dataclass(frozen=True)
class Exchange:
    """The exchange that a run recorded.

    Attributes:
        pattern: A key of PATTERNS.
        workers: The number of workers, N.
        values: The number of values, n.
        sent_bytes: The mean bytes that a real worker sends per step.
        codec: The codec of the sent values.
        every: The number of steps from one exchange to the next.
        gather: The codec of gathered weights for the pattern "sharded". None means `codec`.
        layers: The number of layers with an APS scale; 0 without APS.
        neighbours: The number of neighbors, D, for the pattern "neighbours".
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
    """Return the time of the exchange per step, in seconds.

    A single worker exchanges nothing. For an exchange every H steps, this is 1/H of its time.
    """
    if what.workers == 1:
        return 0.0
    agreed_s = 0.0
    if what.layers:
        found_s = what.values * what.codec.largest_s
        agreed_s = found_s + small_all_reduce_s(what.layers * MAGNITUDE_BYTES, what.workers, network)
    return (agreed_s + PATTERNS[what.pattern](what, network)) / what.every


def _bits(what: Exchange) -> float:
    """Return the bit width k with which an all-reduce of 2 (N-1)/N n k/8 bytes explains the recorded bytes."""
    N = what.workers
    return 8 * what.bytes_of_one / what.values / (2 * (N - 1) / N)


def _direct_s(what: Exchange, network: Network) -> float:
    """Return the seconds of cpdrun.comm's direct exchange, in which codec and wire overlap."""
    return direct_s(what.values, what.workers, replace(what.codec, bits=_bits(what)), network)


def _ring_s(what: Exchange, network: Network) -> float:
    """Return the seconds of PyTorch's all_reduce, a ring without a codec from cpdrun.

    At each hop, a worker adds the received values to its own, which is assumed to take `codec.add_s` per value. Formats
    narrower than fp32 are converted before and after.
    """
    codec = Codec(_bits(what), 0.0, what.codec.add_s / 2, 0.0, 0.0)
    converted_s = 0.0 if what.codec.bits == 32 else what.values * (what.codec.pack_s + what.codec.unpack_s)
    return converted_s + ring_s(what.values, what.workers, codec, network)


def _messages_s(what: Exchange, network: Network, others: int | None = None) -> float:
    """Return the seconds of exchanging whole messages: n pack_s + D o + alpha + S beta + (D+1) n unpack_s.

    D is `others`, by default N-1. A worker compresses all layers, sends its message to D workers, waits for theirs, and
    decodes all D+1 messages, one after the other (cpdrun.comm, `wire/messages.py`). A message of M bytes makes S = D M,
    so the time grows with N, unlike that of a sharded exchange.
    """
    D = what.workers - 1 if others is None else others
    wire_s = network.latency_s + D * network.message_s + _wire_s(what.bytes_of_one, network)
    return what.values * (what.codec.pack_s + (D + 1) * what.codec.unpack_s) + wire_s


def _neighbours_s(what: Exchange, network: Network) -> float:
    """Return the seconds of exchanging whole messages with D neighbors."""
    return _messages_s(what, network, others=max(1, what.neighbours))


def _sharded_s(what: Exchange, network: Network) -> float:
    """Return the seconds of a reduce-scatter and an all-gather of weights.

    The optimizer's step between them is not included. Of the S bytes, the weights take S_w = (N-1)/N n k_w/8 with k_w
    bits per weight, and the gradients take the rest. Weights are assumed to be gathered once per step: neither
    resharding after the forward pass nor prefetching is covered.
    """
    N, n, gather = what.workers, what.values, what.gather or what.codec
    share = (N - 1) / N * n / 8  # the bytes that a worker sends in one half per bit of a value
    weights = min(what.bytes_of_one, share * gather.bits)
    gradients = replace(what.codec, bits=(what.bytes_of_one - weights) / share)
    gathered = all_gather_s(n, N, replace(gather, bits=weights / share), network)
    return reduce_scatter_s(n, N, gradients, network) + gathered


def _factors_s(what: Exchange, network: Network) -> float:
    """Return the seconds of all-reducing the factors P and Q.

    Each takes half of the bytes. Each all-reduce is a ring or a tree, whichever is faster, as in libraries. The codec
    covers the matrix products that compute and apply the factors.
    """
    # the payload of one all-reduce, in bytes
    half = what.bytes_of_one / 2 * what.workers / (2 * (what.workers - 1))
    return what.values * (what.codec.pack_s + what.codec.unpack_s) + 2 * small_all_reduce_s(
        half, what.workers, network
    )


def _wire_s(n_bytes: float, network: Network) -> float:
    """Return the seconds on an idle link, which allows a burst."""
    return network.wire_s(max(0.0, n_bytes - network.burst_bytes))


PATTERNS: dict[str, Callable[[Exchange, Network], float]] = {
    "direct": _direct_s,
    "ring": _ring_s,
    "messages": _messages_s,
    "neighbours": _neighbours_s,
    "sharded": _sharded_s,
    "factors": _factors_s,
}
