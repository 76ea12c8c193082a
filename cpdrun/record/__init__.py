# ruff: noqa: F401 (these names are imported for users of the package)
"""The record: the files of a run, and functions that read and write them.

:mod:`cpdrun.record.layout` defines all paths. The launcher, the trainer, and the report exchange data only through
these files. Nothing here imports torch.
"""

from cpdrun.record.cpu import described, differ, processor, processors
from cpdrun.record.entries import Best, Ending, EpochRow, LoggedRow, Lost, Outcome, Progress, Result, Where
from cpdrun.record.example_outcomes import (
    MAX_EXAMPLES,
    ExampleOutcomes,
    read_example_outcomes,
    write_example_outcomes,
)
from cpdrun.record.external_runs import InvalidValueError, write_run
from cpdrun.record.files import (
    NotRegularError,
    append_json_line,
    check_inside,
    json_text,
    open_record,
    read_arrays,
    read_json,
    read_json_lines,
    read_lines,
    read_object,
    read_record,
    remove,
    write_bytes,
    write_json,
    write_text,
)
from cpdrun.record.find import NotFoundError, find_runs, find_sweeps, find_sweeps_or_runs, split_results_dir
from cpdrun.record.layout import OBSERVED_LAYOUT, Attempt, RunDir, SweepDir
from cpdrun.record.lock import HEARTBEAT_S, claim, heartbeat, is_claimed, locked, release
from cpdrun.record.measure import Measure
from cpdrun.record.repository import changes_of, git, git_commit
from cpdrun.record.state import (
    State,
    cancellation,
    cancellation_before,
    failed_since,
    forget,
    garbage,
    state_of,
)
from cpdrun.record.version import VERSION, NewerRecordError, newer
from cpdrun.record.yaml_files import (
    EXPECTED_RUNS,
    read_config,
    read_expected_runs,
    read_manifest,
    read_overrides,
    read_search,
)
