"""Calls of Slurm's commands. Only squeue is used to read the state of jobs."""

import shutil
import subprocess

from cpdrun.launch.base import Finding, LaunchError

TIMEOUT_S = 60


def slurm(*command: str) -> str:
    """Return the output of a Slurm command. Raises LaunchError with Slurm's message if it fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    except FileNotFoundError:
        raise LaunchError(
            f"{command[0]} is not installed here. Use a machine from which jobs can be submitted to Slurm"
        ) from None
    except subprocess.TimeoutExpired:
        raise LaunchError(f"{command[0]} did not answer within {TIMEOUT_S} s") from None
    if done.returncode:
        words = done.stderr.strip().splitlines() or ["failed without a message"]
        raise LaunchError(f"{command[0]}: {words[-1].removeprefix(f'{command[0]}: ')}")
    return done.stdout


def elements_in_queue(jobs: list[str]) -> dict[str, str]:
    """Return the state of each array element that has not ended, such as PENDING, keyed by `job_index`."""
    if not jobs:
        return {}
    try:
        listing = slurm("squeue", "--noheader", "--array", "--jobs", ",".join(jobs), "--format", "%i %T")
    except LaunchError as error:
        if "Invalid job id" in str(error):  # All jobs have ended so long ago that Slurm has removed them.
            return {}
        raise
    return dict(line.split(maxsplit=1) for line in listing.splitlines() if line.strip())


def examine() -> Finding:
    """Return whether this machine has Slurm and, if so, which partitions, for `cpdrun doctor`."""
    if shutil.which("sbatch") is None:
        return Finding("Slurm", "no", "there is no sbatch here, so sweeps run on this machine")
    try:
        partitions = slurm("sinfo", "--noheader", "--format", "%R").split()
    except LaunchError as error:
        return Finding(
            "Slurm", "no", str(error), "ask the administrator of the cluster, or use --launcher local"
        )
    return Finding("Slurm", "ok", f"partitions {', '.join(dict.fromkeys(partitions))}")
