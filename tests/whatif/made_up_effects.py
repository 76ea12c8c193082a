"""Effects as cpdrun.whatif would have them, made up."""


def effects(
    *,
    cosine=1.0,
    sum_error=0.0,
    saturation=0.0,
    underflow=0.0,
    layers=None,
    update_lost=0.0,
    bias=0.0,
    **roles,
):
    """Return effects with these figures of gradients, and with a signal-to-noise ratio for each of the other roles."""
    gradient = {
        "underflow": underflow,
        "saturation": saturation,
        "snr_db": 20.0,
        "bias": bias,
        "cosine": cosine,
    }
    gradient |= {"sum_error": sum_error, "growth": 2.0}
    of_layers = layers if layers is not None else {"fc.weight": gradient}
    others = {
        role: {"all": {"snr_db": snr, "cosine": _cosine(snr)}, "layers": {}} for role, snr in roles.items()
    }
    update = {"all": {"update_lost": update_lost}, "layers": {}}
    return {"role": {"gradient": {"all": gradient, "layers": of_layers}, "update": update, **others}}


def _cosine(snr_db):
    """Return the cosine between a value and its sum with an independent error."""
    return (1 + 10 ** (-snr_db / 10)) ** -0.5


def config(fmt="e4m3", *, aps=True, world_size=8, sync="cpdrun.comm.AllReduceSync", **precision):
    return {
        "format": fmt,
        "aps": aps,
        "world_size": world_size,
        "sync": {"_target_": sync, "error_feedback": False},
        "precision": {"weights": "fp32", "activations": "fp32", "errors": "fp32", "rules": [], **precision},
    }
