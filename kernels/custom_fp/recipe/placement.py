"""Apply rules to a model: to its layers, to the operations that its modules call, and, through hooks, to activations.

All modules stay the same objects, and what the user saves does not change (custom_fp.layers.attachment). If no rule
matches any part of the model, the model is not changed.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterable, Sequence
from itertools import pairwise
from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from custom_fp.layers.attachment import add_hooks_, attach_, class_of, is_attached, is_exporting, override_
from custom_fp.layers.modules import unfused_settings
from custom_fp.layers.operations import (
    ACTIVATION,
    ERROR,
    RESULT_PARTS,
    SDPA,
    operations_of,
    replace_operations_,
)
from custom_fp.layers.products import PRODUCTS, ROLES, Arithmetic, round_gradient
from custom_fp.recipe.delayed_scaling import Delayed, Histories
from custom_fp.recipe.layers import KINDS, Layer
from custom_fp.recipe.quantization_spec import QuantizationSpec
from custom_fp.recipe.rules import Rule, Rules


class Placement:
    """The rules that round one model.

    A deep copy of the model gets its own copy of the placement. If the original placement switches to another step of
    the run, the copy switches with it.

    Args:
        model: The model, which is changed in place.
        rules: The rules, with the layers of the model.

    Raises:
        ValueError: If only one operand of a product is transformed, or if the sparse gradient of an embedding would be
            rounded.
    """

    def __init__(self, model: nn.Module, rules: Rules) -> None:
        self.model, self.rules, self.phase = model, rules, -1
        self.histories = Histories()
        self.copies: WeakSet[Placement] = WeakSet()
        self._attach(0)

    def _attach(self, first: int) -> None:
        """Attach the rules to the model, and switch to the rules of step `first`."""
        model, rules, self.phase = self.model, self.rules, -1
        layers = [layer for layer in rules.layers if layer.multiplies or layer.part]
        # The arithmetic of all phases is created first, so that the histories of delayed scales exist from the start.
        by_phase = {layer: [self._arithmetic(layer, step) for step in rules.phases] for layer in layers}
        reached = [layer for layer, arithmetics in by_phase.items() if any(arithmetics)]
        # The rounding class of MultiheadAttention also computes its operations, so rules for these operations need it.
        rounded = {
            layer.module: layer.rounding_class
            for layer in reached
            if layer.part is None or class_of(layer.module) in KINDS
        }
        for module, rounding_class in rounded.items():
            if rounding_class is not None:
                rounding_class.attach_to(module, Arithmetic())
        for module, attribute, value in unfused_settings(model) if rounded else ():
            override_(module, attribute, value)
        self.called = [layer for layer in reached if _is_called_function(layer)]
        for module in self._modules_with_functions(layers):
            replace_operations_(module)
        self.placed = [(layer.module, layer) for layer in reached]
        self.activations = self._add_hooks(rules.layers)
        if self.placed or self.activations:
            attach_(model).placement = self
        if self.histories.by_operand:
            for module in {model, *(layer.module for layer in reached)}:
                attach_(module).histories = self.histories
                self.histories.owners.add(module)
        self.at(first)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "copies"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.copies = WeakSet()
        if not is_attached(self.model):  # an unpickled model has no rules, because pickle does not save them
            self._attach(self.phase)

    def __deepcopy__(self, memo: dict[int, Any]) -> Placement:
        copied = memo[id(self)] = object.__new__(Placement)
        copied.__dict__.update(copy.deepcopy(self.__getstate__(), memo), copies=WeakSet())
        copied.called = []  # `check_called` checks only the calls of the original
        self.copies.add(copied)
        return copied

    def at(self, step: int) -> None:
        """Switch to the rules of this step of the run."""
        for copied in self.copies:
            copied.at(step)
        phase = max(first for first in self.rules.phases if first <= step)
        if phase == self.phase:
            return
        self.phase = phase
        for module, layer in self.placed:
            arithmetic = self._arithmetic(layer, phase)
            if layer.part:
                operations_of(module).set(layer.part, arithmetic)
            else:
                module.__dict__["arithmetic"] = arithmetic
        for activation in self.activations:
            activation.update(self.rules, phase)

    def check_called(self, never_called: Collection[str] = ()) -> None:
        """Raise ValueError if the model called nothing that a rule selects, unless the rule is `optional`.

        Call this method after the model's forward pass.

        Args:
            never_called: The names of the selected layers that the model did not call, as measured by coverage.py.
                Operations need not be listed, because they record their own calls.
        """
        used: set[Rule] = set()
        unused: dict[Rule, list[Layer]] = {}
        for module, layer in self.placed:
            if layer in self.called:
                was_called = layer.part in operations_of(module).called
            else:
                was_called = layer.names[0] not in never_called
            for rule in self._deciding_rules(layer):
                if was_called:
                    used.add(rule)
                else:
                    unused.setdefault(rule, []).append(layer)
        for rule, layers in unused.items():
            if rule in used or rule.optional:
                continue
            if all(layer in self.called for layer in layers):
                kinds = list(dict.fromkeys(layer.kind for layer in layers))
                hint = "; use matmul() to select attention that is written as separate products" * (
                    kinds == [SDPA]
                )
                raise ValueError(
                    f"{rule.typed}: none of the modules selected by this rule calls {' or '.join(kinds)}{hint}"
                )
            raise ValueError(
                f"{rule.typed}: the model calls none of the layers selected by this rule, such as "
                f"{layers[0].names[0]}; use linear() to select calls to F.linear with the weight of such a layer"
            )

    def _deciding_rules(self, layer: Layer) -> list[Rule]:
        pairs: list[tuple[str, str | None]]
        pairs = [(role, product) for role, products in ROLES.items() for product in products]
        pairs += [("accumulator", product) for product in PRODUCTS]
        if layer.part in RESULT_PARTS:
            pairs = [("activation", None), ("error", None)]
        found = [self.rules.deciding_rule(layer, *pair, step) for pair in pairs for step in self.rules.phases]
        return [rule for rule in found if rule is not None]

    def _modules_with_functions(self, layers: Sequence[Layer]) -> Iterable[nn.Module]:
        """Return the modules to which `Operations` must be attached.

        If attention is the only operation that rules select, these are the modules that may call it. Otherwise, all
        modules need `Operations`. For example, a Linear layer that no rule selects calls F.linear. If this layer had
        no `Operations`, its call would follow the rules of the enclosing module.
        """
        if any(layer.is_call for layer in self.called):
            return (
                module for module in self.model.modules() if not isinstance(module, torch.jit.ScriptModule)
            )
        return dict.fromkeys(layer.module for layer in layers if self.called and _is_called_function(layer))

    def _arithmetic(self, layer: Layer, step: int) -> Arithmetic:
        get = self.rules.rounding_for
        if layer.part in RESULT_PARTS:
            given = {ACTIVATION: get(layer, "activation", None, step), ERROR: get(layer, "error", None, step)}
            return Arithmetic({key: rounding for key, rounding in given.items() if rounding})
        roundings = {(role, p): get(layer, role, p, step) for role in ROLES for p in layer.products(role)}
        sums = {p: get(layer, "accumulator", p, step) for p in layer.products("accumulator")}
        accumulators = {p: rounding for p, rounding in sums.items() if rounding}
        self.rules.check_transforms(layer, step)
        if getattr(layer.module, "sparse", False) and roundings.get(("result", "weight_gradient")):
            raise ValueError(
                f"{layer.names[0]}: a sparse gradient cannot be rounded (result of weight_gradient); use sparse=False"
            )
        return Arithmetic(
            {
                key: self._with_history(layer, key[0], rounding)
                for key, rounding in roundings.items()
                if rounding
            },
            {p: rounding.format for p, rounding in accumulators.items()},
            [p for p, rounding in accumulators.items() if rounding.kahan],
        )

    def _with_history(
        self, layer: Layer, role: str, rounding: QuantizationSpec
    ) -> QuantizationSpec | Delayed:
        if rounding.history is None:
            return rounding
        device = next((p.device for p in layer.module.parameters()), None)
        history = self.histories.history(f"{layer.names[0]}:{role}", rounding.history, device)
        return Delayed(rounding, history)

    def end_step(self) -> None:
        """End a step of delayed scaling. If there are several processes, all of them must call this method."""
        self.histories.roll()

    def state_dict(self) -> dict[str, Tensor]:
        """Return the histories of delayed scales. Call this at the end of a step."""
        return self.histories.state_dict()

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Load the histories that `state_dict` returned."""
        self.histories.load_state_dict(state)

    def _add_hooks(self, layers: Sequence[Layer]) -> list[ActivationRounding]:
        leaves = {layer.module: layer for layer in layers if not layer.part and layer.takes("activation")}
        previous: dict[nn.Module, list[Layer]] = {}
        chains: list[Any] = [module for module in self.model.modules() if class_of(module) is nn.Sequential]
        for chain in chains:
            for module, following in pairwise(chain):
                if module in leaves:
                    previous.setdefault(following, []).append(leaves[module])
        found = [
            ActivationRounding(module, layer, previous.get(module, [])) for module, layer in leaves.items()
        ]
        return [activation for activation in found if activation.add_hooks(self.rules)]


