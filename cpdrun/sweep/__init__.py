"""Plan the runs of a sweep, and describe it before it starts.

    request           Reads the axes, cases, and exclusions that the user asks for.
    runs              Combines the axes into runs.
    manifest          Records the runs in sweep.yaml.
    run_states        Finds the runs that are done, changed, or unreadable.
    requirements      Finds missing data folders.
    ignored_settings  Finds settings without effect.
    shared_config     Describes the settings of the runs.
    dry_run           Prints all of this.

Planning writes nothing, and trains nothing.
"""

from cpdrun.shell.callable_package import is_function_too
from cpdrun.sweep.manifest import listed, write_manifest, write_question
from cpdrun.sweep.runs import Plan, PlannedRun, plan

__all__ = ["Plan", "PlannedRun", "listed", "plan", "write_manifest", "write_question"]

is_function_too(__name__)
