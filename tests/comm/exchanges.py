"""Every kind of gradient synchronization, for the tests of laws: `make(name, world_size)` builds one of `EXCHANGES`."""

import itertools
import math
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import torch
import yaml
from custom_fp import Codebook, Format
from hydra.utils import get_object

from cpdrun.comm import GradientSync
from cpdrun.comm.compressors.min_max import MinMax
from cpdrun.comm.compressors.qsgd import QSGD
from cpdrun.comm.compressors.random_k import RandomK
from cpdrun.comm.compressors.rounded_values import Rounded
from cpdrun.comm.compressors.sign import Sign
from cpdrun.comm.compressors.top_k import TopK
from cpdrun.comm.sums.magnitudes import PreviousStep
from cpdrun.comm.sums.scaling import APS, DelayedAPS, ScalingRule

SHAPES = {
    "wide": (57, 11),
    "one": (1,),
    "tiny": (8, 8),
    "huge": (130,),
    "zero": (33,),
    "inf": (40,),
    "nan": (9,),
    "none": (0, 2),
    "scale": (),
}


class OwnRule(ScalingRule):
    """A rule as a user may write it, from the layer's name, the latest magnitude and the number of summands."""

    magnitudes = PreviousStep

    def shift(self, layer: str, magnitude: float, summands: int, fmt: Format) -> int:
        return fmt.emax - math.frexp(magnitude)[1] - summands + len(layer) % 2


RULES = {"none": lambda: None, "aps": APS, "aps_delayed": DelayedAPS, "own": OwnRule}
ORDERS = ["rank", "ring", "hierarchical", "tree", "exact", "aligned_4"]
AT_ONCE = ("exact", "aligned_4")  # one rounding, so kahan is refused
FORMATS = ["e3m0", "e1m1", "e4m1", "e3m2", "e2m1fn", "e4m3fn", "e4m3", "e5m2", "e5m6", "e8m7", "fp32"]
ROUNDINGS = [
    {},
    {"kahan": True},
    {"rounding": "stochastic", "error_feedback": True},
    {"rounding": "toward_zero", "overflow": "saturate"},
    {"kahan": True, "rounding": "stochastic", "overflow": "saturate", "error_feedback": True},
]
UNEVEN = Codebook("uneven", (-0.9, -0.3, 0.1, 0.5, 0.8), block=24)  # 3 bits, without 0 and 1
COMPRESSORS = {
    "none": Rounded("fp32", False, "nearest_even"),
    "e3m0 aps": Rounded("e3m0", True, "nearest_even"),
    "stochastic": Rounded("e5m2", False, "stochastic"),
    "blocks": Rounded("mxfp4", False, "nearest_even"),
    "top_k": TopK(0.1, "fp32", False, "nearest_even"),
    "top_1": TopK(1e-9, "fp32", False, "nearest_even"),
    "random_k": RandomK(0.2, False, "e4m3", True, "stochastic"),
    "qsgd": QSGD(7, True),
    "min_max": MinMax(4, "stochastic"),
    "sign": Sign(1),
}


def all_reduce_exchanges() -> Iterator[tuple[str, dict[str, Any]]]:
    """Every order with every rule. Formats and roundings take turns."""
    turns = zip(itertools.cycle(FORMATS), itertools.cycle(ROUNDINGS), strict=False)
    for (order, rule), (fmt, rounding) in zip(itertools.product(ORDERS, RULES), turns, strict=False):
        kahan = {"kahan": rounding.get("kahan", False) and order not in AT_ONCE}
        yield f"{order} {rule}", {"format": fmt, "rule": rule, "order": order, **rounding, **kahan}


