"""The agent of a run, which claims the run, starts its ranks, and reports how they ended.

    python -m cpdrun.launch.attempt.agent RUN_DIR [--retries R] [--known N] [--warm FD] [--parent PID]

Each run has its own agent process, which does not import torch. The agent prints the outcome as its last line on
standard output, in the same JSON as the attempt's exit.json. The launcher reads this line instead of the file, so that
a full disk is reported, too. On SIGTERM, the ranks save and stop at their next step. On SIGINT, they are killed. All
child processes of the agent inherit the run's lock. While any of them is alive, no other process can claim the run.
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
# The environment variables that differ between runs. A warm engine was started before they were set, so the agent sends
# them with its request.
ENVIRON = ["CUDA_VISIBLE_DEVICES", VARIABLE]
WATCH_S = 1.0
MOST_RANKS = 64  # the maximum number of ranks whose remaining processes are listed
OVERTIME_S = 30.0  # the time that a run has to save and stop after its limit
# The launcher blocks these signals when it starts an agent. The agent unblocks them when it can handle them.
DEFERRED_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)


class Agent:
    """Makes the attempts to train one run, from the claim of the run to the last outcome.

    Args:
        run: The run.
        starter: The object that starts the ranks of the run.
        retries: The number of further attempts after a failure.
        kill_retries: The number of further attempts after a signal killed a rank. They come before `retries`.
        known: The number of attempts that the run had when it was assigned to this agent. If another launcher has
            failed in a later attempt, the run is not tried again. None to ignore attempts of other launchers.
    """

    scheduled: str | None = None  # the name of this process in a scheduler

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
        self.overdue = ""  # the reason why the watchdog ends the attempt
        self.hung_rank: int | None = None  # the rank that hangs, if it is known
        self.naming_s = 0.0  # the time that ranks have to find out which of them hangs
        self.watchdog: Watchdog | None = None

    def execute(self) -> Outcome:
        """Run the attempts until one succeeds or no retries are left, and return the last outcome."""
        requested_before = _modified_ns(self.run.preempt)
        lock = claim(self.run)
        if lock is None:
            return Outcome(Ending.ELSEWHERE, reason="another launcher trains this run")
        if requested_before and requested_before == _modified_ns(self.run.preempt):
            self.run.preempt.unlink(missing_ok=True)  # The request is older than this agent.
        self._start_watching()
        try:
            return self._attempts(lock)
        finally:
            release(self.run, lock)

    def _start_watching(self) -> None:
        # The signals must reach the main thread, because a signal in another thread does not interrupt its wait for the
        # engine.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, DEFERRED_SIGNALS)
        threading.Thread(target=self._watch, daemon=True).start()
        signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def _watch(self) -> None:
        last_heartbeat = -HEARTBEAT_S
        while True:
            now = time.monotonic()
            if now - last_heartbeat >= HEARTBEAT_S:
                last_heartbeat = now
                with contextlib.suppress(OSError):
                    # Another process has claimed the run, because this process was suspended for so long that it seemed
                    # to be dead.
                    if not heartbeat(self.run):
                        os.kill(os.getpid(), signal.SIGINT)
                        return
            if (watchdog := self.watchdog) is not None:
                self._look(watchdog)
            time.sleep(WATCH_S)

    def _look(self, watchdog: Watchdog) -> None:
        watchdog.look()
        if watchdog.overtime_s > 0 and not self.overdue:
            self.overdue = (
                f"took longer than limit_s={watchdog.limit_s:g}. With a higher limit, it continues from its "
                "checkpoint"
            )
            with contextlib.suppress(OSError):
                self.run.preempt.touch()
        if watchdog.overtime_s > OVERTIME_S or self._hangs(watchdog):
            self.starter.kill()

    def _hangs(self, watchdog: Watchdog) -> bool:
        """Return whether the attempt must be killed because it hangs. If so, set `overdue` and `hung_rank`.

        If one rank hangs, the other ranks have `naming_s` seconds to find out which rank hangs. If a signal has stopped
        a rank, the agent does not wait for the other ranks, because it can see the state of the process itself.
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
            if not self._continues(outcome) and not self._retries(outcome, before):
                return outcome
            before = outcome

    def stop(self, *_: Any) -> None:
        """Handle a signal: ask the ranks to save and stop at their next step."""
        self.stopping = True
        self.run.preempt.touch()

    def stop_now(self, *_: Any) -> None:
        """Handle a signal: kill the ranks."""
        self.stopping = self.stopping_now = True
        self.starter.kill()

    def _attempt(self, lock: int) -> Outcome:
        config = read_config(self.run)
        self.elastic = config.get("elastic", False)  # Older records lack the key.
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
            is_of_script = is_script(config)
            self.naming_s = NAMING_S if config["nproc"] > 1 and not is_of_script else 0.0
            signs = OF_SCRIPT if is_of_script else OF_TRAINING
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
        except OSError:  # The disk is full. If the run has its result, these files are not essential.
            if not self.run.done.exists():
                raise
        return outcome

    def _left_running(self, attempt: Attempt) -> str:
        """Return the processes that are still running after the ranks have ended, or "" if there are none."""
        found = tail(attempt.left_running, MOST_RANKS)
        if self.starter.leaves_processes:
            others = [str(process) for process in holders(self.run.lock) if process.pid != os.getpid()]
            found.append(mask_text(", ".join(others)) or "unknown")
        return ", ".join(found)

    def _where(self, started: float) -> Where:
        progress = self.run.progress()
        from_epoch = progress.epoch if progress else 0
        return Where(socket.gethostname(), os.getpid(), self.scheduled, started, from_epoch)

    def _continues(self, outcome: Outcome) -> bool:
        """Return whether an elastic run that was killed continues from its checkpoint in another attempt.

        Normally, the engine of an elastic run restarts killed ranks from a state in memory. This is impossible if the
        engine itself was killed or if the ranks belong to several engines. To avoid an endless loop, the attempt must
        have written a new checkpoint.
        """
        if not self.elastic or self.stopping or outcome.status is not Ending.KILLED:
            return False
        beyond_memory = outcome.exit_code is None or self.starter.nodes > 1
        return beyond_memory and outcome.started is not None and self.run.saved_at() > outcome.started

    def _retries(self, outcome: Outcome, before: Outcome | None) -> bool:
        """Return whether the run is tried again. If so, decrement the number of retries."""
        if self.stopping or self.overdue.startswith("took") or not outcome.status.is_failure:
            return False
        if outcome.status is Ending.KILLED and self.kill_retries > 0:
            self.kill_retries -= 1
            return True
        if self.retries <= 0 or not self._may_succeed(outcome, before):
            return False
        self.retries -= 1
        return True

    def _may_succeed(self, outcome: Outcome, before: Outcome | None) -> bool:
        # A run that has failed twice for the same reason would probably fail again. A killed run may succeed, because
        # the cause is outside of the run.
        return outcome.status is Ending.KILLED or before is None or outcome.reason != before.reason


