"""custom_fp: every small floating-point format, exact, on CPU and GPU.

    import custom_fp
    y = custom_fp.quantize(x, "e4m3")

Names are loaded when first used (PEP 562): `from custom_fp import Format` imports no torch.
"""

from importlib import import_module

_HOME = {
    "Accumulator": "accumulator",
    "Affine": "formats.scaled",
    "BlockFormat": "formats.scaled",
    "Codebook": "formats.scaled",
    "Format": "formats.scalar",
    "Quantizer": "layers.modules",
    "QuantConv1d": "layers.modules",
    "QuantConv2d": "layers.modules",
    "QuantConv3d": "layers.modules",
    "QuantLinear": "layers.modules",
    "accumulate": "ops",
    "apply_recipe": "recipe.apply",
    "accumulate_packed": "ops",
    "backend": "ops",
    "decode": "ops",
    "encode": "ops",
    "hadamard": "ops",
    "matmul": "ops",
    "max_exponent": "ops",
    "is_own": "formats.names",
    "NumberFormat": "formats.protocol",
    "Overflow": "rounding",
    "Rounding": "rounding",
    "Rule": "rounding",
    "pack": "ops",
    "packed_size": "ops",
    "parse": "formats.names",
    "quantize": "ops",
    "quantize_rows": "ops",
    "quantize_model": "layers.modules",
    "quantize_model_": "layers.modules",
    "Scale": "formats.scale",
    "ScaledFormat": "formats.scaled",
    "scale_pow2": "ops",
    "unpack": "ops",
}
__all__ = sorted(_HOME)


def __getattr__(name: str):
    if name == "testing":
        return import_module("custom_fp.testing")
    if name not in _HOME:
        raise AttributeError(f"module 'custom_fp' has no attribute {name!r}")
    value = getattr(import_module(f"custom_fp.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
