"""Export each finished run to MLflow, with its config and the metrics of each epoch.

Each sweep becomes an experiment. The runs are sent to the server in MLFLOW_TRACKING_URI, or else written to `mlflow.db`
(SQLite) in the report's folder. Runs that were exported before are skipped, because finished runs do not change.
"""

import os
import re
from pathlib import Path

from mlflow.entities import Metric, Param, RunTag
from mlflow.tracking import MlflowClient

from cpdrun.record import RunDir
from cpdrun.report.export import epochs, finished_runs
from cpdrun.study.study import Study

_TAG = "cpdrun.run"
# The limits of MLflow: the number of letters in a value, and the number of parameters and of metrics in a batch.
_LONGEST_VALUE = 6000
_MOST_PARAMETERS, _MOST_METRICS = 100, 1000


def write(study: Study, folder: Path) -> Path:
    """Export the finished runs, and return the path of the database.

    If the runs were sent to a server, return `folder`.
    """
    database = folder / "mlflow.db"
    server = os.environ.get("MLFLOW_TRACKING_URI")
    client = MlflowClient(tracking_uri=server or f"sqlite:///{database.resolve()}")
    for sweep, run, config in finished_runs(study):
        experiment = _experiment(client, sweep)
        if not client.search_runs([experiment], filter_string=f"tags.`{_TAG}` = '{_name(run.name)}'"):
            _write_run(client, experiment, run, config)
    return folder if server else database


def _experiment(client: MlflowClient, sweep: str) -> str:
    known = client.get_experiment_by_name(f"cpdrun {sweep}")
    return known.experiment_id if known else client.create_experiment(f"cpdrun {sweep}")


def _write_run(client: MlflowClient, experiment: str, run: RunDir, config: dict) -> None:
    ended_ms = int(run.done.stat().st_mtime * 1000)
    made = client.create_run(experiment, start_time=ended_ms, tags={_TAG: _name(run.name)}, run_name=run.name)
    identifier = made.info.run_id
    parameters = [Param(_name(key), str(value)[:_LONGEST_VALUE]) for key, value in config.items()]
    metrics = [
        Metric(_name(name), value, ended_ms, epoch)
        for epoch, row in epochs(run)
        for name, value in row.items()
    ]
    for start in range(0, len(parameters), _MOST_PARAMETERS):
        client.log_batch(identifier, params=parameters[start : start + _MOST_PARAMETERS])
    for start in range(0, len(metrics), _MOST_METRICS):
        client.log_batch(identifier, metrics=metrics[start : start + _MOST_METRICS])
    client.log_batch(identifier, tags=[RunTag("cpdrun.path", str(run.path))])
    client.set_terminated(identifier, end_time=ended_ms)


def _name(text: str) -> str:
    """Replace characters that MLflow does not allow, and cut the name to 250 characters."""
    return re.sub(r"[^\w./ :-]", "_", text, flags=re.ASCII)[:250]
