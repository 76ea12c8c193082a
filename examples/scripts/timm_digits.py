r"""Train a small network of timm on digits of 32x32 pixels, with timm's optimizer, schedule and meters.

Several processes use DistributedDataParallel, as in timm's train.py.

How many bits do its gradients need? The two marked lines choose what is recorded, and have no effect without cpdrun:

    cpdrun sweep script=timm_digits.py script_args='--seed {seed}' \
        format=fp32,e3m0 aps=false,true seed=0 nproc=2
    cpdrun report

Answer (test_accuracy in per cent, 2 workers, one seed): fp32 88.6; e3m0 67.7, with APS 89.2.
"""

import argparse

import timm
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from timm.optim import create_optimizer_v2
from timm.scheduler import CosineLRScheduler
from timm.utils import AverageMeter, accuracy, init_distributed_device, random_seed
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import cpdrun  # <- added

parser = argparse.ArgumentParser()
parser.add_argument("--model", default="test_efficientnet", help="any of timm.list_models()")
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--lr", type=float, default=0.05)
parser.add_argument("--seed", type=int, default=42)
parser.add_argument("--save", help="file for the trained weights")
args = parser.parse_args()

args.device = "cpu"
device = init_distributed_device(args)
random_seed(args.seed, args.rank)

images, labels = load_digits(return_X_y=True)
x, y = torch.tensor(images, dtype=torch.float32).view(-1, 1, 8, 8) / 16, torch.tensor(labels)
x = F.interpolate(x, size=32, mode="bilinear")
train, test = TensorDataset(x[:768], y[:768]), TensorDataset(x[1500:], y[1500:])
sampler = DistributedSampler(train, num_replicas=args.world_size, rank=args.rank, seed=args.seed)
loader = DataLoader(train, batch_size=32 // args.world_size, sampler=sampler, drop_last=True)

model = timm.create_model(args.model, num_classes=10, in_chans=1).to(device)
optimizer = create_optimizer_v2(model, opt="sgd", lr=args.lr, momentum=0.9, weight_decay=1e-4)
scheduler = CosineLRScheduler(optimizer, t_initial=args.epochs, warmup_t=1, warmup_lr_init=args.lr / 10)
net = model
if args.distributed:
    model = DistributedDataParallel(model)

for epoch in range(args.epochs):
    sampler.set_epoch(epoch)
    scheduler.step(epoch)
    model.train()
    losses = AverageMeter()
    for images, labels in loader:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        losses.update(loss.item(), len(images))
    net.eval()
    with torch.no_grad():
        (top1,) = accuracy(net(test.tensors[0]), test.tensors[1])
    cpdrun.attach().log(epoch=epoch + 1, loss=losses.avg, test_accuracy=top1)  # <- added
    if args.rank == 0:
        print(f"epoch {epoch + 1}: loss {losses.avg:.4f}, accuracy {top1:.2f}", flush=True)

if args.save and args.rank == 0:
    torch.save(net.state_dict(), args.save)
if args.distributed:
    torch.distributed.destroy_process_group()
