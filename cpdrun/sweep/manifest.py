"""sweep.yaml: what a sweep's folder was asked for, what a search there asks, and the names of its runs."""

import math
import platform
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any, TypeGuard

import yaml

from cpdrun import __version__
from cpdrun.config.errors import ConfigError
from cpdrun.config.secrets import mask_text, masked
from cpdrun.record import VERSION, NewerRecordError, SweepDir, git_commit, locked, read_manifest, write_text
from cpdrun.sweep.asked import SEARCH
from cpdrun.sweep.runs import Plan


@dataclass(frozen=True)
class Hypotheses:
    """The hypotheses of a search that share the error: its chains and, by bits, the formats of a width.

    sweep.yaml keeps the most that any question of the sweep had, because a question that is typed again with fewer axes
    after a look at the runs must not get error probability back.
    """

    chains: int = 0
    formats: Mapping[float, int] = field(default_factory=dict)  # widths of one format are left out

    @classmethod
    def read(cls, family: object) -> "Hypotheses":
        """Read `family` of a sweep.yaml, which anyone may have written; what is no number counts as absent."""
        block = family if isinstance(family, Mapping) else {}
        formats = block.get("formats")
        pairs = formats.items() if isinstance(formats, Mapping) else ()
        sizes = {bits: int(n) for bits, n in pairs if _is_number(bits) and _is_number(n)}
        chains = block.get("chains")
        return cls(int(chains) if _is_number(chains) else 0, sizes)

    @property
    def as_yaml(self) -> dict[str, Any]:
        return {"chains": self.chains, "formats": dict(self.formats)}

    def most(self, other: "Hypotheses") -> "Hypotheses":
        """Return the larger count of the two, for the chains and for each width."""
        bits = sorted({*self.formats, *other.formats}, reverse=True)
        sizes = {of: max(self.formats.get(of, 0), other.formats.get(of, 0)) for of in bits}
        return Hypotheses(max(self.chains, other.chains), sizes)


def hypotheses(directory: SweepDir, asked: Hypotheses) -> Hypotheses:
    """Return the hypotheses that share the error of a search: those `asked` now, or more if the sweep had more."""
    try:
        manifest = read_manifest(directory)
    except (OSError, ValueError):
        return asked
    block = manifest.get(SEARCH) if isinstance(manifest, Mapping) else None
    return asked.most(Hypotheses.read(block.get("family"))) if isinstance(block, Mapping) else asked


def write_manifest(sweep: Plan, search: Mapping[str, Any] | None = None) -> None:
    """sweep.yaml: what was asked for. One that asks for all of it already is left as it is, and runs that another
    command has made in the same folder stay listed; so does the last search's question, `search`, for the report, but
    for what this sweep was given of it.
    Raises OSError where the folder cannot be written, and ConfigError for a sweep.yaml that is not ours to replace."""
    sweep.directory.path.mkdir(parents=True, exist_ok=True)
    with locked(sweep.directory.lock):  # two commands typed at once keep each other's runs
        _add_to_manifest(sweep, search)


def write_question(directory: SweepDir, search: Mapping[str, Any]) -> None:
    """Another search of the same runs: its question takes the place of the last one's in sweep.yaml, where there is
    one. Raises as `write_manifest`."""
    if listed(directory) and (there := read_manifest(directory)) != _asking(there, search):
        with locked(directory.lock):
            _write(directory, _asking(read_manifest(directory), search))


def _asking(manifest: Mapping[str, Any], search: Mapping[str, Any]) -> dict[str, Any]:
    return {**manifest, SEARCH: _with_earlier(manifest.get(SEARCH), search)}


def _with_earlier(before: Any, search: Mapping[str, Any]) -> dict[str, Any]:
    """Return the question with what earlier ones in the same folder leave behind: the number of hypotheses that share
    the error, and the seeds that chose tuned values, which are in no pair."""
    if not isinstance(before, Mapping):
        return dict(search)
    if "family" in search:
        family = Hypotheses.read(search["family"]).most(Hypotheses.read(before.get("family")))
        search = {**search, "family": family.as_yaml}
    tune = before.get("tune")
    seeds = {*_seeds(before.get("chose")), *_seeds(tune.get("seeds") if isinstance(tune, Mapping) else None)}
    left = sorted(seeds - {*_seeds(search.get("tune", {}).get("seeds"))})
    return dict(search) | ({"chose": left} if left else {})


def _with_what_is_given(asked: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """A search's baseline stays: its cells and what they share of the error are of it."""
    is_of_search = "baseline" in asked
    return {**asked, **{key: v for key, v in given.items() if key != "baseline_values" or not is_of_search}}


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _seeds(value: object) -> list[int]:
    return [seed for seed in value if isinstance(seed, int)] if isinstance(value, list) else []


def _add_to_manifest(sweep: Plan, search: Mapping[str, Any] | None) -> None:
    names = [run.name for run in sweep.runs]
    before = listed(sweep.directory)
    there = read_manifest(sweep.directory) if before else {}
    asked = there.get(SEARCH)
    if search is not None:
        search = _with_earlier(asked, search)
    else:
        search = (
            _with_what_is_given(asked, sweep.question)
            if isinstance(asked, Mapping)
            else sweep.question or None
        )
    if names and set(names) <= set(before):
        if sweep.question and search != asked:
            _write(sweep.directory, {**there, SEARCH: search})
        return
    made = [name for name in before if name not in names and sweep.directory.run(name).path.exists()]
    manifest = {
        "record": VERSION,
        "sweep": sweep.directory.name,
        "overrides": [mask_text(word) for word in sweep.typed],
        "axes": masked(sweep.axes),
        "runs": [*made, *names],
        "git_commit": git_commit(),
        "versions": {"cpdrun": __version__, "python": platform.python_version(), "torch": version("torch")},
    }
    _write(sweep.directory, manifest | ({SEARCH: dict(search)} if isinstance(search, Mapping) else {}))


def _write(directory: SweepDir, manifest: Mapping[str, Any]) -> None:
    write_text(directory.manifest, yaml.safe_dump(dict(manifest), sort_keys=False))


def listed(directory: SweepDir) -> list[str]:
    """The runs of the folder's sweep.yaml; none where there is no such file, or nothing in it. Raises ConfigError for
    one that cpdrun did not write."""
    path = directory.manifest
    try:
        manifest = read_manifest(directory)
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from None
    except NewerRecordError as error:
        raise ConfigError(f"{path} {error}") from None
    except ValueError:
        manifest = "no yaml"
    if manifest is None:
        return []
    runs = manifest.get("runs") if isinstance(manifest, Mapping) else None
    if not isinstance(runs, list):
        raise ConfigError(f"{path} is not cpdrun's: move it away, or choose another folder with name=NAME")
    return [str(name) for name in runs]
