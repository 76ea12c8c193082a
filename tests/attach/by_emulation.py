"""What a script must give under cpdrun, without cpdrun's exchange: every worker's gradients are gathered in float32 and
go through `emulate_all_reduce`. Shares no code with cpdrun.attach.
"""

import os
import runpy

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from cpdrun.comm import emulate_all_reduce

FORMAT = {"fmt": "e3m0", "aps": True}


def ranks(script: str) -> None:
    """Each rank of DistributedDataParallel is a worker."""
    construct = DistributedDataParallel.__init__

    def hooked(self, *args, **kwargs):
        construct(self, *args, **kwargs)
        self.register_comm_hook(None, _gather_and_emulate)

    DistributedDataParallel.__init__ = hooked
    runpy.run_path(script, run_name="__main__")


def _gather_and_emulate(state: None, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    buffer, ranks = bucket.buffer(), dist.get_world_size()
    of_ranks = [torch.empty_like(buffer) for _ in range(ranks)]
    dist.all_gather(of_ranks, buffer)
    sizes = [parameter.numel() for parameter in bucket.parameters()]
    layers = zip(*[(of_rank / ranks).split(sizes) for of_rank in of_ranks], strict=True)
    future = torch.futures.Future()
    future.set_result(torch.cat([emulate_all_reduce(list(layer), **FORMAT) for layer in layers]))
    return future


def micro_batches(workers: int, script: str) -> None:
    """The backward passes of a step are workers, whose losses the script divided by their number in a process; those
    of several processes DistributedDataParallel would average."""
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    backward, construct = torch.Tensor.backward, torch.optim.Optimizer.__init__
    wrap = DistributedDataParallel.__init__
    parameters, seen = [], []

    def left_alone(self, *args, **kwargs):
        wrap(self, *args, **kwargs)
        self.register_comm_hook(None, _as_it_is)

    def note(self, params, defaults):
        construct(self, params, defaults)
        parameters.extend(p for group in self.param_groups for p in group["params"])

    def apart(self, *args, **kwargs):
        earlier = [p.grad for p in parameters]
        for p in parameters:
            p.grad = None
        backward(self, *args, **kwargs)
        seen.append([p.grad for p in parameters])
        if ranks * len(seen) < workers:
            for p, g in zip(parameters, earlier, strict=True):
                p.grad = g
            return
        for p, of_workers in zip(parameters, zip(*_of_all_ranks(seen), strict=True), strict=True):
            p.grad = emulate_all_reduce([g / ranks for g in of_workers], **FORMAT)
        seen.clear()

    if ranks > 1:
        DistributedDataParallel.__init__ = left_alone
    torch.optim.Optimizer.__init__, torch.Tensor.backward = note, apart
    runpy.run_path(script, run_name="__main__")
    assert not seen


def _as_it_is(state: None, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    future = torch.futures.Future()
    future.set_result(bucket.buffer())
    return future


def _of_all_ranks(mine: list) -> list:
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return mine
    everyone = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, mine)
    return [of_worker for of_rank in everyone for of_worker in of_rank]
