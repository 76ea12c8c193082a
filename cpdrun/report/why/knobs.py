"""What one turns to lose less: keys of a config that say how gradients are summed and what is rounded."""

FORMAT, APS, ORDER, RECIPE = "format", "APS", "order", "recipe"
KNOBS = {  # of a key, or of its section
    "format": FORMAT,
    "aps": APS,
    "scaling": APS,
    "sync.order": ORDER,
    "sync.group_size": ORDER,
    "sync.kahan": "Kahan",
    "sync.rounding": "rounding",
    "sync.error_feedback": "error feedback",
    "sync.requantise": "requantise",
    "full_precision": "layers in fp32",
    "recipe": RECIPE,
    "ingredients": RECIPE,
    "precision": RECIPE,
}


def knob(key: str) -> str | None:
    """Which knob a dotted key belongs to; None for a key that makes another training."""
    return KNOBS.get(key) or KNOBS.get(key.split(".")[0])


def is_of_sums(key: str) -> bool:
    """Whether it says how gradients are summed: runs in fp32 hardly differ by it."""
    return knob(key) not in (None, FORMAT, RECIPE)
