"""Render the answer that `cpdrun sweep` prints when its runs have ended."""

import math

from cpdrun.record import SweepDir
from cpdrun.report.answers_text import headline
from cpdrun.report.render import render
from cpdrun.stats.seed_power import MOST_PAIRS, SeedPower
from cpdrun.study.answers import next_command
from cpdrun.study.metric import Metric
from cpdrun.study.study import Study


def answer_lines(study: Study, sweep: SweepDir, power: SeedPower | None) -> list[str]:
    """Return the first lines of a sweep's report, and what its seeds can decide."""
    lines, _ = headline(study, next_command(study, [sweep]))
    return lines if power is None else [*lines, seed_power_text(power, study.metric)]


def seed_power_text(power: SeedPower, metric: Metric) -> str:
    """Name the smallest margin that the seeds can decide.

    The numbers hold for a candidate exactly as good as the baseline. The number of further pairs that a verdict names
    uses the candidate's own mean difference, so the two can differ.
    """

    def show(value: float) -> str:
        return metric.show_tolerance(float(f"{value * metric.scale:.2g}"))

    return render(
        "seed_power.j2",
        power=power,
        margin=metric.show_tolerance(power.margin * metric.scale),
        settles=show(power.settles) if math.isfinite(power.settles) else "",
        test_set_settles=show(power.test_set_settles),
        most_pairs=MOST_PAIRS,
    )
