"""A rank of the run of a user's script: the process that torchrun's engine starts.

It starts the script in a separate process (or another launcher's command, which starts all of the script's ranks),
writes its log, reads its metrics, tells it to stop, and reports how it ended. Rank 0 writes done.json when every rank
has ended with exit code 0 and the metric that decides was found.
"""

import os
import re
import shlex
import signal
import socket
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from cpdrun.attach.environment import ATTEMPT_DIR, NOT_FINITE, RUN_DIR
from cpdrun.attach.watched.log import BoundedLog
from cpdrun.attach.watched.process import ScriptProcess
from cpdrun.attach.watched.together import all_ended
from cpdrun.config.script import SCRIPT, filled, found, has_launcher, stem, words
from cpdrun.config.secrets import mask_text, revealed
from cpdrun.errors import FAILED, OK, UserError
from cpdrun.process_tree import Process, this_process
from cpdrun.record import Attempt, RunDir, read_config, remove, write_json
from cpdrun.script_metrics.files import GrowingFile
from cpdrun.script_metrics.output import (
    attached_gradients,
    growing_files,
    printed_rows,
    reads_output,
    tensorboard_events,
)
from cpdrun.script_metrics.patterns import Patterns
from cpdrun.script_metrics.result import Tally, result
from cpdrun.train.ranks import heartbeat

OF_TORCHRUN = re.compile(
    r"(LOCAL_|GROUP_|ROLE_)?(RANK|WORLD_SIZE|WORLD_RANK|NAME)|MASTER_(ADDR|PORT)|TORCHELASTIC_\w+"
)
ERROR = re.compile(r"(?:\[rank\d+\]: )?([\w.]*(?:Error|Exception|Interrupt|Exit)\b.*|.*\berror: .*)")
LAST_LINES = 50  # an error further from the end was not what ended the script
OURS = "cpdrun: "  # begins what we print into a script's log
STATUS_EVERY_S = 1.0


def run_rank(run_dir: str) -> int:
    """Be the rank that RANK says. Returns the exit status: 0 done, 75 stopped when asked to, 2 where the script cannot
    be started, else the script's own; a script that was killed by a signal takes this process with it."""
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


