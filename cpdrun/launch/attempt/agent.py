"""The agent of one run: claims it, starts its ranks, says how they ended. One process a run, without torch.

    python -m cpdrun.launch.attempt.agent RUN_DIR [--retries R] [--known N] [--warm FD] [--parent PID]

Its last line on standard output is the outcome as JSON, as in the attempt's exit.json; the launcher reads it
there, so that a full disk is reported too. SIGTERM asks the ranks to save and stop at their next step, SIGINT
stops them at once. The lock of the run is inherited by every process under the agent: while one of them lives, nobody
else can claim the run.
"""

import argparse
import contextlib
import json
import os
import re
import signal
import socket
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from cpdrun.config.script import has_launcher, is_script
from cpdrun.config.secrets import VARIABLE, mask_text
from cpdrun.launch.attempt.connection import RANK, SCRIPT_RANK, Starter
from cpdrun.launch.attempt.ending import START_NOTE, classify, tail, with_lost_work
from cpdrun.launch.attempt.watchdog import NAMING_S, OF_SCRIPT, OF_TRAINING, Watchdog
from cpdrun.parent import die_with
from cpdrun.process_tree import STOPPED, descendants, holders
from cpdrun.record import (
    HEARTBEAT_S,
    Attempt,
    Ending,
    Outcome,
    RunDir,
    Where,
    claim,
    failed_since,
    garbage,
    heartbeat,
    read_config,
    release,
    write_json,
)

RANK_LOG = re.compile(r"rank(\d+)\.log")
# what differs from run to run, so that a warm engine needs to be told
ENVIRON = ["CUDA_VISIBLE_DEVICES", VARIABLE]
WATCH_S = 1.0
MOST_RANKS = 64  # whose remaining processes are named
OVERTIME_S = 30.0  # to save and stop, once a run's limit is over
# Whoever starts an agent may block them until it can handle them.
HELD_BACK = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)


