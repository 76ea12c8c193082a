"""A training step of one worker of N, and how many times faster N workers are than one.

Weak scaling, as data parallelism is used and as `cpdrun` runs it: each worker keeps its batch, N workers
do N batches a step. speedup(N) = N * T(1) / T(N).
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from cpdrun.costmodel.direct import direct_processor_s, direct_s
from cpdrun.costmodel.parameters import Codec, Network, Workload
from cpdrun.costmodel.patterns import MAGNITUDE_BYTES
from cpdrun.costmodel.rings_and_trees import hierarchical_s, ring_s, small_all_reduce_s, tree_s

ALGORITHMS = ("direct", "ring", "tree", "hierarchical")
DDP_FIRST_BUCKET_BYTES = 1 << 20
DDP_BUCKET_BYTES = 25 << 20  # DistributedDataParallel's bucket_cap_mb


@dataclass(frozen=True)
class Setup:
    """Everything that a step's time depends on.

    overlap: a DDP script: each bucket is exchanged while backward computes the next, and the workload's
    check_s does not occur; otherwise all layers after backward, as in cpdrun's own loop. shared_processor:
    backward and the codec compete for one processor (a CPU of one thread a worker). Raises ValueError where
    the parts do not fit together.
    """

    workers: int
    workload: Workload
    codec: Codec
    network: Network
    algorithm: str = "direct"
    aps: bool = False
    overlap: bool = False
    shared_processor: bool = True
    group_size: int = 1  # of algorithm=hierarchical
    inner: Network | None = None  # inside a group; None: as outside

    @property
    def work(self) -> Workload:
        """What a worker computes in this setup."""
        return replace(self.workload, check_s=0.0) if self.overlap else self.workload

    def __post_init__(self) -> None:
        if self.algorithm not in ALGORITHMS:
            raise ValueError(f"algorithm={self.algorithm!r}: choose one of {', '.join(ALGORITHMS)}")
        if self.workers < 1 or self.workers % self.group_size:
            raise ValueError(f"workers={self.workers} with group_size={self.group_size}: not whole groups")


@dataclass(frozen=True)
class StepCost:
    """Seconds. total = compute + exposed; exposed is what of the exchange compute does not hide."""

    compute_s: float
    agreement_s: float  # APS: the largest magnitudes, found and agreed on
    exchange_s: float  # packing, wire, adding, unpacking
    exposed_s: float

    @property
    def total_s(self) -> float:
        return self.compute_s + self.exposed_s


def step_cost(setup: Setup) -> StepCost:
    """One step of every worker, all of them alike and in step."""
    work = setup.work
    if setup.workers == 1:
        return StepCost(work.compute_s, 0.0, 0.0, 0.0)
    if not setup.overlap:
        agreement_s = agreement(setup, work.values, len(work.numels))
        exchange_s = exchange(setup, work.values)
        return StepCost(work.compute_s, agreement_s, exchange_s, agreement_s + exchange_s)
    return _overlapped(setup)


def speedup(setup: Setup) -> float:
    """Samples a second of `setup.workers` workers, as a multiple of one worker alone."""
    return setup.workers * setup.work.compute_s / step_cost(setup).total_s


def agreement(setup: Setup, values: int, layers: int) -> float:
    """Seconds of APS's extra round for `layers` layers; 0 without APS."""
    if not setup.aps:
        return 0.0
    agreed_s = small_all_reduce_s(layers * MAGNITUDE_BYTES, setup.workers, setup.network)
    return values * setup.codec.largest_s + agreed_s


def exchange(setup: Setup, values: int) -> float:
    """Seconds of one sum of `values` values under the setup's algorithm."""
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
    """end_i = max(ready_i, end_{i-1}) + exchange_i: buckets are exchanged in turn, each once it is full.

    Li et al., "PyTorch Distributed" (VLDB 2020), section 3.2.3. Backward is taken to reach a layer after the
    share of its time that the layers behind it have of all values. Nothing is faster than the work of a
    processor that both share.
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
    """As DistributedDataParallel fills them: last layer first, the first bucket small, each until it is full."""
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
    """What agreement and exchange take of the processor: as if the wire were free."""
    found_s = setup.workload.values * setup.codec.largest_s if setup.aps else 0.0
    if setup.algorithm == "direct":
        return found_s + direct_processor_s(setup.workload.values, setup.workers, setup.codec, setup.network)
    free = Network(0.0, float("inf"), setup.network.message_s)
    inner = Network(0.0, float("inf"), (setup.inner or setup.network).message_s)
    return found_s + exchange(replace(setup, network=free, inner=inner), setup.workload.values)
