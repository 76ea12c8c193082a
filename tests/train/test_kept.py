"""What is kept of a run outside its ranks: whole whenever a rank dies, and nowhere once all are gone."""

import os
import signal
import time

import torch

from cpdrun.train.state import kept
from cpdrun.train.state.kept import NONE, Board, Kept


def read(held: Kept) -> int:
    return torch.load(held.whole(), weights_only=True)["step"]


def in_a_rank(act) -> int:
    """Forked, as a rank is; the exit status."""
    pid = os.fork()
    if pid == 0:
        act()
        os._exit(0)
    return os.waitpid(pid, 0)[1]


def test_the_last_that_was_kept_whole_is_what_a_later_rank_reads():
    held = Kept()
    assert held.whole() is None

    def dies_while_it_keeps():
        for step in (1, 2, 3):
            held.keep({"step": step}, time.monotonic())
        with held.files[(held.board.slot + 1) % 2].open("wb") as file:
            file.write(b"half of a state")
            file.flush()
            os.kill(os.getpid(), signal.SIGKILL)

    assert in_a_rank(dies_while_it_keeps) == signal.SIGKILL
    assert read(held) == 3
    assert in_a_rank(lambda: os._exit(read(held))) >> 8 == 3, "read by as many ranks as there are"
    held.is_on_disk()
    assert held.whole() is None and held.board.slot == NONE


def test_it_has_no_name_that_could_be_left():
    held = Kept()
    held.keep({"step": 1}, time.monotonic())
    assert all(str(file.readlink()).startswith("/memfd:cpdrun-state") for file in held.files)
    assert all(os.fstat(fd).st_nlink == 0 for fd in held.slots)


def test_it_takes_a_share_of_the_time_however_long_it_takes(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(kept.time, "monotonic", lambda: now[0])
    held = Kept()
    assert not held.is_due()
    now[0] += kept.FIRST_S
    assert held.is_due() and not held.is_due(), "asked for once, until it is kept"
    for share, takes_s, counts_s in (
        (kept.FIRST_SHARE, 9.0, 9.0),  # and plays no further part
        (kept.SHARE, 3.0, 3.0),
        (kept.SHARE, 7.0, 3.0),  # held up by something else
        (kept.SHARE, 4.0, 3.0),
        (kept.SHARE, 5.0, 4.0),
    ):
        began = now[0]
        now[0] += takes_s
        held.keep({"step": 1}, began)
        now[0] += counts_s / share - 0.1
        assert not held.is_due()
        now[0] += 0.2
        assert held.is_due()
    held.is_on_disk()
    assert not held.is_due()


def test_what_a_death_cost_is_said_when_the_step_is_reached_again(monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(kept.time, "time", lambda: now[0])
    held = Kept()
    for step in (1, 2, 3, 4, 5):
        now[0] += 1
        assert held.stepped(step) is None
    assert held.died(rank=1, signal=signal.SIGKILL) == Board(NONE, 5, 1005.0, 1, 1, 9)
    held.goes_on(2)
    now[0] += 4
    assert held.stepped(3) is None
    held.died(rank=0, signal=signal.SIGSEGV)  # again, on the way
    assert held.board.step == 5, "not the step it had come to again"
    held.goes_on(2)
    assert [held.stepped(step) for step in (3, 4)] == [None, None]
    now[0] += 3
    lost = held.stepped(5)
    assert (lost.rank, lost.signal, lost.restarts) == (0, signal.SIGSEGV, 2)
    assert (lost.step, lost.steps, lost.seconds) == (5, 3, 7.0)
    assert held.stepped(6) is None and held.board.deaths == 0


def test_ranks_read_from_the_start_whoever_read_before():
    held = Kept()
    held.keep({"step": 7}, time.monotonic())
    assert [read(held), read(held)] == [7, 7]
