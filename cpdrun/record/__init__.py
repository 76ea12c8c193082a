"""The record: what a run leaves on disk, and what can be read back from it.

Every path of a sweep or a run is spelled in :mod:`cpdrun.record.layout`; launcher, trainer and report
meet nowhere else. Nothing here imports torch.
"""

from cpdrun.record.cpu import described, differ, processor, processors
from cpdrun.record.entries import Best, Ending, EpochRow, Outcome, Progress, Result, Where
from cpdrun.record.files import (
    append_json_line,
    read_json,
    read_json_lines,
    read_object,
    write_bytes,
    write_json,
    write_text,
)
from cpdrun.record.find import NotFoundError, find_runs, find_sweeps, find_sweeps_or_runs, split_results_dir
from cpdrun.record.foreign import read_config, read_manifest
from cpdrun.record.layout import Attempt, RunDir, SweepDir
from cpdrun.record.lock import HEARTBEAT_S, claim, heartbeat, is_claimed, locked, release
from cpdrun.record.repository import git, git_commit
from cpdrun.record.state import State, cancellation, failed_since, forget, garbage, state_of

__all__ = [
    "HEARTBEAT_S",
    "Attempt",
    "Best",
    "Ending",
    "EpochRow",
    "NotFoundError",
    "Outcome",
    "Progress",
    "Result",
    "RunDir",
    "State",
    "SweepDir",
    "Where",
    "append_json_line",
    "cancellation",
    "claim",
    "described",
    "differ",
    "failed_since",
    "find_runs",
    "find_sweeps",
    "find_sweeps_or_runs",
    "forget",
    "garbage",
    "git",
    "git_commit",
    "heartbeat",
    "is_claimed",
    "locked",
    "processor",
    "processors",
    "read_config",
    "read_json",
    "read_json_lines",
    "read_manifest",
    "read_object",
    "release",
    "split_results_dir",
    "state_of",
    "write_bytes",
    "write_json",
    "write_text",
]
