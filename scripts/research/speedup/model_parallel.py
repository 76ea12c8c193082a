"""Compute the seconds of one step's exchange with model and data parallelism on groups of processors.

Krizhevsky, "One weird trick for parallelizing convolutional neural networks" (arXiv:1404.5997): convolutions have few
parameters and most of the work, so their gradients are summed (data parallelism). Fully connected layers have most
parameters and little work, so they are split by columns, and their activations and errors are sent (model parallelism).
Dettmers (arXiv:1511.04561) sends both in 8 bits.

    data     Every gradient is summed over all workers. Each worker sends 2 (N-1)/N values per parameter.
    model    The fully connected layers are split over all N workers. Each worker has B samples. A layer with I inputs
             gathers the I activations of all N B samples and scatters the sum of their I errors. Each worker sends
             2 (N-1) B I values.
    hybrid   The layers are only split over the g workers of a group, and the gradients of their parts are summed across
             groups.

A group of g workers shares one link to other groups, as in hierarchical_s. There are rings inside each group, and g
simultaneous rings across groups, one for each part. All formulas compute the time of the busiest worker in the
alpha-beta model of cpdrun.costmodel.collectives.
"""

from dataclasses import dataclass, replace
from itertools import pairwise

from cpdrun.costmodel import (
    Codec,
    Network,
    hierarchical_s,
    ring_all_gather_s,
    ring_reduce_scatter_s,
    ring_s,
)

SCHEMES = ("data", "model", "hybrid")


@dataclass(frozen=True)
class Model:
    """The work and the parameters of one worker.

    `widths` contains the number of inputs of each fully connected layer, followed by the number of outputs of the last
    layer.
    """

    compute_s: float  # the seconds of one step with `samples` samples, without an exchange
    samples: int
    convolution_values: int
    widths: tuple[int, ...]

    @property
    def connected_values(self) -> int:
        """The number of parameters of the fully connected layers, including biases."""
        return sum((i + 1) * o for i, o in pairwise(self.widths))


@dataclass(frozen=True)
class Cluster:
    """N workers in groups of g.

    `inner` is the link between two workers of a group, and `outer` is the link that a group shares. Fewer than g
    workers form one group.

    Raises:
        ValueError: The number of workers is not a multiple of the size of a group.
    """

    workers: int
    group_size: int
    inner: Network
    outer: Network

    def __post_init__(self) -> None:
        if self.workers < 1 or self.workers % self.in_group:
            raise ValueError(f"workers={self.workers} is not a multiple of group_size={self.group_size}")

    @property
    def in_group(self) -> int:
        return min(self.group_size, self.workers)

    @property
    def groups(self) -> int:
        return self.workers // self.in_group

    @property
    def shared(self) -> Network:
        """The share of the outer link that each worker of a group has if all send at the same time."""
        return replace(self.outer, bandwidth_bytes_per_s=self.outer.bandwidth_bytes_per_s / self.in_group)


def all_reduce_s(values: float, cluster: Cluster, codec: Codec) -> float:
    """Return the seconds to sum a gradient over all workers."""
    return hierarchical_s(
        values, cluster.workers, codec, cluster.outer, group_size=cluster.in_group, inner=cluster.inner
    )


def all_gather_s(values: float, cluster: Cluster, codec: Codec) -> float:
    """Return the seconds of an all-gather, in which each worker starts with 1/N of the values and ends with all values.

    Values are first gathered across groups, then inside groups.
    """
    seconds = 0.0
    if cluster.groups > 1:
        seconds += ring_all_gather_s(values / cluster.in_group, cluster.groups, codec, cluster.shared)
    if cluster.in_group > 1:
        seconds += ring_all_gather_s(values, cluster.in_group, codec, cluster.inner)
    return seconds


def reduce_scatter_s(values: float, cluster: Cluster, codec: Codec) -> float:
    """Return the seconds of a reduce-scatter, after which each worker has the sum of 1/N of the values.

    Values are first reduced inside groups, then across groups.
    """
    seconds = 0.0
    if cluster.in_group > 1:
        seconds += ring_reduce_scatter_s(values, cluster.in_group, codec, cluster.inner)
    if cluster.groups > 1:
        seconds += ring_reduce_scatter_s(values / cluster.in_group, cluster.groups, codec, cluster.shared)
    return seconds


def split_layers_s(model: Model, cluster: Cluster, codec: Codec) -> float:
    """Return the seconds to exchange activations and errors of layers that are split over the whole cluster."""
    batch = cluster.workers * model.samples
    forward_s = sum(all_gather_s(batch * width, cluster, codec) for width in model.widths)
    return forward_s + sum(reduce_scatter_s(batch * width, cluster, codec) for width in model.widths[:-1])


def exchange_s(model: Model, cluster: Cluster, codec: Codec, scheme: str) -> float:
    """Return the seconds of one step's exchange. Raise ValueError for an unknown scheme."""
    if scheme not in SCHEMES:
        raise ValueError(f"scheme={scheme!r}: choose one of {', '.join(SCHEMES)}")
    if cluster.workers == 1:
        return 0.0
    if scheme == "data":
        return all_reduce_s(model.convolution_values + model.connected_values, cluster, codec)
    convolutions_s = all_reduce_s(model.convolution_values, cluster, codec)
    if scheme == "model":
        return convolutions_s + split_layers_s(model, cluster, codec)
    one_group = replace(cluster, workers=cluster.in_group)
    part = model.connected_values / cluster.in_group
    across_s = ring_s(part, cluster.groups, codec, cluster.shared)
    return convolutions_s + split_layers_s(model, one_group, codec) + across_s


def speedup(model: Model, cluster: Cluster, codec: Codec, scheme: str, *, overlap: bool = False) -> float:
    """Return the number of samples per second, relative to a single worker.

    With `overlap`, the exchange and the computation run at the same time, which is an upper bound for pipelining with
    sub-batches. Without `overlap`, the exchange follows the computation.
    """
    exchanged_s = exchange_s(model, cluster, codec, scheme)
    step_s = max(model.compute_s, exchanged_s) if overlap else model.compute_s + exchanged_s
    return cluster.workers * model.compute_s / step_s


def exchange_to_compute(speedup: float, workers: int) -> float:
    """Return the ratio c of exchange time to computation time, from a speed-up without overlap, N / (1 + c)."""
    return workers / speedup - 1
