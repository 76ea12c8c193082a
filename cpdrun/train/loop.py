"""The training loop: epochs of optimizer steps on samples that are divided among N workers.

The learner of the run (`cpdrun.train.learners`) defines what one step is.

The result depends only on the config. With emulation=exact or chunked, it has the same bits for any split of the N
workers over processes.

Shapes: N workers, B samples per worker and step, S steps per epoch, W workers of this rank.
"""

import math
import time
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from cpdrun.comm.workers import Workers
from cpdrun.optim.groups import trainable
from cpdrun.record import Best, Ending, EpochRow, Result
from cpdrun.record.measure import Measure
from cpdrun.train.build import Parts
from cpdrun.train.evaluate import Evaluation
from cpdrun.train.learners.base import Learner
from cpdrun.train.preflight.products import step_operations
from cpdrun.train.ranks import heartbeat
from cpdrun.train.ranks.consensus import Consensus, Request
from cpdrun.train.seeds import generator
from cpdrun.train.state import checkpoint, memory_checkpoint
from cpdrun.train.state.journal import Journal
from cpdrun.whatif.collect.observer import Observer


class Preempted(Exception):
    """Raised after a run was requested to stop and its checkpoint was written."""


@dataclass
class Progress:
    """The position of a run: `step` steps into epoch `epoch`, both counted from 0. Checkpoints contain it."""

    epoch: int = 0
    step: int = 0
    train_seconds: float = 0.0
    nonfinite: int = 0  # the number of inf and NaN in the gradients of this epoch
    losses_SxN: Tensor | None = (
        None  # the losses of this epoch, which are zero for the workers of other ranks
    )
    layers: dict[str, dict[str, Any]] = field(
        default_factory=dict
    )  # the latest gradient statistics of this epoch
    metrics: dict[str, float] = field(default_factory=dict)  # metrics of the last complete epoch
    best: dict[str, Any] = field(default_factory=dict)  # metric, value and epoch of the best epoch so far
    wire: dict[str, int] = field(
        default_factory=dict
    )  # the sums of the learner's `wire_bytes` over `wire_steps` steps
    wire_steps: int = 0  # the number of steps whose bytes are included in `wire`

    def count_bytes(self, step_bytes: dict[str, int]) -> None:
        """Add the communicated bytes of one step to the epoch's totals."""
        self.wire = {key: self.wire.get(key, 0) + n for key, n in step_bytes.items()}
        self.wire_steps += 1

    def update_best(self, metric: str, measure: Measure) -> None:
        """Record this epoch if its metric is finite and better than that of all earlier epochs."""
        value = self.metrics[metric]
        sign = 1 if measure.higher_is_better else -1
        if math.isfinite(value) and (not self.best or sign * value > sign * self.best["value"]):
            self.best = {"metric": metric, "value": value, "epoch": self.epoch + 1}

    def bytes_per_step(self) -> dict[str, int]:
        """Return the mean bytes per step. Steps with gradients in fp32 (full_precision) send more than others."""
        return {key: round(n / self.wire_steps) for key, n in self.wire.items()}


