"""What a run and the processes of its script tell each other: two folders in the environment, one line of the log."""

RUN_DIR, ATTEMPT_DIR = "CPDRUN_RUN_DIR", "CPDRUN_ATTEMPT_DIR"
NOT_FINITE = "cpdrun: weights were not finite"  # begins the line that explains why a script failed
