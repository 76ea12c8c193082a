"""Random numbers of stochastic rounding."""

import hashlib
from dataclasses import dataclass


@dataclass(frozen=True)
class Draw:
    """The random numbers of one stochastic rounding: a key, and where in its layer the tensor begins.

    An element's number depends on the key and on its place in the layer, not on the process that rounds it
    or on the pieces the layer is cut into.
    """

    key: tuple
    start: int = 0

    def seed(self) -> int:
        """63 bits, unrelated for unequal keys."""
        digest = hashlib.blake2b(repr(self.key).encode(), digest_size=8).digest()
        return int.from_bytes(digest, "little") >> 1
