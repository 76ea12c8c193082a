"""Claims where the file system has no flock."""

import errno
import fcntl
import os

import pytest

from cpdrun.record import RunDir, claim, heartbeat, is_claimed, release
from cpdrun.record.lock import STALE_S


@pytest.fixture
def run(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    return RunDir(tmp_path)


def test_one_of_two_gets_the_run_and_the_other_after_its_release(run):
    first = claim(run)
    assert first is not None and is_claimed(run)
    assert claim(run) is None
    release(run, first)
    assert not is_claimed(run)
    second = claim(run)
    assert second is not None
    release(run, second)


def test_a_holder_that_died_is_replaced(run):
    os.close(claim(run))
    old = run.holder.stat().st_mtime - STALE_S - 10
    os.utime(run.holder, (old, old))
    assert not is_claimed(run)
    again = claim(run)
    assert again is not None and is_claimed(run)
    release(run, again)


def test_a_heartbeat_keeps_the_run(run):
    lock = claim(run)
    old = run.holder.stat().st_mtime - STALE_S - 10
    os.utime(run.holder, (old, old))
    heartbeat(run)
    assert is_claimed(run)
    assert claim(run) is None
    release(run, lock)
