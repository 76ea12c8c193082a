"""Launch runs. Each command has one session, which keeps a warm process, checks configs, and runs jobs.

    with Session() as session:
        session.warm_up()                                      # Another process imports torch during planning.
        problems, notes = session.preflight(configs, options)
        summary = session.launch(sweep, jobs, launcher, options, display, cancelled_before)

`launch` may be called several times. The argument `more` adds jobs while other jobs still run: whenever a run ends,
`more(event)` returns the jobs to add. All launches use the same warm process, so a further run starts in tenths of a
second.
"""

import json
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Self

import yaml

from cpdrun.config.identity import format_facts
from cpdrun.config.secrets import hand_over, mask_text, masked
from cpdrun.errors import before_a_start, writing
from cpdrun.launch.attempt.connection import WarmEngine
from cpdrun.launch.base import Event, Job, LaunchError, LaunchOptions
from cpdrun.launch.drive import drive
from cpdrun.launch.executors import executor_class, make_executor
from cpdrun.launch.machine.resources import no_place_for_runs
from cpdrun.launch.progress.display import Display
from cpdrun.launch.summary import Summary, Tally
from cpdrun.record import SweepDir, check_inside, read_json, read_record, write_json, write_text

More = Callable[[Event], Sequence[Job]]


class Session:
    """A context manager that launches runs. It ends all its processes on exit. It is not thread-safe.

    Raises:
        LaunchError: No run can be started on this machine.
    """

    def __init__(self) -> None:
        self.warm = WarmEngine()
        self._began: float | None = None

    def __enter__(self) -> Self:
        if problem := no_place_for_runs():
            raise LaunchError(problem)
        return self

    def __exit__(self, *_: Any) -> None:
        self.warm.close()

    def warm_up(self) -> None:
        """Start importing torch in another process, so that runs start sooner.

        The reported duration of the first launch includes the time since this call.
        """
        self._began = time.monotonic()
        self.warm.start()

    def preflight(self, configs: list[dict[str, Any]], options: LaunchOptions) -> tuple[list[str], list[str]]:
        """Check configs before their runs are started. Nothing is written.

        The checks run in the warm process, from which the runs are forked later.

        Returns:
            A tuple: the problems that prevent training, such as missing data, and the notes for the user, such as
            products that stay in float32. Each problem and each note is one line.

        Raises:
            LaunchError: The launcher of a config does not exist.
        """
        for launcher in _each_once([config["launcher"] for config in configs if "launcher" in config]):
            if problem := executor_class(launcher).unavailable(configs, options):
                return [problem], []
        return self.warm.check(configs)

    def launch(
        self,
        sweep: SweepDir,
        jobs: Sequence[Job],
        launcher: dict[str, Any],
        options: LaunchOptions,
        display: Display,
        cancelled_before: int | None,
        *,
        more: More | None = None,
    ) -> Summary:
        """Run jobs to their ends, and return how they ended.

        After Ctrl-C, runs save and stop, and can be resumed. A second Ctrl-C kills them. If another launcher
        already trains the run of a job, this launch waits until that run ends and counts its outcome.

        Args:
            sweep: The sweep.
            jobs: The first jobs.
            launcher: The section `launcher` of a config: the class of an Executor, and its arguments.
            options: The options of the launch. Without `wait`, a scheduler gets the jobs and nothing is shown.
            display: The display of the progress.
            cancelled_before: The sweep's `cancellation` before the launch.
            more: A function that returns further jobs when a run has ended. After Ctrl-C, these jobs are not started,
                and only count as left to do.

        Raises:
            LaunchError: The whole sweep cannot continue, for example without a scheduler.
            CannotWriteError: A file cannot be written.
            FolderGoneError: The sweep's folder does not exist any more.
        """
        began, self._began = self._began or time.monotonic(), None
        tally = Tally(began)
        with before_a_start():
            executor = make_executor(launcher, sweep, options, self.warm)

        def submit(new: Sequence[Job]) -> None:
            if new:
                write_configs(new)
                executor.submit(list(new))
                tally.jobs += len(new)
                display.expect(len(new))

        def on_end(more: More, event: Event, is_stopping: bool) -> None:
            if not is_stopping:
                submit(more(event))
            elif event.outcome is not None and event.outcome.status.has_result:
                tally.jobs += len(more(event))

        try:
            with before_a_start():
                submit(jobs)
            if executor.note:
                display.console.print(executor.note, soft_wrap=True)
            if options.wait:
                with display:
                    callback = None if more is None else partial(on_end, more)
                    for event in drive(executor, sweep, options, display, cancelled_before, callback):
                        display.event(event)
                        tally.event(event)
        finally:
            executor.close()
        return tally.summary(executor.slots, waited=options.wait)


def _each_once(launchers: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return list({json.dumps(launcher, default=str): launcher for launcher in launchers}.values())


def _contents(path: Path) -> bytes | None:
    try:
        return read_record(path)
    except OSError:
        return None


def write_configs(jobs: Sequence[Job]) -> None:
    """Write config.yaml, overrides.txt and format.json of each job, unless they already exist.

    Secrets are masked in the files. The processes of the runs inherit them in an environment variable.
    """
    for job in jobs:
        if job.is_written:
            continue
        hand_over(job.config)
        config = yaml.dump(masked(job.config), Dumper=yaml.CSafeDumper, sort_keys=False)
        overrides = "".join(f"{mask_text(line)}\n" for line in job.overrides)
        with writing(job.run.path):
            check_inside(job.run.path.parent.parent, job.run.path)
            job.run.path.mkdir(parents=True, exist_ok=True)
            for path, text in ((job.run.overrides, overrides), (job.run.config, config)):
                if _contents(path) != text.encode():
                    write_text(path, text)
            facts = format_facts(job.config["format"])
            if read_json(job.run.format_facts) != facts:
                write_json(job.run.format_facts, facts)
