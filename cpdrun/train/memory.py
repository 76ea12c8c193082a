"""Out of memory, as processor, GPU and numpy say it."""

import re

import torch

TOLD = re.compile("can't allocate memory|out of memory")


def shortage(error: BaseException) -> BaseException | None:
    """What in `error`, or in what it was raised from, says that memory was short; None where nothing does."""
    found, cause = None, error
    while cause is not None:
        # torch's allocator for the processor, and some of its kernels for GPUs, raise a plain RuntimeError
        if isinstance(cause, MemoryError | torch.OutOfMemoryError) or TOLD.search(str(cause)):
            found = cause  # the innermost says it without our own words around it
        cause = cause.__cause__
    return found


def in_short(error: BaseException) -> str:
    """The first line of what it says."""
    return (str(error).splitlines() or [type(error).__name__])[0]
