"""The loop of a launch, which polls the executor and stops it on request or after certain failures."""

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator

from cpdrun.errors import UserError
from cpdrun.launch.base import Event, Executor, FolderGoneError, LaunchOptions
from cpdrun.launch.progress.display import DISK_FULL, Display
from cpdrun.record import Outcome, SweepDir, cancellation

POLL_S = 0.25
STOPPING = "stopping: runs save at their next step (Ctrl-C again: at once)"


def drive(
    executor: Executor,
    sweep: SweepDir,
    options: LaunchOptions,
    display: Display,
    cancelled_before: int | None,
    on_end: Callable[[Event, bool], None] | None = None,
) -> Iterator[Event]:
    """Yield the events of a sweep until no job is left.

    The executor is stopped on Ctrl-C, by `cpdrun cancel` from another shell, if the disk is full, and with
    `options.fail_fast` at the first failure.

    Args:
        executor: The executor of the jobs.
        sweep: The sweep.
        options: The options of the launch.
        display: The display of the launch.
        cancelled_before: The sweep's cancellation at the start. Only a later cancellation stops the executor.
        on_end: A function that is called when a run ends, with the event and whether the sweep is stopping. The
            function may submit more jobs unless the sweep is stopping. It is no longer called after a full disk or a
            failure has stopped the executor.

    Raises:
        FolderGoneError: The sweep's folder does not exist any more.
    """
    presses, is_broken = 0, False
    with _stop_signals() as signals:
        while executor.unfinished:
            for event in executor.poll(POLL_S):
                _check_folder(sweep, executor)
                yield event
                if event.outcome and not presses and (why := _stops(event.outcome, options)):
                    display.say(f"stopping {why}; runs save at their next step")
                    executor.cancel(now=False)
                    signals.append(signal.SIGTERM)
                    presses, is_broken = 1, True
                if event.outcome and on_end is not None and not is_broken:
                    on_end(event, bool(signals))
            _check_folder(sweep, executor)
            if not presses and cancellation(sweep) != cancelled_before:
                signals.append(signal.SIGTERM)
            while len(signals) > presses:
                executor.cancel(now=presses > 0)
                display.say("stopping now" if presses else STOPPING)
                presses += 1
            display.update(executor.running)


@contextlib.contextmanager
def _stop_signals() -> Iterator[list[int]]:
    """Collect the signals SIGINT, SIGTERM, and SIGHUP in a list. SIGHUP remains ignored under nohup."""
    received: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield received
        return
    numbers = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        numbers.append(signal.SIGHUP)
    before = [signal.signal(number, lambda number, _: received.append(number)) for number in numbers]
    try:
        yield received
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


def _check_folder(sweep: SweepDir, executor: Executor) -> None:
    if not sweep.path.is_dir():
        with contextlib.suppress(OSError, UserError):
            executor.cancel(now=True)
        raise FolderGoneError(
            f"{sweep.path} was moved or deleted while its runs trained, so the runs were stopped"
        )


def _stops(outcome: Outcome, options: LaunchOptions) -> str:
    """Return the reason why the end of a run stops all other runs, or "" if it does not."""
    if not outcome.status.is_failure:
        return ""
    if DISK_FULL in outcome.reason:
        return "because the disk is full"
    return "at the first failure" if options.fail_fast else ""
