"""From an experiment's axes to chains of candidates, and to the runs of every cell.

A cell is a point of the axes without its seed. The axis of bits makes the candidates of a chain: `format`, or else one
whose values all name formats, such as precision.weights. `case` makes each case a chain of its own; every other axis,
such as aps or world_size, makes chains beside each other. A candidate's baseline is the cell in which the keys of
`search.baseline` have the values given there and all other axes its own.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cpdrun.config.errors import ConfigError
from cpdrun.config.format_facts import format_facts
from cpdrun.config.keys import get_key, has_key
from cpdrun.config.overrides import typed_form
from cpdrun.record import SweepDir
from cpdrun.report.read import formats
from cpdrun.report.read.bits_axis import last_words
from cpdrun.report.read.words import axis_text, axis_title
from cpdrun.search.arms import held, with_arms
from cpdrun.search.schedule import Candidate, Chain
from cpdrun.search.settings import Settings, settings
from cpdrun.search.tune import Tuning
from cpdrun.sweep import Plan, PlannedRun, plan

FORMAT, APS, CASE, SEED = "format", "aps", "case", "seed"
BASELINE_CASE = "fp32"

Cell = dict[int, PlannedRun]  # by seed


@dataclass(frozen=True)
class Question:
    directory: SweepDir
    settings: Settings
    baseline: dict[str, Any]  # the values that make a candidate's cell its baseline's
    chains: list[Chain]
    cells: dict[str, Cell]  # by name: that of its run of seed 0
    axes: dict[str, list[Any]]
    typed: list[str]
    tuning: Tuning = field(default_factory=Tuning)

    def config(self, name: str) -> dict[str, Any]:
        """Of a run of that cell; of one that is tuned with the values listed first."""
        return self.cells[self.tuning.arms.get(name, (name,))[0]][0].config

    @property
    def baseline_name(self) -> str:
        """`fp32`, `bf16`, the name of a case, or else the values that make it."""
        given = self.baseline
        values = ", ".join(f"{key}={value}" for key, value in given.items())
        return str(given.get(CASE) or given.get(FORMAT) or values)

    @property
    def grid(self) -> int:
        """Runs of the whole grid at as many seeds as the search may take."""
        return len(self.cells) * self.settings.most_seeds

    def as_plan(self, runs: Sequence[PlannedRun]) -> Plan:
        """The sweep of these runs, for its sweep.yaml."""
        return Plan(self.directory, self.typed, self.axes, list(runs))

    @property
    def asked(self) -> dict[str, Any]:
        """For sweep.yaml, so that a report answers the same question."""
        about = {key: getattr(self.settings, key) for key in ("tolerance", "confidence", "metric")}
        tuned = {
            "values": {key: list(of) for key, of in self.tuning.keys.items()},
            "seeds": list(self.tuning.seeds),
        }
        return about | {"baseline": self.baseline} | ({"tune": tuned} if self.tuning else {})


def ask(texts: Sequence[str], config_dir: Path | None = None, *, imports: bool = True) -> Question:
    """Raises ConfigError for what `sweep.plan` refuses, for a seed that is typed, for a baseline that is no cell of
    the experiment, and where no candidate is left beside it."""
    if any(text.split("=")[0].lstrip("+~") == SEED for text in texts):
        raise ConfigError(
            "a search draws its seeds itself, 0, 1, 2 ...; search.most_seeds=N says how many at most"
        )
    first = plan([*texts, f"{SEED}=0"], config_dir, imports=imports)
    asked = settings(first.search)
    words = [*texts, *held(asked, first, texts)]
    bits_axis = _bits_axis(first.axes)
    baseline = _baseline_keys(asked.baseline, first, bits_axis)
    varies = [
        key for key, values in first.axes.items() if len(values) > 1 and key not in (bits_axis, CASE, SEED)
    ]
    others = [key for key in varies if key not in baseline]
    count = 1 if asked.tune else asked.most_seeds  # the runs of a search that tunes are those of its arms
    seeds = f"{SEED}={','.join(map(str, range(count)))}"
    candidates = plan([*words, seeds], config_dir, imports=imports)
    fixed = [f"{key}={typed_form(value)}" for key, value in baseline.items()]
    against = plan([*words, *fixed, seeds], config_dir, imports=imports)
    cells = _cells([*against.runs, *candidates.runs])
    names = {_point(cells[name][0].config, others): name for name in _cells(against.runs)}
    by_chain: dict[str, list[Candidate]] = {}
    for name, cell in _cells(candidates.runs).items():
        config = cell[0].config
        fmt = get_key(config, bits_axis)
        against_name = names.get(_point(config, others))
        if against_name is None:
            raise ConfigError(f"search.baseline: no run of {' '.join(fixed)} beside {fmt}")
        if name in names.values() or (CASE not in baseline and fmt == baseline.get(bits_axis)):
            continue  # the baseline's own format, scaled or not, is not in question
        label = _label(config, varies, bits_axis)
        if CASE in first.axes:
            label = named = ", ".join(filter(None, [str(config[CASE]), label]))
        else:
            named = f"{fmt} {label}"
        bits = format_facts(fmt)["bits"]
        by_chain.setdefault(label, []).append(Candidate(name, against_name, named, bits))
    if not by_chain:
        raise ConfigError("no candidate beside the baseline: give formats, such as format=e5m2,e4m3,e3m0")
    chains = [Chain(label, _widths(found, cells, bits_axis)) for label, found in by_chain.items()]
    members = [candidate for found in by_chain.values() for candidate in found]
    cells = {name: cells[name] for name in dict.fromkeys(n for c in members for n in (c.baseline, c.name))}
    question = Question(candidates.directory, asked, baseline, chains, cells, candidates.axes, list(texts))
    if not asked.tune:
        return question
    untuned = [*against.runs, *candidates.runs]
    return with_arms(question, untuned, ([*texts, *fixed], texts), config_dir, imports=imports)


def _bits_axis(axes: Mapping[str, Sequence[Any]]) -> str:
    """`format` where it varies, or no other axis names formats; of several others the one with most values."""
    if CASE in axes or len(axes.get(FORMAT, ())) > 1:
        return FORMAT
    named = [key for key, values in axes.items() if len(values) > 1 and all(map(_is_format, values))]
    return max(named, key=lambda key: len(axes[key]), default=FORMAT)


def _is_format(value: Any) -> bool:
    return isinstance(value, str) and formats.parse(value) is not None


def _baseline_keys(given: Mapping[str, Any], first: Plan, bits_axis: str) -> dict[str, Any]:
    """Where runs are named cases, the one named fp32, unless another is given; on another axis of bits than `format`
    its fp32, or else its widest value, unless one is given."""
    if CASE in first.axes:
        return {CASE: given.get(CASE, BASELINE_CASE)}
    if bits_axis != FORMAT and bits_axis not in given:
        values = first.axes[bits_axis]
        widest = max(values, key=lambda value: formats.bits(value))
        return {bits_axis: next(filter(formats.is_baseline, values), widest)}
    return {key: value for key, value in given.items() if value is not None}


def _cells(runs: Sequence[PlannedRun]) -> dict[str, Cell]:
    """By the name of the run of seed 0."""
    found: dict[tuple[str, ...], Cell] = {}
    for run in runs:
        point = tuple(text for text in run.overrides if text.split("=")[0] != SEED)
        found.setdefault(point, {})[run.config[SEED]] = run
    return {cell[0].name: cell for cell in found.values()}


def _point(config: Mapping[str, Any], keys: Sequence[str]) -> str:
    values = {key: get_key(config, key) if has_key(config, key) else None for key in keys}
    return json.dumps(values, sort_keys=True, default=str)


def _label(config: Mapping[str, Any], axes: Sequence[str], bits_axis: str) -> str:
    """What is the same along a chain: `with APS, workers 8`, `of weights`. Of a case only what differs beside it."""
    words = [] if config[CASE] is not None else ["with APS" if config[APS] else "without APS"]
    if bits_axis != FORMAT:
        words = [f"of {last_words(bits_axis)}", *(words if APS in axes else [])]
    for key in axes:
        value = get_key(config, key) if key != APS and has_key(config, key) else None
        if value is not None:
            value = value.get("_target_") if isinstance(value, Mapping) else value
            words.append(f"{axis_title(key)} {axis_text(value)}")
    return ", ".join(words)


def _widths(
    found: Sequence[Candidate], cells: Mapping[str, Cell], bits_axis: str
) -> tuple[tuple[Candidate, ...], ...]:
    """Most bits first; of one width the format with most exponent bits, and so most range, first: the order until a run
    of the baseline tells more (`cpdrun.search.likeliest`)."""

    def exponent_bits(candidate: Candidate) -> int:
        return format_facts(get_key(cells[candidate.name][0].config, bits_axis))["exponent_bits"] or 0

    widths: dict[float, list[Candidate]] = {}
    for candidate in sorted(found, key=lambda candidate: (-candidate.bits, -exponent_bits(candidate))):
        widths.setdefault(candidate.bits, []).append(candidate)
    return tuple(map(tuple, widths.values()))
