"""What was seen of a run's tensors: in each observed step, of each role and layer, a table and a sample; and their
file.

    gradient         each worker's, of the layers (parameters), divided by the number of workers N: their sum is the
                    mean
    weight, update   of the parameters: before the step, and what it adds, the difference in float32
    activation, output_gradient    of the layers that multiply: what worker 0's products read of a batch, and what comes
                     back to them

A sample is of runs of 32 neighbours, so that formats with scales see blocks as they are. RUN/observed.npz holds
arrays of numbers and one of JSON, `about`; nothing in it is code.

Its size: rows of 87 float64 for each binade with elements (about 20) of each layer and step, and the samples, for each
layer and step at most 1,024 elements of each worker, or fewer where layers and workers are many (`samples.py`): nothing
that grows with the length of the run.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from cpdrun.record import OBSERVED_LAYOUT, read_arrays, write_bytes
from cpdrun.whatif.collect.moments import COLUMNS

ROLES = ("gradient", "weight", "update", "activation", "output_gradient")


@dataclass(frozen=True)
class Seen:
    """One role of one layer in one step.

    binades: (K,) int16; rows: (K, F) float64 (`tables.py`). zeros, nonfinite: elements that are in no table. largest:
    of the finite magnitudes. numel: elements of the layer (of one worker), of which `samples` has some:

        values     (n,) float32, or (N, n) of the gradients of N workers
        extremes   (N, 2) of gradients: the elements where the largest of all workers and that of their sum lie
        maxima     (N,) each worker's largest finite magnitude in the whole layer
    """

    binades: np.ndarray
    rows: np.ndarray
    zeros: int
    nonfinite: int
    largest: float
    numel: int
    samples: dict[str, np.ndarray] = field(default_factory=dict)

    def column(self, name: str) -> np.ndarray:
        return self.rows[:, COLUMNS.index(name)]

    def with_workers(self, later: Seen) -> Seen:
        """Both, of workers that follow each other. Of other roles than gradients their samples are the first one's."""
        binades = np.union1d(self.binades, later.binades)
        rows = np.zeros((len(binades), len(COLUMNS)))
        for part in (self, later):
            rows[np.searchsorted(binades, part.binades)] += part.rows
        return Seen(
            binades.astype(np.int16),
            rows,
            self.zeros + later.zeros,
            self.nonfinite + later.nonfinite,
            max(self.largest, later.largest),
            self.numel,
            {name: np.concatenate([values, later.samples[name]]) for name, values in self.samples.items()},
        )


@dataclass
class Observation:
    """of_steps[step][role][layer], steps counted from 0. about: what a reader must know of the run: world_size, steps,
    steps_an_epoch, epochs, loss_scale, `modules`, its layers as rules know them, and `attends`, whether it forms
    attention's products. unseen: in sentences, what could not be looked at."""

    about: dict[str, Any] = field(default_factory=dict)
    of_steps: dict[int, dict[str, dict[str, Seen]]] = field(default_factory=dict)
    unseen: list[str] = field(default_factory=list)

    @property
    def steps(self) -> list[int]:
        return sorted(self.of_steps)

    def of(self, role: str) -> dict[int, dict[str, Seen]]:
        """By step and layer; {} where the role was not seen."""
        return {step: self.of_steps[step][role] for step in self.steps if role in self.of_steps[step]}

    def before(self, step: int) -> Observation:
        """What was seen before this step, for a run that goes on from there."""
        return Observation(
            self.about, {s: seen for s, seen in self.of_steps.items() if s < step}, self.unseen
        )

    def save(self, path: Path) -> None:
        """In one step: a reader sees the old file or the new one."""
        arrays: dict[str, np.ndarray] = {}
        entries: dict[str, list[list[Any]]] = {}
        names: dict[str, list[str]] = {}
        for role in ROLES:
            found = [(step, name, seen) for step, of in self.of(role).items() for name, seen in of.items()]
            if not found:
                continue
            layers = names[role] = list(dict.fromkeys(name for _, name, _ in found))
            place = {name: i for i, name in enumerate(layers)}
            entries[role] = [_entry(step, place[name], seen) for step, name, seen in found]
            arrays[f"{role}.binades"] = np.concatenate([seen.binades for *_, seen in found]).astype(np.int16)
            arrays[f"{role}.rows"] = np.concatenate([seen.rows for *_, seen in found])
            for what in found[0][2].samples:
                flat = [seen.samples[what].reshape(-1) for *_, seen in found]
                arrays[f"{role}.{what}"] = np.concatenate(flat).astype(np.float32)
        about = {
            "layout": OBSERVED_LAYOUT,
            "about": self.about,
            "unseen": self.unseen,
            "layers": names,
            "seen": entries,
        }
        arrays["about"] = np.frombuffer(json.dumps(about).encode(), np.uint8)
        content = io.BytesIO()
        np.savez(content, **arrays)
        write_bytes(path, content.getvalue())

    @classmethod
    def load(cls, path: Path) -> Observation:
        """Read the observation of a run.

        Raises:
            OSError: there is no such file, or it is no regular file.
            ValueError: it holds no observation of this version.
        """
        try:
            arrays = read_arrays(path)
            about = json.loads(arrays["about"].tobytes())
            version = about["layout"]
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise ValueError(f"{path} holds no observation ({error})") from None
        if version != OBSERVED_LAYOUT:
            raise ValueError(f"{path} was written by another version of cpdrun: observe the run anew")
        try:
            found = cls(about["about"], {}, about["unseen"])
            for role, entries in about["seen"].items():
                found._take(role, about["layers"][role], entries, arrays)
        except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
            raise ValueError(f"{path} holds no observation ({error})") from None
        return found

    def _take(
        self, role: str, names: list[str], entries: list[list[Any]], arrays: dict[str, np.ndarray]
    ) -> None:
        row, at = 0, dict.fromkeys(("values", "extremes", "maxima"), 0)
        for step, place, binades, zeros, nonfinite, largest, numel, shapes in entries:
            samples = {}
            for what, shape in shapes.items():
                size = int(np.prod(shape))
                samples[what] = arrays[f"{role}.{what}"][at[what] : at[what] + size].reshape(shape)
                at[what] += size
            here = slice(row, row + binades)
            rows = arrays[f"{role}.rows"][here]
            seen = Seen(arrays[f"{role}.binades"][here], rows, zeros, nonfinite, largest, numel, samples)
            self.of_steps.setdefault(step, {}).setdefault(role, {})[names[place]] = seen
            row += binades


def merged(parts: Iterable[dict[str, dict[str, Seen]]]) -> dict[str, dict[str, Seen]]:
    """One step, of all ranks in their order."""
    whole: dict[str, dict[str, Seen]] = {}
    for part in parts:
        for role, layers in part.items():
            into = whole.setdefault(role, {})
            for name, seen in layers.items():
                into[name] = into[name].with_workers(seen) if name in into else seen
    return whole


def _entry(step: int, place: int, seen: Seen) -> list[Any]:
    shapes = {what: list(values.shape) for what, values in seen.samples.items()}
    counts = [len(seen.binades), seen.zeros, seen.nonfinite, seen.largest, seen.numel]
    return [step, place, *counts, shapes]
