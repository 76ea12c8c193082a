"""The agent of one run: claims it, starts its ranks, says how they ended. One process a run, without torch.

    python -m cpdrun.launch.agent RUN_DIR [--retries R] [--warm FD] [--parent PID] [--tasks T]

Its last line on standard output is the outcome as JSON, as in the attempt's exit.json; the launcher reads it
there, so that a full disk is reported too. SIGTERM asks the ranks to save and stop at their next step, SIGINT
stops them at once. SIGUSR1 is Slurm's warning of the time limit: save, stop, and requeue this very element. The
lock of the run is inherited by every process under the agent: while one of them lives, nobody else can claim
the run.
"""

import argparse
import contextlib
import ctypes
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import IO, Any

import yaml

from cpdrun.launch.connection import answer_of_tasks, ask, cold_connection, start_tasks, warm_connection
from cpdrun.launch.watchdog import NAMING_S, Watchdog
from cpdrun.record import (
    HEARTBEAT_S,
    Attempt,
    RunDir,
    claim,
    garbage,
    heartbeat,
    read_object,
    record_of,
    release,
    write_json,
)

ENVIRON = ["CUDA_VISIBLE_DEVICES"]  # what differs from run to run, so that a warm engine needs to be told
TAIL_BYTES = 16384
OUT_OF_MEMORY = re.compile(r"out of memory|OutOfMemoryError|MemoryError|can't allocate memory", re.IGNORECASE)
WATCH_S = 1.0
OVERTIME_S = 30.0  # to save and stop, once a run's limit is over
PR_SET_PDEATHSIG = 1
START_NOTE = "agent {} on"  # begins the log of every attempt
# Whoever starts an agent may block them until it can handle them.
HELD_BACK = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)


