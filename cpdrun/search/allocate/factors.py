"""Group a model's layers into factors, and turn levels into config values.

A role is a kind of tensor: weight, input, output_gradient, or gradient (between workers). A factor is one role of a
group of layers, such as `blocks.0 weight`. It has a high level and one or more low levels.

The default groups are the first layer, each stage, and the last layer. A stage consists of the layers whose names agree
up to the first number (`blocks.0`, `layer1.0`, `features.2`). Neighboring groups are merged until there are at most
`most_factors` factors. A layer without matrix products, such as a norm, joins the group of the layer before it.

A run's levels are set by config values:

- Gradients between workers: the run's format is the low format, and `full_precision.layers` names the layers that are
  exchanged in fp32 (the hybrid scheme of arXiv 1911.08907).
- Products: `precision.rules` names the low layers of each role, and a last rule `*` covers all other layers. These are
  the high layers or, if there are none, the layers at the most common level.
"""

import glob
import itertools
import subprocess
import tempfile
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from custom_fp.formats.names import parse

from cpdrun.config.errors import ConfigError
from cpdrun.errors import UserError
from cpdrun.parent import module_command
from cpdrun.record import read_json, write_json
from cpdrun.search.settings import GRADIENT, PRODUCTS, Level, ScreenSettings

FP32 = "fp32"

# Config values, keyed by dotted config key.
Values = dict[str, Any]
# The levels of factors, keyed by the factor's index. Level 0 is high, and 1, 2 ... are the levels of `screen.low`. A
# factor that is not listed is high.
Levels = Mapping[int, int]


@dataclass(frozen=True)
class Layer:
    """A module with parameters of its own.

    Attributes:
        name: The name of the module.
        kind: The name of its class.
        parameters: The number of values of each parameter.
        multiplies: Whether it is a Linear or Conv layer.
        macs: The multiplications of the forward product for one sample.
        input_gradient: Whether the backward pass computes a gradient of its input.
    """

    name: str
    kind: str
    parameters: dict[str, int]
    multiplies: bool
    macs: int
    input_gradient: bool

    @property
    def values(self) -> int:
        """The number of parameter values."""
        return sum(self.parameters.values())


def ask_layers(config: Mapping[str, Any]) -> list[Layer]:
    """Return the layers of a run's model, which a separate process builds.

    Raises:
        UserError: The model or the data cannot be built.
    """
    with tempfile.TemporaryDirectory() as folder:
        given, out = Path(folder) / "config.json", Path(folder) / "layers.json"
        write_json(given, dict(config))
        command = [*module_command("cpdrun.train.layers"), str(given), str(out)]
        done = subprocess.run(command, capture_output=True, text=True, errors="replace")
        found = read_json(out)
    if done.returncode or not isinstance(found, list):
        lines = done.stderr.strip().splitlines() or ["the process printed no error"]
        raise UserError(f"the layers of the model cannot be found: {lines[-1]}")
    return [Layer(**facts) for facts in found]


@dataclass(frozen=True)
class LayerGroup:
    """Layers that always have the same level."""

    name: str
    layers: tuple[Layer, ...]

    @property
    def products(self) -> tuple[Layer, ...]:
        """The Linear and Conv layers of the group."""
        return tuple(layer for layer in self.layers if layer.multiplies)


@dataclass(frozen=True)
class Factor:
    """A role, such as `weight`, of the group with this index. Example of a name: `blocks.0 weight`."""

    group: int
    role: str
    name: str


@dataclass(frozen=True)
class Screen:
    """The groups and factors of a screen, its settings, and all layers of the model."""

    settings: ScreenSettings
    groups: Sequence[LayerGroup]
    factors: Sequence[Factor]
    layers: Sequence[Layer]

    def by_place(self, levels: Levels) -> dict[tuple[int, str], int]:
        """Return the levels keyed by (index of the group, role)."""
        return {(self.factors[i].group, self.factors[i].role): level for i, level in levels.items()}


