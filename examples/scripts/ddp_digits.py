r"""Train on scikit-learn's digits with DistributedDataParallel, as in PyTorch's tutorial.

Without torchrun, it runs in one process.

How many bits do its gradients need? The script needs no change:

    cpdrun sweep script=ddp_digits.py script_args='--seed {seed}' \
        script.metrics.accuracy='accuracy ([0-9.]+)' \
        script.metrics.epoch='epoch ([0-9]+)' \
        format=fp32,e4m3,e3m0 aps=false,true seed=0,1,2 nproc=2
    cpdrun report

Answer (accuracy in per cent, 2 workers): fp32 90.4 ± 2.6; e4m3 90.7 ± 1.7, with APS 90.5 ± 2.1; e3m0 10.8 ± 1.4, with
APS 90.7 ± 2.6. Four bits with APS are as good, as far as three seeds can show. Without APS, they learn nothing.

    cpdrun search script=ddp_digits.py script_args='--seed {seed}' \
        script.metrics.accuracy='accuracy ([0-9.]+)' \
        script.metrics.epoch='epoch ([0-9]+)' \
        format=fp32,e4m3,e3m0 aps=true,false nproc=2 search.tolerance=2 search.most_seeds=12

Answer after 24 runs: e3m0 (4 bits) with APS and e4m3 (8 bits) without APS are certified to be at most 2 points worse
than fp32, with 95% confidence. Without APS, 4 bits are refuted.
"""

import argparse
import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=5)
parser.add_argument("--lr", type=float, default=0.1)
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--save", help="file for the trained weights")
args = parser.parse_args()

if "RANK" not in os.environ:
    os.environ |= {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "localhost", "MASTER_PORT": "0"}
dist.init_process_group("gloo")
torch.manual_seed(args.seed)

images, labels = load_digits(return_X_y=True)
x, y = torch.tensor(images, dtype=torch.float32) / 16, torch.tensor(labels)
train = TensorDataset(x[:1500], y[:1500])
sampler = DistributedSampler(train, seed=args.seed)
loader = DataLoader(train, batch_size=64 // dist.get_world_size(), sampler=sampler)

net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
model = DistributedDataParallel(net)
optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)

for epoch in range(args.epochs):
    sampler.set_epoch(epoch)
    for images, labels in loader:
        optimizer.zero_grad()
        F.cross_entropy(model(images), labels).backward()
        optimizer.step()
    accuracy = (net(x[1500:]).argmax(1) == y[1500:]).float().mean()
    if dist.get_rank() == 0:
        print(f"epoch {epoch + 1}: accuracy {100 * accuracy:.2f}", flush=True)

if args.save and dist.get_rank() == 0:
    torch.save(net.state_dict(), args.save)
dist.destroy_process_group()
