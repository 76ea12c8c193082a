"""The settings that one changes to lose less: how gradients are summed, and what is rounded."""

FORMAT, APS, ORDER, RECIPE = "format", "APS", "order", "recipe"
# by key or by section of the configuration
TUNABLES = {
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


def tunable(key: str) -> str | None:
    """Return the setting that a dotted key belongs to; None for a key that makes it another training."""
    return TUNABLES.get(key) or TUNABLES.get(key.split(".")[0])


def concerns_sums(key: str) -> bool:
    """Return whether a key says how gradients are summed. Such keys hardly change a run in fp32."""
    return tunable(key) not in (None, FORMAT, RECIPE)
