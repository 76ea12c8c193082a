"""The training loop: N workers' gradients, synchronised in a number format, one optimizer step.

Legend: N workers, B samples a worker, S steps an epoch. The result depends on the config alone: how the N
workers are dealt to processes changes no bit of it (with emulation=exact).
"""

import math
import time
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from cpdrun.train import checkpoint
from cpdrun.train.build import Parts
from cpdrun.train.evaluate import evaluate
from cpdrun.train.gradients import EMULATIONS, Task
from cpdrun.train.journal import Journal
from cpdrun.train.seeds import generator
from cpdrun.train.workers import StopVote, Workers


class Preempted(Exception):
    """The run was asked to stop; its checkpoint is written."""


@dataclass
class Progress:
    """How far a run is: `step` steps into epoch `epoch`, both counted from 0."""

    epoch: int = 0
    step: int = 0
    train_seconds: float = 0.0
    nonfinite: int = 0  # gradient elements that were inf or NaN, this epoch
    losses_SxN: Tensor | None = None  # of this epoch; this rank's workers are set, the others zero
    layers: dict[str, dict[str, Any]] = field(default_factory=dict)  # this epoch's last statistics
    metrics: dict[str, float] = field(default_factory=dict)  # of the last whole epoch


def train(
    config: dict[str, Any], parts: Parts, workers: Workers, device: torch.device, journal: Journal
) -> dict[str, Any]:
    """Train to the last epoch, or until the loss is not finite. Returns what done.json says of it.

    Raises Preempted after a step at which the journal was asked to stop.
    """
    model, optimizer, sync, precision = parts.model, parts.optimizer, parts.sync, parts.precision
    parameters = list(model.parameters())
    base_lrs = [group["lr"] for group in optimizer.param_groups]
    N, B, epochs, seed = (config[key] for key in ("world_size", "batch_size", "epochs", "seed"))
    S = len(parts.data.train) // (N * B)
    loss = partial(F.cross_entropy, label_smoothing=config["label_smoothing"])
    task = Task(model, parts.data, workers, seed, device, loss, precision.scaled())
    gradients_of = EMULATIONS[config["emulation"]](task)
    stop = StopVote(workers, journal.stop_requested)
    progress = _restore(parts, journal, workers, device)
    clock = time.perf_counter() - progress.train_seconds
    status = "finished"

    model.train()
    while progress.epoch < epochs:
        epoch = progress.epoch
        order = torch.randperm(len(parts.data.train), generator=generator("order", seed, epoch))
        index_SxNxB = order[: S * N * B].view(S, N, B)
        if progress.losses_SxN is None:
            progress.losses_SxN = torch.zeros(S, N, dtype=torch.float64, device=device)

        for s in range(progress.step, S):
            step = epoch * S + s
            for group, base_lr in zip(optimizer.param_groups, base_lrs, strict=True):
                group["lr"] = base_lr * parts.schedule(step / S, epochs)

            scale = precision.loss_scale.value
            losses_W, gradients_WxP = gradients_of(index_SxNxB[s], step)
            mean_gradient = sync.reduce_stacked(gradients_WxP, step=step, epoch=epoch)
            if step % config["statistics"]["every_steps"] == 0:
                rows = sync.statistics(gradients_WxP, mean_gradient)
                progress.layers = {row.pop("layer"): row for row in rows}
            if precision.loss_scale.accept(sync.nonfinite):
                for parameter, gradient in zip(parameters, mean_gradient, strict=True):
                    parameter.grad = gradient.div_(scale)
                if config["clip_norm"] is not None:
                    torch.nn.utils.clip_grad_norm_(parameters, config["clip_norm"])
                precision.step(optimizer, parameters)

            progress.losses_SxN[s, workers.mine.start : workers.mine.stop] = losses_W
            progress.nonfinite += sync.nonfinite
            progress.step = s + 1
            if s + 1 < S and stop.asked():
                progress.train_seconds = time.perf_counter() - clock
                _save(parts, journal, workers, progress)
                raise Preempted

        train_loss = workers.sum_of_disjoint(progress.losses_SxN).mean().item()
        test_metrics = evaluate(
            model,
            parts.data.test,
            workers,
            device,
            num_classes=parts.data.num_classes,
            extra=getattr(parts.data, "metrics", ()),
        )
        progress.metrics = {"train_loss": train_loss, **test_metrics}
        progress.train_seconds = time.perf_counter() - clock
        journal.epoch_done(
            {
                "epoch": epoch + 1,
                "step": (epoch + 1) * S,
                **progress.metrics,
                "nonfinite_gradients": progress.nonfinite,
                "layers": progress.layers,
                "train_seconds": progress.train_seconds,
            }
        )
        if not math.isfinite(train_loss):
            status = "diverged"
            break
        progress.epoch, progress.step, progress.nonfinite, progress.losses_SxN = epoch + 1, 0, 0, None
        progress.layers = {}
        asked = stop.asked()
        if asked or progress.epoch % config["checkpoint"]["every_epochs"] == 0 or progress.epoch == epochs:
            _save(parts, journal, workers, progress)
        if asked and progress.epoch < epochs:
            raise Preempted

    return {
        "status": status,
        "metrics": progress.metrics,
        "train_seconds": progress.train_seconds,
        "weights_sha256": checkpoint.weights_sha256(model),
    }


def _restore(parts: Parts, journal: Journal, workers: Workers, device: torch.device) -> Progress:
    """Parts as the checkpoint has them, and how far it was; everything as it is without one."""
    state = checkpoint.load(journal.run.checkpoint, device)
    if state is None:
        journal.restart_at(0)
        return Progress()
    parts.model.load_state_dict(state["model"])
    parts.optimizer.load_state_dict(state["optimizer"])
    parts.precision.load_state_dict(state["precision"])
    parts.sync.load_state_dict(state["sync"])
    progress = Progress(**state["progress"])
    if workers.rank > 0 and progress.losses_SxN is not None:
        progress.losses_SxN.zero_()  # the checkpoint has those of all workers; they count once, on rank 0
    journal.restart_at(progress.epoch)
    return progress


def _save(parts: Parts, journal: Journal, workers: Workers, progress: Progress) -> None:
    """Collective: what is spread over the ranks comes together on rank 0, which writes."""
    losses = progress.losses_SxN
    state = {
        "progress": vars(progress)
        | {"losses_SxN": None if losses is None else workers.sum_of_disjoint(losses.clone())},
        "model": parts.model.state_dict(),
        "optimizer": parts.optimizer.state_dict(),
        "precision": parts.precision.state_dict(),
        "sync": parts.sync.state_dict(),
    }
    if journal.writes:
        checkpoint.save(journal.run.checkpoint, state)
