"""Accuracy and loss on held-out data: the same bits whatever the number of ranks.

Batches of a fixed size are dealt to the ranks in turn; their sums are added in the order of the batches.
"""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import Dataset

from cpdrun.data.base import fetch_batch
from cpdrun.train.workers import Workers

BATCH = 500


@torch.no_grad()
def evaluate(model: nn.Module, dataset: Dataset, workers: Workers, device: torch.device) -> dict[str, float]:
    """test_loss (mean cross-entropy, nats) and test_accuracy (0..1) of `model` on `dataset`."""
    model.eval()
    batches = torch.arange(len(dataset)).split(BATCH)
    sums_Bx2 = torch.zeros(len(batches), 2, dtype=torch.float64, device=device)
    for i in range(workers.rank, len(batches), workers.nproc):
        x, y = (t.to(device) for t in fetch_batch(dataset, batches[i]))
        logits = model(x)
        sums_Bx2[i, 0] = F.cross_entropy(logits, y, reduction="sum")
        sums_Bx2[i, 1] = (logits.argmax(dim=1) == y).sum()
    model.train()
    loss, correct = (workers.sum_of_disjoint(sums_Bx2).sum(dim=0) / len(dataset)).tolist()
    return {"test_loss": loss, "test_accuracy": correct}
