"""Among formats of one width, the likeliest first: that which loses least of the gradients that the baseline recorded.

The rule. A run of the baseline records, epoch by epoch, the power of two of each layer's largest gradient. The squares
of a layer's gradients lie in the few octaves below it: of a Laplace distribution of some 20,000 values 12, 42, 32, 11
and 2 per cent in the first to the fifth (digits' layers have 83 to 100 per cent in the first four). A format rounds an
octave to a grid of spacing q. Where all of it is below q / 2 it becomes zero and is lost; else rounding makes noise of
q^2 / 12. Each rounded addition makes as much again, where the format is still normal, on a sum that has grown to half
the chain in the mean. With APS a layer's largest sum lies at the format's upper end. As shares of the squares, averaged
over layers and epochs, what is lost plus a tenth of the noise is a format's `loss`: noise differs from step to step,
and an optimizer averages it (momentum of .9 over ten steps and more), but what is lost is lost in every step.

The reason. Range alone would always choose most exponent bits, which is the order where nothing is recorded; but range
that no gradient needs costs precision in every one of them. On digits with 8 workers the root of the sum of both is
near the `sum_error` that runs record (e3m1 with APS .27 and .33, e4m0 .40 and .36, e3m0 .52 and .56, e2m2 .95 and .94;
e4m0 without APS .89 and .83), and the order by `loss` is that of the training losses that these formats end with (e4m0
.017, e3m1 .023, e3m0 .033, e4m0 without APS .076, e2m2 .50; by the error e3m1 would come before e4m0). The tenth was
chosen by these runs, so they do not test it.

Where that run was observed, as a search has it, and what formats would do to its tensors can be had, the order is that
of `cpdrun.predict` instead (`cpdrun.search.observed`), which knows of every element and of the whole sum; this rule is
for runs that were trained before, and for those of scripts.

What it may go by. Only the baseline's first run that leaves a record, by its seed: it is the same whenever and however
often the search is typed, and a width with several formats is not asked for before it has ended. So the order is a
function of the experiment, and a search that was killed goes on in the same one. No claim rests on it: formats of one
width share the error equally (`cpdrun.stats.chain.shares`), in whatever order they are tried.
"""

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from custom_fp import Format

from cpdrun.record import EpochRow
from cpdrun.search.schedule import Candidate
from cpdrun.study.axes import formats

LARGEST = 10  # scales of a Laplace distribution in the largest of e^10 = 22,000 values
OCTAVES = 8  # the last with all that is left below
EXPONENTS = range(-149, 128)  # of float32
AVERAGED = 10  # steps of which noise counts as one
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
    """What a format by this name costs training, 0: nothing; inf where a gradient is larger than its largest value, or
    nothing is known of such formats. `scaled`: by APS or a rule like it."""
    lost, noise = lost_and_noise(name, gradients, scaled=scaled)
    return lost + noise / AVERAGED


def lost_and_noise(name: object, gradients: Gradients, *, scaled: bool) -> tuple[float, float]:
    """As shares of the gradients' squares."""
    fmt = formats.parse(name)
    if not isinstance(fmt, Format):
        return math.inf, math.inf
    if scaled:
        headroom = 1 + math.ceil(math.log2(gradients.additions + 1))
        return _of_layer(fmt, fmt.emax - headroom, gradients.additions)
    layers = sum(gradients.largest.values())
    of_each = [(n, *_of_layer(fmt, top, gradients.additions)) for top, n in gradients.largest.items()]
    return math.fsum(n * x for n, x, _ in of_each) / layers, math.fsum(n * x for n, _, x in of_each) / layers


def _of_layer(fmt: Format, largest: int, additions: int) -> tuple[float, float]:
    if largest > fmt.emax:
        return math.inf, math.inf
    lost = noise = 0.0
    for below, share in enumerate(SHARES):
        exponent = largest - below
        spacing = max(exponent, fmt.emin) - fmt.mantissa_bits
        if spacing >= exponent + 2:
            lost += share
            continue
        noise += share * 4.0 ** (spacing - exponent) / IN_AN_OCTAVE
        if exponent >= fmt.emin:
            noise += share * 4.0**-fmt.mantissa_bits / IN_AN_OCTAVE * additions / 2
    return lost, noise


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
