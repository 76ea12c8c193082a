"""Checkpoints in memory outlive a rank that is killed, and leave nothing when all processes have ended."""

import os
import signal
import time

import torch

from cpdrun.train.state import memory_checkpoint
from cpdrun.train.state.memory_checkpoint import NONE, Board, MemoryCheckpoint


def read(snapshots: MemoryCheckpoint) -> int:
    return torch.load(snapshots.latest(), weights_only=True)["step"]


def in_a_rank(act) -> int:
    """Forked, as a rank is; the exit status."""
    pid = os.fork()
    if pid == 0:
        act()
        os._exit(0)
    return os.waitpid(pid, 0)[1]


def test_a_later_rank_reads_the_last_complete_checkpoint():
    snapshots = MemoryCheckpoint()
    assert snapshots.latest() is None

    def dies_while_it_keeps():
        for step in (1, 2, 3):
            snapshots.save({"step": step}, time.monotonic())
        with snapshots.files[(snapshots.board.slot + 1) % 2].open("wb") as file:
            file.write(b"half of a state")
            file.flush()
            os.kill(os.getpid(), signal.SIGKILL)

    assert in_a_rank(dies_while_it_keeps) == signal.SIGKILL
    assert [read(snapshots), read(snapshots)] == [3, 3], "each rank reads from the start"
    assert in_a_rank(lambda: os._exit(read(snapshots))) >> 8 == 3, "read by as many ranks as there are"
    snapshots.checkpoint_written()
    assert snapshots.latest() is None and snapshots.board.slot == NONE


def test_the_files_have_no_names_that_could_be_left_behind():
    snapshots = MemoryCheckpoint()
    snapshots.save({"step": 1}, time.monotonic())
    assert all(str(file.readlink()).startswith("/memfd:cpdrun-state") for file in snapshots.files)
    assert all(os.fstat(fd).st_nlink == 0 for fd in snapshots.slots)


def test_checkpoints_take_a_fixed_share_of_the_time(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(memory_checkpoint.time, "monotonic", lambda: now[0])
    snapshots = MemoryCheckpoint()
    assert not snapshots.is_due()
    now[0] += memory_checkpoint.FIRST_S
    assert snapshots.is_due() and not snapshots.is_due(), "asked for once, until it is kept"
    for share, takes_s, counts_s in (
        (memory_checkpoint.FIRST_OVERHEAD, 9.0, 9.0),  # and plays no further part
        (memory_checkpoint.OVERHEAD, 3.0, 3.0),
        (memory_checkpoint.OVERHEAD, 7.0, 3.0),  # snapshots up by something else
        (memory_checkpoint.OVERHEAD, 4.0, 3.0),
        (memory_checkpoint.OVERHEAD, 5.0, 4.0),
    ):
        began = now[0]
        now[0] += takes_s
        snapshots.save({"step": 1}, began)
        now[0] += counts_s / share - 0.1
        assert not snapshots.is_due()
        now[0] += 0.2
        assert snapshots.is_due()
    snapshots.checkpoint_written()
    assert not snapshots.is_due()


def test_the_cost_of_a_death_is_known_when_its_step_is_reached_again(monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(memory_checkpoint.time, "time", lambda: now[0])
    snapshots = MemoryCheckpoint()
    for step in (1, 2, 3, 4, 5):
        now[0] += 1
        assert snapshots.record_step(step) is None
    assert snapshots.record_death(rank=1, signal=signal.SIGKILL) == Board(NONE, 5, 1005.0, 1, 1, 9)
    snapshots.resume(2)
    now[0] += 4
    assert snapshots.record_step(3) is None
    snapshots.record_death(rank=0, signal=signal.SIGSEGV)  # again, on the way
    assert snapshots.board.step == 5, "not the step it had come to again"
    snapshots.resume(2)
    assert [snapshots.record_step(step) for step in (3, 4)] == [None, None]
    now[0] += 3
    lost = snapshots.record_step(5)
    assert (lost.rank, lost.signal, lost.restarts) == (0, signal.SIGSEGV, 2)
    assert (lost.step, lost.steps, lost.seconds) == (5, 3, 7.0)
    assert snapshots.record_step(6) is None and snapshots.board.deaths == 0
