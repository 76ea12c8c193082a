"""Turn levels of factors into config values, as a case of an experiment has them.

Gradients between workers: the format of the run is the low format, and `full_precision.layers` names the layers that
are exchanged in fp32 (the hybrid scheme of arXiv 1911.08907). Products: `precision.rules` names the low layers of each
role, and a last rule `*` covers all other layers. These are the high layers or, if no layer is high, the layers at the
most common level.
"""

import glob
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from custom_fp.formats.names import parse

from cpdrun.search.allocate.factors import Factor, LayerGroup
from cpdrun.search.allocate.layers import Layer
from cpdrun.search.allocate.settings import GRADIENT, PRODUCTS, Level, ScreenSettings

FP32 = "fp32"
ALLOCATED, ALL_LOW = "allocated", "all low"

# Config values by dotted keys.
Values = dict[str, Any]
# The level of each factor: 1, 2 ... are the levels of `screen.low`. Level 0 and factors that are not listed are high.
Levels = Mapping[int, int]


@dataclass(frozen=True)
class Cases:
    """The cases of a screen.

    Attributes:
        asked: The settings of the screen.
        groups: The groups of layers.
        factors: The factors.
        layers: All layers of the model.
        base: The values that every case has, including the baseline.
        aps: Whether low gradients use APS, or None for the experiment's own setting.
        kept: The patterns of `full_precision.layers` that the experiment has.
        rules: The precision rules that the experiment has.
    """

    asked: ScreenSettings
    groups: Sequence[LayerGroup]
    factors: Sequence[Factor]
    layers: Sequence[Layer]
    base: Values
    aps: bool | None
    kept: Sequence[str]
    rules: Sequence[Mapping[str, Any]]

    def baseline(self) -> Values:
        """Return the values of the baseline: the experiment as it is, without the low or high bits of the screen."""
        plain = {"format": FP32, "aps": False} if GRADIENT in self.asked.roles else {}
        return {**self.base, **plain}

    def of(self, levels: Levels) -> Values:
        """Return the values of a run in which these factors have these levels and all others are high."""
        found = self.baseline()
        at = {(self.factors[i].group, self.factors[i].role): level for i, level in levels.items()}
        if GRADIENT in self.asked.roles:
            found |= self._gradients(
                {group for (group, role), level in at.items() if role == GRADIENT and level}
            )
        rules = list(self._rules(at))
        return found | ({"precision.rules": [*rules, *self.rules]} if rules else {})

    def uniform(self, level: Level) -> Values:
        """Return the values of a run in which all screened roles have the same format in all layers."""
        found = self.baseline()
        if GRADIENT in self.asked.roles:
            found |= self._of_format(level["format"])
        roles = [role for role in PRODUCTS if role in self.asked.roles]
        rules = [{"modules": "*", "role": roles, **level}] if roles and level["format"] != FP32 else []
        return found | ({"precision.rules": [*rules, *self.rules]} if rules else {})

    def _gradients(self, low: Collection[int]) -> Values:
        if not low:
            return {}
        names = {layer.name for i in low for layer in self.groups[i].layers}
        high = [glob.escape(p) for layer in self.layers if layer.name not in names for p in layer.parameters]
        fewer = {"full_precision.layers": [*self.kept, *high]} if high else {}
        return self._of_format(self.asked.level(GRADIENT, 1)["format"]) | fewer

    def _of_format(self, name: str) -> Values:
        aps = False if parse(name).has_scales or parse(name).is_fp32 else self.aps
        return {"format": name} | ({} if aps is None else {"aps": aps})

    def _rules(self, at: Mapping[tuple[int, str], int]) -> Iterator[dict[str, Any]]:
        """Yield the precision rules. Rules for specific layers come first. Roles with equal rules share one rule.

        `at` holds the levels by group and role.
        """
        home = {layer.name: i for i, group in enumerate(self.groups) for layer in group.products}
        multiply = [*home, *(x.name for x in self.layers if x.multiplies and x.name not in home)]
        named: dict[str, tuple[Any, Level, list[str]]] = {}
        for role in [role for role in PRODUCTS if role in self.asked.roles]:
            of = {name: at.get((home.get(name, -1), role), 0) for name in multiply}
            rest = 0 if 0 in of.values() else Counter(of.values()).most_common(1)[0][0]
            for number in sorted(set(of.values()) - {rest}):
                names = [glob.escape(name) for name, own in of.items() if own == number]
                self._add(named, names, self.asked.level(role, number), role)
            level = self.asked.level(role, rest)
            if level["format"] != FP32:
                self._add(named, "*", level, role)
        for modules, level, roles in sorted(named.values(), key=lambda rule: rule[0] == "*"):
            yield {"modules": modules, "role": roles, **level}

    @staticmethod
    def _add(named: dict[str, tuple[Any, Level, list[str]]], modules: Any, level: Level, role: str) -> None:
        named.setdefault(f"{modules} {level}", (modules, level, []))[2].append(role)
