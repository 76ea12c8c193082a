"""Find the state of a plan's runs in the sweep's folder.

A run may be done or unreadable. Its config may have been edited by hand, or its code or data may have changed since it
was trained.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from cpdrun.config.identity import hash_in, identity_hash
from cpdrun.config.plan import Plan
from cpdrun.record import (
    RunDir,
    State,
    described,
    differ,
    garbage,
    processor,
    processors,
    read_config,
    state_of,
)
from cpdrun.record.fingerprint import changed_runs


@dataclass
class RunStates:
    """The state of a plan's runs.

    Attributes:
        states: The state of each readable run, keyed by its name.
        odd: A description of the problem, for each run whose folder or record cannot be read.
        edited: The runs whose config.yaml does not match the hash in their name.
        changed: The parts of code and data that changed since a run was trained, for each such run.
        processors: The number of done runs for each kind of processor.
    """

    states: dict[str, State] = field(default_factory=dict)
    odd: dict[str, str] = field(default_factory=dict)
    edited: list[str] = field(default_factory=list)
    changed: dict[str, list[str]] = field(default_factory=dict)
    processors: Counter = field(default_factory=Counter)

    def count(self, state: State) -> int:
        return sum(found is state for found in self.states.values())

    def changed_line(self) -> str:
        """Return a line about the done runs whose code or data has changed."""
        names = list(dict.fromkeys(name for names in self.changed.values() for name in names))
        runs = f"{len(self.changed)} done run{'s' if len(self.changed) > 1 else ''}"
        return f"{runs} used different code or data ({_few(names)}). --rerun changed trains these runs again"

    def notes(self, *, here: bool) -> list[str]:
        """Return notes to read before more runs are trained, on this machine (`here`) or elsewhere."""
        notes = []
        if self.edited:
            count = f"{len(self.edited)} run{'s' if len(self.edited) > 1 else ''}"
            notes.append(
                f"{count} whose config.yaml was changed by hand and no longer matches the hash in the folder's name: "
                f"{_few(self.edited)}. The results there belong to other settings"
            )
        kinds = {*self.processors, *([processor()] if here and self.processors else [])}
        if differ(kinds):
            shares = [f"{count} on {described(kind)}" for kind, count in self.processors.most_common()]
            is_new = here and processor() not in self.processors
            mine = f". This machine has {described(processor())}" if is_new else ""
            notes.append(
                f"the finished runs were trained on different processors: {', '.join(shares)}{mine}. Equal settings "
                "may give different bits on them. --rerun all trains all runs again"
            )
        return notes


def run_states(sweep: Plan) -> RunStates:
    """Return the state of all runs of a sweep."""
    found = RunStates()
    done = []
    for planned in sweep.runs:
        run = sweep.directory.run(planned.name)
        try:
            state = found.states[planned.name] = state_of(run)
            if state is not State.PENDING or run.path.exists():
                _look_at_config(run, found)
        except OSError as error:
            found.states.pop(planned.name, None)
            found.odd[planned.name] = f"{error.filename or run.path}: {error.strerror}"
            continue
        if state is State.DONE:
            done.append(run)
            if run.result() is None:
                found.odd[planned.name] = garbage(run)
    found.processors = processors(done)
    configs = {planned.name: planned.config for planned in sweep.runs}
    found.changed = changed_runs((run, configs[run.name]) for run in done)
    return found


def _look_at_config(run: RunDir, found: RunStates) -> None:
    """Record a run as edited if its config does not match its name."""
    try:
        config = read_config(run)
        same = isinstance(config, Mapping) and identity_hash(config) == hash_in(run.name)
    except (FileNotFoundError, NotADirectoryError):
        return
    except (ValueError, KeyError, AttributeError, TypeError):
        same = False
    if not same:
        found.edited.append(run.name)


def _few(names: list[str]) -> str:
    return ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
