"""Train a small model for soak.py, as a user's script with two workers and its own checkpoints."""

import argparse
import os
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import cpdrun

WORKERS = 2

parser = argparse.ArgumentParser()
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--steps", type=int, default=60)
parser.add_argument("--save-every", type=int, default=4)
parser.add_argument("--out", type=Path, required=True)
arguments = parser.parse_args()

if "RANK" not in os.environ:
    os.environ |= {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(arguments.seed)
x, y = torch.randn(480, 16), torch.arange(480) % 5
net = nn.Sequential(nn.Linear(16, 24), nn.ReLU(), nn.Linear(24, 5))
model = DistributedDataParallel(net)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
run = cpdrun.attach(model, optimizer)
checkpoint, first = run.checkpoint_dir / "last.pt", 0
if checkpoint.exists():
    saved = torch.load(checkpoint)
    net.load_state_dict(saved["net"])
    optimizer.load_state_dict(saved["optimizer"])
    run.load_state_dict(saved["run"])
    first = saved["step"]
for step in range(first, arguments.steps):
    optimizer.zero_grad()
    for worker in run.workers:
        mine = torch.arange(8 * step + worker, 8 * step + 8, WORKERS) % len(x)
        with run.worker(worker):
            F.cross_entropy(model(x[mine]), y[mine]).backward()
    optimizer.step()
    stops = run.should_stop()
    if stops or (step + 1) % arguments.save_every == 0:
        state = {"net": net.state_dict(), "optimizer": optimizer.state_dict(), "run": run.state_dict()}
        with torch.no_grad():
            run.log(step=step + 1, val_loss=F.cross_entropy(net(x), y))
        if rank == 0:
            torch.save({**state, "step": step + 1}, checkpoint.with_suffix(".tmp"))
            checkpoint.with_suffix(".tmp").replace(checkpoint)
        dist.barrier()
    if stops:
        raise SystemExit
if rank == 0:
    torch.save(net.state_dict(), arguments.out)
dist.barrier()
