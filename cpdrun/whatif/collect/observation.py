"""Store statistics of a run's tensors in a file.

An observation contains a table of moments and a sample of elements for each observed step, role, and layer. The roles
are:

    gradient          The gradients of all workers for a parameter, each divided by the number of workers N.
    weight            A parameter before the step.
    update            The change of a parameter in the step, in float32.
    activation        The input of a Linear or Conv layer, for worker 0.
    output_gradient   The gradient of the output of a Linear or Conv layer, for worker 0.

Samples consist of blocks of 32 neighbors, so that formats with scales can be applied to them.

The file RUN/observed.npz contains numeric arrays and an array `about` with JSON, but no code. Its size does not depend
on the length of the run. A layer takes 87 float64 numbers for each nonempty binade (about 20), and at most 1,024
samples for each worker. With many layers and workers, samples are smaller (`observer.py`).

Shapes: N workers, K binades, F = len(COLUMNS), n sampled elements of a layer.
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
class TensorStatistics:
    """Statistics of one layer's tensor, for one role and step.

    Attributes:
        binades: (K,) int16, ascending. The exponents k of the nonempty binades.
        rows: (K, F) float64. The table of moments (`moments.py`).
        zeros: The number of zeros. The table excludes them.
        nonfinite: The number of inf and NaN. The table excludes them.
        largest: The largest finite magnitude.
        numel: The number of elements of one worker's tensor.
        samples: float32 arrays keyed by name. All roles have `values`. Gradients also have `extremes` and `maxima`.

            values: (n,), or (N, n) for gradients. The sampled elements.
            extremes: (N, 1), or (N, 0) for an empty layer. The workers' values of the element whose sum over workers
                has the largest magnitude.
            maxima: (N,). The largest finite magnitude of each worker's gradient in the whole layer.
    """

    binades: np.ndarray
    rows: np.ndarray
    zeros: int
    nonfinite: int
    largest: float
    numel: int
    samples: dict[str, np.ndarray] = field(default_factory=dict)

    def column(self, name: str) -> np.ndarray:
        """Return a column of the table by its name, (K,) float64."""
        return self.rows[:, COLUMNS.index(name)]

    def with_workers(self, later: TensorStatistics) -> TensorStatistics:
        """Combine the statistics of these workers with those of later workers.

        Tables and counts are added, and samples are concatenated along the worker axis.
        """
        binades = np.union1d(self.binades, later.binades)
        rows = np.zeros((len(binades), len(COLUMNS)))
        for part in (self, later):
            rows[np.searchsorted(binades, part.binades)] += part.rows
        return TensorStatistics(
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
    """Statistics of a run's tensors at its observed steps.

    Attributes:
        about: Properties of the run that the simulation needs: world_size, steps, steps_an_epoch, epochs, loss_scale,
            layers (parameter names), modules (from `describe_layers`), and attends (whether the model calls
            scaled_dot_product_attention).
        by_step: The statistics as by_step[step][role][layer]. Steps count from 0.
        unobserved: A phrase for each kind of tensor that could not be observed.
    """

    about: dict[str, Any] = field(default_factory=dict)
    by_step: dict[int, dict[str, dict[str, TensorStatistics]]] = field(default_factory=dict)
    unobserved: list[str] = field(default_factory=list)

    @property
    def steps(self) -> list[int]:
        return sorted(self.by_step)

    def of(self, role: str) -> dict[int, dict[str, TensorStatistics]]:
        """Return the statistics of a role as {step: {layer: TensorStatistics}}."""
        return {step: self.by_step[step][role] for step in self.steps if role in self.by_step[step]}

    def before(self, step: int) -> Observation:
        """Return the observation of the steps before `step`."""
        return Observation(
            self.about, {s: statistics for s, statistics in self.by_step.items() if s < step}, self.unobserved
        )

    def save(self, path: Path) -> None:
        """Replace the file atomically."""
        arrays: dict[str, Any] = {}
        entries: dict[str, list[list[Any]]] = {}
        names: dict[str, list[str]] = {}
        for role in ROLES:
            found = [
                (step, name, statistics)
                for step, of in self.of(role).items()
                for name, statistics in of.items()
            ]
            if not found:
                continue
            layers = names[role] = list(dict.fromkeys(name for _, name, _ in found))
            place = {name: i for i, name in enumerate(layers)}
            entries[role] = [_entry(step, place[name], statistics) for step, name, statistics in found]
            arrays[f"{role}.binades"] = np.concatenate(
                [statistics.binades for *_, statistics in found]
            ).astype(np.int16)
            arrays[f"{role}.rows"] = np.concatenate([statistics.rows for *_, statistics in found])
            for what in found[0][2].samples:
                flat = [statistics.samples[what].reshape(-1) for *_, statistics in found]
                arrays[f"{role}.{what}"] = np.concatenate(flat).astype(np.float32)
        about = {
            "layout": OBSERVED_LAYOUT,
            "about": self.about,
            "unseen": self.unobserved,
            "layers": names,
            "seen": entries,
        }
        arrays["about"] = np.frombuffer(json.dumps(about).encode(), np.uint8)
        content = io.BytesIO()
        np.savez(content, **arrays)
        write_bytes(path, content.getvalue())

    @classmethod
    def load(cls, path: Path) -> Observation:
        """Read an observation.

        Raises:
            OSError: The file does not exist or is not a regular file.
            ValueError: The file does not contain an observation, or another version of cpdrun wrote it.
        """
        try:
            arrays = read_arrays(path)
            about = json.loads(arrays["about"].tobytes())
            version = about["layout"]
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise ValueError(f"{path} contains no observation ({error})") from None
        if version != OBSERVED_LAYOUT:
            raise ValueError(f"{path} was written by another version of cpdrun. Observe the run again")
        try:
            found = cls(about["about"], {}, about["unseen"])
            for role, entries in about["seen"].items():
                found._add_role(role, about["layers"][role], entries, arrays)
        except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
            raise ValueError(f"{path} contains no observation ({error})") from None
        return found

    def _add_role(
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
            statistics = TensorStatistics(
                arrays[f"{role}.binades"][here], rows, zeros, nonfinite, largest, numel, samples
            )
            self.by_step.setdefault(step, {}).setdefault(role, {})[names[place]] = statistics
            row += binades


def merge(parts: Iterable[dict[str, dict[str, TensorStatistics]]]) -> dict[str, dict[str, TensorStatistics]]:
    """Merge the statistics of one step, {role: {layer: TensorStatistics}}, from all ranks in order."""
    whole: dict[str, dict[str, TensorStatistics]] = {}
    for part in parts:
        for role, layers in part.items():
            into = whole.setdefault(role, {})
            for name, statistics in layers.items():
                into[name] = into[name].with_workers(statistics) if name in into else statistics
    return whole


def _entry(step: int, place: int, statistics: TensorStatistics) -> list[Any]:
    shapes = {what: list(values.shape) for what, values in statistics.samples.items()}
    counts = [
        len(statistics.binades),
        statistics.zeros,
        statistics.nonfinite,
        statistics.largest,
        statistics.numel,
    ]
    return [step, place, *counts, shapes]
