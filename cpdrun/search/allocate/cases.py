"""What a run is whose factors have these levels: values of its config, as a case of an experiment has them.

Gradients between workers: the run's format is the low one, and `full_precision.layers` names what is exchanged in fp32
all the same (the hybrid scheme of arXiv 1911.08907). Products: `precision.rules`, a role's low layers by name, then all
others by `*`: those that are high, or, where none is, those of the level that most have.
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

Values = dict[str, Any]  # of a config, by dotted keys
Levels = Mapping[
    int, int
]  # of factors: 1, 2 ... of `screen.low`; one that is not there is high, and so is level 0


@dataclass(frozen=True)
class Cases:
    """base: values that every case has, baseline and all; aps: of runs whose gradients are low (None: as the experiment
    says); kept: patterns of `full_precision.layers` that the experiment has; rules: those of its precision."""

    asked: ScreenSettings
    groups: Sequence[LayerGroup]
    factors: Sequence[Factor]
    layers: Sequence[Layer]
    base: Values
    aps: bool | None
    kept: Sequence[str]
    rules: Sequence[Mapping[str, Any]]

    def baseline(self) -> Values:
        """What everything is compared with: the experiment as it stands, without low bits or high ones."""
        plain = {"format": FP32, "aps": False} if GRADIENT in self.asked.roles else {}
        return {**self.base, **plain}

    def of(self, levels: Levels) -> Values:
        """Of a run in which these factors have these levels, and all others are high."""
        found = self.baseline()
        at = {(self.factors[i].group, self.factors[i].role): level for i, level in levels.items()}
        if GRADIENT in self.asked.roles:
            found |= self._gradients(
                {group for (group, role), level in at.items() if role == GRADIENT and level}
            )
        rules = list(self._rules(at))
        return found | ({"precision.rules": [*rules, *self.rules]} if rules else {})

    def uniform(self, level: Level) -> Values:
        """Of a run in which all roles that are asked for have one format in all layers."""
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
        """By name first; roles that are alike in one rule. `at`: levels by group and role."""
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
