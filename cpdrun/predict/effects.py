"""What configurations would do to what a run observed, asked of a process that has torch, and kept beside the sweep.

An answer is {"role": {role: {"all": figures, "layers": {name: figures}}}, "said": [what was not seen, a sentence each]}
of the roles gradient, weight, update, activation and output_gradient; figures are numbers by name (underflow, snr_db,
cosine ...), null where there is none. cpdrun.train.observe.judged.effects says what each of them is.
"""

import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import cpdrun
from cpdrun.config.identity import identity_hash
from cpdrun.config.registry import foreign_names
from cpdrun.errors import FAILED, UserError
from cpdrun.record import Ending, RunDir, SweepDir, check_inside, open_record, read_object, write_json

Effects = dict[str, Any]
MODULE = "cpdrun.train.observe"
MAX_EFFECTS_BYTES = 64 << 20  # of the cache; a larger one is computed anew
MAX_ANSWER_BYTES = 1 << 30  # of the process that computes, which is our own
TRIES = 2  # of a process that a signal ended
PACKAGE = Path(cpdrun.__file__).parent / "train" / "observe"  # importing it imports torch


class NoEffectsError(UserError):
    """The process that computes them failed; the line is its last."""

    exit_code = FAILED


class DivergedError(UserError):
    """The baseline is nothing to compare with."""

    exit_code = FAILED


def is_observed(run: RunDir) -> bool:
    return run.observed.is_file()


def refuse_diverged(run: RunDir) -> None:
    """Raises DivergedError for the observed run of a baseline whose own training failed."""
    done = run.result()
    if done is not None and done.status is Ending.DIVERGED:
        raise DivergedError(
            f"{run.path} diverged: what it saw is of a training that fails by itself, and no format can be compared "
            f"with it; lower optim.lr, or see cpdrun explain {run.path}"
        )


def ask(
    run: RunDir,
    configs: Mapping[str, Mapping[str, Any]],
    beside: SweepDir | None = None,
    *,
    may_import: Collection[str] = (),
) -> dict[str, Effects]:
    """Return, by the same names, what each resolved config would do to the tensors of `run`.

    Answers about the same observation are cached in the sweep's folder.

    Args:
        run: an observed run.
        configs: resolved configurations. They may come from a record, which anyone may have written.
        beside: the sweep that keeps the answers; None for that of `run`.
        may_import: names of the user's own formats and classes that may be imported, because the user typed them or
            named the directory that holds them. Any other name that is not cpdrun's own is refused.

    Raises:
        NoEffectsError: a config names something that may not be imported, or the process that computes failed.
    """
    foreign = [name for each in configs.values() for name in foreign_names(each) if name not in may_import]
    if foreign:
        raise NoEffectsError(
            f"{run.path} names {foreign[0]}, which is not part of cpdrun: a record is data, and nothing that it names "
            "is imported"
        )
    sweep = beside or run.sweep
    cache = sweep.effects(_digest(run.observed))
    kept = read_object(cache, MAX_EFFECTS_BYTES) or {}
    known = {key: effects for key, effects in kept.items() if _is_whole(effects)}
    keys = {name: identity_hash(config) for name, config in configs.items()}
    missing = {keys[name]: dict(config) for name, config in configs.items() if keys[name] not in known}
    if missing:
        check_inside(sweep.path, cache)
        known |= _compute(run, missing)
        cache.parent.mkdir(parents=True, exist_ok=True)
        write_json(cache, known)
    return {name: known[key] for name, key in keys.items()}


def _compute(run: RunDir, configs: Mapping[str, Mapping[str, Any]]) -> dict[str, Effects]:
    """Ask the process that has torch. Raises NoEffectsError.

    A search that gets no answer starts elsewhere, and for good, so that a signal must not decide it: Ctrl-C on the
    terminal does not reach the process, and one that some signal has ended is started once more.
    """
    with tempfile.TemporaryDirectory() as folder:
        asked, out = Path(folder) / "configs.json", Path(folder) / "effects.json"
        asked.write_text(json.dumps(configs), encoding="utf-8")
        command = [sys.executable, "-m", MODULE, str(run.path), str(asked), str(out)]
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        for _ in range(TRIES):
            done = subprocess.run(
                [*command, "--parent", str(os.getpid())],
                env=environment,
                check=False,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                start_new_session=True,
            )
            if done.returncode >= 0:
                break
        found = read_object(out, MAX_ANSWER_BYTES)
        if done.returncode or found is None or not found.keys() >= configs.keys():
            said = done.stdout.strip().splitlines() or ["no output"]
            raise NoEffectsError(f"what {run.observed} says of these formats cannot be had: {said[-1]}")
    return {name: _figures(effects) for name, effects in found.items()}


def _figures(effects: Effects) -> Effects:
    """The numbers of an answer alone: neither histograms nor single steps. A config that does not fit has none."""
    roles = {}
    for role, of_role in effects.get("role", {}).items():
        layers = {name: _numbers(figures) for name, figures in of_role["layers"].items()}
        roles[role] = {"all": _numbers(of_role["all"]), "layers": layers}
    return {
        "role": roles,
        "said": [*effects.get("said", ()), *([effects["error"]] if "error" in effects else [])],
    }


def _numbers(figures: Mapping[str, Any]) -> dict[str, float | None]:
    return {key: value for key, value in figures.items() if value is None or isinstance(value, int | float)}


def _is_whole(effects: Any) -> bool:
    """Return whether a cached answer has the form that `_figures` gives it: anyone may have written the file."""
    if not isinstance(effects, dict) or not isinstance(effects.get("role"), dict):
        return False
    return isinstance(effects.get("said"), list) and all(
        isinstance(of_role, dict)
        and isinstance(of_role.get("layers"), dict)
        and all(
            isinstance(figures, dict) and figures == _numbers(figures)
            for figures in (of_role.get("all"), *of_role["layers"].values())
        )
        for of_role in effects["role"].values()
    )


def _digest(observed: Path) -> str:
    """Return a digest of the observation and of the code that answers."""
    with open_record(observed) as file:
        digest = hashlib.file_digest(file, "sha256")
    for source in sorted(PACKAGE.glob("*.py")):
        digest.update(source.read_bytes())
    return digest.hexdigest()[:16]
