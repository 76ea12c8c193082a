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
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import cpdrun
from cpdrun.config.identity import identity_hash
from cpdrun.errors import FAILED, UserError
from cpdrun.record import Ending, RunDir, SweepDir, read_object, write_json

Effects = dict[str, Any]
MODULE = "cpdrun.train.observe"
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
    run: RunDir, configs: Mapping[str, Mapping[str, Any]], beside: SweepDir | None = None
) -> dict[str, Effects]:
    """By the same names, what each resolved config would do to the tensors of `run`. What was asked before of the same
    observation is read from `beside`, a sweep's folder; None: that of the run. Raises NoEffectsError."""
    cache = (beside or run.sweep).effects(_digest(run.observed))
    known = read_object(cache) or {}
    keys = {name: identity_hash(config) for name, config in configs.items()}
    missing = {keys[name]: dict(config) for name, config in configs.items() if keys[name] not in known}
    if missing:
        known |= _compute(run, missing)
        cache.parent.mkdir(parents=True, exist_ok=True)
        write_json(cache, known)
    return {name: known[key] for name, key in keys.items()}


def _compute(run: RunDir, configs: Mapping[str, Mapping[str, Any]]) -> dict[str, Effects]:
    with tempfile.TemporaryDirectory() as folder:
        asked, out = Path(folder) / "configs.json", Path(folder) / "effects.json"
        asked.write_text(json.dumps(configs), encoding="utf-8")
        command = [sys.executable, "-m", MODULE, str(run.path), str(asked), str(out)]
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        done = subprocess.run(
            command,
            env=environment,
            check=False,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        found = read_object(out)
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


def _digest(observed: Path) -> str:
    """Of the observation, and of the code that answers."""
    digest = hashlib.sha256(observed.read_bytes())
    for source in sorted(PACKAGE.glob("*.py")):
        digest.update(source.read_bytes())
    return digest.hexdigest()[:16]
