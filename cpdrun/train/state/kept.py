"""What outlives a rank that dies: the state of the run at its last agreed step, in memory of the engine's.

The idea is that of checkpoints in memory (Wang et al., "Gemini: Fast Failure Recovery in Distributed Training with
In-Memory Checkpoints", SOSP 2023, section 3), and the restart of all ranks of a group at once is torchrun's. It differs
from Gemini in that all ranks are of one machine: what holds the state is not the memory of another machine but
two files without a name (memfd_create), which the engine makes and every rank that it forks inherits. So they are there
as long as one of those processes is, and gone with the last of them, however it ends.

Rank 0 writes them in turn and then says which is whole, so that a rank which dies while it writes costs nothing but
that one. How often: so that it takes a `SHARE` of the time, by the quickest of the last few: one that other programs
held up says little of the next.
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

SHARE = 0.02  # of the time that may go into keeping the state; less: more steps are lost with a rank
FIRST_S = 0.05  # before anything is known of what it takes
FIRST_SHARE = 0.2  # after a process's first, which pays for what is done once: connections, pages, imports
REMEMBERED = 3
SLOTS = 2
NONE = -1

_LAYOUT = struct.Struct("<qqdqqq")


@dataclass
class Board:
    """A few numbers that engine and ranks share, in the order of `_LAYOUT`: one writes at a time, rank 0, or the engine
    while no rank is there."""

    slot: int = NONE  # the file that is whole and further than the checkpoint on disk
    step: int = 0  # most steps of the run that were ever complete
    stepped: float = 0.0  # when that was; seconds since 1970
    deaths: int = 0  # of ranks, since then
    rank: int = 0  # the last that died ...
    signal: int = 0  # ... and what killed it


class Kept:
    """The state of one run outside its ranks. To be made before they are forked."""

    def __init__(self) -> None:
        self.slots = [os.memfd_create(f"cpdrun-state-{n}") for n in range(SLOTS)]
        self._memory = mmap.mmap(-1, mmap.PAGESIZE)
        self.board = Board(stepped=time.time())
        self._say()
        self.from_step = 0
        self._is_first, self._costs_s = True, deque(maxlen=REMEMBERED)
        self._put_off()

    @property
    def files(self) -> list[Path]:
        """To be opened anew: forked processes share where they are in an open file."""
        return [Path(f"/proc/self/fd/{fd}") for fd in self.slots]

    # the engine's

    def died(self, rank: int, signal: int) -> Board:
        """A rank was killed, and all others are gone, too; how far they had come."""
        self._look()
        self.board.deaths += 1
        self.board.rank, self.board.signal = rank, signal
        self._say()
        return self.board

    # rank 0's

    def whole(self) -> Path | None:
        """The last state, where it is further than the checkpoint on disk."""
        self._look()
        return None if self.board.slot == NONE else self.files[self.board.slot]

    def goes_on(self, step: int) -> Board:
        """The ranks go on from that step."""
        self._look()
        self.from_step = step
        return self.board

    def is_due(self) -> bool:
        """Whether to keep the state; True once, until it was kept."""
        now = time.monotonic()
        if now < self._due:
            return False
        self._due = float("inf")
        return True

    def keep(self, state: dict[str, Any], began: float) -> None:
        """Write `state`, whose gathering began at `began` of time.monotonic()."""
        slot = (self.board.slot + 1) % SLOTS
        with self.files[slot].open("wb") as file:
            torch.save(state, file)
        self.board.slot = slot
        self._say()
        now = time.monotonic()
        if self._is_first:
            self._is_first, self._due = False, now + (now - began) / FIRST_SHARE
        else:
            self._costs_s.append(now - began)
            self._put_off()

    def is_on_disk(self) -> None:
        """A checkpoint on disk is as far as the run."""
        self.board.slot = NONE
        self._say()
        self._put_off()

    def _put_off(self) -> None:
        self._due = time.monotonic() + (min(self._costs_s) / SHARE if self._costs_s else FIRST_S)

    def stepped(self, step: int) -> Lost | None:
        """So many steps of the run are complete; what a death cost, once all is as far again as it was."""
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
                seconds=now - board.stepped,
            )
            board.deaths = 0
        board.step, board.stepped = step, now
        self._say()
        return lost

    def _say(self) -> None:
        b = self.board
        _LAYOUT.pack_into(self._memory, 0, b.slot, b.step, b.stepped, b.deaths, b.rank, b.signal)

    def _look(self) -> None:
        self.board = Board(*_LAYOUT.unpack_from(self._memory))


class _OfThisRun:
    kept: Kept | None = None


def begin() -> Kept:
    """In the engine of a run with elastic=true, before its ranks are forked."""
    _OfThisRun.kept = Kept()
    return _OfThisRun.kept


def of_this_run() -> Kept | None:
    """In a rank; None where nothing is kept."""
    return _OfThisRun.kept
