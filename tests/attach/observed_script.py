"""Trains a little network under DistributedDataParallel for 45 steps, and evaluates it between."""

import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 4))
parallel = DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
draws = torch.Generator().manual_seed(rank)
evaluated = torch.full((3, 8), 7.0)
for step in range(45):
    x = torch.randn(16, 8, generator=draws)
    optimizer.zero_grad()
    (parallel(x) - x[:, :4] * x[:, 4:]).square().mean().backward()
    if step == 20 and rank == 0:
        before = [p.detach().clone() for p in model.parameters()]
        torch.save([before, x], Path(os.environ["CPDRUN_RUN_DIR"]) / "step20.pt")
    optimizer.step()
    with torch.no_grad():
        loss = model(evaluated).square().mean()
if rank == 0:
    print(f"val loss {loss.item():.6f}")
dist.destroy_process_group()
