"""Small number formats in PyTorch, emulated bit for bit on CPUs and GPUs.

    import custom_fp
    y = custom_fp.quantize(x, "e4m3")

The operators are quantize, encode, decode, pack, unpack, accumulate, accumulate_packed, matmul, hadamard, scale_pow2
and max_exponent. Use apply_recipe, quantize_model and layers such as QuantLinear to quantize models. parse returns the
number format with a given name, and Format, BlockFormat, Codebook and Affine define new formats.
`help(custom_fp.quantize)` explains rounding.

Names are imported on first use (PEP 562), so `from custom_fp import Format` does not import torch.
"""

from importlib import import_module

_MODULES = {  # public name -> the module that defines it
    "Accumulator": "accumulator",
    "Affine": "formats.scaled_format",
    "BlockFormat": "formats.scaled_format",
    "Codebook": "formats.scaled_format",
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
    "ScaledFormat": "formats.scaled_format",
    "scale_pow2": "ops",
    "unpack": "ops",
}
__all__ = sorted(_MODULES)


def __getattr__(name: str) -> object:
    if name == "testing":
        return import_module("custom_fp.testing")
    if name not in _MODULES:
        raise AttributeError(f"module 'custom_fp' has no attribute {name!r}")
    value = getattr(import_module(f"custom_fp.{_MODULES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
