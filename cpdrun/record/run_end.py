"""Whether a run failed by itself, and how long it is: what `cpdrun.stats.failures` needs to know of a record."""

import errno
import os
from collections.abc import Mapping
from typing import Any

from cpdrun.config.script import is_script
from cpdrun.record.entries import Ending, Outcome, Result
from cpdrun.record.layout import RunDir
from cpdrun.record.measure import known_measure
from cpdrun.record.state import State, state_of
from cpdrun.stats.failures import Failure

DISK_FULL = os.strerror(errno.ENOSPC)


def failure_of(run: RunDir) -> Failure | None:
    """Return why the run failed; None if it has a result, is under way, was stopped on request, or never began."""
    if state_of(run) in (State.DONE, State.RUNNING, State.PENDING) or (last := run.last_attempt()) is None:
        return None
    return failure_in(last.outcome())


def failure_in(outcome: Outcome | None) -> Failure | None:
    """Return the failure that the end of an attempt is; None for a result or a stop on request.

    Without an outcome the attempt was killed together with its agent. Only an exit code above 0 is an error of the
    run's own: a signal, a hang, a time limit, a full disk and a lack of memory may have their cause outside of it.
    """
    if outcome is None:
        return Failure.UNKNOWN
    if not outcome.status.is_failure:
        return None
    has_own_error = (
        outcome.status is Ending.FAILED
        and (outcome.exit_code or 0) > 0
        and outcome.exit_code != os.EX_TEMPFAIL
        and DISK_FULL not in outcome.reason
    )
    return Failure.ERROR if has_own_error else Failure.UNKNOWN


def fingerprint_of(result: Result) -> str | None:
    """Return what is equal only for runs that are equal bit for bit: the weights' digest, or else all metrics.

    None for a run that diverged, and for one that recorded nothing but shares of counted samples, which may well agree
    by chance.
    """
    if result.status is Ending.DIVERGED:
        return None
    if result.weights_sha256 is not None:
        return result.weights_sha256
    measures = {name: result.measures.get(name) or known_measure(name) for name in result.metrics}
    if all(measure is not None and measure.of_samples for measure in measures.values()):
        return None
    return repr(sorted(result.metrics.items()))


def length_of(run: RunDir, config: Mapping[str, Any]) -> int | None:
    """Return how far a finished run got, in epochs, or else in steps, or else in logged rows.

    None for a run of our own training loop, which finishes only when it is complete, and for a run that logged nothing.
    """
    if not is_script(config) and "epochs" in config:
        return None
    rows = list(run.logged())
    for places in ([row.epoch for row in rows], [row.step for row in rows]):
        if known := [place for place in places if place is not None]:
            return int(max(known))
    return len(rows) or None
