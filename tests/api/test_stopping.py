"""A call from Python is stopped by the stop button of a notebook, or by `cpdrun cancel` in another shell.

Finished runs and checkpoints stay, and the same call continues from there.
"""

import asyncio
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cpdrun.record import SweepDir

# The first run takes seconds, the second minutes.
ASKED = """
import cpdrun

asked = {"exp": "digits_bits", "format": "e4m3", "aps": False, "seed": 0, "epochs": [1, 2000], "world_size": 2,
         "model": {"width": 2}, "device": "cpu", "jobs": 1, "results_dir": "results"}
"""
CALL = ASKED + "cpdrun.sweep(**asked)\n"
LEFT = """
runs = cpdrun.load("results/digits_bits").sort_values("epochs")
print(*runs["run:state"])
planned = cpdrun.sweep(**asked, dry_run=True)
print(planned["done"], planned["to_run"])
"""
DEADLINE_S = 480


def the_second_trains(folder: Path) -> bool:
    """Return whether one run is done and the other has finished an epoch."""
    runs = list(SweepDir(folder / "results" / "digits_bits").runs())
    done = [run for run in runs if run.done.exists()]
    return len(done) == 1 and any(run.status.exists() for run in runs if run not in done)


def saved(folder: Path) -> bool:
    """Return whether the stopped run has a checkpoint and the state preempted."""
    (stopped,) = [run for run in SweepDir(folder / "results" / "digits_bits").runs() if not run.done.exists()]
    return stopped.checkpoint.exists() and stopped.last_attempt().outcome().status == "preempted"


@pytest.mark.timeout(600)
def test_the_stop_button_of_a_notebook_stops_a_call(tmp_path):
    pytest.importorskip("ipykernel")
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    from jupyter_client.kernelspec import KernelSpecManager
    from jupyter_client.manager import AsyncKernelManager

    page = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(text) for text in (CALL, LEFT)])
    client = nbclient.NotebookClient(
        page,
        km=AsyncKernelManager(kernel_spec_manager=KernelSpecManager(kernel_dirs=[])),
        timeout=DEADLINE_S,
        resources={"metadata": {"path": str(tmp_path)}},
    )

    async def pressed():
        async with client.async_setup_kernel():
            call = asyncio.ensure_future(client.async_execute_cell(page.cells[0], 0))
            deadline = time.monotonic() + DEADLINE_S
            while not the_second_trains(tmp_path):
                assert not call.done() and time.monotonic() < deadline, page.cells[0].outputs
                await asyncio.sleep(0.05)
            await client.km.interrupt_kernel()
            with pytest.raises(nbclient.exceptions.CellExecutionError):
                await call
            await client.async_execute_cell(page.cells[1], 1)

    asyncio.run(pressed())
    raised = page.cells[0].outputs[-1]
    assert raised.output_type == "error" and raised.ename == "Stopped"
    assert raised.evalue == "stopped. The results so far are saved, and the same call continues from there"
    shown = [out for out in page.cells[0].outputs if out.output_type == "display_data"]
    assert [out.data["text/plain"] for out in shown] == [""], "the live table is gone"
    printed = [out.text for out in page.cells[1].outputs if out.name == "stdout"]
    assert "".join(printed).split() == ["done", "preempted", "1", "1"]
    assert saved(tmp_path)


@pytest.mark.timeout(600)
def test_cpdrun_cancel_stops_a_call(tmp_path):
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    call = "try:\n    cpdrun.sweep(**asked, quiet=True)\nexcept cpdrun.Stopped as why:\n    print(why)\n"
    code = ASKED + call + LEFT
    caller = subprocess.Popen(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True
    )
    try:
        deadline = time.monotonic() + DEADLINE_S
        while not the_second_trains(tmp_path):
            assert caller.poll() is None and time.monotonic() < deadline
            time.sleep(0.05)
        shell = [sys.executable, "-m", "cpdrun.cli", "cancel", "results/digits_bits"]
        subprocess.run(shell, cwd=tmp_path, env=environment, check=True, stdout=subprocess.DEVNULL)
        said, _ = caller.communicate(timeout=DEADLINE_S)
    finally:
        caller.kill()
    assert said.splitlines() == [
        "stopped. The results so far are saved, and the same call continues from there",
        "done preempted",
        "1 1",
    ]
    assert caller.returncode == 0 and saved(tmp_path)
