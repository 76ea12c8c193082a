"""Settings that were typed and play no part in any run of the sweep: each gets a line before anything starts."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

TAKEN_IN = {  # a group that another section takes in, by ${group}: which section, and choices of it that do
    "norm": ("model", "model=normed_convnet"),
    "topology": ("sync", "sync=gossip_choco and the other gossip rules"),
    "compressor": ("sync", "sync=compressed and the gossip rules"),
}


def idle_settings(typed: Sequence[str], configs: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """What is said of overrides (`compressor=qsgd`, `norm.groups=4`) that none of these resolved configs uses."""
    keys = [text.lstrip("+~").partition("=")[0] for text in typed]
    for group, (section, takers) in TAKEN_IN.items():
        asked = next((key for key in keys if key.split(".")[0] == group), None)
        if asked is None or any(config[group] in config[section].values() for config in configs):
            continue
        kinds = sorted({config[section]["_target_"].rsplit(".", 1)[-1] for config in configs})
        yield f"{asked} plays no part: {', '.join(kinds)} takes none, as {takers} would"
    scaled = next((key for key in keys if key.split(".")[0] == "scaling"), None)
    if scaled is not None and not any(config["aps"] for config in configs):
        yield f"{scaled} plays no part with aps=false"
