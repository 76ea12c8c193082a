"""What a script must give under cpdrun, without cpdrun's exchange: every worker's gradients are gathered in float32 and
go through `emulate_all_reduce`. Shares no code with cpdrun.attach.
"""

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
    """The N backward passes of a step are the workers', whose losses the script divided by their number."""
    backward, construct = torch.Tensor.backward, torch.optim.Optimizer.__init__
    parameters, seen = [], []

    def note(self, params, defaults):
        construct(self, params, defaults)
        parameters.extend(p for group in self.param_groups for p in group["params"])

    def apart(self, *args, **kwargs):
        earlier = [p.grad for p in parameters]
        for p in parameters:
            p.grad = None
        backward(self, *args, **kwargs)
        seen.append([p.grad for p in parameters])
        if len(seen) == workers:
            for p, of_workers in zip(parameters, zip(*seen, strict=True), strict=True):
                p.grad = emulate_all_reduce(list(of_workers), **FORMAT)
            seen.clear()
        else:
            for p, g in zip(parameters, earlier, strict=True):
                p.grad = g

    torch.optim.Optimizer.__init__, torch.Tensor.backward = note, apart
    runpy.run_path(script, run_name="__main__")
    assert not seen
