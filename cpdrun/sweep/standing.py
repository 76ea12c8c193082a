"""How the runs of a plan stand in the sweep's folder: what is done, what cannot be read, what was changed by hand."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from cpdrun.config.identity import run_name
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
from cpdrun.sweep.runs import Plan


@dataclass
class Standing:
    """By name: the state of every run that can be looked at, and what is wrong with those that are odd."""

    states: dict[str, State] = field(default_factory=dict)
    odd: dict[str, str] = field(default_factory=dict)
    edited: list[str] = field(default_factory=list)  # their config.yaml is of another run
    changed: dict[str, list[str]] = field(default_factory=dict)  # code or data since they were trained
    processors: Counter = field(default_factory=Counter)  # that trained those which are done

    def count(self, state: State) -> int:
        return sum(found is state for found in self.states.values())

    def notes(self, *, here: bool) -> list[str]:
        """What a user should know before more is trained. here: the next runs would be trained on this machine."""
        notes = []
        if self.edited:
            count = f"{len(self.edited)} run{'s' if len(self.edited) > 1 else ''}"
            notes.append(
                f"{count} whose config.yaml was changed by hand and no longer matches the hash in the folder's name: "
                f"{_few(self.edited)}; what is done there is not what its name says"
            )
        kinds = {*self.processors, *([processor()] if here and self.processors else [])}
        if differ(kinds):
            shares = [f"{count} on {described(kind)}" for kind, count in self.processors.most_common()]
            mine = (
                f"; this is {described(processor())}" if here and processor() not in self.processors else ""
            )
            notes.append(
                f"done runs, by processor: {', '.join(shares)}{mine}. Equal settings "
                "need not give equal bits there; --rerun all trains all of them anew"
            )
        return notes


def standing(sweep: Plan) -> Standing:
    """Look at every run of `sweep` that has a folder; one that cannot be read keeps no other from being looked at."""
    found = Standing()
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


def _look_at_config(run: RunDir, found: Standing) -> None:
    try:
        config = read_config(run)
        same = isinstance(config, Mapping) and run_name(config) == run.name
    except (FileNotFoundError, NotADirectoryError):
        return
    except (ValueError, KeyError, AttributeError, TypeError):
        same = False
    if not same:
        found.edited.append(run.name)


def _few(names: list[str]) -> str:
    return ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
