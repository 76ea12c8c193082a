"""One rank of a user's script, in the process that torchrun's engine starts.

This process starts the script in a separate process (or another launcher's command, which starts all of the script's
ranks). It writes the script's log, reads its metrics, stops it if necessary, and reports how it ended. Rank 0 writes
done.json if every rank has ended with exit code 0 and the metric that judges the run was found.
"""

import os
import re
import shlex
import signal
import socket
import sys
import time
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch.distributed as dist

from cpdrun.attach.environment import ATTEMPT_DIR, NOT_FINITE, RUN_DIR
from cpdrun.attach.script_process import BoundedLog, ScriptProcess
from cpdrun.config.initial_weights import check_unchanged
from cpdrun.config.script import SCRIPT, filled, found, has_launcher, stem, words
from cpdrun.config.secrets import mask_text, revealed
from cpdrun.errors import FAILED, OK, UserError
from cpdrun.process_tree import Process, this_process
from cpdrun.record import Attempt, RunDir, read_config, remove, write_json
from cpdrun.script_metrics.metric_files import GrowingFile
from cpdrun.script_metrics.output import (
    attached_facts,
    growing_files,
    printed_rows,
    reads_output,
    tensorboard_events,
)
from cpdrun.script_metrics.patterns import Patterns
from cpdrun.script_metrics.result import Tally, result
from cpdrun.train.ranks import heartbeat

TORCHRUN_VARIABLES = re.compile(
    r"(LOCAL_|GROUP_|ROLE_)?(RANK|WORLD_SIZE|WORLD_RANK|NAME)|MASTER_(ADDR|PORT)|TORCHELASTIC_\w+"
)
ERROR = re.compile(r"(?:\[rank\d+\]: )?([\w.]*(?:Error|Exception|Interrupt|Exit)\b.*|.*\berror: .*)")
LAST_LINES = 50  # If more lines than this follow an error, it did not end the script.
OURS = "cpdrun: "  # the beginning of the lines that cpdrun prints to a script's log
STATUS_EVERY_S = 1.0
ENDED = "cpdrun/ended"  # the prefix of the keys in the store with which ranks report how they ended
POLL_S = 0.1
WELL, STOPPED = "well", "stopped"


def run_rank(run_dir: str) -> int:
    """Run the rank that the environment variable RANK specifies.

    Returns:
        The exit code: 0 if the script finished, 75 if it stopped on request, 2 if it cannot be started, otherwise the
        exit code of the script. If a signal killed the script, this process ends with the same signal.
    """
    run, attempt = RunDir(Path(run_dir).resolve()), Attempt(Path(os.environ[ATTEMPT_DIR]).resolve())
    rank = int(os.environ.get("RANK", "0"))
    log = BoundedLog(attempt.rank_log(rank))
    for fd in (1, 2):
        os.dup2(log.fd, fd)
    config = revealed(read_config(run))
    try:
        return _Rank(run, attempt, rank, config, log).execute()
    except UserError as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        return error.exit_code


class _FailureReason:
    """Finds the line of a script's output that best explains its failure.

    This is an error line of cpdrun if there is one. Otherwise, it is the last error, or else the last line.
    """

    def __init__(self) -> None:
        self._error = self._last_line = self._not_finite = ""
        self._lines_since = 0  # the number of lines since the error

    def read(self, line: str) -> None:
        """Process the next line of the output."""
        error = ERROR.match(line)
        is_theirs = not line.startswith("error: ")
        if error is not None and not (is_theirs and self._error.startswith("error: ")):
            self._error, self._lines_since = error[1].strip(), 0
        elif line.startswith(NOT_FINITE):
            self._not_finite = line.removeprefix(OURS)
        elif not line.startswith(OURS):
            self._last_line = line.strip()
            self._lines_since += 1

    def message(self, name: str, code: int) -> str:
        """Return the error message for a script that ended with this exit code."""
        reason = (self._lines_since <= LAST_LINES and self._error) or self._last_line
        if reason.startswith("error: "):  # This is cpdrun's own message, which is complete.
            return reason
        cause = f"; {self._not_finite}" if self._not_finite else ""
        return f"error: {name} ended with exit code {code}{f': {reason}' if reason else ''}{cause}"


