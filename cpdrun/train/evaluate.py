"""Metrics on held-out data: the same bits whatever the number of ranks.

Batches of a fixed size are dealt to the ranks in turn; sums of losses are added in the order of the batches,
counts are exact in any order. Legend: B samples, K classes; targets may have further dimensions (pixels,
positions), and those of -100 are ignored, as in cross_entropy.
"""

import contextlib
import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import Dataset

from cpdrun.comm.workers import Workers
from cpdrun.train.batches import fetched
from cpdrun.train.ranks import pulse

IGNORED = -100
EXTRA_METRICS = ("mean_iou", "top5_accuracy", "bits_per_byte", "perplexity")
LOSS, SEEN, CORRECT, IN_TOP_5 = range(4)


@torch.no_grad()
def evaluate(
    model: nn.Module,
    dataset: Dataset,
    workers: Workers,
    device: torch.device,
    *,
    num_classes: int = 0,
    extra: Sequence[str] = (),
    batch: int,
    samples: int | None = None,
    loaders: int = 0,
) -> dict[str, float]:
    """test_loss (mean cross-entropy, nats), test_accuracy (0..1) and, as `extra` names them,
    test_mean_iou (0..1, over those of `num_classes` that occur), test_top5_accuracy, test_bits_per_byte (of byte-level
    text), test_perplexity (of a token). batch: samples at once; samples: only the first so many of the dataset,
    None: all; loaders: processes that fetch ahead, 0: none."""
    model.eval()
    batches = torch.arange(len(dataset))[:samples].split(batch)
    sums_Bx4 = torch.zeros(len(batches), 4, dtype=torch.float64, device=device)
    confusion_KxK = torch.zeros(num_classes, num_classes, dtype=torch.float64, device=device)
    mine = range(workers.rank, len(batches), workers.ranks)
    for i, (x, y) in zip(mine, fetched(dataset, [batches[i] for i in mine], loaders, device), strict=True):
        logits = model(x)
        sums_Bx4[i] = _sums(logits, y, "top5_accuracy" in extra)
        if "mean_iou" in extra:
            confusion_KxK += _confusion(logits, y)
        pulse.beat()
    model.train()
    totals = workers.sum_of_disjoint(sums_Bx4).sum(dim=0).tolist()
    seen = max(totals[SEEN], 1.0)
    metrics = {"test_loss": totals[LOSS] / seen, "test_accuracy": totals[CORRECT] / seen}
    if "top5_accuracy" in extra:
        metrics["test_top5_accuracy"] = totals[IN_TOP_5] / seen
    if "bits_per_byte" in extra:
        metrics["test_bits_per_byte"] = metrics["test_loss"] / math.log(2)
    if "perplexity" in extra:
        with contextlib.suppress(OverflowError):  # of a diverged run
            metrics["test_perplexity"] = math.exp(metrics["test_loss"])
    if "mean_iou" in extra:
        metrics["test_mean_iou"] = _mean_iou(workers.sum_of_disjoint(confusion_KxK))
    return metrics


def _sums(logits_BxK: Tensor, y_B: Tensor, top5: bool) -> Tensor:
    loss = F.cross_entropy(logits_BxK, y_B, reduction="sum", ignore_index=IGNORED)
    seen = (y_B != IGNORED).sum()
    correct = (logits_BxK.argmax(dim=1) == y_B).sum()
    in_top_5 = torch.zeros_like(seen)
    if top5:
        best = logits_BxK.topk(min(5, logits_BxK.shape[1]), dim=1).indices
        in_top_5 = (best == y_B.unsqueeze(1)).sum()
    return torch.stack([loss.double(), seen.double(), correct.double(), in_top_5.double()])


def _confusion(logits_BxK: Tensor, y_B: Tensor) -> Tensor:
    """counts[i, j]: elements of class i that the model takes for class j; float64, exact."""
    K = logits_BxK.shape[1]
    counted = y_B != IGNORED
    pairs = y_B[counted] * K + logits_BxK.argmax(dim=1)[counted]
    return torch.bincount(pairs, minlength=K * K).view(K, K).double()


def _mean_iou(confusion_KxK: Tensor) -> float:
    """Intersection over union, averaged over the classes that occur in truth or prediction."""
    hits = confusion_KxK.diagonal()
    union = confusion_KxK.sum(0) + confusion_KxK.sum(1) - hits
    return (hits[union > 0] / union[union > 0]).mean().item()
