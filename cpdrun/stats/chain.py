"""One chain of formats, most bits first: what the anytime-valid tests of its candidates claim together.

A width is certified with the first of its formats that is; the next narrower one is asked only then. So nothing is
claimed below a width that is refuted or open, whatever the pairs recorded there say. `cpdrun.stats.anytime` says why
this order needs no correction, and how formats of one width and chains share the error.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from cpdrun.stats.anytime import Judgement, Verdict, judge, shares


@dataclass(frozen=True)
class Width:
    """The candidates of one number of bits, the likeliest first."""

    judgements: tuple[Judgement, ...]
    is_reached: bool  # every wider one is certified

    @property
    def certified(self) -> int | None:
        """Which candidate is certified; None where none may be called so."""
        found = [i for i, each in enumerate(self.judgements) if each.verdict is Verdict.CERTIFIED]
        return found[0] if found and self.is_reached else None

    def verdict_of(self, judgement: Judgement) -> Verdict:
        """What may be said of one of the candidates: certified only where every wider width is."""
        if judgement.verdict is Verdict.CERTIFIED and not self.is_reached:
            return Verdict.OPEN
        return judgement.verdict

    @property
    def verdict(self) -> Verdict:
        if self.certified is not None:
            return Verdict.CERTIFIED
        refuted = all(each.verdict is Verdict.REFUTED for each in self.judgements)
        return Verdict.REFUTED if refuted else Verdict.OPEN


def settle(
    gaps: Sequence[Sequence[Sequence[float]]],
    tolerance: float,
    *,
    alpha: float,
    chains: int,
    sizes: Sequence[int] | None = None,
    barred: Sequence[Sequence[bool]] | None = None,
    resolution: float = 0.0,
    most_pairs: int = 1000,
) -> list[Width]:
    """The verdicts of a chain, one of `chains` that share the error `alpha`.

    `gaps`: for each width, most bits first, for each of its formats the differences in the order of the seeds, as
    `anytime.differences` makes them; in the unit of `tolerance` and `resolution`. `sizes`: how many formats of each
    width share its error, where some of them are not among `gaps`. `barred`: formats of which a run diverged or did not
    learn: never certified, not even where they were before it did, and neither is what is narrower.
    """
    found: list[Width] = []
    bars = barred or [[False] * len(formats) for formats in gaps]
    for formats, size, of_width in zip(gaps, sizes or map(len, gaps), bars, strict=True):
        certify, refute = shares(alpha, size, chains)
        judgements = tuple(
            judge(
                each,
                tolerance,
                certify=certify,
                refute=refute,
                resolution=resolution,
                most_pairs=most_pairs,
            )
            for each in formats
        )
        judgements = tuple(
            replace(each, verdict=Verdict.OPEN) if bar and each.verdict is Verdict.CERTIFIED else each
            for each, bar in zip(judgements, of_width, strict=True)
        )
        is_reached = not found or found[-1].certified is not None
        found.append(Width(judgements, is_reached))
    return found
