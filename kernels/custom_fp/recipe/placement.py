"""Put rules to work in one model: in its layers that multiply, its attention, and by hooks at the ends of layers.

All modules stay the same objects, and what the user saves of them stays the user's (custom_fp.layers.attachment). A
model that no rule reaches is left alone.
"""

import copy
from collections.abc import Sequence
from itertools import pairwise
from typing import Any
from weakref import WeakSet

from torch import Tensor, nn
from torch.utils._pytree import tree_map

from custom_fp.layers.attachment import add_hooks_, attach_, is_exporting, override_
from custom_fp.layers.attention import attend_by_
from custom_fp.layers.modules import unfused_settings
from custom_fp.layers.products import PRODUCTS, ROLES, Arithmetic, round_gradient
from custom_fp.recipe.delayed import Delayed, Histories, History
from custom_fp.recipe.layers import KINDS, Layer
from custom_fp.recipe.rounding import Rounding
from custom_fp.recipe.rules import Rules


class Placement:
    """The rules at work in `model`. A deep copy of the model gets a copy of them, which follows the original's step.

    Raises ValueError for a transform of one operand alone, and for an embedding whose sparse gradient would be rounded.
    """

    def __init__(self, model: nn.Module, rules: Rules):
        self.model, self.rules, self.turn = model, rules, -1
        self.histories = Histories()
        self.copies: WeakSet[Placement] = WeakSet()
        layers = [layer for layer in rules.layers if layer.multiplies]
        # of all steps, so that each rule is asked that some step will ask
        phases = {layer: [self._arithmetic(layer, t) for t in rules.turns] for layer in layers}
        reached = [layer for layer, of_layer in phases.items() if any(of_layer)]
        rounded = {layer.module for layer in reached if layer.module.__class__ in KINDS}
        for module in rounded:
            KINDS[module.__class__].attach_to(module, Arithmetic())
        for module, attribute, value in unfused_settings(model) if rounded else ():
            override_(module, attribute, value)
        self.attending = [layer for layer in reached if _calls_attention(layer)]
        if self.attending:  # those around or within one, too, whose calls are not its own
            for layer in layers:
                if _calls_attention(layer):
                    attend_by_(layer.module)
        self.placed = [(layer.module, layer) for layer in reached]
        self.ends = self._hook_in(rules.layers)
        if self.placed or self.ends:
            attach_(model).placement = self
        if self.histories.by_operand:
            for module in {model, *(layer.module for layer in reached)}:
                attach_(module).histories = self.histories
                self.histories.owners.add(module)
        self.at(0)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "copies"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.copies = WeakSet()

    def __deepcopy__(self, memo: dict[int, Any]) -> "Placement":
        copied = memo[id(self)] = object.__new__(Placement)
        copied.__setstate__(copy.deepcopy(self.__getstate__(), memo))
        copied.attending = []  # the calls of the original are checked
        self.copies.add(copied)
        return copied

    def at(self, step: int) -> None:
        """Compute as the rules say of this step."""
        for copied in self.copies:
            copied.at(step)
        turn = max(t for t in self.rules.turns if t <= step)
        if turn == self.turn:
            return
        self.turn = turn
        for module, layer in self.placed:
            arithmetic = self._arithmetic(layer, turn)
            if layer.part:
                setattr(module.attention_products, layer.part, arithmetic)
            else:
                module.arithmetic = arithmetic
        for ends in self.ends:
            ends.set(self.rules, turn)

    def check_called(self) -> None:
        """Once the model has been called: ValueError for a rule of attention alone that met no call of it."""
        met = {rule for layer in self._called() for rule in self._deciding(layer)}
        for rule in dict.fromkeys(rule for layer in self.attending for rule in self._deciding(layer)):
            if rule not in met and not rule.optional and not self._bears_elsewhere(rule):
                raise ValueError(
                    f"{rule.typed}: no module that it means calls scaled_dot_product_attention; attention that is "
                    "written out in matrix products stays in float32"
                )

    def _called(self) -> list[Layer]:
        return [layer for module, layer in self.placed if layer.part and module.attention_products.called]

    def _deciding(self, layer: Layer) -> list[Any]:
        asked = [(role, product) for role, products in ROLES.items() for product in products]
        asked += [("accumulator", product) for product in PRODUCTS]
        found = [self.rules.first_for(layer, *pair, t) for pair in asked for t in self.rules.turns]
        return [rule for rule in found if rule is not None]

    def _bears_elsewhere(self, rule: Any) -> bool:
        return any(rule in self._deciding(layer) for _, layer in self.placed if layer not in self.attending)

    def _arithmetic(self, layer: Layer, step: int) -> Arithmetic:
        of = self.rules.of
        asked = {(role, p): of(layer, role, p, step) for role in ROLES for p in layer.products(role)}
        sums = {
            p: found for p in layer.products("accumulator") if (found := of(layer, "accumulator", p, step))
        }
        self.rules.check_transforms(layer, step)
        if getattr(layer.module, "sparse", False) and asked.get(("result", "weight_gradient")):
            raise ValueError(
                f"{layer.names[0]}: result of weight_gradient is no sparse gradient; take sparse=False"
            )
        return Arithmetic(
            {key: self._bound(layer, key[0], rounding) for key, rounding in asked.items() if rounding},
            {p: rounding.format for p, rounding in sums.items()},
            [p for p, rounding in sums.items() if rounding.kahan],
        )

    def _bound(self, layer: Layer, role: str, rounding: Rounding) -> Rounding | Delayed:
        """With its history, where it has one."""
        if rounding.history is None:
            return rounding
        key = f"{layer.names[0]}:{role}"
        history = self.histories.by_operand.get(key)
        if history is None or len(history.values) != rounding.history:
            history = self.histories.by_operand[key] = History(rounding.history)
        return Delayed(rounding, history)

    def end_step(self) -> None:
        """What delayed scales have seen enters their histories. Collective, where there are several processes."""
        self.histories.roll()

    def state_dict(self) -> dict[str, Tensor]:
        """The histories, at the end of a step."""
        return {key: history.values for key, history in self.histories.by_operand.items()}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        for key, values in state.items():
            self.histories.by_operand[key].values = values.clone()

    def _hook_in(self, layers: Sequence[Layer]) -> list["Ends"]:
        leaves = {layer.module: layer for layer in layers if layer.takes("activation")}
        before: dict[nn.Module, list[Layer]] = {}
        for chain in (list(m) for m in self.model.modules() if m.__class__ is nn.Sequential):
            for one, other in pairwise(chain):
                if one in leaves:
                    before.setdefault(other, []).append(leaves[one])
        found = [Ends(module, layer, before.get(module, [])) for module, layer in leaves.items()]
        return [ends for ends in found if ends.hooked_in(self.rules)]


