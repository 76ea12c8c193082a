"""Ranks that are forked together meet, or the missing ranks are named.

To repeat the first test 100 times: CPDRUN_FORKS=100 pytest tests/launch/test_rendezvous.py
"""

import os
import signal
import subprocess
import sys

from driving import drive, family, finish, wait_for

FORKS = int(os.environ.get("CPDRUN_FORKS", "1"))
MANY = 64


def test_many_ranks_forked_together_meet(job, local):
    """In 2 of 8 starts, one rank used to hang. It was forked while torch's store, in the process that forks, held a
    lock of libc's resolver for a rank that was already connecting."""
    executor = local(jobs=MANY)
    for number in range(FORKS):
        one = job(f"r{number}", nproc=MANY, meet=True, patience_s=60)
        outcome = drive(executor, [one])[one.run.name]
        assert outcome.status == "finished", outcome.reason


def test_no_rank_connects_before_the_last_is_forked(job, local):
    """The first ranks wait at the gate, without a socket of their own, until the last is forked."""
    gate = (
        "import os, sys, time; from cpdrun.train.ranks.rendezvous import Gate; gate = Gate(3)\n"
        "for rank in range(3):\n"
        "    if os.fork() == 0:\n"
        "        gate.pass_through(rank); os.write(1, b'%d through\\n' % rank); os._exit(0)\n"
        "    time.sleep(0.3); os.write(1, b'%d forked\\n' % rank)\n"
        "while True: os.wait()\n"
    )
    done = subprocess.run([sys.executable, "-c", gate], capture_output=True, text=True)
    lines = done.stdout.splitlines()
    assert lines.index("1 forked") < min(lines.index(f"{rank} through") for rank in range(3))
    assert len(lines) == 6


def test_a_missing_rank_is_named(job, local):
    one = job(nproc=3, meet=True, absent=1, patience_s=4)
    outcome = drive(local(jobs=3), [one])["one"]
    assert outcome.status == "failed"
    assert "rank 1 did not come to the rendezvous within 4 s; rank " in outcome.reason


def test_the_store_listens_on_loopback_only(job, local):
    one = job(epochs=4000, epoch_s=0.05)
    executor = local()
    executor.submit([one])
    executor.poll(0)
    wait_for(one.run.status.exists, "the first epoch")
    listening = addresses(family(one)["engine"])
    os.kill(family(one)["rank"], signal.SIGKILL)
    finish(executor)
    assert listening and set(listening) == {"0100007F"}


def addresses(pid: int) -> list[str]:
    """Hexadecimal addresses on which the process listens, of IPv4 and IPv6."""
    inodes = set()
    for fd in os.listdir(f"/proc/{pid}/fd"):  # noqa: PTH208
        try:
            inodes.add(os.readlink(f"/proc/{pid}/fd/{fd}"))  # noqa: PTH115
        except OSError:
            continue
    found = []
    for table in ("tcp", "tcp6"):
        with open(f"/proc/{pid}/net/{table}") as file:  # noqa: PTH123
            for line in file.readlines()[1:]:
                fields = line.split()
                if fields[3] == "0A" and f"socket:[{fields[9]}]" in inodes:
                    found.append(fields[1].split(":")[0])
    return found
