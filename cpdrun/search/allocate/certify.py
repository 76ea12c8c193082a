"""Write what a screen leaves behind: its runs as an experiment, the allocation, and the search that tests it."""

import shlex
from collections.abc import Sequence
from typing import Any

import yaml

from cpdrun.record import write_text
from cpdrun.search.allocate.allocation import Allocation
from cpdrun.search.allocate.cases import ALL_LOW, ALLOCATED, FP32
from cpdrun.search.allocate.experiment import copy_yaml, write_experiment
from cpdrun.search.allocate.question import CASE, ScreenQuestion
from cpdrun.search.allocate.results import Round
from cpdrun.search.allocate.words import allocation_facts, costs_of, level_text, round_facts

# The number of seeds that the written experiment lists. A search draws its own seeds.
SEARCH_SEEDS = 3


def write_rows(question: ScreenQuestion) -> None:
    """Write the screen's runs as an experiment, so that each can be run again by hand.

    The command is `cpdrun sweep --config-dir FOLDER exp=NAME case='row 01'`.

    Raises:
        OSError: A file cannot be written.
    """
    folder = question.directory.screen
    copy_yaml(question.config_dir, folder)
    about = f"The rows of `cpdrun search --allocate exp={question.experiment}`, as it wrote them.\n"
    seeds = question.settings.drawn
    write_experiment(folder, question.experiment, about, _body(question), question.by_case(), seeds)


def write_allocation(rounds: Sequence[Round], chosen: Allocation) -> str:
    """Write allocation.yaml and the experiment of the search that tests it, and return the command of that search.

    Raises:
        OSError: A file cannot be written.
    """
    question, found = rounds[-1].question, rounds[-1].found
    asked = question.settings
    name = f"{question.experiment}_{ALLOCATED}"
    uniform = {f"{level_text(level)} everywhere": question.cases.uniform(level) for level in asked.uniform}
    cases = {FP32: question.cases.baseline(), **uniform, ALLOCATED: question.cases.of(chosen.levels)}
    # The bound is cautious. The search measures the lowest levels, too.
    if (lowest := costs_of(question).lowest()) != chosen.levels:
        cases[ALL_LOW] = question.cases.of(lowest)
    search: dict[str, Any] = {
        k: v for k, v in question.search.items() if v is not None and k not in ("tune", "budget")
    }
    search |= {"baseline": {CASE: FP32}, "tolerance": found.tolerance * found.metric.scale}
    search |= {"metric": found.metric.name}
    about = f"The bits that `cpdrun search --allocate exp={question.experiment}` allocated, as it wrote them."
    folder = question.directory.screen
    write_experiment(folder, name, about, _body(question), cases, range(SEARCH_SEEDS), search)
    command = _command(question, name)
    facts = {
        "experiment": question.experiment,
        "command": command,
        **round_facts(rounds),
        "metric": found.metric.name,
        "tolerance": found.tolerance,
        "allocation": allocation_facts(question, chosen),
    }
    write_text(
        question.directory.allocation, yaml.safe_dump(facts, sort_keys=False, allow_unicode=True, width=120)
    )
    return command


def _body(question: ScreenQuestion) -> dict[str, Any]:
    """Return the experiment with the name of the screen's folder, so that its runs go to the same folder."""
    return question.body | {"name": question.directory.name}


def _command(question: ScreenQuestion, name: str) -> str:
    words: Sequence[str] = [word for word in question.words if not word.startswith("exp=")]
    typed = ["cpdrun", "search", "--config-dir", str(question.directory.screen), f"exp={name}", *words]
    return " ".join(map(shlex.quote, typed))