def stopped_ranks(engine: int | None) -> list[int]:
    """Return the ranks with a process that a signal such as SIGSTOP has stopped.

    A process belongs to a rank if its standard output is the log of that rank. Other processes belong to the rank of
    their parent.

    Args:
        engine: The process id of the engine that started the ranks. None if it is not running.
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


def _modified_ns(path: Path) -> int | None:
    """Return when `path` was last modified, in nanoseconds, or None if it does not exist."""
    try:
        return path.stat().st_mtime_ns
    except FileNotFoundError:
        return None


def parser(prog: str, about: str) -> argparse.ArgumentParser:
    """Return a parser of the arguments that all agents have in common.

    Args:
        prog: The name of the program.
        about: The description of the program.
    """
    parser = argparse.ArgumentParser(prog=prog, description=about)
    parser.add_argument("run_dir", type=Path)
    parser.add_argument("--retries", type=int, default=0, metavar="R")
    parser.add_argument(
        "--kill-retries",
        type=int,
        default=0,
        metavar="K",
        help="further attempts after a signal killed a rank; they come before --retries",
    )
    known = "number of attempts when the run was assigned; if another launcher fails later, do not try again"
    parser.add_argument("--known", type=int, metavar="N", help=known)
    return parser


def run(agent: Agent) -> Outcome:
    """Execute the agent's run, print the outcome as a line of JSON, and return it.

    SIGTERM and SIGINT stop the run. An exception that prevents the run becomes an outcome, too.
    """
    signal.signal(signal.SIGTERM, agent.stop)
    signal.signal(signal.SIGINT, agent.stop_now)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, DEFERRED_SIGNALS)
    try:
        outcome = agent.execute()
    except (OSError, ValueError, KeyError) as error:
        gone = f"{agent.run.path} was moved or deleted during the run"
        reason = f"{type(error).__name__}: {error}" if agent.run.path.is_dir() else gone
        outcome = Outcome(Ending.FAILED, reason=reason)
    print(json.dumps(outcome.as_json()), flush=True)
    return outcome


def exit_code(outcome: Outcome) -> int:
    return 0 if outcome.status.has_result or outcome.status is Ending.ELSEWHERE else 1


def main(argv: list[str]) -> int:
    read = parser("python -m cpdrun.launch.attempt.agent", __doc__.split("\n")[0])
    read.add_argument(
        "--warm", type=int, metavar="FD", help="descriptor of the control socket of a warm engine"
    )
    read.add_argument("--parent", type=int, metavar="PID", help="end when the process PID ends")
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
