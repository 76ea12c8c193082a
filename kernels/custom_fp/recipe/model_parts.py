"""Find the parts of a model that have their own rules in recipes.

These parts are output heads, routers, and the output projections of attention.
"""

from __future__ import annotations

import re

from torch import nn

from custom_fp.layers.attachment import class_of
from custom_fp.layers.modules import LAYERS

MODEL_PARTS = OUTPUT_HEAD, ROUTER, ATTENTION_OUTPUT = ("output_head", "router", "attention_output")
HEAD_NAMES = {
    *("head", "heads", "lm_head", "output", "output_layer", "classifier", "aux_classifier", "decoder", "fc"),
    *("logits", "score", "proj_out", "embed_out", "unembed"),
}
ROUTER_NAMES = {"gate", "router"}
_QUERY = re.compile(r"(?i:to_|w)?q|c_attn")
_PROJECTION = re.compile(r"(?i:to_|w)?[qkv]|c_attn")  # the names of projections to queries, keys or values
_BERT_OUTPUT = "attention.output.dense"


def parts_of(model: nn.Module) -> dict[nn.Module, str]:
    """Return the output heads, routers and attention outputs of a model.

    A Linear or Conv layer is an output head in two cases:

    - It is the last such layer of the model, and it is a direct child of the model, such as `head`, or of a Sequential
      that is a direct child of the model.
    - It has a common name for heads (`HEAD_NAMES`), such as lm_head or cls.predictions.decoder, and it is outside of
      repeated blocks. If a Sequential has such a name, its last layer is an output head, such as classifier.6.

    A model with a single layer has no output head.

    A router is a module without children that is named gate or router and has a sibling named experts, such as mlp.gate
    next to mlp.experts. Such names can be nested, as in moe.router.gate next to moe.experts.

    An attention output is the last Linear child of a module that also has a Linear child for queries (q_proj, qkv, wq,
    query_key_value), unless this last child is itself a projection to queries, keys or values. BERT's
    attention.output.dense is an attention output as well.

    Returns:
        A dict that maps each of these modules to `OUTPUT_HEAD`, `ROUTER` or `ATTENTION_OUTPUT`.
    """
    names = {module: name for name, module in model.named_modules()}
    found: dict[nn.Module, str] = {}
    for module, name in names.items():
        linear = {key: child for key, child in module.named_children() if class_of(child) is nn.Linear}
        if any(map(_QUERY.match, linear)) and not _PROJECTION.match(list(linear)[-1]):
            found[list(linear.values())[-1]] = ATTENTION_OUTPUT
        if name.endswith(_BERT_OUTPUT):
            found[module] = ATTENTION_OUTPUT
        if name and not list(module.children()) and _is_router(model, name.split(".")):
            found[module] = ROUTER
    return found | dict.fromkeys(_output_heads(names), OUTPUT_HEAD)


def _output_heads(names: dict[nn.Module, str]) -> list[nn.Module]:
    layers = [module for module in names if class_of(module) in LAYERS]
    heads: dict[str, nn.Module] = {}
    for layer in layers if len(layers) > 1 else ():
        path = names[layer].split(".")
        if path[-1].isdigit():  # a layer of a Sequential
            path = path[:-1]
        is_last_child = layer is layers[-1] and len(path) < 2
        has_usual_name = bool(path) and path[-1] in HEAD_NAMES and not any(map(str.isdigit, path))
        if is_last_child or has_usual_name:
            heads[".".join(path)] = layer  # of several heads in a Sequential, keep only the last
    return list(heads.values())


def _is_router(model: nn.Module, path: list[str]) -> bool:
    while path and path[-1] in ROUTER_NAMES:
        path = path[:-1]
        if hasattr(model.get_submodule(".".join(path)), "experts"):
            return True
    return False
