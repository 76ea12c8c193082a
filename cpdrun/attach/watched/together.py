"""What the ranks of a script tell one another when it has ended: whether every one of them ended well."""

import os
import time
from datetime import timedelta

import torch.distributed as dist

ENDED = "cpdrun/ended"
LOOK_S = 0.1
WELL, STOPPED = "well", "stopped"


def all_ended(well: bool, patience_s: float) -> bool:
    """Wait until every rank that torchrun started has ended, and return whether all of them ended well.

    A rank that stopped when asked to did not end well. A rank that fails ends all others, this one too, as torchrun
    does. Waiting is no sign of life: a rank that hangs while this one waits is ended after its patience.
    """
    ranks, rank = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))
    if ranks == 1:
        return well
    store, _, _ = next(dist.rendezvous("env://", timeout=timedelta(seconds=patience_s)))
    ended = dist.PrefixStore(ENDED, store)
    ended.set(str(rank), WELL if well else STOPPED)
    keys = [str(other) for other in range(ranks)]
    while not ended.check(keys):
        time.sleep(LOOK_S)
    return all(ended.get(key) == WELL.encode() for key in keys)
