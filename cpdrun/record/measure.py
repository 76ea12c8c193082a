"""The direction and the unit of metrics.

A task declares the direction and the unit of each of its metrics. They are stored in done.json (`measures`), where a
report reads them. Older records do not contain them, so KNOWN lists the metrics that older records can have.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

UNITS = ("percent", "nats", "bits", "plain")


@dataclass(frozen=True)
class Measure:
    """The direction and the unit of a metric, an entry of `measures` in done.json.

    Keys:
        higher_is_better (required): Whether larger values are better.
        shown (required): The unit: `percent`, `nats`, `bits` or `plain`. A metric that is shown in percent is stored as
            a share from 0 to 1. In Python, the default is "plain".
        of_samples: Whether the metric is the share of correctly answered test samples, with a binomial spread.
    """

    higher_is_better: bool
    shown: str = "plain"
    of_samples: bool = False

    def __post_init__(self) -> None:
        if self.shown not in UNITS:
            raise ValueError(f"the unit of a metric must be one of {', '.join(UNITS)}, not {self.shown!r}")

    def can_be(self, value: float) -> bool:
        """Return whether a value is possible.

        A share above 1, which is probably a percentage, and a negative share of samples are impossible.
        """
        return not (self.shown == "percent" and value > 1 + 1e-6) and not (self.of_samples and value < 0)

    @classmethod
    def from_json(cls, said: Any) -> "Measure | None":
        """Read a measure from a record, which is not trusted. Return None if it is not valid."""
        fits = isinstance(said, Mapping) and isinstance(said.get("higher_is_better"), bool)
        if not fits or said.get("shown") not in UNITS:
            return None
        return cls(said["higher_is_better"], said["shown"], said.get("of_samples") is True)


ACCURACY = Measure(higher_is_better=True, shown="percent", of_samples=True)
SHARE = Measure(higher_is_better=True, shown="percent")
NATS = Measure(higher_is_better=False, shown="nats")
BITS = Measure(higher_is_better=False, shown="bits")
ERROR = Measure(higher_is_better=False)  # an error in the metric's own unit, such as a mean squared error

# The directions that a user may type for a script's metric.
MEASURES = {"min": ERROR, "max": Measure(higher_is_better=True), "share": SHARE}

# Older records are judged by the first of these metrics that they contain.
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
VARIANTS = ("_worst", "_averaged_model")  # suffixes of metrics in runs whose workers have separate weights
BEST = "best_"  # the prefix of a metric's value in the best epoch


def known_measure(name: str) -> Measure | None:
    """Return the measure of a metric that older records can contain, or None for other metrics."""
    name = name.removeprefix(BEST)
    for variant in VARIANTS:
        name = name.removesuffix(variant)
    return KNOWN.get(name)


def known_judge(names: Collection[str]) -> str | None:
    """Return the metric by which an older record with these metrics is judged, or None if none is known."""
    return next((name for name in JUDGES if name in names), None)
