"""The axes of a sweep, and the value of each run on each axis."""

from collections.abc import Mapping, Sequence

from cpdrun.record import RunDir, SweepDir, read_manifest, read_overrides

# The axes whose values are in the names of runs.
IN_NAMES = ("format", "aps", "recipe", "world_size", "seed")


def axes_of(sweep: SweepDir) -> list[str]:
    """Return the keys that have several values, in the order of sweep.yaml.

    If sweep.yaml cannot be read, return an empty list.
    """
    return axes_and_runs(sweep)[0]


def axes_and_runs(sweep: SweepDir) -> tuple[list[str], list[str]]:
    """Return the axes of a sweep, as `axes_of` does, and the names of the runs that sweep.yaml lists."""
    try:
        manifest = read_manifest(sweep)
        axes = [str(key) for key, values in manifest["axes"].items() if len(values) > 1]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return [], []
    runs = manifest.get("runs")
    return axes, [str(name) for name in runs] if isinstance(runs, list) else []


def values_of(run: RunDir, axes: Sequence[str]) -> dict[str, str]:
    """Return a run's values on the axes as they were typed, keyed by axis.

    Axes that are not in the run's overrides.txt are left out.
    """
    return values_in(read_overrides(run), axes) if axes else {}


def values_in(overrides: Sequence[str], axes: Sequence[str]) -> dict[str, str]:
    """Return the values on the axes, keyed by axis, from the lines of a run's overrides.txt."""
    typed = dict(line.split("=", 1) for line in overrides if "=" in line)
    typed = {key.lstrip("+"): _without_quotes(value) for key, value in typed.items()}
    return {key: typed[key] for key in axes if key in typed}


def values_not_in_name(name: str, values: Mapping[str, str]) -> list[str]:
    """Return `key=value` for each axis whose value is not in the name of the run.

    Of the keys in `IN_NAMES`, only the recipe is looked up in the name, because names from earlier versions
    of cpdrun do not contain it.
    """
    return [
        f"{key}={value}"
        for key, value in values.items()
        if key not in IN_NAMES or (key == "recipe" and value not in (*name.split("-"), "null"))
    ]


def _without_quotes(value: str) -> str:
    is_quoted = len(value) > 1 and value[0] == value[-1] and value[0] in "'\""
    return value[1:-1] if is_quoted else value


def headings(axes: Sequence[str]) -> list[str]:
    """Return a column heading for each axis: the last part of its key, such as `lr` for `optim.lr`.

    If the last parts of several keys are equal, their headings are the whole keys.
    """
    ends = [key.rpartition(".")[2] for key in axes]
    return [end if ends.count(end) == 1 else key for key, end in zip(axes, ends, strict=True)]
