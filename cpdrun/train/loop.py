"""The training loop: epochs of steps on samples dealt to N workers; `learners` say what a step is.

Legend: N workers, B samples a worker, S steps an epoch. The result depends on the config alone: how the N
workers are dealt to processes changes no bit of it (with emulation=exact or chunked).
"""

import math
import time
from typing import Any

import torch
import torch.distributed as dist

from cpdrun.comm.workers import Workers
from cpdrun.optim.groups import trainable
from cpdrun.record import Best, Ending, EpochRow, Result
from cpdrun.train.build import Parts
from cpdrun.train.learners.base import Learner
from cpdrun.train.preflight.operations import step_operations
from cpdrun.train.ranks import pulse
from cpdrun.train.ranks.vote import Vote, Wish
from cpdrun.train.seeds import generator
from cpdrun.train.state import checkpoint, kept
from cpdrun.train.state.journal import Journal
from cpdrun.train.state.progress import Progress
from cpdrun.whatif.collect.observer import Observer


class Preempted(Exception):
    """The run was asked to stop; its checkpoint is written."""


def train(
    config: dict[str, Any], parts: Parts, workers: Workers, device: torch.device, journal: Journal
) -> Result:
    """Train to the last epoch, or until the loss is not finite or it gives up. Returns what done.json says of it.

    Raises Preempted after a step at which the journal was asked to stop.
    """
    N, B, seed = (config[key] for key in ("world_size", "batch_size", "seed"))
    course = parts.course
    S, epochs = course.S, course.epochs
    learner: Learner = parts.learner(config, parts, workers, device)
    learner.observer = Observer(config, parts, workers, journal.run)
    judged_by, measures = f"test_{parts.task.judged_by}", learner.measures()
    vote = Vote(workers, journal.wish, config["patience_s"])
    progress = _restore(learner, journal, workers, device, S)
    learner.observer.resume(progress.epoch * S + progress.step)
    clock = time.perf_counter() - progress.train_seconds
    ending = Ending.FINISHED

    if epochs == 0:
        journal.restart_at(-1)
        evaluation = learner.evaluate()
        progress.metrics = evaluation.metrics
        journal.epoch_done(EpochRow(epoch=0, metrics=progress.metrics), epochs)
        journal.final_outcomes(evaluation.outcomes)

    while progress.epoch < epochs:
        epoch = progress.epoch
        index_SxNxB = parts.partition.deal(parts.data.train, N, B, seed=seed, epoch=epoch, draws=generator)
        index_SxNxB = index_SxNxB[: course.steps_of(epoch)]
        first_step = epoch * S + progress.step
        parts.batches.plan(index_SxNxB[progress.step :], learner.gradients_of.plays, first_step)
        if progress.losses_SxN is None:
            progress.losses_SxN = torch.zeros(len(index_SxNxB), N, dtype=torch.float64, device=device)

        for s in range(progress.step, len(index_SxNxB)):
            step = epoch * S + s
            look = step % config["statistics"]["every_steps"] == 0
            lr_factor = parts.schedule(step / S, course.length)
            learner.observer.begin(step)
            losses_W = learner.step(index_SxNxB[s], step=step, epoch=epoch, lr_factor=lr_factor, look=look)
            learner.observer.end()
            if look:
                progress.layers = learner.layers
            progress.losses_SxN[s, workers.mine.start : workers.mine.stop] = losses_W
            progress.nonfinite += learner.nonfinite
            progress.count_bytes(learner.wire_bytes())
            progress.step = s + 1
            pulse.beat()
            journal.step_done(step + 1)
            if s + 1 < len(index_SxNxB) and (asked := vote.answer()):
                progress.train_seconds = time.perf_counter() - clock
                _save(learner, journal, workers, progress, asked)
                if asked is Wish.STOP:
                    learner.observer.save()
                    raise Preempted

        train_loss = workers.sum_of_disjoint(progress.losses_SxN).mean().item()
        evaluation = learner.evaluate()
        progress.metrics = {"train_loss": train_loss, **evaluation.metrics}
        progress.remember_best(judged_by, measures[judged_by])
        progress.train_seconds = time.perf_counter() - clock
        row = EpochRow(
            epoch=epoch + 1,
            step=epoch * S + progress.step,
            metrics=progress.metrics,
            nonfinite_gradients=progress.nonfinite,
            layers=progress.layers,
            train_seconds=progress.train_seconds,
        )
        journal.epoch_done(row, epochs)
        if not math.isfinite(train_loss):
            ending = Ending.DIVERGED
        elif parts.giving_up.is_due(epoch + 1, train_loss, parts.task.loss_range()):
            ending = Ending.DID_NOT_LEARN
        if ending is not Ending.FINISHED or epoch + 1 == epochs:
            # Before the checkpoint: a run that goes on from the last one evaluates no more.
            journal.final_outcomes(evaluation.outcomes)
        if ending is not Ending.FINISHED:
            break
        progress.epoch, progress.step, progress.nonfinite, progress.losses_SxN = epoch + 1, 0, 0, None
        progress.layers = {}
        asked = vote.answer()
        if progress.epoch % config["checkpoint"]["every_epochs"] == 0 or progress.epoch == epochs:
            _save(learner, journal, workers, progress, Wish.STOP)
        elif asked:
            _save(learner, journal, workers, progress, asked)
        if asked is Wish.STOP and progress.epoch < epochs:
            learner.observer.save()
            raise Preempted

    learner.observer.save()
    return Result(
        status=ending,
        metrics=progress.metrics,
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
        ended_after=parts.giving_up.after if ending is Ending.DID_NOT_LEARN else None,
    )


def _restore(
    learner: Learner, journal: Journal, workers: Workers, device: torch.device, steps_an_epoch: int
) -> Progress:
    """The learner as it was last kept, or as the last whole checkpoint has it, and how far it was; all as it is without
    either."""
    file, held = journal.run.checkpoint, kept.of_this_run()
    there = [None, *checkpoint.candidates(file), *(held.files if held else ())]
    choice = torch.zeros(1, dtype=torch.int64, device=device)
    if workers.rank == 0:
        last = (held.whole() if held else None) or checkpoint.choose(file, journal.run_name)
        choice += there.index(last)
    if workers.ranks > 1:
        dist.broadcast(choice, src=0)  # two ranks must not go on from different ones
    chosen = there[int(choice.item())]
    if chosen is None:
        journal.goes_on(0, 0)
        return Progress()
    state = checkpoint.read(chosen, device)
    learner.load_state_dict(state)
    progress = Progress(**state["progress"])
    if workers.rank > 0 and progress.losses_SxN is not None:
        progress.losses_SxN.zero_()  # what was saved has those of all workers; they count once, on rank 0
    journal.goes_on(progress.epoch, progress.epoch * steps_an_epoch + progress.step)
    return progress


def _save(learner: Learner, journal: Journal, workers: Workers, progress: Progress, wish: Wish) -> None:
    """Keep the state in memory, or write a checkpoint. Collective: what is spread over the ranks comes together on rank
    0, which writes."""
    began, losses = time.monotonic(), progress.losses_SxN
    learner.observer.save_part()
    if losses is not None:
        losses = workers.sum_of_disjoint(losses.clone())
    state = {"progress": vars(progress) | {"losses_SxN": losses}, **learner.state_dict()}
    if journal.writes:
        journal.save(state, began, on_disk=wish is Wish.STOP)
