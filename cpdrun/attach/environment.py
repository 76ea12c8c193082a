"""Names that both a run and the processes of its script use."""

RUN_DIR, ATTEMPT_DIR = "CPDRUN_RUN_DIR", "CPDRUN_ATTEMPT_DIR"  # environment variables that contain folders
NOT_FINITE = (
    "cpdrun: weights were not finite"  # the beginning of a log line that explains why a script failed
)
