"""A user's script that continues from a checkpoint, with other batches for each seed, and prints each loss."""

import argparse

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--steps", type=int, default=24)
parser.add_argument("--resume")
parser.add_argument("--save")
args = parser.parse_args()
torch.manual_seed(0)
teacher, test_inputs = torch.randn(8), torch.randn(256, 8)
net = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1))
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
start = 0
if args.resume:
    saved = torch.load(args.resume)
    net.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    start = saved["step"]


def loss_of(x: torch.Tensor) -> torch.Tensor:
    return (net(x)[:, 0] - torch.tanh(x @ teacher)).square().mean()


torch.manual_seed(args.seed)
for step in range(start + 1, start + args.steps + 1):
    loss = loss_of(torch.randn(32, 8))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step}: train_loss={loss.item():.6f}")
print(f"val_loss={loss_of(test_inputs).item():.6f}")
if args.save:
    torch.save({"model": net.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, args.save)
