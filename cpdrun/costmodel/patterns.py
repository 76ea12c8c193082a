"""Predict the seconds of a step's exchange from its pattern: who sends what to whom.

A run recorded the number of bytes that a worker sends. The patterns are:

    direct      Reduce-scatter and all-gather in shards. Each value is sent to its owner, and the sum is sent back.
    ring        The same bytes travel around a ring. This is PyTorch's all_reduce of fp32 or bf16.
    messages    Each worker sends a whole message to the N-1 other workers and decodes all N messages. Compressed
                gradients (top-k, QSGD, sign) use this pattern.
    neighbours  Each worker sends a whole message to its D neighbors. Gossip uses this pattern.
    sharded     Reduce-scatter of gradients, optimizer step, all-gather of weights. FSDP and ZeRO use this pattern.
    factors     Two all-reduces of fp32 matrices, one after the other. PowerSGD uses this pattern.

All patterns share these assumptions:

- Each worker runs on a separate machine with one processor and one full-duplex link.
- A central switch carries the full bandwidth of all links at once.
- All workers are equally fast.
- The exchange does not overlap with the forward or backward pass.
- If workers exchange only every H steps, each step takes 1/H of the exchange's time.

Legend: N workers, n values, k bits per value, D neighbors, S bytes that a worker sends per exchange, alpha latency_s,
o message_s, beta seconds per byte.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from cpdrun.costmodel.collectives import all_gather_s, direct_s, reduce_scatter_s, ring_s, small_all_reduce_s
from cpdrun.costmodel.parameters import Codec, Network

# To agree on a scale with APS, workers exchange one int32 for each layer.
MAGNITUDE_BYTES = 4


@dataclass(frozen=True)
class Exchange:
    """A run's exchange, as the run recorded it.

    Attributes:
        pattern: The key of the pattern in PATTERNS.
        workers: The number of workers, N.
        values: The number of values, n.
        sent_bytes: The bytes that a real worker sends per step, averaged over the steps.
        codec: The codec of the values that are sent.
        every: The number of steps from one exchange to the next.
        gather: The codec of the weights that are gathered, for the pattern "sharded". None if it is `codec`.
        layers: The number of layers for which APS agrees on a scale, or 0 without APS.
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
    """Return the seconds of an exchange, divided by the number of steps from one exchange to the next.

    A single worker exchanges nothing, so its exchange takes 0 seconds.

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
    """Return the bit width k with which a textbook all-reduce sends as many bytes as the run sent.

    A textbook all-reduce sends 2 (N-1)/N n k/8 bytes per worker.
    """
    N = what.workers
    return 8 * what.bytes_of_one / what.values / (2 * (N - 1) / N)


def _direct_s(what: Exchange, network: Network) -> float:
    """Return the seconds of cpdrun.comm's direct exchange, in which codec and wire overlap segment by segment."""
    return direct_s(what.values, what.workers, replace(what.codec, bits=_bits(what)), network)


def _ring_s(what: Exchange, network: Network) -> float:
    """Return the seconds of PyTorch's all_reduce, which is a ring without a codec from cpdrun.

    At each hop, a worker adds the values that it receives to its own. One addition is assumed to take `codec.add_s`. If
    the format is narrower than fp32, values are converted before and after the all_reduce.
    """
    codec = Codec(_bits(what), 0.0, what.codec.add_s / 2, 0.0, 0.0)
    converted_s = 0.0 if what.codec.bits == 32 else what.values * (what.codec.pack_s + what.codec.unpack_s)
    return converted_s + ring_s(what.values, what.workers, codec, network)


def _messages_s(what: Exchange, network: Network, others: int | None = None) -> float:
    """Return the seconds of exchanging whole messages: n pack_s + D o + alpha + S beta + (D+1) n unpack_s.

    D is `others`, or N-1 if `others` is None. In cpdrun.comm (`wire/messages.py`), a worker compresses all layers,
    sends its message to D workers, and waits for their messages. Then it decodes these messages and its own, one after
    the other. A worker sends S = D M bytes if its message has M bytes. Therefore, the time grows with N, unlike that of
    a sharded exchange. Every link receives as many bytes as it sends.
    """
    D = what.workers - 1 if others is None else others
    wire_s = network.latency_s + D * network.message_s + _wire_s(what.bytes_of_one, network)
    return what.values * (what.codec.pack_s + (D + 1) * what.codec.unpack_s) + wire_s


def _neighbours_s(what: Exchange, network: Network) -> float:
    """Return the seconds of exchanging whole messages with D neighbors, for the worker with the most neighbors."""
    return _messages_s(what, network, others=max(1, what.neighbours))


def _sharded_s(what: Exchange, network: Network) -> float:
    """Return the seconds of a direct reduce-scatter of gradients and a direct all-gather of weights.

    The optimizer's step between them is not included. The weights take S_w = (N-1)/N n k_w/8 of the S bytes, where k_w
    is the bit width of the gathered weights. The gradients take the remaining S - S_w bytes. The model assumes that
    weights are gathered once per step. It covers neither resharding after the forward pass, which gathers the weights
    again for the backward pass, nor prefetching, which hides the time of the gather.
    """
    N, n, gather = what.workers, what.values, what.gather or what.codec
    share = (N - 1) / N * n / 8  # the bytes that a worker sends in one half per bit of a value
    weights = min(what.bytes_of_one, share * gather.bits)
    gradients = replace(what.codec, bits=(what.bytes_of_one - weights) / share)
    gathered = all_gather_s(n, N, replace(gather, bits=weights / share), network)
    return reduce_scatter_s(n, N, gradients, network) + gathered


def _factors_s(what: Exchange, network: Network) -> float:
    """Return the seconds of all-reducing the factors P and Q of every matrix.

    The factors P take half of the bytes, and the factors Q take the other half. Each of the two all-reduces is a ring
    or a tree, whichever is faster. Libraries make the same choice. The codec's `pack_s` and `unpack_s` cover the matrix
    products that compute and apply the factors.
    """
    # The payload of one of the two all-reduces, in bytes.
    half = what.bytes_of_one / 2 * what.workers / (2 * (what.workers - 1))
    return what.values * (what.codec.pack_s + what.codec.unpack_s) + 2 * small_all_reduce_s(
        half, what.workers, network
    )


def _wire_s(n_bytes: float, network: Network) -> float:
    """Return the seconds that an idle link needs for the bytes. It lets a burst through at once."""
    return network.wire_s(max(0.0, n_bytes - network.burst_bytes))


PATTERNS: dict[str, Callable[[Exchange, Network], float]] = {
    "direct": _direct_s,
    "ring": _ring_s,
    "messages": _messages_s,
    "neighbours": _neighbours_s,
    "sharded": _sharded_s,
    "factors": _factors_s,
}