class Agent:
    """One run's attempts, from the claim to the last outcome."""

    def __init__(self, run: RunDir, *, retries: int = 0, warm: int | None = None, tasks: int = 1) -> None:
        self.run = run
        self.retries = retries
        self.warm = warm
        self.tasks = tasks  # of Slurm, over which the ranks are spread
        self.out_of_time = False
        self.stopping = self.stopping_now = False
        self.overdue = ""  # why the watchdog ends the attempt
        self.watchdog: Watchdog | None = None
        self.connection: socket.socket | None = None
        self.engine: int | None = None
        self.step: subprocess.Popen | None = None

    def execute(self) -> dict[str, Any]:
        """Bring the run to its end, with up to `retries` further attempts, and return the last outcome."""
        asked_before = _changed(self.run.preempt)
        lock = claim(self.run)
        if lock is None:
            return {"outcome": "elsewhere", "reason": "another launcher has this run"}
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
        if watchdog.overtime_s > OVERTIME_S or watchdog.hangs:
            self.overdue = self.overdue or watchdog.hangs
            self._kill_ranks()

    def _attempts(self, lock: int) -> dict[str, Any]:
        if record_of(self.run) is not None:
            return {"outcome": "elsewhere", "reason": "another launcher has finished this run"}
        if self.run.done.exists():
            return {"outcome": "failed", "exit_code": None, "reason": garbage(self.run)}
        if self.stopping or self.run.preempt.exists():
            self.run.preempt.unlink(missing_ok=True)
            return {"outcome": "preempted", "exit_code": None, "reason": "stopped before it had begun"}
        before: dict[str, Any] = {}
        while True:
            outcome = self._attempt(lock)
            if not self._worth_a_retry(outcome, before):
                return outcome
            self.retries -= 1
            before = outcome

    def stop(self, *_: Any) -> None:
        """Signal handler: have the ranks save and stop at their next step."""
        self.stopping = True
        self.run.preempt.touch()

    def stop_now(self, *_: Any) -> None:
        """Signal handler: have the ranks killed."""
        self.stopping = self.stopping_now = True
        self._kill_ranks()

    def _kill_ranks(self) -> None:
        if (connection := self.connection) is not None:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_WR)  # the engine dies of it; we read until all are gone
            if self.engine is not None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self.engine, signal.SIGKILL)  # it may be stopped, and hear nothing
        elif (step := self.step) is not None:
            step.terminate()  # srun then kills its tasks

    def time_is_up(self, *_: Any) -> None:
        """Signal handler: save, stop, and have Slurm run this element again."""
        self.out_of_time = True
        self.stop()

    def _attempt(self, lock: int) -> dict[str, Any]:
        config = yaml.load(self.run.config.read_text(encoding="utf-8"), yaml.CSafeLoader)
        attempt = self.run.new_attempt()
        started = time.time()
        write_json(attempt.where, where(self.run, started))
        with attempt.agent_log.open("a", encoding="utf-8") as log:
            _note(
                log,
                f"{START_NOTE.format(os.getpid())} {socket.gethostname()}, {'warm' if self.warm else 'cold'} start",
            )
            request = {
                "do": "run",
                "run_dir": str(self.run.path),
                "attempt_dir": str(attempt.path),
                "nproc": config["nproc"],
                "threads": config["threads"],
                "nodes": self.tasks,
                "environ": {name: os.environ[name] for name in ENVIRON if name in os.environ},
            }
            naming_s = NAMING_S if config["nproc"] > 1 else 0.0
            self.overdue = ""
            self.watchdog = Watchdog(attempt.pulse, config["patience_s"] + naming_s, config["limit_s"])
            answer = self._srun(request, log) if self.tasks > 1 else self._engine(request, lock, log)
            self.watchdog = None
            outcome = {
                **classify(self.run, attempt, answer, stopped_now=self.stopping_now, overdue=self.overdue),
                "attempt": attempt.number,
                "started": started,
                "ended": time.time(),
            }
        self.run.preempt.unlink(missing_ok=True)
        try:
            with attempt.agent_log.open("a", encoding="utf-8") as log:
                _note(log, ": ".join(filter(None, (outcome["outcome"], outcome["reason"]))))
            write_json(attempt.exit, outcome)
        except OSError:  # the disk is full, which does no harm to a run that is done
            if not self.run.done.exists():
                raise
        return outcome

    def _engine(self, request: dict[str, Any], lock: int, log: IO[str]) -> dict[str, Any] | None:
        """Have an engine beside us start the ranks, and wait until they are gone."""
        with (self.warm and warm_connection(self.warm)) or cold_connection(log) as connection:
            self.connection = connection
            answer = None
            if not self.stopping_now:
                answer = ask(connection, request, [lock, log.fileno()], self._engine_started)
            self.engine = self.connection = None
        return answer

    def _engine_started(self, pid: int) -> None:
        self.engine = pid

    def _srun(self, request: dict[str, Any], log: IO[str]) -> dict[str, Any]:
        """Have srun start an engine in each task; they meet at a port of this node."""
        self.step = start_tasks(request, self.tasks, log)
        output, _ = self.step.communicate()
        answer = answer_of_tasks(output, self.step.returncode)
        self.step = None
        return answer

    def _worth_a_retry(self, outcome: dict[str, Any], before: dict[str, Any]) -> bool:
        if self.retries <= 0 or self.stopping or self.overdue.startswith("took"):
            return False
        if outcome["outcome"] in ("finished", "diverged", "preempted"):
            return False
        # What fails twice in the same way will fail a third time; a kill has its reason outside the run.
        return outcome["outcome"] == "killed" or outcome["reason"] != before.get("reason")


def where(run: RunDir, started: float) -> dict[str, Any]:
    """What another shell needs to find this attempt, and to tell how fast it goes."""
    return {
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "slurm_job": slurm_element(),
        "started": started,
        "from_epoch": (read_object(run.status) or {}).get("epoch", 0),
    }


