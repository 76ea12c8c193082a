"""Among formats of one width, the likeliest first: that whose rounding leaves least of the recorded gradients lost.

The rule. A run of the baseline records, epoch by epoch, the power of two of each layer's largest gradient. The squares
of a layer's gradients lie in the few octaves below it: of a Laplace distribution of some 20,000 values 12, 42, 32, 11
and 2 per cent in the first to the fifth (digits' layers have 83 to 100 per cent in the first four). A format rounds an
octave to a grid of spacing q, which makes an error of q^2 / 12; where that is more than the octave's own squares, all
of it is lost. Each rounded addition errs once more, where the format is still normal, on a sum that has grown to half
the chain in the mean. The sum of both, as a share of the squares, at most 1, averaged over layers and epochs, is a
format's `loss`; its root is what a run records as `sum_error`. With APS a layer's largest sum lies at the format's
upper end. Measured on digits, predicted and recorded: e3m1 with APS .26 and .33, e4m0 .40 and .36, e3m0 .47 and .56,
e2m2 .85 and .94; e4m0 without APS .84 and .83.

The reason. Range alone would always choose most exponent bits, which is the order where nothing is recorded; but range
that no gradient needs costs precision in every one of them. Here the two are one figure.

What it may go by. Only the baseline's first run that leaves a record, by its seed: it is the same whenever and however
often the search is typed, and a width with several formats is not asked for before it has ended. So the order is a
function of the experiment, and a search that was killed goes on in the same one. No claim rests on it: formats of one
width share the error equally (`cpdrun.stats.anytime.shares`), in whatever order they are tried.
"""

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from custom_fp import Format

from cpdrun.record import EpochRow
from cpdrun.report.read import formats
from cpdrun.search.schedule import Candidate

LARGEST = 10  # scales of a Laplace distribution in the largest of e^10 = 22,000 values
OCTAVES = 8  # the last with all that is left below
EXPONENTS = range(-149, 128)  # of float32
IN_AN_OCTAVE = 28  # spacing^2 / 12 beside the mean square of values spread evenly from 1 to 2, which is 7 / 3


@dataclass(frozen=True)
class Gradients:
    """What a run recorded of its gradients. `largest`: how many layers, counted in every epoch, had their largest
    finite one in which octave, as floor(log2 |g|). `additions`: the most in series that a gradient passes."""

    largest: Mapping[int, int]
    additions: int

    @classmethod
    def of(cls, rows: Iterable[EpochRow], additions: int) -> "Gradients | None":
        """None where the record of these epochs says nothing of any layer."""
        layers = [layer for row in rows for layer in (row.layers or {}).values()]
        found = Counter(
            filter(_is_exponent, (layer.get("exponent_max") for layer in layers if _is_object(layer)))
        )
        return cls(found, additions) if found else None


def likeliest_first(
    width: Sequence[Candidate], configs: Mapping[str, Mapping[str, Any]], gradients: Gradients | None
) -> tuple[Candidate, ...]:
    """The candidates of a width by the loss of their formats, the least first; equals, and all where nothing is
    recorded, stay in their order. `configs`: a run's of each, by the candidate's name."""
    if gradients is None:
        return tuple(width)

    def of_candidate(candidate: Candidate) -> float:
        config = configs[candidate.name]
        return loss(config["format"], gradients, scaled=config["aps"])

    return tuple(sorted(width, key=of_candidate))


def loss(name: object, gradients: Gradients, *, scaled: bool) -> float:
    """The share of the gradients' squares that a format by this name loses, 0 .. 1; inf where a gradient is larger than
    its largest value, or nothing is known of such formats. `scaled`: by APS or a rule like it."""
    fmt = formats.parse(name)
    if not isinstance(fmt, Format):
        return math.inf
    if scaled:
        headroom = 1 + math.ceil(math.log2(gradients.additions + 1))
        return _loss_of_layer(fmt, fmt.emax - headroom, gradients.additions)
    layers = sum(gradients.largest.values())
    of_each = (n * _loss_of_layer(fmt, top, gradients.additions) for top, n in gradients.largest.items())
    return math.fsum(of_each) / layers


def _loss_of_layer(fmt: Format, largest: int, additions: int) -> float:
    if largest > fmt.emax:
        return math.inf
    lost = (share * _lost(fmt, largest - below, additions) for below, share in enumerate(SHARES))
    return min(1.0, math.fsum(lost))


def _lost(fmt: Format, exponent: int, additions: int) -> float:
    """Of the squares of one octave."""
    spacing = max(exponent, fmt.emin) - fmt.mantissa_bits
    of_values = min(1.0, 4.0 ** (spacing - exponent) / IN_AN_OCTAVE)
    of_sums = 4.0**-fmt.mantissa_bits / IN_AN_OCTAVE * additions / 2 if exponent >= fmt.emin else 0.0
    return of_values + of_sums


def _squares_above(scales: float) -> float:
    """The share of a Laplace distribution's squares that values of more than so many scales have."""
    return math.exp(-scales) * (1 + scales + scales**2 / 2)


_EDGES = [0.0, *(_squares_above(LARGEST / 2**k) for k in range(1, OCTAVES)), 1.0]
SHARES = [
    below - above for above, below in itertools.pairwise(_EDGES)
]  # of each octave, from the largest down


def _is_exponent(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value in EXPONENTS


def _is_object(value: Any) -> bool:
    return isinstance(value, dict)
