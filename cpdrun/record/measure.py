"""What a recorded figure is: which way is better, and how it is shown.

A task declares it once for each of its metrics, done.json carries it (`measures`), and a report reads it there. Records
of before say nothing of it: KNOWN has the metrics that they can hold.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

UNITS = ("percent", "nats", "bits", "plain")


@dataclass(frozen=True)
class Measure:
    """higher_is_better: which way is better. shown: percent (stored as a share, 0..1), nats, bits or plain.
    of_samples: it is the share of the test samples that were answered right, so its spread is a binomial's."""

    higher_is_better: bool
    shown: str = "plain"
    of_samples: bool = False

    def __post_init__(self) -> None:
        if self.shown not in UNITS:
            raise ValueError(f"a metric is shown as {', '.join(UNITS)}, not as {self.shown!r}")

    def can_be(self, value: float) -> bool:
        """False for a share above 1, which was meant per cent; and of samples below 0."""
        return not (self.shown == "percent" and value > 1 + 1e-6) and not (self.of_samples and value < 0)

    @classmethod
    def from_json(cls, said: Any) -> "Measure | None":
        """None where `said`, of a record that anyone may have written, is no measure."""
        fits = isinstance(said, Mapping) and isinstance(said.get("higher_is_better"), bool)
        if not fits or said.get("shown") not in UNITS:
            return None
        return cls(said["higher_is_better"], said["shown"], said.get("of_samples") is True)


ACCURACY = Measure(higher_is_better=True, shown="percent", of_samples=True)
SHARE = Measure(higher_is_better=True, shown="percent")
NATS = Measure(higher_is_better=False, shown="nats")
BITS = Measure(higher_is_better=False, shown="bits")
ERROR = Measure(higher_is_better=False)  # in units of its own

# as a script's directions are typed
MEASURES = {"min": ERROR, "max": Measure(higher_is_better=True), "share": SHARE}

# what runs of before are judged by, the first that a record holds
JUDGES = ("test_mean_iou", "test_bits_per_byte", "test_perplexity", "test_accuracy", "test_loss")
KNOWN = {
    "train_loss": NATS,
    "test_loss": NATS,
    "test_accuracy": ACCURACY,
    "test_top5_accuracy": ACCURACY,
    "test_mean_iou": SHARE,
    "test_bits_per_byte": BITS,
    "test_perplexity": ERROR,
    "consensus_distance": ERROR,
    "bytes_sent_per_worker": ERROR,
}
VARIANTS = ("_worst", "_averaged_model")  # of workers with weights of their own
BEST = "best_"  # before the name: of the epoch that had the best value


def known_measure(name: str) -> Measure | None:
    """Of a metric by a name that records of before can hold; None for any other."""
    name = name.removeprefix(BEST)
    for variant in VARIANTS:
        name = name.removesuffix(variant)
    return KNOWN.get(name)


def known_judge(names: Collection[str]) -> str | None:
    """What a record of before, with these metrics, is judged by; None where it has none that we know."""
    return next((name for name in JUDGES if name in names), None)
