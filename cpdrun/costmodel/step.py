"""Predict the time of a training step on N workers, and their speed-up.

With weak scaling, as in data parallelism, the batch of each worker stays the same, so N workers process N batches per
step. If T(N) is the time of a step, speedup(N) = N * T(1) / T(N).
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from cpdrun.costmodel.collectives import (
    direct_processor_s,
    direct_s,
    hierarchical_s,
    ring_s,
    small_all_reduce_s,
    tree_s,
)
from cpdrun.costmodel.parameters import Calibration, Codec, Network, Workload
from cpdrun.costmodel.patterns import MAGNITUDE_BYTES

ALGORITHMS = ("direct", "ring", "tree", "hierarchical")
WORKERS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
DDP_FIRST_BUCKET_BYTES = 1 << 20
DDP_BUCKET_BYTES = 25 << 20  # the default bucket_cap_mb of DistributedDataParallel


@dataclass(frozen=True)
class Setup:
    """The parameters that determine the time of a step.

    Attributes:
        workers: The number of workers.
        workload: The training step of one worker.
        codec: The codec of the format.
        network: The network between workers, or between groups for algorithm=hierarchical.
        algorithm: One of ALGORITHMS.
        aps: Whether workers agree on APS scales before each exchange.
        overlap: Whether buckets are exchanged during the backward pass, as in a DDP script, without check_s. If false,
            all layers are exchanged after the backward pass, as in cpdrun's training loop.
        shared_processor: Whether the backward pass and the codec share one processor, as on a CPU with one thread per
            worker.
        group_size: The number of workers in a group, for algorithm=hierarchical.
        inner: The network inside a group. None means `network`.
    """

    workers: int
    workload: Workload
    codec: Codec
    network: Network
    algorithm: str = "direct"
    aps: bool = False
    overlap: bool = False
    shared_processor: bool = True
    group_size: int = 1
    inner: Network | None = None

    @property
    def work(self) -> Workload:
        """The workload in this setup: without check_s if exchanges overlap."""
        return replace(self.workload, check_s=0.0) if self.overlap else self.workload

    def __post_init__(self) -> None:
        if self.algorithm not in ALGORITHMS:
            raise ValueError(f"algorithm={self.algorithm!r}: choose one of {', '.join(ALGORITHMS)}")
        if self.workers < 1 or self.workers % self.group_size:
            raise ValueError(f"workers={self.workers} is not a multiple of group_size={self.group_size}")


@dataclass(frozen=True)
class StepCost:
    """The predicted seconds of a step.

    Attributes:
        compute_s: The worker's computation, `Workload.compute_s`.
        agreement_s: The time to find and agree on APS scales; 0 without APS.
        exchange_s: The time to pack, send, add, and unpack.
        exposed_s: The part of agreement_s and exchange_s that does not overlap with computation.
    """

    compute_s: float
    agreement_s: float
    exchange_s: float
    exposed_s: float

    @property
    def total_s(self) -> float:
        return self.compute_s + self.exposed_s


def step_cost(setup: Setup) -> StepCost:
    """Predict the cost of one step. All workers are equally fast and in lockstep."""
    work = setup.work
    if setup.workers == 1:
        return StepCost(work.compute_s, 0.0, 0.0, 0.0)
    if not setup.overlap:
        agreement_s = agreement(setup, work.values, len(work.numels))
        exchange_s = exchange(setup, work.values)
        return StepCost(work.compute_s, agreement_s, exchange_s, agreement_s + exchange_s)
    return _overlapped(setup)


def speedup(setup: Setup) -> float:
    """Return the speed-up: samples per second relative to a single worker."""
    return setup.workers * setup.work.compute_s / step_cost(setup).total_s


def agreement(setup: Setup, values: int, layers: int) -> float:
    """Return the seconds in which workers agree on APS scales; 0 without APS."""
    if not setup.aps:
        return 0.0
    agreed_s = small_all_reduce_s(layers * MAGNITUDE_BYTES, setup.workers, setup.network)
    return values * setup.codec.largest_s + agreed_s


def exchange(setup: Setup, values: int) -> float:
    """Return the seconds in which workers sum `values` values each."""
    if setup.algorithm == "hierarchical":
        return hierarchical_s(
            values,
            setup.workers,
            setup.codec,
            setup.network,
            group_size=setup.group_size,
            inner=setup.inner or setup.network,
        )
    cost: Callable[[float, int, Codec, Network], float]
    cost = {"direct": direct_s, "ring": ring_s, "tree": tree_s}[setup.algorithm]
    return cost(values, setup.workers, setup.codec, setup.network)


def _overlapped(setup: Setup) -> StepCost:
    """Return the cost of a step whose exchanges overlap with backward.

    A bucket's exchange starts when the bucket is full and the previous exchange has ended: end_i = max(ready_i,
    end_{i-1}) + exchange_i (Li et al., "PyTorch Distributed", VLDB 2020, section 3.2.3). The backward pass takes the
    same time for every value. With one shared processor, a step takes at least its total processor time.
    """
    work = setup.work
    ready_s = end_s = work.forward_s
    agreement_s = exchange_s = 0.0
    for numels in buckets(work.numels):
        values = sum(numels)
        ready_s += work.backward_s * values / work.values
        agreed_s, exchanged_s = agreement(setup, values, len(numels)), exchange(setup, values)
        end_s = max(ready_s, end_s) + agreed_s + exchanged_s
        agreement_s, exchange_s = agreement_s + agreed_s, exchange_s + exchanged_s
    total_s = max(end_s, ready_s) + work.update_s
    if setup.shared_processor:
        total_s = max(total_s, work.compute_s + _processor_s(setup))
    return StepCost(work.compute_s, agreement_s, exchange_s, total_s - work.compute_s)


def buckets(numels: tuple[int, ...]) -> Iterator[list[int]]:
    """Yield the layer sizes of each bucket, filled as in DistributedDataParallel.

    Layers are assigned from last to first until a bucket reaches its limit, which is smaller for the first bucket.
    """
    bucket: list[int] = []
    limit = DDP_FIRST_BUCKET_BYTES
    for numel in reversed(numels):
        bucket.append(numel)
        if sum(bucket) * 4 >= limit:
            yield bucket
            bucket, limit = [], DDP_BUCKET_BYTES
    if bucket:
        yield bucket


def _processor_s(setup: Setup) -> float:
    """Return the processor time of agreement and exchange."""
    found_s = setup.workload.values * setup.codec.largest_s if setup.aps else 0.0
    if setup.algorithm == "direct":
        return found_s + direct_processor_s(setup.workload.values, setup.workers, setup.codec, setup.network)
    free = Network(0.0, float("inf"), setup.network.message_s)
    inner = Network(0.0, float("inf"), (setup.inner or setup.network).message_s)
    return found_s + exchange(replace(setup, network=free, inner=inner), setup.workload.values)


@dataclass(frozen=True)
class ForecastRow:
    """The predicted seconds of a step for one format and worker count.

    Attributes:
        network: The name of the network.
        algorithm: The algorithm that sums gradients.
        format: The name of the format.
        workers: The number of workers.
        compute_s: The worker's computation.
        agreement_s: The time to agree on APS scales; 0 without APS.
        exchange_s: The time to pack, send, add, and unpack.
        exposed_s: The part of agreement_s and exchange_s that does not overlap with computation.
        total_s: The time of the whole step.
        speedup: The speed-up over a single worker.
    """

    network: str
    algorithm: str
    format: str
    workers: int
    compute_s: float
    agreement_s: float
    exchange_s: float
    exposed_s: float
    total_s: float
    speedup: float


def forecast(
    calibration: Calibration,
    network: Network,
    name: str,
    *,
    workers: Sequence[int] = WORKERS,
    algorithm: str = "direct",
    overlap: bool = False,
    aps: bool = True,
    group_size: int = 1,
) -> Iterator[ForecastRow]:
    """Yield the predicted cost for every calibrated format, widest first, and worker count.

    `name` is that of the network. Numbers of workers that are not multiples of `group_size` are left out. `aps` applies
    to formats narrower than 32 bits. For the other arguments, see `Setup`.

    Raises:
        ValueError: The algorithm is unknown, or a number of workers is below 1.
    """
    by_bits = sorted(calibration.codecs.items(), key=lambda item: -item[1].bits)
    for format_name, codec in by_bits:
        for count in (each for each in workers if each % group_size == 0):
            setup = Setup(
                count,
                calibration.workload,
                codec,
                network,
                algorithm,
                aps=aps and codec.bits < 32,
                overlap=overlap,
                shared_processor=calibration.about.get("device") == "cpu",
                group_size=group_size,
            )
            cost = step_cost(setup)
            times = {**vars(cost), "total_s": cost.total_s}
            yield ForecastRow(name, algorithm, format_name, count, **times, speedup=speedup(setup))