class _Rank:
    def __init__(
        self, run: RunDir, attempt: Attempt, rank: int, config: dict[str, Any], log: BoundedLog
    ) -> None:
        self.run, self.attempt, self.rank, self.config, self.log = run, attempt, rank, config, log
        self.script = config[SCRIPT]
        self.name = f"{stem(self.script)}.py" if self.script["path"].endswith(".py") else stem(self.script)
        self.tally, self.patterns = Tally(), Patterns(self.script)
        self.reads_output = reads_output(self.script)
        self.status_written = self.told_at = 0.0
        self.error = self.last_words = self.not_finite = ""
        self.since_error = 0
        self.goes_on = False  # from what an attempt before has saved
        self.files: list[GrowingFile] = []

    def execute(self) -> int:
        began = time.time()
        heartbeat.start(self.attempt.pulse)
        if self.rank == 0:
            self._begin()
        process = self._start()
        for line in process.lines(self.log, lambda: self._look(process)):
            heartbeat.beat()
            self._remember(line)
            if self.rank == 0 and self.reads_output and (row := self.patterns.row(line)) is not None:
                self.run.append_row(row)
        if process.left_behind:
            left = mask_text(", ".join(map(self._description, process.left_behind)))
            print(f"cpdrun: {self.name} has ended and left processes running: {left}", flush=True)
            with suppress(OSError), self.attempt.left_running.open("a", encoding="utf-8") as file:
                file.write(f"{left}\n")
        code = self._code(process.exit_code)
        if code not in (OK, os.EX_TEMPFAIL):
            return code
        ended_well = all_ended(code == OK, self.config["patience_s"])
        if not ended_well:
            return os.EX_TEMPFAIL
        if self.rank == 0:
            self._finish(began)
        return OK

    def _description(self, process: Process) -> str:
        """Name a process that the script left behind. A fork of the script has our command line, not the script's."""
        if process.command == this_process().command:
            return f"{process.pid} (a fork of {self.name})"
        return str(process)

    def _remember(self, line: str) -> None:
        """The line that says most of how the script ended: one of ours, the last that names an error, or the last."""
        error = ERROR.match(line)
        is_theirs = not line.startswith("error: ")
        if error is not None and not (is_theirs and self.error.startswith("error: ")):
            self.error, self.since_error = error[1].strip(), 0
        elif line.startswith(NOT_FINITE):
            self.not_finite = line.removeprefix(OURS)
        elif not line.startswith(OURS):
            self.last_words = line.strip()
            self.since_error += 1

    def _begin(self) -> None:
        """Without a checkpoint to resume from, the script starts again: remove what an earlier attempt logged."""
        self.goes_on = self.run.saved_at() > 0
        if not self.goes_on:
            written = [file.path for file in growing_files(self.config, self.run)]
            for path in (self.run.metrics, self.run.status, *written):
                remove(path)
        self.files = growing_files(self.config, self.run)

    def _start(self) -> ScriptProcess:
        found(self.config)
        folder = Path(filled(self.script["work_dir"], self.config, self.run.path))
        if not folder.is_dir() and not self.script["work_dir"].startswith("{run_dir}"):
            raise UserError(f"script.work_dir={folder} is not there")
        folder.mkdir(parents=True, exist_ok=True)
        os.environ |= {RUN_DIR: str(self.run.path), ATTEMPT_DIR: str(self.attempt.path)}
        if self.config["device"] == "cpu":
            os.environ["CUDA_VISIBLE_DEVICES"] = ""
        if has_launcher(self.config):
            return self._start_launcher(folder)
        from cpdrun.attach import runner

        return ScriptProcess.forked(lambda: runner.main(self.run.path, self.config))

    def _start_launcher(self, folder: Path) -> ScriptProcess:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        front = [
            filled(word, self.config, self.run.path, port) for word in shlex.split(self.script["launch_with"])
        ]
        behind = words(self.config, self.run.path, port)
        path = (
            shlex.split(self.script["path"])
            if self.script["path"].startswith("-m")
            else [str(found(self.config))]
        )
        command = [*front, "-m", "cpdrun.attach", *path, *behind]
        print(f"cpdrun: {shlex.join(command)}", flush=True)
        environ = {key: value for key, value in os.environ.items() if not OF_TORCHRUN.fullmatch(key)}
        environ["PYTHONUNBUFFERED"] = "1"
        try:
            return ScriptProcess.of_command(command, environ, str(folder))
        except OSError as error:
            raise UserError(f"script.launch_with: {front[0]} cannot be started: {error.strerror}") from None

    def _look(self, process: ScriptProcess) -> None:
        """Some times a second: is it to stop, and what has it logged?"""
        if self.run.preempt.exists() and process.exit_code is None:
            self._stop(process)
        if self.rank == 0 and time.monotonic() - self.status_written > STATUS_EVERY_S:
            self.status_written = time.monotonic()
            self._read_files(last=False)
            if self.tally.follow(self.run.metrics):
                progress = self.tally.progress(self.script, time.time())
                write_json(self.run.status, progress.as_json())

    def _stop(self, process: ScriptProcess) -> None:
        """A script that asks is left to end by itself; any other gets SIGTERM, and some time to save."""
        if self.attempt.asks.exists():
            return
        if not self.told_at:
            self.told_at = time.monotonic()
            print(f"cpdrun: asked to stop; {self.name} gets SIGTERM", flush=True)
            process.signal(signal.SIGTERM)
        elif time.monotonic() - self.told_at > self.script["grace_s"]:
            process.signal(signal.SIGKILL)

    def _code(self, code: int) -> int:
        """How the script ended, as the rank says it."""
        if self.told_at or (self.attempt.told.exists() and code in (OK, os.EX_TEMPFAIL)):
            return os.EX_TEMPFAIL
        if code == OK:
            return OK
        if code < 0:
            signal.signal(-code, signal.SIG_DFL) if -code not in (signal.SIGKILL, signal.SIGSTOP) else None
            os.kill(os.getpid(), -code)
            time.sleep(1)
        words = (self.since_error <= LAST_LINES and self.error) or self.last_words
        if words.startswith("error: "):  # ours, which says it all
            print(words, file=sys.stderr, flush=True)
        else:
            said = f"{self.name} ended with exit code {code}{f': {words}' if words else ''}"
            cause = f"; {self.not_finite}" if self.not_finite else ""
            print(f"error: {said}{cause}", file=sys.stderr, flush=True)
        return code if code != os.EX_TEMPFAIL else FAILED

    def _finish(self, began: float) -> None:
        self._read_files(last=True)
        since = 0.0 if self.goes_on else began
        for row in tensorboard_events(self.config, self.run, since):
            self.run.append_row(row)
        self.tally.follow(self.run.metrics)
        if not self.tally.metrics:
            for row in printed_rows(self.run, self.script):
                self.run.append_row(row)
            self.tally.follow(self.run.metrics)
        ended = result(self.tally, self.config, time.time() - began, attached_gradients(self.run))
        write_json(self.run.status, self.tally.progress(self.script, time.time()).as_json())
        write_json(self.run.done, ended.as_json())

    def _read_files(self, *, last: bool) -> None:
        for file in self.files:
            for row in file.last() if last else file.rows():
                heartbeat.beat()
                self.run.append_row(row)