def groups_of(layers: Sequence[Layer], asked: ScreenSettings) -> list[LayerGroup]:
    """Return the groups in `screen.groups`, or the default groups.

    Raises:
        ConfigError: A typed group matches none of the remaining layers, or no layer of the model has any of the roles.
    """
    if asked.groups is not None:
        return _typed(layers, asked.groups)
    is_of_wire = GRADIENT in asked.roles
    leading = [layer for layer in layers if layer.multiplies or (is_of_wire and layer.kind == "Embedding")]
    leading = leading or (list(layers) if is_of_wire else [])
    if not leading:
        raise ConfigError(
            "screen.roles: the model has no Linear or Conv layer, so it has no products to screen"
        )
    cells: list[tuple[str, list[Layer]]] = []
    for i, layer in enumerate(leading):
        alone = i in (0, len(leading) - 1)
        key = layer.name if alone else _stage(layer.name)
        if not alone and len(cells) > 1 and cells[-1][0] == key:
            cells[-1][1].append(layer)
        else:
            cells.append((key, [layer]))
    merged = _merged(cells, max(1, asked.most_factors // len(asked.roles)))
    return [LayerGroup(_name(cell), _with_followers(cell, layers, leading)) for cell in merged]


def factors_of(groups: Sequence[LayerGroup], asked: ScreenSettings) -> list[Factor]:
    """Return the factors, sorted by group.

    Groups without Linear and Conv layers have only the role `gradient`.

    Raises:
        ConfigError: There are more factors than `screen.most_factors`.
    """
    found = [
        Factor(i, role, f"{group.name} {role}")
        for i, group in enumerate(groups)
        for role in asked.roles
        if role == GRADIENT or group.products
    ]
    if len(found) > asked.most_factors:
        raise ConfigError(
            f"screen.groups: {len(groups)} groups and {len(asked.roles)} roles make {len(found)} factors, more than "
            f"screen.most_factors={asked.most_factors}"
        )
    return found


def _typed(layers: Sequence[Layer], patterns: Mapping[str, Sequence[str]]) -> list[LayerGroup]:
    """Put each layer into the first group with a matching pattern, if any."""
    found: dict[str, list[Layer]] = {name: [] for name in patterns}
    for layer in layers:
        names = (name for name, own in patterns.items() if any(fnmatchcase(layer.name, each) for each in own))
        if (name := next(names, None)) is not None:
            found[name].append(layer)
    for name, members in found.items():
        if not members:
            some = ", ".join(layer.name for layer in layers[:6])
            raise ConfigError(
                f"screen.groups.{name}: {patterns[name]} matches no layer that is left. Layers are {some}"
            )
    return [LayerGroup(name, tuple(members)) for name, members in found.items()]


def _stage(name: str) -> str:
    parts = name.split(".")
    end = next((i for i, part in enumerate(parts) if part.isdecimal()), 0)
    return ".".join(parts[: end + 1])


def _merged(cells: list[tuple[str, list[Layer]]], most: int) -> list[list[Layer]]:
    """Merge neighboring groups until at most `most` are left, smallest pair first.

    The first and the last group stay separate while there are more than three groups.
    """
    found = [list(members) for _, members in cells]
    while len(found) > most:
        inner = range(1, len(found) - 2) if len(found) > 3 else range(len(found) - 1)
        at = min(inner, key=lambda i: len(found[i]) + len(found[i + 1]))
        found[at : at + 2] = [found[at] + found[at + 1]]
    return found


def _name(members: Sequence[Layer]) -> str:
    """Return a name for a group.

    This is the layers' common prefix if it has at least two parts, such as `blocks.0`, otherwise "FIRST to LAST".
    """
    if len(members) == 1:
        return members[0].name
    parts = zip(*(layer.name.split(".") for layer in members), strict=False)
    common = [part[0] for part in itertools.takewhile(lambda part: len({*part}) == 1, parts)]
    return ".".join(common) if len(common) > 1 else f"{members[0].name} to {members[-1].name}"


def _with_followers(
    cell: Sequence[Layer], layers: Sequence[Layer], leading: Sequence[Layer]
) -> tuple[Layer, ...]:
    """Return all layers of the group with the leading layers `cell`.

    A layer that does not lead, such as a norm, follows the leading layer before it, or the first one.
    """
    own, found, owner = {layer.name for layer in cell}, [], leading[0].name
    names = {layer.name for layer in leading}
    for layer in layers:
        owner = layer.name if layer.name in names else owner
        if owner in own:
            found.append(layer)
    return tuple(found)


# ---- Config values


@dataclass(frozen=True)
class Cases(Screen):
    """A converter from levels of factors to config values.

    Attributes:
        base: The config values of all runs, including the baseline.
        aps: Whether low gradients use APS. None keeps the experiment's setting.
        kept: The experiment's own patterns in `full_precision.layers`.
        rules: The experiment's own precision rules.
    """

    base: Values
    aps: bool | None
    kept: Sequence[str]
    rules: Sequence[Mapping[str, Any]]

    def baseline(self) -> Values:
        """Return the config values of the baseline.

        It has no rules of the screen, and fp32 if gradients are screened.
        """
        plain = {"format": FP32, "aps": False} if GRADIENT in self.settings.roles else {}
        return {**self.base, **plain}

    def of(self, levels: Levels) -> Values:
        """Return the config values of a run with these levels."""
        found = self.baseline()
        at = self.by_place(levels)
        if GRADIENT in self.settings.roles:
            found |= self._gradients(
                {group for (group, role), level in at.items() if role == GRADIENT and level}
            )
        rules = list(self._rules(at))
        return found | ({"precision.rules": [*rules, *self.rules]} if rules else {})

    def uniform(self, level: Level) -> Values:
        """Return the config values of a run with one level in all layers."""
        found = self.baseline()
        if GRADIENT in self.settings.roles:
            found |= self._of_format(level["format"])
        roles = [role for role in PRODUCTS if role in self.settings.roles]
        rules = [{"modules": "*", "role": roles, **level}] if roles and level["format"] != FP32 else []
        return found | ({"precision.rules": [*rules, *self.rules]} if rules else {})

    def _gradients(self, low: Collection[int]) -> Values:
        if not low:
            return {}
        names = {layer.name for i in low for layer in self.groups[i].layers}
        high = [glob.escape(p) for layer in self.layers if layer.name not in names for p in layer.parameters]
        fewer = {"full_precision.layers": [*self.kept, *high]} if high else {}
        return self._of_format(self.settings.level(GRADIENT, 1)["format"]) | fewer

    def _of_format(self, name: str) -> Values:
        aps = False if parse(name).has_scales or parse(name).is_fp32 else self.aps
        return {"format": name} | ({} if aps is None else {"aps": aps})

    def _rules(self, at: Mapping[tuple[int, str], int]) -> Iterator[dict[str, Any]]:
        """Yield the precision rules for levels keyed by (index of the group, role).

        Roles with equal rules share one rule. Rules for named layers come first, then a rule for all other layers (`*`)
        unless these are in fp32.
        """
        home = {layer.name: i for i, group in enumerate(self.groups) for layer in group.products}
        multiply = [*home, *(x.name for x in self.layers if x.multiplies and x.name not in home)]
        named: dict[str, tuple[Any, Level, list[str]]] = {}
        for role in [role for role in PRODUCTS if role in self.settings.roles]:
            of = {name: at.get((home.get(name, -1), role), 0) for name in multiply}
            rest = 0 if 0 in of.values() else Counter(of.values()).most_common(1)[0][0]
            for number in sorted(set(of.values()) - {rest}):
                names = [glob.escape(name) for name, own in of.items() if own == number]
                self._add(named, names, self.settings.level(role, number), role)
            level = self.settings.level(role, rest)
            if level["format"] != FP32:
                self._add(named, "*", level, role)
        for modules, level, roles in sorted(named.values(), key=lambda rule: rule[0] == "*"):
            yield {"modules": modules, "role": roles, **level}

    @staticmethod
    def _add(named: dict[str, tuple[Any, Level, list[str]]], modules: Any, level: Level, role: str) -> None:
        named.setdefault(f"{modules} {level}", (modules, level, []))[2].append(role)
