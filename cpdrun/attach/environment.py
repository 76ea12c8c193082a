"""Names that a run and the processes of its script share: two environment variables and the beginning of a log line."""

RUN_DIR, ATTEMPT_DIR = "CPDRUN_RUN_DIR", "CPDRUN_ATTEMPT_DIR"  # folders
NOT_FINITE = "cpdrun: weights were not finite"  # begins the line that explains why a script failed
