"""Run one rank of a script that another launcher has started: python -m cpdrun.attach [-m MODULE | SCRIPT.py] ARGS."""

import os
import sys
from pathlib import Path

from cpdrun.attach import runner
from cpdrun.attach.environment import RUN_DIR
from cpdrun.config.secrets import revealed
from cpdrun.parent import die_with
from cpdrun.record import RunDir, read_config


def main() -> int:
    """Run the script, and return its exit code."""
    if not (run_dir := os.environ.get(RUN_DIR)):
        print(
            f"error: {RUN_DIR} is not set, so this script is not part of a run. Start the script with cpdrun sweep "
            "script=... script.launch_with='accelerate launch'",
            file=sys.stderr,
        )
        return 2
    die_with(os.getppid())
    config = revealed(read_config(RunDir(Path(run_dir))))
    arguments = sys.argv[3:] if sys.argv[1:2] == ["-m"] else sys.argv[2:]
    return runner.run(Path(run_dir), config, arguments)


if __name__ == "__main__":
    sys.exit(main())
