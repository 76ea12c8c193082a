"""What tells a script's processes of the run around them: two folders, in the environment."""

RUN_DIR, ATTEMPT_DIR = "CPDRUN_RUN_DIR", "CPDRUN_ATTEMPT_DIR"
