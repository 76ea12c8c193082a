"""Export each finished run to Weights & Biases, with its config and the metrics of each epoch.

The runs are offline runs, so nothing is sent over the network. Upload them with `wandb sync FOLDER/offline-run-*`. Each
run keeps its id, so a second upload replaces the first.
"""

import hashlib
import shutil
from pathlib import Path

import wandb

from cpdrun.report.export import epochs, finished_runs
from cpdrun.study.study import Study

# The largest number of letters that Weights & Biases allows in a name.
_LONGEST_NAME = 128


def write(study: Study, folder: Path) -> Path:
    """Replace `folder`/wandb by the exported runs, and return its path."""
    made = folder / "wandb"
    shutil.rmtree(made, ignore_errors=True)
    settings = wandb.Settings(
        silent=True, console="off", x_disable_stats=True, x_disable_meta=True, disable_git=True
    )
    for sweep, run, config in finished_runs(study):
        with wandb.init(
            mode="offline",
            dir=folder,
            project=f"cpdrun-{sweep}"[:_LONGEST_NAME],
            group=sweep[:_LONGEST_NAME],
            name=run.name[:_LONGEST_NAME],
            id=hashlib.sha256(run.name.encode()).hexdigest()[:16],
            config=config | {"cpdrun.path": str(run.path)},
            settings=settings,
            reinit="create_new",
        ) as theirs:
            for epoch, metrics in epochs(run):
                theirs.log(metrics, step=epoch)
    # After finish(), a separate process still writes the files. teardown() waits for that process, but it also ends the
    # caller's active run. It is therefore called only if there is none.
    if wandb.run is None:
        wandb.teardown()
    return made
