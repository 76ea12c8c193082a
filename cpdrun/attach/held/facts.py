"""What was attached to a script and what was left alone, for the record."""

from collections.abc import Sequence
from typing import Any

from cpdrun.attach.held.exchange import Asked
from cpdrun.attach.held.products import Products
from cpdrun.attach.held.script import Script
from cpdrun.comm import AllReduceSync

LEFT_ALONE = "left alone"


def facts_of(
    asked: Asked, script: Script, products: Products, syncs: Sequence[AllReduceSync]
) -> dict[str, Any]:
    """JSON. gradients: how they were exchanged, between how many workers; of how many parameters and values; which were
    in float32 by full_precision.layers, and which nothing exchanged; what the latest step sent, in bytes. products: the
    layers that rules reach, and those that multiply in float32. notes: what was said meanwhile."""
    wire = [sync.wire_bytes() for sync in syncs]
    return {
        "gradients": {
            "exchange": list(script.exchanged) or [LEFT_ALONE],
            "workers": script.world_size,
            "parameters": len(script.reached),
            "values": sum(script.reached.values()),
            "in_fp32": sorted({name for sync in syncs for name in sync.hybrid.always}),
            "left_alone": list(script.unreached),
            "longest_chain": asked.longest_chain if script.exchanged else None,
            "wire": {key: sum(of[key] for of in wire) for key in wire[0]} if wire else {},
        },
        "products": {"rounded": products.rounded, "in_fp32": products.in_fp32},
        "notes": list(script.notes),
    }
