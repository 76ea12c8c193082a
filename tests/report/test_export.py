"""Exports as TensorBoard, MLflow and Weights & Biases read them."""

import json
import struct
import sys
from pathlib import Path

import pytest

from cpdrun.report import ReportUsageError

CURVE = [(i, pytest.approx(0.3 * i + 0.01)) for i in (1, 2, 3)]


@pytest.fixture
def trained(new_sweep):
    """Two finished runs and one that is not, with hostile names in their config."""
    sweep = new_sweep()
    for seed in range(2):
        rows = [
            {"epoch": i, "test_accuracy": 0.3 * i + 0.01 * seed, "train_loss": None, "note": "x"}
            for i in (1, 2, 3)
        ]
        config = {"name": f"run{seed}", "a b$<>'": "50%_of_data"}
        sweep.add("e3m0", aps=True, seed=seed, accuracy=0.9, rows=rows, **config)
    sweep.add("e3m0", seed=7, status=None)
    return sweep


def test_tensorboard(trained, report):
    pytest.importorskip("tensorboard", reason="needs the extra `tensorboard`")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    for _ in range(2):  # a second export replaces the first
        made = report(trained, export_to=["tensorboard"])
    folders = sorted((made.folder / "tensorboard").iterdir())
    assert [folder.name for folder in folders] == ["run0", "run1"]
    log = EventAccumulator(str(folders[1]))
    log.Reload()
    assert log.Tags()["scalars"] == ["test_accuracy"]
    assert [(event.step, event.value) for event in log.Scalars("test_accuracy")] == CURVE
    assert "_hparams_/session_start_info" in log.summary_metadata


def test_mlflow(trained, report, monkeypatch):
    pytest.importorskip("mlflow", reason="needs the extra `mlflow`")
    pytest.importorskip("sqlalchemy", reason="needs the extra `mlflow`")
    from mlflow.tracking import MlflowClient

    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    for _ in range(2):  # a second export adds nothing
        made = report(trained, export_to=["mlflow"])
    client = MlflowClient(tracking_uri=f"sqlite:///{made.folder / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("cpdrun digits_bits")
    runs = sorted(client.search_runs([experiment.experiment_id]), key=lambda run: run.info.run_name)
    assert [run.info.run_name for run in runs] == ["run0", "run1"]
    assert runs[1].data.params["format"] == "e3m0" and runs[1].data.params["a b____"] == "50%_of_data"
    history = client.get_metric_history(runs[1].info.run_id, "test_accuracy")
    assert [(point.step, point.value) for point in history] == CURVE


def wandb_records(file: Path) -> list:
    """Read LevelDB's log format: blocks of 32 KiB, and parts of records with checksum, length and kind."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, at, parts, records = file.read_bytes(), 7, [], []
    while at < len(data):
        if 32768 - at % 32768 < 7:  # padding
            at += 32768 - at % 32768
            continue
        length, part = struct.unpack_from("<HB", data, at + 4)
        parts.append(data[at + 7 : at + 7 + length])
        at += 7 + length
        if part in (1, 4):  # whole, or the last part
            records.append(Record.FromString(b"".join(parts)))
            parts = []
    return records


def test_wandb(trained, report, monkeypatch):
    pytest.importorskip("wandb", reason="needs the extra `wandb`")
    monkeypatch.setenv("WANDB__SERVICE_WAIT", "250")  # the default of 30 s is too short on a busy machine
    for _ in range(2):  # a second export replaces the first
        made = report(trained, export_to=["wandb"])
    files = sorted((made.folder / "wandb").glob("offline-run-*/run-*.wandb"))
    assert len(files) == 2
    found = {}
    for file in files:
        records = wandb_records(file)
        run = next(record.run for record in records if record.HasField("run"))
        rows = [record.history.item for record in records if record.HasField("history")]
        history = [{".".join(x.nested_key) or x.key: json.loads(x.value_json) for x in row} for row in rows]
        found[run.display_name] = {x.key: json.loads(x.value_json) for x in run.config.update}, history
    config, history = found["run1"]
    assert config["format"] == "e3m0" and config["a b$<>'"] == "50%_of_data"
    assert [(row["_step"], row["test_accuracy"]) for row in history] == CURVE


def test_an_unknown_tool_is_refused_before_anything_is_written(trained, report):
    with pytest.raises(ReportUsageError, match=r"mlflow, tensorboard, wandb"):
        report(trained, export_to=["excel"])
    assert not trained.dir.report.exists()


@pytest.mark.parametrize("tool", ["tensorboard", "mlflow", "wandb"])
def test_a_missing_package_is_named_with_the_extra(trained, report, monkeypatch, tool):
    for name in [name for name in sys.modules if name.split(".")[0] == tool]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, tool, None)
    monkeypatch.delitem(sys.modules, f"cpdrun.report.export.{tool}", raising=False)
    with pytest.raises(ReportUsageError, match=rf"pip install 'cpdrun\[{tool}\]'"):
        report(trained, export_to=[tool])
