"""Train with DistributedDataParallel. The two marked lines send gradients with 8 bits per value.

torchrun --nproc-per-node 2 examples/ddp_digits.py
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from cpdrun.comm import ddp_hook  # <- added

dist.init_process_group("gloo")
images, labels = load_digits(return_X_y=True)
x, y = torch.tensor(images, dtype=torch.float32) / 16, torch.tensor(labels)
train = TensorDataset(x[:1500], y[:1500])
net = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
model = nn.parallel.DistributedDataParallel(net)
model.register_comm_hook(*ddp_hook(model, "e4m3", aps=True))  # <- added
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
for _ in range(10):
    for images, labels in DataLoader(train, batch_size=64, sampler=DistributedSampler(train)):
        optimizer.zero_grad()
        F.cross_entropy(model(images), labels).backward()
        optimizer.step()
accuracy = (net(x[1500:]).argmax(1) == y[1500:]).float().mean()
print(f"rank {dist.get_rank()}: accuracy on 297 unseen digits: {100 * accuracy:.1f}%")
dist.destroy_process_group()
