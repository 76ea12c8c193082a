"""Seconds of a step's exchange by its pattern: who sends what to whom. What is sent is given, as a run recorded it.

    direct      reduce-scatter and all-gather in shards: each value is sent to its owner and comes back (direct.py)
    ring        the same bytes round a ring: the platform's own all_reduce of fp32 or bf16 (rings_and_trees.py)
    messages    everyone's whole message to N-1 others, who decode all N: compressed gradients (top-k, QSGD, sign)
    neighbours  whole messages to D neighbours: gossip
    sharded     reduce-scatter of gradients, a step, all-gather of weights: FSDP, ZeRO
    factors     two all-reduces of fp32 matrices, one after the other: PowerSGD

Common to all: each worker is a machine with one processor and one link, full duplex; a switch in the middle has room
for all links at once; workers are equally fast; nothing hides behind forward or backward. An exchange every H steps
costs 1/H of it a step. Legend: N workers, n values, S bytes a worker sends an exchange, alpha latency, o message_s,
beta seconds a byte.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from cpdrun.costmodel.direct import all_gather_s, direct_s, reduce_scatter_s
from cpdrun.costmodel.parameters import Codec, Network
from cpdrun.costmodel.rings_and_trees import ring_s, small_all_reduce_s

MAGNITUDE_BYTES = 4  # APS agrees on an int32 a layer


@dataclass(frozen=True)
class Exchange:
    """What the workers of a run exchange, as its record has it.

    sent_bytes: a real worker, a step, on average over steps. every: steps from one exchange to the next. codec:
    seconds a value of what is sent; gather: of what comes back where that is in another format (sharded). layers: that
    APS agrees on, 0 without it. neighbours: D.
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
        """S."""
        return self.sent_bytes * self.every


def exchange_s(what: Exchange, network: Network) -> float:
    """Seconds a step, averaged over the steps from one exchange to the next; 0 for one worker. Raises KeyError for a
    pattern that is none of PATTERNS."""
    if what.workers == 1:
        return 0.0
    agreed_s = 0.0
    if what.layers:
        found_s = what.values * what.codec.largest_s
        agreed_s = found_s + small_all_reduce_s(what.layers * MAGNITUDE_BYTES, what.workers, network)
    return (agreed_s + PATTERNS[what.pattern](what, network)) / what.every


def _bits(what: Exchange) -> float:
    """The k for which an all-reduce of textbooks, 2 (N-1)/N n k/8 bytes, sends as many as were sent."""
    N = what.workers
    return 8 * what.bytes_of_one / what.values / (2 * (N - 1) / N)


def _direct_s(what: Exchange, network: Network) -> float:
    """As comm's own exchange goes, segment by segment, codec and wire at once (direct.py)."""
    return direct_s(what.values, what.workers, replace(what.codec, bits=_bits(what)), network)


def _ring_s(what: Exchange, network: Network) -> float:
    """The platform's all_reduce: a ring without a codec of ours (rings_and_trees.py). At each hop a worker adds what
    came to what it has, taken to cost what `add` does; bf16 is converted before and after."""
    codec = Codec(_bits(what), 0.0, what.codec.add_s / 2, 0.0, 0.0)
    converted_s = 0.0 if what.codec.bits == 32 else what.values * (what.codec.pack_s + what.codec.unpack_s)
    return converted_s + ring_s(what.values, what.workers, codec, network)


def _messages_s(what: Exchange, network: Network, others: int | None = None) -> float:
    """n pack + D o + alpha + S beta + (D+1) n unpack, D = N-1: comm compresses all layers, sends, waits for everyone's
    message and then decodes, one after the other, its own too (`wire/messages.py`).

    S = D M for a message of M bytes: this grows with N where shards do not. Every link receives as much as it sends.
    """
    D = what.workers - 1 if others is None else others
    wire_s = network.latency_s + D * network.message_s + _wire_s(what.bytes_of_one, network)
    return what.values * (what.codec.pack_s + (D + 1) * what.codec.unpack_s) + wire_s


def _neighbours_s(what: Exchange, network: Network) -> float:
    """The same for the D neighbours that a worker has (of the worker with most)."""
    return _messages_s(what, network, others=max(1, what.neighbours))


def _sharded_s(what: Exchange, network: Network) -> float:
    """The two halves of the direct exchange, one after the other: the optimizer's step stands between them.

    S_w = (N-1)/N n k_w/8 bytes of weights in the gather's format, S - S_w of gradients. Gathered once a step:
    resharding after forward, which gathers again for backward, is not in it; nor is prefetching, which hides the
    gather.
    """
    N, n, gather = what.workers, what.values, what.gather or what.codec
    share = (N - 1) / N * n / 8  # bytes a bit of a value
    weights = min(what.bytes_of_one, share * gather.bits)
    gradients = replace(what.codec, bits=(what.bytes_of_one - weights) / share)
    gathered = all_gather_s(n, N, replace(gather, bits=weights / share), network)
    return reduce_scatter_s(n, N, gradients, network) + gathered


def _factors_s(what: Exchange, network: Network) -> float:
    """P and Q of every matrix, half of the bytes each, by the cheaper of ring and tree as libraries choose; pack and
    unpack are the products that make and apply them."""
    half = what.bytes_of_one / 2 * what.workers / (2 * (what.workers - 1))  # of one all-reduce's payload
    return what.values * (what.codec.pack_s + what.codec.unpack_s) + 2 * small_all_reduce_s(
        half, what.workers, network
    )


def _wire_s(n_bytes: float, network: Network) -> float:
    """On an idle link, which lets a burst through at once."""
    return network.wire_s(max(0.0, n_bytes - network.burst_bytes))


PATTERNS: dict[str, Callable[[Exchange, Network], float]] = {
    "direct": _direct_s,
    "ring": _ring_s,
    "messages": _messages_s,
    "neighbours": _neighbours_s,
    "sharded": _sharded_s,
    "factors": _factors_s,
}
