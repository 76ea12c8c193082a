"""Which elements of a layer a sample has: runs of neighbours, evenly spaced, the same in every step.

Runs and not single elements, so that blocks of formats with scales (16 and 32 elements that are neighbours in memory)
are whole in it. A layer that is no larger than its sample is in it as a whole.
"""

from functools import lru_cache

import torch
from torch import Tensor

MOST = 1024
"""Elements of one layer, of each worker."""

MOST_IN_ALL = 1 << 21
"""Values of all layers and workers in a step, 8 MiB: many workers of many layers have fewer elements each."""

RUN = 32


def size(numel: int, layers: int, workers: int) -> int:
    """Elements of a layer that a sample has, a multiple of RUN or all of them."""
    most = min(MOST, max(RUN, MOST_IN_ALL // max(1, layers * workers) // RUN * RUN))
    return min(numel, most)


@lru_cache(maxsize=1024)
def places(numel: int, elements: int, device: torch.device) -> Tensor:
    """(elements,) int64, ascending: numel / RUN runs of the layer, evenly spaced. Only to be read."""
    if elements >= numel:
        return torch.arange(numel, device=device)
    runs = elements // RUN
    all_runs = numel // RUN
    first = torch.arange(runs, device=device) * all_runs // runs * RUN
    return (first[:, None] + torch.arange(RUN, device=device)).reshape(-1)
