"""Simulate configurations on a run's observed tensors, in a process that has torch.

The effects of a configuration are a dictionary:

    {"role": {role: {"all": figures, "layers": {layer: figures}}}, "uncovered": [phrase, ...]}

The roles are gradient, weight, update, activation, and output_gradient. `figures` is a dictionary of error statistics,
such as underflow, snr_db, and cosine, which `cpdrun.whatif.simulate.effects` defines. Undefined statistics are null.
"uncovered" contains a phrase for each part of the configuration that was not simulated.
"""

import hashlib
import json
import os
import subprocess
import tempfile
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from cpdrun.config.identity import identity_hash
from cpdrun.config.yaml_files import foreign_names
from cpdrun.errors import FAILED, UserError
from cpdrun.parent import module_command
from cpdrun.record import Ending, RunDir, SweepDir, check_inside, open_record, read_object, write_json

Effects = dict[str, Any]
MODULE = "cpdrun.whatif.simulate.effects"
MAX_EFFECTS_BYTES = 64 << 20  # Larger cache files are ignored, because other people may have written them.
MAX_ANSWER_BYTES = (
    1 << 30
)  # The most that the simulating process may print. It is our own, so this is generous.
TRIES = 2  # a process that is killed by a signal is restarted once
PACKAGE = Path(__file__).parent


class NoEffectsError(UserError):
    """The effects cannot be computed. If the process failed, the message ends with the last line of its output."""

    exit_code = FAILED


class DivergedError(UserError):
    """The baseline diverged, so no format can be compared with it."""

    exit_code = FAILED


def is_observed(run: RunDir) -> bool:
    return run.observed.is_file()


def check_not_diverged(run: RunDir) -> None:
    """Raise DivergedError if the observed run diverged."""
    done = run.result()
    if done is not None and done.status is Ending.DIVERGED:
        raise DivergedError(
            f"{run.path} diverged, so no format can be compared with it. Lower optim.lr, or run cpdrun report "
            f"{run.path}"
        )


def compute_effects(
    run: RunDir,
    configs: Mapping[str, Mapping[str, Any]],
    sweep: SweepDir | None = None,
    *,
    may_import: Collection[str] = (),
) -> dict[str, Effects]:
    """Simulate configs on an observed run, and return the effects of each.

    Args:
        run: The observed run.
        configs: Resolved configurations, keyed by any names. They may come from a record, so they are not trusted.
        sweep: The sweep that caches the effects. The default is the sweep of `run`.
        may_import: Formats and classes outside of cpdrun that may be imported, because the user typed their names or
            the directory that contains them.

    Raises:
        NoEffectsError: A config names something else to import, or the process failed.
    """
    foreign = [name for each in configs.values() for name in foreign_names(each) if name not in may_import]
    if foreign:
        raise NoEffectsError(
            f"{run.path} names {foreign[0]}, which is not part of cpdrun. Nothing that a record names is imported"
        )
    sweep = sweep or run.sweep
    cache = sweep.effects(_digest(run.observed))
    cached = read_object(cache, MAX_EFFECTS_BYTES) or {}
    known = {key: effects for key, effects in cached.items() if _is_complete(effects)}
    keys = {name: identity_hash(config) for name, config in configs.items()}
    missing = {keys[name]: dict(config) for name, config in configs.items() if keys[name] not in known}
    if missing:
        check_inside(sweep.path, cache)
        known |= _compute(run, missing)
        cache.parent.mkdir(parents=True, exist_ok=True)
        write_json(cache, known)
    return {name: known[key] for name, key in keys.items()}


def _compute(run: RunDir, configs: Mapping[str, Mapping[str, Any]]) -> dict[str, Effects]:
    """Compute the effects in a process that has torch.

    A search without effects would start at another bit width and record it, so a signal must not change the outcome.
    Therefore, the process runs in its own session, which Ctrl-C in the terminal does not reach, and is restarted once
    if a signal kills it.
    """
    with tempfile.TemporaryDirectory() as folder:
        given, out = Path(folder) / "configs.json", Path(folder) / "effects.json"
        given.write_text(json.dumps(configs), encoding="utf-8")
        command = [*module_command(MODULE), str(run.path), str(given), str(out)]
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
            lines = done.stdout.strip().splitlines() or ["no output"]
            raise NoEffectsError(
                f"the effects of these formats on {run.observed} cannot be computed: {lines[-1]}"
            )
    return {name: _numbers_only(effects) for name, effects in found.items()}


def _numbers_only(effects: Effects) -> Effects:
    """Remove histograms and statistics of single steps from effects.

    If the computation failed, the result has no roles, and "uncovered" contains the error.
    """
    roles = {}
    for role, found in effects.get("role", {}).items():
        layers = {name: _numbers(figures) for name, figures in found["layers"].items()}
        roles[role] = {"all": _numbers(found["all"]), "layers": layers}
    error = [effects["error"]] if "error" in effects else []
    return {"role": roles, "uncovered": [*effects.get("uncovered", ()), *error]}


def _numbers(figures: Mapping[str, Any]) -> dict[str, float | None]:
    return {key: value for key, value in figures.items() if value is None or isinstance(value, int | float)}


def _is_complete(effects: Any) -> bool:
    """Return True if cached effects, which are not trusted, are well-formed."""
    if not isinstance(effects, dict) or not isinstance(effects.get("role"), dict):
        return False
    return isinstance(effects.get("uncovered"), list) and all(
        isinstance(role, dict)
        and isinstance(role.get("layers"), dict)
        and all(
            isinstance(figures, dict) and figures == _numbers(figures)
            for figures in (role.get("all"), *role["layers"].values())
        )
        for role in effects["role"].values()
    )


def _digest(observed: Path) -> str:
    """Return a digest of the observation and of the source code that collects and simulates."""
    digest = hashlib.sha256()
    with open_record(observed) as file:
        while block := file.read(1 << 20):
            digest.update(block)
    for source in sorted(path for part in ("collect", "simulate") for path in (PACKAGE / part).glob("*.py")):
        digest.update(source.read_bytes())
    return digest.hexdigest()[:16]
