"""What tells the runs of a sweep apart: the value that each has on each axis."""

from collections.abc import Sequence

from cpdrun.record import RunDir, SweepDir, read_manifest, read_overrides

IN_NAMES = ("format", "aps", "world_size", "seed")  # what the name of a run says


def axes_of(sweep: SweepDir) -> list[str]:
    """The keys that have several values in `sweep`, as sweep.yaml lists them; none where it cannot be read."""
    try:
        axes = read_manifest(sweep)["axes"]
        return [str(key) for key, values in axes.items() if len(values) > 1]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return []


def values_of(run: RunDir, axes: Sequence[str]) -> dict[str, str]:
    """Return the value of `run` on each of `axes` as it was typed, without those that overrides.txt does not name."""
    return values_in(read_overrides(run), axes) if axes else {}


def values_in(overrides: Sequence[str], axes: Sequence[str]) -> dict[str, str]:
    """The same from the lines of overrides.txt."""
    typed = dict(line.split("=", 1) for line in overrides if "=" in line)
    typed = {key.lstrip("+"): value for key, value in typed.items()}
    return {key: typed[key] for key in axes if key in typed}


def headings(axes: Sequence[str]) -> list[str]:
    """The last part of each key, `lr` of `optim.lr`; the whole key where two end alike."""
    ends = [key.rpartition(".")[2] for key in axes]
    return [end if ends.count(end) == 1 else key for key, end in zip(axes, ends, strict=True)]
