"""DistributedDataParallel on scikit-learn's digits, as PyTorch's own tutorial has it; without torchrun, one process."""

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