class _Rank:
    def __init__(
        self, run: RunDir, attempt: Attempt, rank: int, config: dict[str, Any], log: BoundedLog
    ) -> None:
        self.run, self.attempt, self.rank, self.config, self.log = run, attempt, rank, config, log
        self.script = config[SCRIPT]
        self.name = f"{stem(self.script)}.py" if self.script["path"].endswith(".py") else stem(self.script)
        self.tally, self.patterns, self.failure = Tally(), Patterns(self.script), _FailureReason()
        self.reads_output = reads_output(self.script)
        self.status_written = self.stop_sent = 0.0
        self.resumes = False  # whether the script resumes from a checkpoint of an earlier attempt
        self.files: list[GrowingFile] = []

    def execute(self) -> int:
        began = time.time()
        heartbeat.start(self.attempt.pulse)
        if self.rank == 0:
            self._begin()
        process = self._start()
        for line in process.lines(self.log, lambda: self._poll(process)):
            heartbeat.beat()
            self.failure.read(line)
            if self.rank == 0 and self.reads_output and (row := self.patterns.row(line)) is not None:
                self.run.append_row(row)
        if process.left_behind:
            left = mask_text(", ".join(map(self._description, process.left_behind)))
            print(f"cpdrun: {self.name} has ended, but left processes running: {left}", flush=True)
            with suppress(OSError), self.attempt.left_running.open("a", encoding="utf-8") as file:
                file.write(f"{left}\n")
        assert process.exit_code is not None
        code = self._exit_code(process.exit_code)
        if code not in (OK, os.EX_TEMPFAIL):
            return code
        if not _all_ended(code == OK, self.config["patience_s"]):
            return os.EX_TEMPFAIL
        if self.rank == 0:
            self._finish(began)
        return OK

    def _description(self, process: Process) -> str:
        """Return the name of a process that the script left running.

        A fork of the script is named by the script, because its command line is that of cpdrun.
        """
        if process.command == this_process().command:
            return f"{process.pid} (a fork of {self.name})"
        return str(process)

    def _begin(self) -> None:
        """Remove the metrics of earlier attempts if the script starts anew, without a checkpoint."""
        self.resumes = self.run.saved_at() > 0
        if not self.resumes:
            written = [file.path for file in growing_files(self.config, self.run)]
            for path in (self.run.metrics, self.run.status, *written):
                remove(path)
        self.files = growing_files(self.config, self.run)

    def _start(self) -> ScriptProcess:
        found(self.config)
        check_unchanged(self.config)
        folder = Path(filled(self.script["work_dir"], self.config, self.run.path))
        if not folder.is_dir() and not self.script["work_dir"].startswith("{run_dir}"):
            raise UserError(f"script.work_dir={folder} does not exist")
        folder.mkdir(parents=True, exist_ok=True)
        os.environ |= {RUN_DIR: str(self.run.path), ATTEMPT_DIR: str(self.attempt.path)}
        if self.config["device"] == "cpu":
            os.environ["CUDA_VISIBLE_DEVICES"] = ""
        if has_launcher(self.config):
            return self._start_launcher(folder)
        from cpdrun.attach import runner

        return ScriptProcess.fork(lambda: runner.main(self.run.path, self.config))

    def _start_launcher(self, folder: Path) -> ScriptProcess:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        launcher = shlex.split(self.script["launch_with"])
        path = self.script["path"]
        command = [
            *(filled(word, self.config, self.run.path, port) for word in launcher),
            *("-m", "cpdrun.attach"),
            *(shlex.split(path) if path.startswith("-m") else [str(found(self.config))]),
            *words(self.config, self.run.path, port),
        ]
        print(f"cpdrun: {shlex.join(command)}", flush=True)
        environ = {k: value for k, value in os.environ.items() if not TORCHRUN_VARIABLES.fullmatch(k)}
        environ["PYTHONUNBUFFERED"] = "1"
        try:
            return ScriptProcess.start(command, environ, str(folder))
        except OSError as error:
            raise UserError(f"script.launch_with: {command[0]} cannot be started: {error.strerror}") from None

    def _poll(self, process: ScriptProcess) -> None:
        """Stop the script if the run is preempted, and read what it has logged."""
        if self.run.preempt.exists() and process.exit_code is None:
            self._stop(process)
        if self.rank == 0 and time.monotonic() - self.status_written > STATUS_EVERY_S:
            self.status_written = time.monotonic()
            self._read_files(last=False)
            if self.tally.follow(self.run.metrics):
                progress = self.tally.progress(self.script, time.time())
                write_json(self.run.status, progress.as_json())

    def _stop(self, process: ScriptProcess) -> None:
        """Send SIGTERM, and SIGKILL after the grace period. A script that calls run.should_stop() gets no signal."""
        if self.attempt.polls_stop.exists():
            return
        if not self.stop_sent:
            self.stop_sent = time.monotonic()
            print(f"cpdrun: the run should stop, so {self.name} gets SIGTERM", flush=True)
            process.signal(signal.SIGTERM)
        elif time.monotonic() - self.stop_sent > self.script["grace_s"]:
            process.signal(signal.SIGKILL)

    def _exit_code(self, code: int) -> int:
        """Return the exit code of this rank, and print why a script failed."""
        if self.stop_sent or (self.attempt.stop_delivered.exists() and code in (OK, os.EX_TEMPFAIL)):
            return os.EX_TEMPFAIL
        if code == OK:
            return OK
        if code < 0:
            if -code not in (signal.SIGKILL, signal.SIGSTOP):
                signal.signal(-code, signal.SIG_DFL)
            os.kill(os.getpid(), -code)
            time.sleep(1)
        print(self.failure.message(self.name, code), file=sys.stderr, flush=True)
        return code if code != os.EX_TEMPFAIL else FAILED

    def _finish(self, began: float) -> None:
        self._read_files(last=True)
        for row in tensorboard_events(self.config, self.run, 0.0 if self.resumes else began):
            self.run.append_row(row)
        self.tally.follow(self.run.metrics)
        if not self.tally.metrics:
            for row in printed_rows(self.run, self.script):
                self.run.append_row(row)
            self.tally.follow(self.run.metrics)
        ended = result(self.tally, self.config, time.time() - began, attached_facts(self.run))
        write_json(self.run.status, self.tally.progress(self.script, time.time()).as_json())
        write_json(self.run.done, ended.as_json())

    def _read_files(self, *, last: bool) -> None:
        for file in self.files:
            for row in file.last() if last else file.rows():
                heartbeat.beat()
                self.run.append_row(row)


def _all_ended(well: bool, patience_s: float) -> bool:
    """Wait until every rank that torchrun started has ended, and return whether all of them finished.

    A rank that stopped on request did not finish. If a rank fails, torchrun ends all other ranks, including this one.
    Waiting does not count as progress: if another rank hangs, the watchdog ends this rank after `patience_s`.
    """
    ranks, rank = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))
    if ranks == 1:
        return well
    store, _, _ = next(dist.rendezvous("env://", timeout=timedelta(seconds=patience_s)))
    ended = dist.PrefixStore(ENDED, store)
    ended.set(str(rank), WELL if well else STOPPED)
    keys = [str(other) for other in range(ranks)]
    while not ended.check(keys):
        time.sleep(POLL_S)
    return all(ended.get(key) == WELL.encode() for key in keys)
