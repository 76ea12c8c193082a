"""`cpdrun doctor --calibrate`: measures, in ranks of its own, what the cost model needs for the model of a run."""

import contextlib
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from custom_fp.formats.names import parse

from cpdrun.launch.base import LaunchError
from cpdrun.record import read_json, write_json


def calibrate(
    config: dict[str, Any],
    out: Path,
    *,
    nproc: int = 1,
    formats: Sequence[str] = (),
    methods: Mapping[str, dict[str, Any]] | None = None,
    repeats: int = 9,
) -> dict[str, Any]:
    """Measure `config`'s model, the codec in `formats` (none: a usual choice) and the network between `nproc`
    ranks of this machine, and what the compressors of `methods` take: by its key the config of a run that has it.
    Written to `out` and returned. Between machines, start cpdrun.costmodel.measure with torchrun instead. Raises
    LaunchError for an unknown format, or with the rank's last line where one fails.
    """
    try:
        for name in formats:
            parse(name)
    except ValueError as error:
        raise LaunchError(str(error)) from None
    with tempfile.TemporaryDirectory() as folder:
        given = Path(folder) / "config.json"
        write_json(given, config)
        command = [sys.executable, "-m", "cpdrun.costmodel.measure", str(given), str(out)]
        command += ["--repeats", str(repeats)]
        if formats:
            command += ["--formats", ",".join(formats)]
        out.parent.mkdir(parents=True, exist_ok=True)
        _run_ranks(command, nproc, config["threads"], Path(folder))
        found = read_json(out)
        if found is None:
            raise LaunchError(f"calibration wrote nothing to {out}")
        if methods:
            found["compressors"] = _compressors(methods, repeats, config["threads"], Path(folder))
            write_json(out, found)
    return found


def _compressors(
    methods: Mapping[str, dict[str, Any]], repeats: int, threads: int, folder: Path
) -> dict[str, Any]:
    """By one rank, for nothing of it is exchanged."""
    asked, out = folder / "methods.json", folder / "compressors.json"
    write_json(asked, dict(methods))
    command = [sys.executable, "-m", "cpdrun.costmodel.measure", "--compressors", str(asked), str(out)]
    _run_ranks([*command, "--repeats", str(repeats)], 1, threads, folder)
    return read_json(out) or {}


def _run_ranks(command: list[str], nproc: int, threads: int, folder: Path) -> None:
    """`command` as each of nproc ranks, all ended before this returns."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with contextlib.ExitStack() as stack:
        ranks = []
        for rank in range(nproc):
            environment = os.environ | {
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "WORLD_SIZE": str(nproc),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port),
                "GLOO_SOCKET_IFNAME": "lo",
                "OMP_NUM_THREADS": str(threads),
            }
            log = stack.enter_context((folder / f"rank{rank}.log").open("w+", encoding="utf-8"))
            process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
            stack.callback(process.wait)
            stack.callback(process.kill)
            ranks.append((rank, process, log))
        while not any(process.poll() for _, process, _ in ranks):  # one that fails leaves the others waiting
            if all(process.poll() == 0 for _, process, _ in ranks):
                return
            time.sleep(0.05)
        rank, log = next((rank, log) for rank, process, log in ranks if process.poll())
        log.seek(0)
        lines = log.read().strip().splitlines() or ["no output"]
        raise LaunchError(f"calibration: rank {rank} failed: {lines[-1]}")