EXCHANGES: dict[str, tuple[str, dict[str, Any]]] = {
    **{name: ("all_reduce", settings) for name, settings in all_reduce_exchanges()},
    "fp32": ("all_reduce", {"format": "fp32", "order": "rank"}),
    "fnuz": ("all_reduce", {"format": "e4m3fnuz", "order": "exact"}),
    "posit": ("all_reduce", {"format": "posit8", "order": "aligned_5", "rule": "aps"}),
    "cpd": ("all_reduce", {"format": "e4m1", "order": "rank", "kahan": True, "compat": "cpd"}),
    "cpd in groups": ("all_reduce", {"format": "fp32", "rule": "aps", "compat": "cpd"}),
    "hybrid": ("all_reduce", {"format": "e3m2", "full_precision": {"layers": ["w*", "tiny"]}}),
    "codebook": ("requantised", {"format": "dynamic_tree", "requantise": "hop"}),
    "mx": ("requantised", {"format": "mxfp4", "requantise": "once", "error_feedback": True}),
    "mx per hop": ("all_reduce", {"format": "mxfp8_e4m3", "order": "rank", "error_feedback": True}),
    "requantised": ("requantised", {"format": "e4m3", "requantise": "hop", "error_feedback": True}),
    "uneven codebook": ("requantised", {"format": UNEVEN, "requantise": "once", "error_feedback": True}),
    "affine": ("requantised", {"format": "int4_affine_b32", "requantise": "hop"}),
    "sharded": ("sharded", {"format": "e4m3", "rule": "aps_delayed", "error_feedback": True}),
    **{f"compressed {name}": ("compressed", {"compressor": made}) for name, made in COMPRESSORS.items()},
    "power_sgd": ("power_sgd", {"format": "fp32"}),
    "power_sgd e4m3": ("power_sgd", {"format": "e4m3", "rule": "aps"}),
    "power_sgd delayed": ("power_sgd", {"format": "e4m3", "rule": "aps_delayed", "order": "tree", "rank": 4}),
    "power_sgd cold": ("power_sgd", {"format": "e3m2", "rounding": "stochastic", "warm_start": False}),
    "power_sgd hybrid": (
        "power_sgd",
        {"format": "fp32", "full_precision": {"layers": ["tiny"]}, "min_compression_rate": 0},
    ),
}
WITH_RESIDUALS = [
    name
    for name, (group, settings) in EXCHANGES.items()
    if settings.get("error_feedback", group in ("compressed", "power_sgd"))
    and name != "uneven codebook"  # rounding a sum of one worker again changes its values
]


@cache
def _knobs_of(group: str) -> dict[str, Any]:
    return yaml.safe_load((Path(__file__).parents[2] / "conf" / "sync" / f"{group}.yaml").read_text())


def knobs_of(group: str) -> dict[str, Any]:
    return dict(_knobs_of(group))


def make(name: str, world_size: int, **given: Any) -> GradientSync:
    group, settings = EXCHANGES[name]
    settings = knobs_of(group) | {"seed": 3} | settings
    settings["scaling"] = RULES[settings.pop("rule", "none")]()
    given = {"world_size": world_size, "parameter_names": list(SHAPES), **given}
    return get_object(settings.pop("_target_"))(**settings | given)


def gradients(worker: int, step: int = 0) -> list[torch.Tensor]:
    """Ordinary gradients of one worker."""
    generator = torch.Generator().manual_seed(100 * step + worker)
    return [torch.randn(shape, generator=generator) * 1e-3 for shape in SHAPES.values()]


def bounded_gradients(worker: int, step: int = 0) -> list[torch.Tensor]:
    """Gradients of both signs from 2^-10 to 2^-9, which do not overflow with rules that use earlier steps."""
    return [g.sign() * (1 + (g * 1e3).frac().abs()) * 2.0**-10 for g in gradients(worker, step)]


def odd_gradients(worker: int, step: int = 0) -> list[torch.Tensor]:
    """Ordinary gradients, but layers of subnormals, of values near 2^120, of zeros, with an inf and with a NaN."""
    grads = dict(zip(SHAPES, gradients(worker, step), strict=True))
    grads["tiny"] = (grads["tiny"] * 2e5).round() * 2.0**-149
    grads["huge"] = grads["huge"] * 2.0**65 * 2.0**64
    grads["zero"].zero_()
    grads["inf"][worker % 40] = math.inf
    grads["nan"][0] = math.nan
    return list(grads.values())
