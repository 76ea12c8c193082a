"""Checkpoints in memory that survive the death of a rank: the state of the run at its last agreed step.

The idea is that of Wang et al., "Gemini: Fast Failure Recovery in Distributed Training with In-Memory Checkpoints"
(SOSP 2023, section 3). As in torchrun, all ranks are restarted if one dies. A difference from Gemini is that all ranks
run on one machine. Therefore, two anonymous files (memfd_create) contain the state instead of the memory of another
machine. The engine creates the files, and every rank inherits them. The kernel frees them when the last of these
processes ends in any way.

Rank 0 writes the two files in turn and then records which one is complete, so the death of a rank during a write loses
only that write. Checkpoints are written so often that they take a share of OVERHEAD of the time. The estimate uses the
fastest of the last few writes, because a write that other programs slowed down does not predict the next one.
"""

import mmap
import os
import struct
import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from cpdrun.record import Lost

# The share of training time that checkpoints in memory may use. With a smaller share, checkpoints are less frequent,
# and more steps are lost when a rank dies.
OVERHEAD = 0.02
FIRST_S = 0.05  # the delay before the first checkpoint, whose duration is not known yet
# The share that is used instead of OVERHEAD after the first checkpoint of a process, which takes longer than later
# ones.
FIRST_OVERHEAD = 0.2
HISTORY = 3  # the number of durations on which the estimate is based
SLOTS = 2
NONE = -1

_LAYOUT = struct.Struct("<qqdqqq")


@dataclass
class Board:
    """Numbers that the engine and the ranks share, in the order of `_LAYOUT`.

    Only one process writes them at a time: rank 0, or the engine while no rank is running.
    """

    slot: int = NONE  # the file that is complete and newer than the checkpoint on disk
    step: int = 0  # the greatest number of steps that were ever complete
    step_time: float = 0.0  # when that step was completed, in seconds since 1970
    deaths: int = 0  # deaths of ranks since then
    rank: int = 0  # the rank that died last
    signal: int = 0  # the signal that killed this rank


class MemoryCheckpoint:
    """The state of one run outside its ranks. It must be created before the ranks are forked."""

    def __init__(self) -> None:
        self.slots = [os.memfd_create(f"cpdrun-state-{n}") for n in range(SLOTS)]
        self._memory = mmap.mmap(-1, mmap.PAGESIZE)
        self.board = Board(step_time=time.time())
        self._write()
        self.from_step = 0
        self._is_first = True
        self._durations_s: deque[float] = deque(maxlen=HISTORY)
        self._due: float  # set by `_schedule_next`
        self._schedule_next()

    @property
    def files(self) -> list[Path]:
        """Paths of the two files. Open them anew, since forked processes share the position of an open file."""
        return [Path(f"/proc/self/fd/{fd}") for fd in self.slots]

    # Methods for the engine

    def record_death(self, rank: int, signal: int) -> Board:
        """Record that a rank was killed and that all other ranks have ended. Return the board with their last step."""
        self._read()
        self.board.deaths += 1
        self.board.rank, self.board.signal = rank, signal
        self._write()
        return self.board

    # Methods for rank 0

    def latest(self) -> Path | None:
        """Return the file of the latest state if it is newer than the checkpoint on disk, or None."""
        self._read()
        return None if self.board.slot == NONE else self.files[self.board.slot]

    def resume(self, step: int) -> Board:
        """Record that the ranks resume from the given step."""
        self._read()
        self.from_step = step
        return self.board

    def is_due(self) -> bool:
        """Return whether it is time to save the state.

        After returning True, this method returns False until the state has been saved.
        """
        now = time.monotonic()
        if now < self._due:
            return False
        self._due = float("inf")
        return True

    def save(self, state: dict[str, Any], began: float) -> None:
        """Write `state`. `began` is the time.monotonic() at which its collection from the ranks began."""
        slot = (self.board.slot + 1) % SLOTS
        with self.files[slot].open("wb") as file:
            torch.save(state, file)
        self.board.slot = slot
        self._write()
        now = time.monotonic()
        if self._is_first:
            self._is_first, self._due = False, now + (now - began) / FIRST_OVERHEAD
        else:
            self._durations_s.append(now - began)
            self._schedule_next()

    def checkpoint_written(self) -> None:
        """Record that the checkpoint on disk is now as recent as the run."""
        self.board.slot = NONE
        self._write()
        self._schedule_next()

    def _schedule_next(self) -> None:
        delay_s = min(self._durations_s) / OVERHEAD if self._durations_s else FIRST_S
        self._due = time.monotonic() + delay_s

    def record_step(self, step: int) -> Lost | None:
        """Record that `step` steps are complete. After a death, return the lost work once lost steps are repeated."""
        board, now, lost = self.board, time.time(), None
        if board.deaths:
            if step < board.step:
                return None
            lost = Lost(
                rank=board.rank,
                signal=board.signal,
                restarts=board.deaths,
                step=board.step,
                steps=max(0, board.step - self.from_step),
                seconds=now - board.step_time,
            )
            board.deaths = 0
        board.step, board.step_time = step, now
        self._write()
        return lost

    def _write(self) -> None:
        b = self.board
        _LAYOUT.pack_into(self._memory, 0, b.slot, b.step, b.step_time, b.deaths, b.rank, b.signal)

    def _read(self) -> None:
        self.board = Board(*_LAYOUT.unpack_from(self._memory))


class _ThisRun:
    checkpoint: MemoryCheckpoint | None = None


def create() -> MemoryCheckpoint:
    """Create the memory checkpoint of a run with elastic=true. The engine calls this before it forks the ranks."""
    _ThisRun.checkpoint = MemoryCheckpoint()
    return _ThisRun.checkpoint


def current() -> MemoryCheckpoint | None:
    """Return the memory checkpoint that this rank inherited, or None if the run has none."""
    return _ThisRun.checkpoint
