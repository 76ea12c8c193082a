"""A scaled format as the kernels take it, on the CPU and on a GPU."""

from custom_fp.formats.block import BlockFormat


def parts_of(fmt: BlockFormat) -> tuple[int | float | bool, ...]:
    """The members of `Scaling` in csrc/tiles/tiles.h, in their order: 4 bytes each."""
    of, scale = fmt.of, fmt.scaled_by
    return (
        of.spec,
        of.bits,
        fmt.is_integer,
        float(fmt.least),
        float(of.max),
        of.unit if fmt.is_integer else 1.0,
        0 if scale.is_power_of_two else 1 if scale.magnitudes else 2,
        scale.magnitudes.spec if scale.magnitudes else of.spec,
        0x7FC00000 if scale.nan_code is None else scale.nan_code,
        scale.smallest,
        scale.largest,
        {"rceil": 1, "amax": 2, "4over6": 3}.get(fmt.rule, 0),
        fmt.added,
        fmt.emax,
        float(fmt.target),
        float(fmt.target * fmt.largest_scale) if fmt.has_tensor_scale else 0.0,
    )