class ActivationRounding:
    """The rounding of the inputs and outputs of one layer, and of the gradient of its outputs.

    Inputs are rounded because functions between layers, such as a residual addition, change rounded values. If the
    layer directly follows another layer in a Sequential, and both have the same rounding, its input is not rounded
    again.

    Attributes:
        previous: The layers that directly precede this layer in a Sequential.
        input: The rounding of the inputs in the current phase, or None.
        output: The rounding of the outputs, or None.
        gradient: The rounding of the gradient of the outputs, or None.
    """

    def __init__(self, module: nn.Module, layer: Layer, previous: Sequence[Layer]) -> None:
        self.module, self.layer, self.previous = module, layer, previous
        self.input: QuantizationSpec | None = None
        self.output: QuantizationSpec | None = None
        self.gradient: QuantizationSpec | None = None

    def update(self, rules: Rules, step: int) -> None:
        """Switch to the roundings that the rules specify for this step."""
        self.output = rules.rounding_for(self.layer, "activation", None, step)
        self.gradient = rules.rounding_for(self.layer, "error", None, step)
        given = [rules.rounding_for(layer, "activation", None, step) for layer in self.previous]
        self.input = None if given and all(g == self.output for g in given) else self.output

    def add_hooks(self, rules: Rules) -> bool:
        """Add hooks to the module if any rule rounds its activations in any step. Return whether this is the case."""
        rounds_input = rounds_output = False
        for step in rules.phases:
            self.update(rules, step)
            rounds_input |= self.input is not None
            rounds_output |= self.output is not None or self.gradient is not None
        if rounds_input or rounds_output:
            add_hooks_(
                self.module,
                self._round_inputs if rounds_input else None,
                self._round_outputs if rounds_output else None,
            )
        return rounds_input or rounds_output

    def _round_inputs(self, _module: nn.Module, inputs: tuple) -> tuple:
        rounding = None if is_exporting() else self._for_mode(self.input)
        return inputs if rounding is None else tuple(_round_tensors(x, rounding) for x in inputs)

    def _round_outputs(self, _module: nn.Module, _inputs: tuple, output: Any) -> Any:
        return output if is_exporting() else _round_tensors(output, self._round_output)

    def _round_output(self, x: Tensor) -> Tensor:
        rounding = self._for_mode(self.output)
        if self.gradient is not None:
            x = round_gradient(x, self.gradient)
            if rounding is None:
                return x.clone()  # an in-place ReLU after this layer cannot change a view
        return x if rounding is None else rounding(x)

    def _for_mode(self, rounding: QuantizationSpec | None) -> QuantizationSpec | None:
        """Return the rounding for the layer's mode. In evaluation, it is not stochastic."""
        return rounding if rounding is None or self.module.training else rounding.nearest


def _is_called_function(layer: Layer) -> bool:
    """Return whether this is an operation that the user's forward method computes by calling a PyTorch function."""
    return layer.part is not None and class_of(layer.module) not in KINDS


def _round_tensors(value: Any, rounding: Any) -> Any:
    """Round a tensor, or all tensors in tuples, lists and mappings. Integer tensors are not changed."""
    if not isinstance(value, Tensor):
        return tree_map(
            lambda leaf: _round_tensors(leaf, rounding) if isinstance(leaf, Tensor) else leaf, value
        )
    return rounding(value) if value.is_floating_point() else value