def train(
    config: dict[str, Any], parts: Parts, workers: Workers, device: torch.device, journal: Journal
) -> Result:
    """Train to the last epoch, or until the loss is not finite or the early-stopping rule ends the run.

    Args:
        config: The resolved config of the run.
        parts: The parts of the run, which `build` has made from the config.
        workers: The assignment of the N workers to ranks.
        device: The device of this rank.
        journal: The record of the run.

    Returns:
        The contents of done.json, except the total time.

    Raises:
        Preempted: The run was requested to stop, and its state is saved.
    """
    N, B, seed = (config[key] for key in ("world_size", "batch_size", "seed"))
    duration = parts.duration
    S, epochs = duration.steps_per_epoch, duration.epochs
    learner: Learner = parts.learner(config, parts, workers, device)
    learner.observer = Observer(config, parts, workers, journal.run)
    judged_by, measures = f"test_{parts.task.judged_by}", learner.measures()
    consensus = Consensus(workers, journal.request, config["patience_s"])
    progress = _restore(learner, journal, workers, device, S)
    learner.observer.resume(progress.epoch * S + progress.step)
    clock = time.perf_counter() - progress.train_seconds
    ending = Ending.FINISHED

    if epochs == 0:
        journal.drop_rows_after(-1)
        initial = learner.evaluate()
        progress.metrics = initial.metrics
        journal.epoch_done(EpochRow(epoch=0, metrics={**progress.metrics}), epochs)
        journal.final_outcomes(initial.outcomes)

    while progress.epoch < epochs:
        epoch = progress.epoch
        index_SxNxB = parts.partition.deal(parts.data.train, N, B, seed=seed, epoch=epoch, draws=generator)
        index_SxNxB = index_SxNxB[: duration.steps_in(epoch)]
        first_step = epoch * S + progress.step
        parts.batches.plan(index_SxNxB[progress.step :], learner.gradients_of.fetched_workers, first_step)
        if progress.losses_SxN is None:
            progress.losses_SxN = torch.zeros(len(index_SxNxB), N, dtype=torch.float64, device=device)

        for s in range(progress.step, len(index_SxNxB)):
            step = epoch * S + s
            look = step % config["statistics"]["every_steps"] == 0
            lr_factor = parts.schedule(step / S, duration.length)
            learner.observer.begin(step)
            losses_W = learner.step(index_SxNxB[s], step=step, epoch=epoch, lr_factor=lr_factor, look=look)
            learner.observer.end()
            if look:
                progress.layers = learner.layers
            progress.losses_SxN[s, workers.local.start : workers.local.stop] = losses_W
            progress.nonfinite += learner.nonfinite
            progress.count_bytes(learner.wire_bytes())
            progress.step = s + 1
            heartbeat.beat()
            journal.step_done(step + 1)
            if s + 1 < len(index_SxNxB) and (request := consensus.decide()):
                progress.train_seconds = time.perf_counter() - clock
                _save(learner, journal, workers, progress, on_disk=request is Request.STOP)
                if request is Request.STOP:
                    learner.observer.save()
                    raise Preempted

        losses_SxN = workers.sum_of_disjoint(progress.losses_SxN)
        train_loss = losses_SxN.mean().item()
        if not math.isfinite(train_loss):
            ending = Ending.DIVERGED
        elif parts.early_stopping.is_due(epoch + 1, train_loss, parts.task.loss_range()):
            ending = Ending.DID_NOT_LEARN
        is_last = ending is not Ending.FINISHED or epoch + 1 == epochs
        progress.metrics = {"train_loss": train_loss}
        evaluation: Evaluation | None = None
        if is_last or (epoch + 1) % config.get("eval_every", 1) == 0:
            evaluation = learner.evaluate()
            progress.metrics |= evaluation.metrics
            progress.update_best(judged_by, measures[judged_by])
        progress.train_seconds = time.perf_counter() - clock
        row = EpochRow(
            epoch=epoch + 1,
            step=epoch * S + progress.step,
            metrics={**progress.metrics},
            nonfinite_gradients=progress.nonfinite,
            layers=progress.layers,
            step_losses=losses_SxN.mean(1).tolist() if config.get("init_from") else None,
            train_seconds=progress.train_seconds,
        )
        journal.epoch_done(row, epochs)
        if is_last and evaluation is not None:
            # Write the outcomes before the checkpoint, because a run that resumes from the last checkpoint does not
            # evaluate again.
            journal.final_outcomes(evaluation.outcomes)
        if ending is not Ending.FINISHED:
            break
        progress.epoch, progress.step, progress.nonfinite, progress.losses_SxN = epoch + 1, 0, 0, None
        progress.layers = {}
        request = consensus.decide()
        if progress.epoch % config["checkpoint"]["every_epochs"] == 0 or progress.epoch == epochs:
            _save(learner, journal, workers, progress, on_disk=True)
        elif request:
            _save(learner, journal, workers, progress, on_disk=request is Request.STOP)
        if request is Request.STOP and progress.epoch < epochs:
            learner.observer.save()
            raise Preempted

    learner.observer.save()
    return Result(
        status=ending,
        metrics={**progress.metrics},
        measures={name: measures[name] for name in progress.metrics},
        judged_by=judged_by,
        best=Best(**progress.best) if progress.best else None,
        test_samples=learner.test_samples(),
        num_classes=getattr(parts.data, "num_classes", None),
        train_seconds=progress.train_seconds,
        memory=learner.memory(),
        wire=progress.bytes_per_step(),
        parameters=sum(parameter.numel() for parameter in trainable(parts.model).values()),
        topology=learner.topology(),
        longest_chain=learner.longest_chain(),
        weights_sha256=learner.weights_sha256(),
        products=step_operations(parts, B) if journal.writes else None,
        ended_after=parts.early_stopping.after if ending is Ending.DID_NOT_LEARN else None,
    )


def _restore(
    learner: Learner, journal: Journal, workers: Workers, device: torch.device, steps_per_epoch: int
) -> Progress:
    """Load the latest state from memory or disk into the learner and return its progress.

    Without a saved state, the learner is unchanged and the progress is zero.
    """
    file, in_memory = journal.run.checkpoint, memory_checkpoint.current()
    paths = [None, *checkpoint.candidates(file), *(in_memory.files if in_memory else ())]
    choice = torch.zeros(1, dtype=torch.int64, device=device)
    if workers.rank == 0:
        latest = (in_memory.latest() if in_memory else None) or checkpoint.choose(file, journal.run_name)
        choice += paths.index(latest)
    if workers.ranks > 1:
        dist.broadcast(choice, src=0)  # All ranks must resume from the same state.
    path = paths[int(choice.item())]
    if path is None:
        journal.resume(0, 0)
        return Progress()
    state = checkpoint.read(path, device)
    learner.load_state_dict(state)
    progress = Progress(**state["progress"])
    if workers.rank > 0 and progress.losses_SxN is not None:
        # The checkpoint has the losses of all workers, and ranks are added up later, so only rank 0 keeps them.
        progress.losses_SxN.zero_()
    journal.resume(progress.epoch, progress.epoch * steps_per_epoch + progress.step)
    return progress


def _save(learner: Learner, journal: Journal, workers: Workers, progress: Progress, *, on_disk: bool) -> None:
    """Save the state to disk or to memory. Collective: rank 0 gathers the parts of all ranks and writes them."""
    began, losses = time.monotonic(), progress.losses_SxN
    learner.observer.save_part()
    if losses is not None:
        losses = workers.sum_of_disjoint(losses.clone())
    state = {"progress": vars(progress) | {"losses_SxN": losses}, **learner.state_dict()}
    if journal.writes:
        journal.save(state, began, on_disk=on_disk)
