"""The training loop: N workers' gradients, synchronised in a number format, one optimizer step.

Legend: N workers, B samples a worker, S steps an epoch. The result depends on the config alone: how the N
workers are dealt to processes changes no bit of it.
"""

import math
import time
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from cpdrun.data.base import fetch_batch
from cpdrun.train import checkpoint
from cpdrun.train.build import Parts
from cpdrun.train.evaluate import evaluate
from cpdrun.train.journal import Journal
from cpdrun.train.seeds import derived_seed, generator
from cpdrun.train.workers import SharedBuffers, Workers


class Preempted(Exception):
    """The run was asked to stop; its checkpoint is written."""


def train(
    config: dict[str, Any], parts: Parts, workers: Workers, device: torch.device, journal: Journal
) -> dict[str, Any]:
    """Train to the last epoch, or until the loss is not finite. Returns what done.json says of it.

    Raises Preempted at an epoch's end where the journal was asked to stop.
    """
    model, optimizer, sync = parts.model, parts.optimizer, parts.sync
    parameters = list(model.parameters())
    base_lrs = [group["lr"] for group in optimizer.param_groups]
    N, B, epochs, seed = (config[key] for key in ("world_size", "batch_size", "epochs", "seed"))
    S = len(parts.data.train) // (N * B)
    first_epoch, earlier_s, metrics = _restore(parts, journal, device)
    buffers = SharedBuffers(model, workers)
    started = time.perf_counter()
    status = "finished"

    model.train()
    for epoch in range(first_epoch, epochs):
        order = torch.randperm(len(parts.data.train), generator=generator("order", seed, epoch))
        losses_SxN = torch.zeros(S, N, dtype=torch.float64, device=device)

        for s in range(S):
            step = epoch * S + s
            for group, base_lr in zip(optimizer.param_groups, base_lrs, strict=True):
                group["lr"] = base_lr * parts.schedule(step / S, epochs)

            gradients = []
            buffers.begin_step()
            for worker in workers.mine:
                buffers.begin_worker(worker)
                index_B = order[(s * N + worker) * B : (s * N + worker + 1) * B]
                loss, gradient = _loss_and_gradient(parts, parameters, index_B, seed, step, worker, device)
                losses_SxN[s, worker] = loss
                gradients.append([g / N for g in gradient])
                buffers.end_worker(worker)
            buffers.end_step()

            mean_gradient = sync.reduce(gradients, step=step, epoch=epoch)
            for parameter, g in zip(parameters, mean_gradient, strict=True):
                parameter.grad = g
            optimizer.step()

        train_loss = workers.sum_of_disjoint(losses_SxN).mean().item()
        metrics = {"train_loss": train_loss, **evaluate(model, parts.data.test, workers, device)}
        train_s = earlier_s + time.perf_counter() - started
        journal.epoch_done({"epoch": epoch + 1, "step": (epoch + 1) * S, **metrics, "train_seconds": train_s})
        if not math.isfinite(train_loss):
            status = "diverged"
            break
        stop = epoch + 1 < epochs and workers.any(journal.stop_requested(), device)
        if stop or (epoch + 1) % config["checkpoint"]["every_epochs"] == 0 or epoch + 1 == epochs:
            _save(parts, journal, epoch + 1, train_s, metrics)
        if stop:
            raise Preempted

    return {
        "status": status,
        "metrics": metrics,
        "train_seconds": earlier_s + time.perf_counter() - started,
        "weights_sha256": checkpoint.weights_sha256(model),
    }


def _loss_and_gradient(
    parts: Parts,
    parameters: list[Tensor],
    index_B: Tensor,
    seed: int,
    step: int,
    worker: int,
    device: torch.device,
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Mean loss of one worker's batch, detached, and its gradient for every parameter."""
    x, y = fetch_batch(parts.data.train, index_B)
    x = parts.data.augment(x.to(device), generator("augment", seed, step, worker))
    torch.manual_seed(derived_seed("dropout", seed, step, worker))
    loss = F.cross_entropy(parts.model(x), y.to(device))
    return loss.detach(), torch.autograd.grad(loss, parameters, materialize_grads=True)


def _restore(parts: Parts, journal: Journal, device: torch.device) -> tuple[int, float, dict[str, float]]:
    """Epochs done, seconds they took and their last metrics, by the checkpoint; (0, 0, {}) without one."""
    state = checkpoint.load(journal.run.checkpoint, device)
    if state is None:
        journal.restart_at(0)
        return 0, 0.0, {}
    parts.model.load_state_dict(state["model"])
    parts.optimizer.load_state_dict(state["optimizer"])
    parts.sync.load_state_dict(state["sync"])
    journal.restart_at(state["epoch"])
    return state["epoch"], state["train_seconds"], state["metrics"]


def _save(parts: Parts, journal: Journal, epoch: int, train_s: float, metrics: dict[str, float]) -> None:
    state = {
        "epoch": epoch,
        "train_seconds": train_s,
        "metrics": metrics,
        "model": parts.model.state_dict(),
        "optimizer": parts.optimizer.state_dict(),
        "sync": parts.sync.state_dict(),  # collective: every rank takes part
    }
    if journal.writes:
        checkpoint.save(journal.run.checkpoint, state)
