"""Why a run is worse than its baseline, and which changes would lose less. `cpdrun.report.diagnosis` renders it."""
