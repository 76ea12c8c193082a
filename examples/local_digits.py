"""Train with ranks that synchronize only every 8 steps, with 8 bits per value. Four lines are marked.

torchrun --nproc-per-node 2 examples/local_digits.py
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from cpdrun.comm import LocalSteps  # <- added

dist.init_process_group("gloo")
images, labels = load_digits(return_X_y=True)
x, y = torch.tensor(images, dtype=torch.float32) / 16, torch.tensor(labels)
train = TensorDataset(x[:1500], y[:1500])
net = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
steps = LocalSteps(net, "e4m3", aps=True, inner_steps=8)  # <- instead of DistributedDataParallel
optimizer = torch.optim.AdamW(net.parameters(), lr=0.002)
sent = 0
for _ in range(10):
    for images, labels in DataLoader(train, batch_size=64, sampler=DistributedSampler(train)):
        optimizer.zero_grad()
        F.cross_entropy(net(images), labels).backward()
        optimizer.step()
        steps.after_step()  # <- added
        sent += steps.wire_bytes()["bytes_per_step_sent"]
steps.finish()  # <- added, to synchronize the last steps
accuracy = (net(x[1500:]).argmax(1) == y[1500:]).float().mean()
bits = 8 * sent / steps.step / sum(p.numel() for p in net.parameters())
print(
    f"rank {dist.get_rank()}: accuracy on 297 unseen digits: {100 * accuracy:.1f}%, "
    f"{bits:.2f} bits per parameter and step"
)
dist.destroy_process_group()
