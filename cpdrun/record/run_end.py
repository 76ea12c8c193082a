"""Read the reason for a run's failure and its length from a record, for `cpdrun.stats.failures`."""

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
    """Return the kind of failure of a run, or None if it did not fail.

    A run that has a result, is in progress, was stopped on request, or has not begun did not fail.
    """
    if state_of(run) in (State.DONE, State.RUNNING, State.PENDING) or (last := run.last_attempt()) is None:
        return None
    return failure_in(last.outcome())


def failure_in(outcome: Outcome | None) -> Failure | None:
    """Return the kind of failure of an attempt, or None if it has a result or was stopped on request.

    Only an exit code above 0 counts as an error of the run itself. A signal, a hang, a time limit, a full disk, and a
    lack of memory may have a cause outside of the run.

    Args:
        outcome: The outcome of the attempt, or None if the attempt was killed together with its agent.
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
    """Return a string that two runs share only if they are equal bit for bit.

    The string is the digest of the weights. If the result has no digest, the string lists all metrics.

    Returns:
        The string. None if the run diverged, or if it has no digest and all its metrics are shares of counted
        samples, which may be equal by chance.
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
    """Return the length of a script's finished run: the last epoch that it logged.

    If the script logged no epochs, return the last step. If it logged no steps either, return the number of rows.

    Returns:
        The length. None if the script logged nothing, or for cpdrun's own training loop, whose finished runs are always
        complete.
    """
    if not is_script(config) and "epochs" in config:
        return None
    rows = list(run.logged())
    for places in ([row.epoch for row in rows], [row.step for row in rows]):
        if known := [place for place in places if place is not None]:
            return int(max(known))
    return len(rows) or None