class Agent:
    """One run's attempts, from the claim to the last outcome."""

    scheduled: str | None = None  # the name that a scheduler has for this process

    def __init__(
        self,
        run: RunDir,
        starter: Starter,
        *,
        retries: int = 0,
        kill_retries: int = 0,
        known: int | None = None,
    ) -> None:
        self.run = run
        self.starter = starter
        self.retries, self.kill_retries = retries, kill_retries
        self.known = known
        self.stopping = self.stopping_now = self.elastic = False
        self.overdue = ""  # why the watchdog ends the attempt
        self.hung_rank: int | None = None  # the rank that it ends the attempt for, if that is known
        self.naming_s = 0.0  # how long ranks that hang may look for the one that is to blame
        self.watchdog: Watchdog | None = None

    def execute(self) -> Outcome:
        """Bring the run to its end, with up to `retries` further attempts, and return the last outcome."""
        asked_before = _changed(self.run.preempt)
        lock = claim(self.run)
        if lock is None:
            return Outcome(Ending.ELSEWHERE, reason="another launcher has this run")
        if asked_before and asked_before == _changed(self.run.preempt):
            self.run.preempt.unlink(missing_ok=True)  # ours, or of an attempt that was killed
        self._start_watching()
        try:
            return self._attempts(lock)
        finally:
            release(self.run, lock)

    def _start_watching(self) -> None:
        # A signal that the kernel hands to another thread does not wake the one that waits for the engine.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, HELD_BACK)
        threading.Thread(target=self._watch, daemon=True).start()
        signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def _watch(self) -> None:
        beaten = -HEARTBEAT_S
        while True:
            now = time.monotonic()
            if now - beaten >= HEARTBEAT_S:
                beaten = now
                with contextlib.suppress(OSError):
                    if not heartbeat(self.run):  # this process slept for so long that it was taken for dead
                        os.kill(os.getpid(), signal.SIGINT)
                        return
            if (watchdog := self.watchdog) is not None:
                self._look(watchdog)
            time.sleep(WATCH_S)

    def _look(self, watchdog: Watchdog) -> None:
        watchdog.look()
        if watchdog.overtime_s > 0 and not self.overdue:
            self.overdue = (
                f"took longer than limit_s={watchdog.limit_s:g}; with more it goes on from its checkpoint"
            )
            with contextlib.suppress(OSError):
                self.run.preempt.touch()
        if watchdog.overtime_s > OVERTIME_S or self._hangs(watchdog):
            self.starter.kill()

    def _hangs(self, watchdog: Watchdog) -> bool:
        """Return whether the attempt is to be killed because it hangs, and note why.

        Ranks that another one keeps waiting can name it, which takes them a while. A rank that a signal has stopped
        is seen from here at once.
        """
        if not watchdog.hangs:
            return False
        stopped = stopped_ranks(self.starter.engine)
        if not stopped and watchdog.hangs_s <= self.naming_s:
            return False
        if not self.overdue:
            self.overdue = watchdog.hangs
            if stopped:
                self.hung_rank = stopped[0]
                names = f"rank{'s' if len(stopped) > 1 else ''} {', '.join(map(str, stopped))}"
                self.overdue = (
                    f"{names} {'were' if len(stopped) > 1 else 'was'} stopped by a signal: "
                    + (watchdog.hangs.partition(": ")[2])
                )
        return True

    def _attempts(self, lock: int) -> Outcome:
        if self.run.result() is not None:
            return Outcome(Ending.ELSEWHERE, reason="another launcher has finished this run")
        if self.run.done.exists():
            return Outcome(Ending.FAILED, reason=garbage(self.run))
        if self.known is not None and failed_since(self.run, self.known):
            return Outcome(Ending.ELSEWHERE, reason="another launcher's attempt has failed")
        if self.stopping or self.run.preempt.exists():
            self.run.preempt.unlink(missing_ok=True)
            return Outcome(Ending.PREEMPTED, reason="stopped before it had begun")
        before: Outcome | None = None
        while True:
            outcome = self._attempt(lock)
            if not self._goes_on(outcome) and not self._retries(outcome, before):
                return outcome
            before = outcome

    def stop(self, *_: Any) -> None:
        """Signal handler: have the ranks save and stop at their next step."""
        self.stopping = True
        self.run.preempt.touch()

    def stop_now(self, *_: Any) -> None:
        """Signal handler: have the ranks killed."""
        self.stopping = self.stopping_now = True
        self.starter.kill()

    def _attempt(self, lock: int) -> Outcome:
        config = read_config(self.run)
        self.elastic = config.get("elastic", False)  # absent in records from before
        attempt = self.run.new_attempt()
        started = time.time()
        write_json(attempt.where, self._where(started).as_json())
        with attempt.agent_log.open("a", encoding="utf-8") as log:
            _note(log, f"{START_NOTE.format(os.getpid())} {socket.gethostname()}, {self.starter.kind} start")
            request = {
                "do": "run",
                "run_dir": str(self.run.path),
                "attempt_dir": str(attempt.path),
                "entry": SCRIPT_RANK if is_script(config) else RANK,
                "nproc": 1 if has_launcher(config) else config["nproc"],
                "threads": config["threads"],
                "nodes": self.starter.nodes,
                "elastic": self.elastic,
                "environ": {name: os.environ[name] for name in ENVIRON if name in os.environ},
            }
            self.overdue, self.hung_rank = "", None
            of_script = is_script(config)
            self.naming_s = NAMING_S if config["nproc"] > 1 and not of_script else 0.0
            signs = OF_SCRIPT if of_script else OF_TRAINING
            self.watchdog = Watchdog(attempt.pulse, config["patience_s"], config["limit_s"], signs=signs)
            answer = self.starter.start(request, lock, log, lambda: self.stopping_now)
            self.watchdog = None
            left_running = self._left_running(attempt)
            if left_running:
                _note(log, f"the ranks have ended and left processes running: {left_running}")
            outcome = with_lost_work(
                replace(
                    classify(
                        self.run,
                        attempt,
                        answer,
                        stopped_now=self.stopping_now,
                        overdue=self.overdue,
                        hung_rank=self.hung_rank,
                    ),
                    attempt=attempt.number,
                    started=started,
                    ended=time.time(),
                    left_running=left_running or None,
                ),
                self.run,
                attempt,
            )
        self.run.preempt.unlink(missing_ok=True)
        try:
            with attempt.agent_log.open("a", encoding="utf-8") as log:
                _note(log, ": ".join(filter(None, (outcome.status, outcome.reason))))
            write_json(attempt.exit, outcome.as_json())
        except OSError:  # the disk is full, which does no harm to a run that is done
            if not self.run.done.exists():
                raise
        return outcome

    def _left_running(self, attempt: Attempt) -> str:
        """Return the processes that outlive the ranks, or "" if there are none."""
        found = tail(attempt.left_running, MOST_RANKS)
        if self.starter.leaves_processes:
            others = [str(process) for process in holders(self.run.lock) if process.pid != os.getpid()]
            found.append(mask_text(", ".join(others)) or "unknown")
        return ", ".join(found)

    def _where(self, started: float) -> Where:
        progress = self.run.progress()
        from_epoch = progress.epoch if progress else 0
        return Where(socket.gethostname(), os.getpid(), self.scheduled, started, from_epoch)

    def _goes_on(self, outcome: Outcome) -> bool:
        """Whether an elastic run goes on from its checkpoint, as often as it gets to a further one, since what it keeps
        in memory could not help: its engine was killed, or its ranks are of several."""
        if not self.elastic or self.stopping or outcome.status is not Ending.KILLED:
            return False
        beyond_memory = outcome.exit_code is None or self.starter.nodes > 1
        return beyond_memory and self.run.saved_at() > outcome.started

    def _retries(self, outcome: Outcome, before: Outcome | None) -> bool:
        """Return whether the run is tried again, and count that attempt."""
        if self.stopping or self.overdue.startswith("took") or not outcome.status.is_failure:
            return False
        if outcome.status is Ending.KILLED and self.kill_retries > 0:
            self.kill_retries -= 1
            return True
        if self.retries <= 0 or not self._may_end_otherwise(outcome, before):
            return False
        self.retries -= 1
        return True

    def _may_end_otherwise(self, outcome: Outcome, before: Outcome | None) -> bool:
        # What fails twice in the same way will fail a third time; a kill has its reason outside the run.
        return outcome.status is Ending.KILLED or before is None or outcome.reason != before.reason


