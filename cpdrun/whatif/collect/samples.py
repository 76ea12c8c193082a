"""Sampling of a layer's elements.

A sample consists of evenly spaced runs of neighboring elements and is the same in every step. Runs keep the blocks of
formats with scales whole (16 or 32 elements that are neighbors in memory). A layer that is not larger than its sample
is sampled completely.
"""

from functools import lru_cache

import torch
from torch import Tensor

# The largest number of sampled elements of one layer, for each worker.
MOST = 1024

# The largest number of sampled values of all layers and workers in one step, which take 8 MiB. With many workers and
# layers, each layer has fewer sampled elements.
MOST_IN_ALL = 1 << 21

# The number of neighboring elements in a run.
RUN = 32


def size(numel: int, layers: int, workers: int) -> int:
    """Return the number of sampled elements of a layer: a multiple of RUN, or all elements.

    Args:
        numel: The number of elements of the layer.
        layers: The number of layers of the model.
        workers: The number of workers.
    """
    most = min(MOST, max(RUN, MOST_IN_ALL // max(1, layers * workers) // RUN * RUN))
    return min(numel, most)


@lru_cache(maxsize=1024)
def places(numel: int, elements: int, device: torch.device) -> Tensor:
    """Return the indices of a layer's sampled elements.

    Args:
        numel: The number of elements of the layer.
        elements: The number of sampled elements, from `size`.
        device: The device of the result.

    Returns:
        (elements,) int64 in ascending order: elements / RUN evenly spaced runs, or all indices if `elements` is at
        least `numel`. The tensor is cached and must not be changed.
    """
    if elements >= numel:
        return torch.arange(numel, device=device)
    runs = elements // RUN
    all_runs = numel // RUN
    first = torch.arange(runs, device=device) * all_runs // runs * RUN
    return (first[:, None] + torch.arange(RUN, device=device)).reshape(-1)
