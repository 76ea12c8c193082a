"""Random seeds. Every random number of a run is derived from (purpose, seed, epoch or step, worker).

Therefore, a worker uses the same random numbers in any process, and a run can resume without saved generator states.
"""

import hashlib

import torch


def derived_seed(purpose: str, *key: int) -> int:
    """Return a 63-bit seed that differs for every purpose and key and is the same on every machine."""
    text = ":".join((purpose, *map(str, key)))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") >> 1


def generator(purpose: str, *key: int) -> torch.Generator:
    """Return a new CPU generator for (purpose, key)."""
    return torch.Generator().manual_seed(derived_seed(purpose, *key))


def seed_global(device: torch.device, purpose: str, *key: int) -> None:
    """Seed the global generators, which dropout and initialization use.

    torch.manual_seed would seed all backends and collect a stack trace for each of them in every call.
    """
    seed = derived_seed(purpose, *key)
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.manual_seed(seed)