def stopped_ranks(engine: int | None) -> list[int]:
    """Return the ranks of which a signal has stopped some process, as SIGSTOP does.

    A process belongs to the rank whose log it writes, or whose log the nearest process above it writes.
    """
    ranks: dict[int, int] = {}
    stopped = set()
    for process in descendants(engine) if engine is not None else ():
        log = process.open_file(1)
        number = RANK_LOG.fullmatch(log.name) if log is not None else None
        rank = int(number[1]) if number else ranks.get(process.parent)
        if rank is not None:
            ranks[process.pid] = rank
            if process.state == STOPPED:
                stopped.add(rank)
    return sorted(stopped)


def _changed(path: Path) -> int | None:
    """When `path` was last touched; None where it is absent."""
    try:
        return path.stat().st_mtime_ns
    except FileNotFoundError:
        return None


def parser(prog: str, about: str) -> argparse.ArgumentParser:
    """What every agent may be told."""
    parser = argparse.ArgumentParser(prog=prog, description=about)
    parser.add_argument("run_dir", type=Path)
    parser.add_argument("--retries", type=int, default=0, metavar="R")
    parser.add_argument(
        "--kill-retries", type=int, default=0, metavar="K", help="after a kill, before --retries"
    )
    known = (
        "attempts that there were when the run was handed out; one that has failed since is another's failure"
    )
    parser.add_argument("--known", type=int, metavar="N", help=known)
    return parser


def run(agent: Agent) -> Outcome:
    """Bring the agent's run to its end, which is also said on standard output; signals stop it."""
    signal.signal(signal.SIGTERM, agent.stop)
    signal.signal(signal.SIGINT, agent.stop_now)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, HELD_BACK)
    try:
        outcome = agent.execute()
    except (OSError, ValueError, KeyError) as error:
        gone = f"{agent.run.path} was moved or deleted while it ran"
        reason = f"{type(error).__name__}: {error}" if agent.run.path.is_dir() else gone
        outcome = Outcome(Ending.FAILED, reason=reason)
    print(json.dumps(outcome.as_json()), flush=True)
    return outcome


def exit_code(outcome: Outcome) -> int:
    return 0 if outcome.status.has_result or outcome.status is Ending.ELSEWHERE else 1


def main(argv: list[str]) -> int:
    read = parser("python -m cpdrun.launch.attempt.agent", __doc__.split("\n")[0])
    read.add_argument("--warm", type=int, metavar="FD", help="the control socket of a warm engine")
    read.add_argument("--parent", type=int, metavar="PID", help="die when this process does")
    arguments = read.parse_args(argv)
    if arguments.parent is not None:
        die_with(arguments.parent)
    starter = Starter(arguments.warm)
    retries = {"retries": arguments.retries, "kill_retries": arguments.kill_retries}
    agent = Agent(RunDir(arguments.run_dir), starter, **retries, known=arguments.known)
    return exit_code(run(agent))


def _note(log: Any, text: str) -> None:
    log.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text}\n")
    log.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
