"""TensorBoard: a folder of event files, one a run; its metrics by epoch and its config as hyperparameters.

Written with tensorboard's own writer, which does without TensorFlow. The HPARAMS tab compares the runs.
"""

import shutil
from pathlib import Path

from tensorboard.compat.proto import event_pb2, summary_pb2
from tensorboard.plugins.hparams import metadata, plugin_data_pb2
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from cpdrun.record import RunDir
from cpdrun.report.export import epochs
from cpdrun.study.axes.titles import axis_text
from cpdrun.study.collect import config_keys, finished
from cpdrun.study.study import Study


def write(study: Study, folder: Path) -> Path:
    """`folder`/tensorboard, made anew: `tensorboard --logdir` reads it."""
    logs = folder / "tensorboard"
    shutil.rmtree(logs, ignore_errors=True)
    keys = config_keys(study.runs)
    for row in finished(study.runs).to_dict("records"):
        run = RunDir(Path(row["run:path"]))
        writer = EventFileWriter(str(logs / run.name))
        writer.add_event(event_pb2.Event(summary=_hyperparameters({key: row[key] for key in keys})))
        moment = run.done.stat().st_mtime  # when it was trained, not when it is exported
        for epoch, metrics in epochs(run):
            values = [
                summary_pb2.Summary.Value(tag=name, simple_value=value) for name, value in metrics.items()
            ]
            writer.add_event(
                event_pb2.Event(step=epoch, wall_time=moment, summary=summary_pb2.Summary(value=values))
            )
        writer.close()
    return logs


def _hyperparameters(config: dict) -> summary_pb2.Summary:
    start = plugin_data_pb2.SessionStartInfo()
    for key, value in config.items():
        if isinstance(value, bool):
            start.hparams[key].bool_value = value
        elif isinstance(value, int | float):
            start.hparams[key].number_value = value
        else:
            start.hparams[key].string_value = axis_text(value)
    about = metadata.create_summary_metadata(plugin_data_pb2.HParamsPluginData(session_start_info=start))
    value = summary_pb2.Summary.Value(
        tag=metadata.SESSION_START_INFO_TAG, metadata=about, tensor=metadata.NULL_TENSOR
    )
    return summary_pb2.Summary(value=[value])