def classify(
    run: RunDir, attempt: Attempt, answer: dict[str, Any] | None, *, stopped_now: bool, overdue: str = ""
) -> dict[str, Any]:
    """Name the end of an attempt, {"outcome", "exit_code", "rank", "reason"}: from done.json, exit and logs.

    `answer` is the engine's, or None where it was killed; `overdue` says why the watchdog had the attempt ended.
    """
    code = answer and answer["exit_code"]
    done = record_of(run)
    if done is not None:
        outcome, reason = done["status"], ""
    elif run.done.exists():
        outcome, reason = "failed", garbage(run)
    elif overdue and not stopped_now:
        outcome, reason = "failed", overdue
    elif code == os.EX_TEMPFAIL:
        outcome, reason = "preempted", "stopped at a step, on request"
    elif stopped_now:
        outcome, reason = "preempted", "stopped at once, on request"
    elif answer is None:
        outcome, reason = "killed", "the engine was killed"
    elif code == 0:
        outcome, reason = "failed", "the ranks ended without an error and without a result"
    elif code < 0:
        name = signal.Signals(-code).name
        outcome, reason = "killed", f"rank {answer['rank']} was killed by {name}"
        if code == -signal.SIGKILL:
            reason += " (by hand, or by the kernel for want of memory)"
    else:
        rank = answer["rank"]
        reason = last_line(attempt.rank_log(rank)) if rank is not None else ""
        words = last_line(attempt.agent_log)
        reason = reason or (words if START_NOTE.format(os.getpid()) not in words else "")
        reason = reason or f"rank {rank} ended with exit code {code}"
        outcome = "out of memory" if OUT_OF_MEMORY.search(reason) else "failed"
    return {"outcome": outcome, "exit_code": code, "rank": answer and answer["rank"], "reason": reason}


def _changed(path: Path) -> int | None:
    """When `path` was last touched; None where it is absent."""
    try:
        return path.stat().st_mtime_ns
    except FileNotFoundError:
        return None


def last_line(log: Path) -> str:
    """The last line of `log` that is not empty, or ""."""
    lines = tail(log, 1)
    return lines[-1].strip() if lines else ""


def tail(log: Path, count: int) -> list[str]:
    """The last `count` lines of `log` that are not empty; fewer, or none, where there are no more."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL_BYTES))
            text = file.read().decode("utf-8", "replace")
    except FileNotFoundError:
        return []
    return [line for line in text.splitlines() if line.strip()][-count:]


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m cpdrun.launch.agent", description=__doc__.split("\n")[0])
    parser.add_argument("run_dir", type=Path)
    parser.add_argument("--retries", type=int, default=0, metavar="R")
    parser.add_argument("--warm", type=int, metavar="FD", help="the control socket of a warm engine")
    parser.add_argument("--parent", type=int, metavar="PID", help="die when this process does")
    parser.add_argument(
        "--tasks", type=int, default=1, metavar="T", help="spread the ranks over T srun tasks"
    )
    arguments = parser.parse_args(argv)
    if arguments.parent is not None:
        _die_with(arguments.parent)
    run = RunDir(arguments.run_dir)
    agent = Agent(run, retries=arguments.retries, warm=arguments.warm, tasks=arguments.tasks)
    signal.signal(signal.SIGTERM, agent.stop)
    signal.signal(signal.SIGINT, agent.stop_now)
    signal.signal(signal.SIGUSR1, agent.time_is_up)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, HELD_BACK)
    try:
        outcome = agent.execute()
    except (OSError, yaml.YAMLError, KeyError) as error:
        gone = f"{run.path} was moved or deleted while it ran"
        reason = f"{type(error).__name__}: {error}" if run.path.is_dir() else gone
        outcome = {"outcome": "failed", "exit_code": None, "reason": reason}
    print(json.dumps(outcome), flush=True)
    if agent.out_of_time and outcome["outcome"] == "preempted":
        return requeue(run, outcome)
    return 0 if outcome["outcome"] in ("finished", "diverged", "elsewhere") else 1


def slurm_element() -> str | None:
    """The array element, or the job, that this process is; None outside Slurm."""
    array, index = os.environ.get("SLURM_ARRAY_JOB_ID"), os.environ.get("SLURM_ARRAY_TASK_ID")
    return f"{array}_{index}" if array else os.environ.get("SLURM_JOB_ID")


def requeue(run: RunDir, outcome: dict[str, Any]) -> int:
    """Have Slurm run this element again, unless its time was too short to get anywhere."""
    saved = run.checkpoint.stat().st_mtime if run.checkpoint.exists() else 0.0
    if saved < outcome.get("started", saved + 1):  # without an attempt there is no start
        print("not requeued: the time limit came before a first checkpoint; raise launcher.time", flush=True)
        return 1
    return subprocess.run(["scontrol", "requeue", slurm_element()], check=False).returncode


def _note(log: Any, text: str) -> None:
    log.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text}\n")
    log.flush()


def _die_with(parent: int) -> None:
    """Have the kernel kill this process when `parent` ends, even by kill -9."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
