"""Group the layers of a model, and make factors from groups and roles.

A group has a factor for each role in which it takes part: either all of its layers have the low bits of the role, or
all have the high bits. By default, the groups of a screen are the first layer, each stage and the last layer. A stage
is all layers whose names agree up to and including the first number (`blocks.0`, `layer1.0`, `features.2`). Neighbors
are merged until there are at most `most_factors` factors. Layers that multiply nothing join the layer before them,
because they have no products and their gradients are small.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from cpdrun.config.errors import ConfigError
from cpdrun.search.allocate.layers import Layer
from cpdrun.search.allocate.settings import GRADIENT, ScreenSettings


@dataclass(frozen=True)
class LayerGroup:
    """Layers that are low or high together."""

    name: str
    layers: tuple[Layer, ...]

    @property
    def products(self) -> tuple[Layer, ...]:
        """The layers of the group that multiply."""
        return tuple(layer for layer in self.layers if layer.multiplies)


@dataclass(frozen=True)
class Factor:
    """A role of a group of layers, which is low or high as a whole.

    Attributes:
        group: The index of the group.
        role: The role.
        name: The name, such as `blocks.0 weight`.
    """

    group: int
    role: str
    name: str


def groups_of(layers: Sequence[Layer], asked: ScreenSettings) -> list[LayerGroup]:
    """Return the groups of layers.

    Raises:
        ConfigError: A pattern names no layer, or the model has no layer that takes part in a role.
    """
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
    """Return the factors, group by group.

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
    """Put each layer into the first group whose pattern names it. Layers that no pattern names stay high."""
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
    """Merge neighbors until at most `most` groups are left.

    The first and the last group are merged last. Each time, merge the pair with the fewest layers.
    """
    found = [list(members) for _, members in cells]
    while len(found) > most:
        inner = range(1, len(found) - 2) if len(found) > 3 else range(len(found) - 1)
        at = min(inner, key=lambda i: len(found[i]) + len(found[i + 1]))
        found[at : at + 2] = [found[at] + found[at + 1]]
    return found


def _name(members: Sequence[Layer]) -> str:
    """Return the longest common name of the layers, or else the names of the first and the last."""
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
    """Return the layers of a cell, each with the layers after it that multiply nothing.

    Layers before all others belong to the first cell.
    """
    own, found, owner = {layer.name for layer in cell}, [], leading[0].name
    names = {layer.name for layer in leading}
    for layer in layers:
        owner = layer.name if layer.name in names else owner
        if owner in own:
            found.append(layer)
    return tuple(found)
