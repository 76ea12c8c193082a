"""Compare ratios of areas with published ones.

Horowitz, "Computing's energy problem (and what we can do about it)", ISSCC 2014. The areas of the units (TSMC 45 nm)
are those in figure 15 of Gholami et al., "A Survey of Quantization Methods" (arXiv 2103.13630). In square micrometers,
they are: 8-bit multiplier 282, 8-bit adder 36, 32-bit adder 137, 16-bit floating-point multiplier 1,640 and adder
1,360, 32-bit floating-point multiplier 7,700 and adder 4,184.

Van Baalen et al., "FP8 versus INT8 for efficient deep learning inference" (arXiv 2303.17951), abstract and section 1:
in dedicated hardware, FP8 is 50 to 180% less efficient in area and energy than INT8, depending on format and
accumulator.
"""

HOROWITZ, BAALEN = "Horowitz 2014", "van Baalen et al. 2023"


def compared(rows: list[dict[str, str]]) -> str:
    """Return a Markdown table of our ratios, the published ones, and their sources."""

    def of(part: str, a: str, accumulator: str) -> int:
        return next(int(r[part]) for r in rows if (r["a"], r["b"], r["accumulator"]) == (a, a, accumulator))

    int8, fp32 = of("multiply", "int8", "int32"), of("multiply", "fp32", "fp32")
    add32, add16 = of("add", "fp32", "fp32"), of("add", "fp16", "fp16")
    fp16 = of("multiply", "fp16", "fp16")
    mac8 = of("mac", "int8", "int32")
    lines = [
        ("fp16 over fp32 multiplier", fp16 / fp32, 1640 / 7700, HOROWITZ),
        ("fp16 over fp32 adder", add16 / add32, 1360 / 4184, HOROWITZ),
        ("fp32 adder over fp32 multiplier", add32 / fp32, 4184 / 7700, HOROWITZ),
        ("int32 adder over int8 multiplier", of("add", "int8", "int32") / int8, 137 / 282, HOROWITZ),
        ("fp16 over int8 multiplier", fp16 / int8, 1640 / 282, HOROWITZ),
        ("fp32 over int8 multiplier", fp32 / int8, 7700 / 282, HOROWITZ),
        (
            "fp32 over int8 multiply-accumulate",
            of("mac", "fp32", "fp32") / mac8,
            (7700 + 4184) / (282 + 137),
            HOROWITZ,
        ),
        *(
            (
                f"{fmt} + {accumulator} over int8 + int32",
                of("mac", fmt, accumulator) / mac8,
                "1.5 to 2.8",
                BAALEN,
            )
            for fmt in ("e4m3", "e5m2")
            for accumulator in ("fp16", "fp32")
        ),
    ]
    head = ["| area of | here | published | by |", "|---|---|---|---|"]
    return "\n".join(
        [*head, *(f"| {what} | {ours:.2f} | {_format(theirs)} | {by} |" for what, ours, theirs, by in lines)]
    )


def _format(theirs: float | str) -> str:
    return theirs if isinstance(theirs, str) else f"{theirs:.2f}"