class Ends:
    """What one layer reads and gives, and the gradient that arrives at what it gives. What functional operations
    between layers (a residual added) make of rounded values is rounded where the next layer reads it; directly behind a
    layer of a Sequential there are none."""

    def __init__(self, module: nn.Module, layer: Layer, before: Sequence[Layer]):
        self.module, self.layer, self.before = module, layer, before
        self.reading: Rounding | None = None
        self.giving: Rounding | None = None
        self.error: Rounding | None = None

    def set(self, rules: Rules, step: int) -> None:
        self.giving = rules.of(self.layer, "activation", None, step)
        self.error = rules.of(self.layer, "error", None, step)
        given = [rules.of(layer, "activation", None, step) for layer in self.before]
        self.reading = None if given and all(g == self.giving for g in given) else self.giving

    def hooked_in(self, rules: Rules) -> bool:
        """Whether some rule reaches it in some step; then its hooks are in place."""
        reads = gives = False
        for turn in rules.turns:
            self.set(rules, turn)
            reads |= self.reading is not None
            gives |= self.giving is not None or self.error is not None
        if reads or gives:
            add_hooks_(self.module, self._read if reads else None, self._give if gives else None)
        return reads or gives

    def _read(self, _module: nn.Module, inputs: tuple) -> tuple:
        reading = None if is_exporting() else self._in_force(self.reading)
        return inputs if reading is None else tuple(_each(x, reading) for x in inputs)

    def _give(self, _module: nn.Module, _inputs: tuple, output: Any) -> Any:
        return output if is_exporting() else _each(output, self._given)

    def _given(self, x: Tensor) -> Tensor:
        giving = self._in_force(self.giving)
        if self.error is not None:
            x = round_gradient(x, self.error)
            if giving is None:
                return x.clone()  # a view could not be changed in place, as a ReLU may do
        return x if giving is None else giving(x)

    def _in_force(self, rounding: Rounding | None) -> Rounding | None:
        """Evaluated, a layer draws nothing."""
        return rounding if rounding is None or self.module.training else rounding.nearest


def _calls_attention(layer: Layer) -> bool:
    """Whether it is attention that the module forms by calling torch's function."""
    return layer.part is not None and layer.module.__class__ not in KINDS


def _each(value: Any, rounding: Any) -> Any:
    """Of a tensor, or of all tensors in tuples, lists and mappings; numbers that are no floating point stay."""
    if not isinstance(value, Tensor):
        return tree_map(lambda leaf: _each(leaf, rounding) if isinstance(leaf, Tensor) else leaf, value)
    return rounding(value) if value.is_floating_point() else value
