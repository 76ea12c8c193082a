"""What Slurm says: its commands, wrapped just enough to be read. squeue alone is needed; sacct is not."""

import shutil
import subprocess

from cpdrun.launch.base import Finding, LaunchError

TIMEOUT_S = 60


def slurm(*command: str) -> str:
    """The output of one of Slurm's commands; raises LaunchError with Slurm's own words where it fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    except FileNotFoundError:
        raise LaunchError(f"{command[0]} is not here: is this a node that can submit to Slurm?") from None
    except subprocess.TimeoutExpired:
        raise LaunchError(f"{command[0]} did not answer within {TIMEOUT_S} s") from None
    if done.returncode:
        words = done.stderr.strip().splitlines() or ["failed without a word"]
        raise LaunchError(f"{command[0]}: {words[-1].removeprefix(f'{command[0]}: ')}")
    return done.stdout


def elements_in_queue(jobs: list[str]) -> dict[str, str]:
    """The state (PENDING, RUNNING, ...) of each array element, `job_index`, of `jobs` that is not over."""
    if not jobs:
        return {}
    try:
        listing = slurm("squeue", "--noheader", "--array", "--jobs", ",".join(jobs), "--format", "%i %T")
    except LaunchError as error:
        if "Invalid job id" in str(error):  # all of them are over, and Slurm has forgotten them
            return {}
        raise
    return dict(line.split(maxsplit=1) for line in listing.splitlines() if line.strip())


def examine() -> Finding:
    """Whether Slurm is here, and its partitions."""
    if shutil.which("sbatch") is None:
        return Finding("Slurm", "no", "no sbatch here; sweeps run on this machine")
    try:
        partitions = slurm("sinfo", "--noheader", "--format", "%R").split()
    except LaunchError as error:
        return Finding("Slurm", "no", str(error), "ask who runs the cluster, or use --launcher local")
    return Finding("Slurm", "ok", f"partitions {', '.join(dict.fromkeys(partitions))}")
