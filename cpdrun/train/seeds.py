"""Every random number of a run comes from (what it is for, seed, epoch or step, worker).

So a worker draws the same numbers in whichever process it is played, and resuming needs no generator's state.
"""

import hashlib

import torch


def derived_seed(purpose: str, *key: int) -> int:
    """A 63-bit seed that differs for every purpose and key; the same on every machine."""
    text = ":".join((purpose, *map(str, key)))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") >> 1


def generator(purpose: str, *key: int) -> torch.Generator:
    """A CPU generator of its own for (purpose, key)."""
    return torch.Generator().manual_seed(derived_seed(purpose, *key))


def seed_global(device: torch.device, purpose: str, *key: int) -> None:
    """Seed what dropout and initialisation draw from. torch.manual_seed does as much for every backend there
    is, and collects a stack trace for each at every call."""
    seed = derived_seed(purpose, *key)
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.manual_seed(seed)
