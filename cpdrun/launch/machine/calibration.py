"""Run `cpdrun.costmodel.measure` in separate processes, for `cpdrun doctor --calibrate`."""

import contextlib
import os
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from custom_fp.formats.names import parse

from cpdrun.launch.base import LaunchError
from cpdrun.parent import module_command
from cpdrun.record import read_json, write_json

LIMIT_S = 3600.0  # Ranks that have not ended after this time are stopped.


def calibrate(
    config: dict[str, Any],
    out: Path,
    *,
    nproc: int = 1,
    formats: Sequence[str] = (),
    methods: Mapping[str, dict[str, Any]] | None = None,
    repeats: int = 9,
) -> dict[str, Any]:
    """Measure the parameters of the cost model for the model of a run. Write them to a file, and return them.

    To measure the network between machines, start cpdrun.costmodel.measure with torchrun instead.

    Args:
        config: The resolved config of the run.
        out: The file to write.
        nproc: The number of ranks on this machine between which the network is measured.
        formats: The formats whose codecs are measured. If empty, `measure.FORMATS` are used.
        methods: For each compressor to measure, the config of a run that uses it, keyed by `compressor_key`.
        repeats: The number of repetitions of each measurement.

    Raises:
        LaunchError: A format is unknown, or a rank failed or did not end.
    """
    try:
        for name in formats:
            parse(name)
    except ValueError as error:
        raise LaunchError(str(error)) from None
    with tempfile.TemporaryDirectory() as folder:
        config_file = Path(folder) / "config.json"
        write_json(config_file, config)
        command = [*module_command("cpdrun.costmodel.measure"), str(config_file), str(out)]
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
    """Measure the compressors in one rank, because nothing is exchanged."""
    methods_file, out = folder / "methods.json", folder / "compressors.json"
    write_json(methods_file, dict(methods))
    command = [*module_command("cpdrun.costmodel.measure"), "--compressors", str(methods_file), str(out)]
    _run_ranks([*command, "--repeats", str(repeats)], 1, threads, folder)
    return read_json(out) or {}


def _run_ranks(command: list[str], nproc: int, threads: int, folder: Path) -> None:
    """Run a command as each of nproc ranks, and stop all other ranks if one fails.

    Raises:
        LaunchError: A rank failed, or the ranks did not end within LIMIT_S.
    """
    with contextlib.ExitStack() as stack:
        # Rank 0 starts to listen on this port a few seconds later. Until then, the bound socket prevents
        # other programs from using the port. Rank 0 can bind the same port, because torch's store also sets
        # SO_REUSEADDR and this socket does not listen.
        reserved = stack.enter_context(socket.socket())
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reserved.bind(("127.0.0.1", 0))
        port = reserved.getsockname()[1]
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
        deadline = time.monotonic() + LIMIT_S
        while not any(
            process.poll() for _, process, _ in ranks
        ):  # If a rank fails, the other ranks wait forever.
            if all(process.poll() == 0 for _, process, _ in ranks):
                return
            if time.monotonic() > deadline:
                running = ", ".join(str(rank) for rank, process, _ in ranks if process.poll() is None)
                raise LaunchError(
                    f"calibration: rank {running} did not end within {LIMIT_S:g} s. Try fewer --repeats"
                )
            time.sleep(0.05)
        rank, log = next((rank, log) for rank, process, log in ranks if process.poll())
        log.seek(0)
        lines = log.read().strip().splitlines() or ["no output"]
        raise LaunchError(f"calibration: rank {rank} failed: {lines[-1]}")
