"""From a model's layers to groups, and from groups and roles to factors.

Each group has a factor for each role that it takes part in: all of its layers have the role's low bits, or all its
high. By itself a screen takes the first layer, each stage and the last layer as groups. A stage is what lies under one
name, up to and with the first number in it (`blocks.0`, `layer1.0`, `features.2`); neighbours are put together until
there are at most `most_factors` factors. Layers that multiply nothing belong to the one before them: they have no
products, and their gradients are small.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from cpdrun.config.errors import ConfigError
from cpdrun.search.allocate.layers import Layer
from cpdrun.search.allocate.settings import GRADIENT, ScreenSettings


@dataclass(frozen=True)
class LayerGroup:
    name: str
    layers: tuple[Layer, ...]

    @property
    def products(self) -> tuple[Layer, ...]:
        return tuple(layer for layer in self.layers if layer.multiplies)


@dataclass(frozen=True)
class Factor:
    """What is low or high as one."""

    group: int
    role: str
    name: str  # `blocks.0 weight`


def groups_of(layers: Sequence[Layer], asked: ScreenSettings) -> list[LayerGroup]:
    """Raises ConfigError for a pattern that names no layer, and for a model without layers that have a role."""
    if asked.groups is not None:
        return _typed(layers, asked.groups)
    is_of_wire = GRADIENT in asked.roles
    leading = [layer for layer in layers if layer.multiplies or (is_of_wire and layer.kind == "Embedding")]
    leading = leading or (list(layers) if is_of_wire else [])
    if not leading:
        raise ConfigError(
            "screen.roles: the model has no Linear or Conv layer whose products rules could reach"
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
    """LayerGroup by group. Raises ConfigError for more than the design holds."""
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
    """Each layer in the first group that names it; those of none stay high."""
    found: dict[str, list[Layer]] = {name: [] for name in patterns}
    for layer in layers:
        for name, globs in patterns.items():
            if any(fnmatchcase(layer.name, glob) for glob in globs):
                found[name].append(layer)
                break
    for name, members in found.items():
        if not members:
            some = ", ".join(layer.name for layer in layers[:6])
            raise ConfigError(
                f"screen.groups.{name}: {patterns[name]} names no layer that is left; layers are {some}"
            )
    return [LayerGroup(name, tuple(members)) for name, members in found.items()]


def _stage(name: str) -> str:
    parts = name.split(".")
    end = next((i for i, part in enumerate(parts) if part.isdecimal()), 0)
    return ".".join(parts[: end + 1])


def _merged(cells: list[tuple[str, list[Layer]]], most: int) -> list[list[Layer]]:
    """At most so many: neighbours in the middle first, the pair of fewest layers each time."""
    found = [list(members) for _, members in cells]
    while len(found) > most:
        inner = range(1, len(found) - 2) if len(found) > 3 else range(len(found) - 1)
        at = min(inner, key=lambda i: len(found[i]) + len(found[i + 1]))
        found[at : at + 2] = [found[at] + found[at + 1]]
    return found


def _name(members: Sequence[Layer]) -> str:
    """The longest name that all lie under; else that of the first and of the last."""
    if len(members) == 1:
        return members[0].name
    split = [layer.name.split(".") for layer in members]
    common: list[str] = []
    for parts in zip(*split, strict=False):
        if len(set(parts)) > 1:
            break
        common.append(parts[0])
    return f"{members[0].name} to {members[-1].name}" if not common or len(common) < 2 else ".".join(common)


def _with_followers(
    cell: Sequence[Layer], layers: Sequence[Layer], leading: Sequence[Layer]
) -> tuple[Layer, ...]:
    """With the layers behind each that multiply nothing; those before all belong to the first."""
    own, found, owner = {layer.name for layer in cell}, [], leading[0].name
    names = {layer.name for layer in leading}
    for layer in layers:
        owner = layer.name if layer.name in names else owner
        if owner in own:
            found.append(layer)
    return tuple(found)
