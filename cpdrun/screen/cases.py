"""What a run is whose factors are low or high: values of its config, as a case of an experiment has them.

Gradients between workers: the run's format is the low one, and `full_precision.layers` names what is exchanged in fp32
all the same (the hybrid scheme of arXiv 1911.08907). Products: `precision.rules`, a role's low layers by name, then all
others by `*`.
"""

import glob
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from custom_fp.formats.names import parse

from cpdrun.screen.factors import Factor, Group
from cpdrun.screen.layers import Layer
from cpdrun.screen.settings import GRADIENT, PRODUCTS, Level, Settings

FP32 = "fp32"
ALLOCATED = "allocated"

Values = dict[str, Any]  # of a config, by dotted keys


@dataclass(frozen=True)
class Cases:
    """base: values that every case has, baseline and all; aps: of runs whose gradients are low (None: as the experiment
    says); kept: patterns of `full_precision.layers` that the experiment has; rules: those of its precision."""

    asked: Settings
    groups: Sequence[Group]
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

    def of(self, low: Collection[int]) -> Values:
        """Of a run in which these factors are low, and all others high."""
        found = self.baseline()
        if GRADIENT in self.asked.roles:
            found |= self._gradients({self.factors[i].group for i in low if self.factors[i].role == GRADIENT})
        rules = list(self._rules({(f.group, f.role) for i, f in enumerate(self.factors) if i in low}))
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
        return self._of_format(self.asked.low[GRADIENT]["format"]) | fewer

    def _of_format(self, name: str) -> Values:
        aps = False if parse(name).has_scales or parse(name).is_fp32 else self.aps
        return {"format": name} | ({} if aps is None else {"aps": aps})

    def _rules(self, low: Collection[tuple[int, str]]) -> Iterator[dict[str, Any]]:
        """By name first; roles that are alike in one rule."""
        multiply = {layer.name for layer in self.layers if layer.multiplies}
        named: dict[str, tuple[Any, Level, list[str]]] = {}
        for role in [role for role in PRODUCTS if role in self.asked.roles]:
            own = [
                layer.name
                for i, group in enumerate(self.groups)
                if (i, role) in low
                for layer in group.products
            ]
            rest = self.asked.high[role]
            if len(own) == len(multiply):
                own, rest = [], self.asked.low[role]
            elif own:
                self._add(named, [glob.escape(name) for name in own], self.asked.low[role], role)
            if rest["format"] != FP32:
                self._add(named, "*", rest, role)
        for modules, level, roles in sorted(named.values(), key=lambda rule: rule[0] == "*"):
            yield {"modules": modules, "role": roles, **level}

    @staticmethod
    def _add(named: dict[str, tuple[Any, Level, list[str]]], modules: Any, level: Level, role: str) -> None:
        named.setdefault(f"{modules} {level}", (modules, level, []))[2].append(role)
