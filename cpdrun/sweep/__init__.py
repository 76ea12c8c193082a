"""A sweep before it starts: its runs (asked, runs), its record (manifest), and what a user should know of it
(standing, needs, idle, dry_run)."""

from cpdrun.shell.called import is_function_too
from cpdrun.sweep.manifest import listed, write_manifest, write_question
from cpdrun.sweep.runs import Plan, PlannedRun, plan

__all__ = ["Plan", "PlannedRun", "listed", "plan", "write_manifest", "write_question"]

is_function_too(__name__)
