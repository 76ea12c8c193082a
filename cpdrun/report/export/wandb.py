"""Weights & Biases: an offline run for each finished one, its config, and its metrics by epoch.

Nothing is sent: `wandb sync FOLDER/offline-run-*` does that, when and where its user wants. A run has the same id each
time, so that what was synchronised is replaced, not doubled.
"""

import hashlib
import shutil
from pathlib import Path

import wandb

from cpdrun.record import RunDir
from cpdrun.report.export import epochs
from cpdrun.study.axes.titles import SWEEP
from cpdrun.study.collect import config_keys, finished
from cpdrun.study.study import Study

_LONGEST_NAME = 128  # of theirs


def write(study: Study, folder: Path) -> Path:
    """`folder`/wandb, made anew."""
    made = folder / "wandb"
    shutil.rmtree(made, ignore_errors=True)
    settings = wandb.Settings(
        silent=True, console="off", x_disable_stats=True, x_disable_meta=True, disable_git=True
    )
    keys = config_keys(study.runs)
    for row in finished(study.runs).to_dict("records"):
        run = RunDir(Path(row["run:path"]))
        with wandb.init(
            mode="offline",
            dir=folder,
            project=f"cpdrun-{row[SWEEP]}"[:_LONGEST_NAME],
            group=str(row[SWEEP])[:_LONGEST_NAME],
            name=run.name[:_LONGEST_NAME],
            id=hashlib.sha256(run.name.encode()).hexdigest()[:16],
            config={key: row[key] for key in keys} | {"cpdrun.path": str(run.path)},
            settings=settings,
            reinit="create_new",
        ) as theirs:
            for epoch, metrics in epochs(run):
                theirs.log(metrics, step=epoch)
    # finish() leaves the writing to another process, which is waited for; a caller's own run goes on.
    if wandb.run is None:
        wandb.teardown()
    return made
