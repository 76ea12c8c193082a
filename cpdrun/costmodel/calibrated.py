"""Find the calibration of a study (`cpdrun doctor --calibrate`) and the networks to predict for."""

from cpdrun.costmodel import (
    Calibration,
    Network,
    NotCalibratedError,
    network,
    network_names,
    read_calibration,
)
from cpdrun.record import SweepDir
from cpdrun.study.study import Study

MEASURED = "as measured between the ranks"


def calibration_of(study: Study) -> Calibration:
    """Return the calibration of the study's first sweep that has one.

    Raises:
        CalibrationError: A calibration cannot be read, or no sweep has one.
    """
    folders = {run.path.parent.parent for group in study.groups for run in group.runs}
    for folder in sorted(folders):
        if (found := read_calibration(SweepDir(folder).calibration)) is not None:
            return found
    raise NotCalibratedError("the sweep has no calibration, `cpdrun doctor --calibrate` makes one")


def known_networks(calibration: Calibration) -> dict[str, Network]:
    """Return the named networks and the measured network, the slowest first."""
    known = {name: network(name) for name in network_names()}
    if calibration.network is not None:
        known[MEASURED] = calibration.network
    return dict(sorted(known.items(), key=lambda item: item[1].bandwidth_bytes_per_s))
