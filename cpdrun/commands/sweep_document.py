"""The document of `cpdrun sweep --json`."""

from dataclasses import dataclass

from cpdrun.config.dry_run import SweepDescription
from cpdrun.launch.summary import Summary
from cpdrun.stats.seed_power import SeedPower


@dataclass
class SweepDocument(SweepDescription):
    """A sweep and the result of training its runs.

    Attributes:
        dry_run: Whether the runs were only planned.
        summary: The number of runs that ended in each way, or null if nothing was launched.
        seed_power: The margins that the seeds of the sweep can decide, or null if no runs are compared.
        notes: Additional notes for the user.
    """

    dry_run: bool
    summary: Summary | None
    seed_power: SeedPower | None
    notes: list[str]
