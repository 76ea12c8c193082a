"""What launches runs: one session a command, which keeps a warm process, looks at configs, and runs jobs.

    with Session() as session:
        session.warm_up()                                      # torch is imported beside us while we plan
        problems, notes = session.preflight(configs, options)
        summary = session.launch(sweep, jobs, launcher, options, display, cancelled_before)

`launch` may be called again and again (rounds), and with `more` takes further jobs while others still run: after
every run that has ended `more(event)` is asked for jobs to add. Both keep the warm process, so that a further run costs
tenths of a second.
"""

import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Self

import yaml

from cpdrun.config.format_facts import format_facts
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
    """A context manager; at its end no process is left. Not for several threads. Raises LaunchError where no run can be
    started."""

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
        """Start importing torch in a process beside this one; the earlier, the sooner runs start. What the first launch
        took is counted from here."""
        self._began = time.monotonic()
        self.warm.start()

    def preflight(self, configs: list[dict[str, Any]], options: LaunchOptions) -> tuple[list[str], list[str]]:
        """What keeps `configs` from being trained here (a model that does not import, missing data), and what their
        users should know before they are (products that stay in float32): a line each.

        Writes nothing. The process that looks is the one the runs are forked from afterwards. Raises LaunchError for a
        launcher that cannot be had.
        """
        for launcher in _each_once([config["launcher"] for config in configs if "launcher" in config]):
            if problem := executor_class(launcher).unavailable(configs, options):
                return [problem], []
        return self.warm.look(configs)

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
        """Run `jobs`, and those that `more` adds, to their ends, shown on `display`; how many went how.

        `launcher` is the config's group of that name: an Executor by `_target_`, and its arguments. `cancelled_before`
        is what `cancellation` said of the sweep before anything was looked at. Without `options.wait` a scheduler gets
        the jobs and nothing is shown. Ctrl-C stops gently (runs save and can be resumed; jobs that `more` still returns
        for a run that ends well count as left to do), a second one at once. A job that another launcher has is waited
        for, and counts as that one ended it.

        Raises LaunchError when the sweep as a whole cannot go on, such as where the scheduler is not there;
        CannotWriteError; FolderGoneError where the sweep's folder is gone.
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

        def on_end(event: Event, is_stopping: bool) -> None:
            if not is_stopping:
                submit(more(event))
            elif event.outcome.status.has_result:
                tally.jobs += len(more(event))

        try:
            with before_a_start():
                submit(jobs)
            if executor.note:
                display.console.print(executor.note, soft_wrap=True)
            if options.wait:
                with display:
                    told = None if more is None else on_end
                    for event in drive(executor, sweep, options, display, cancelled_before, told):
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
    """Write config.yaml, overrides.txt and format.json of each job, unless they are there already.

    Secrets are masked there; the processes of the runs inherit them in an environment variable.
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
