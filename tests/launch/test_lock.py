"""Claims where the file system has no flock."""

import errno
import fcntl
import os
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from cpdrun.record import RunDir, claim, forget, heartbeat, is_claimed, release
from cpdrun.record.lock import STALE_S


@pytest.fixture
def run(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    return RunDir(tmp_path)


def age(run):
    """Make the holder look as one that has not touched its file for long."""
    old = run.holder.stat().st_mtime - STALE_S - 10
    os.utime(run.holder, (old, old))


def test_one_of_two_claims_the_run_and_the_other_after_its_release(run):
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
    age(run)
    assert not is_claimed(run)
    again = claim(run)
    assert again is not None and is_claimed(run)
    release(run, again)


def claim_together(barrier, run):
    barrier.wait()
    return claim(run)


def test_only_one_of_many_replaces_a_dead_holder(run):
    barrier = threading.Barrier(8)
    with ThreadPoolExecutor(8) as pool:
        for _ in range(30):
            os.close(claim(run))
            age(run)
            claims = pool.map(claim_together, [barrier] * 8, [run] * 8)
            (mine,) = [lock for lock in claims if lock is not None]
            release(run, mine)


def test_a_replaced_holder_does_not_release_the_run_of_its_successor(run):
    sleeper = claim(run)
    run.holder.write_text("another-host 1\n")
    assert not heartbeat(run)
    release(run, sleeper)
    assert is_claimed(run)


def test_forgetting_a_run_releases_it(run):
    forget(run)
    assert not is_claimed(run)


def test_a_heartbeat_keeps_the_run(run):
    lock = claim(run)
    age(run)
    heartbeat(run)
    assert is_claimed(run)
    assert claim(run) is None
    release(run, lock)
