"""An ordinary DistributedDataParallel script, with two lines (marked) for gradients of 8 bits.

torchrun --nproc-per-node 2 examples/ddp_digits.py
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from cpdrun.comm import ddp_hook  # <- one

dist.init_process_group("gloo")
rank, ranks = dist.get_rank(), dist.get_world_size()
images, labels = load_digits(return_X_y=True)
x, y = torch.tensor(images, dtype=torch.float32) / 16, torch.tensor(labels)

torch.manual_seed(0)
model = DistributedDataParallel(nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10)))
model.register_comm_hook(*ddp_hook(model, "e4m3", aps=True))  # <- two
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

for _ in range(10):
    for batch in torch.randperm(1500).split(64 * ranks):  # the same on all ranks, which take turns
        mine = batch[rank::ranks]
        optimizer.zero_grad()
        F.cross_entropy(model(x[mine]), y[mine]).backward()
        optimizer.step()

if rank == 0:
    accuracy = (model.module(x[1500:]).argmax(1) == y[1500:]).float().mean().item()
    print(f"accuracy on 297 unseen digits: {100 * accuracy:.1f} %")
dist.destroy_process_group()
