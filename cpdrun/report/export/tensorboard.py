"""Export each finished run to TensorBoard, with its config and the metrics of each epoch.

The package `tensorboard` writes the event files, so TensorFlow is not needed. The HPARAMS tab compares the runs.
"""

import shutil
from pathlib import Path

from tensorboard.compat.proto import event_pb2, summary_pb2
from tensorboard.plugins.hparams import metadata, plugin_data_pb2
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from cpdrun.report.export import epochs, finished_runs
from cpdrun.study.axes import axis_text
from cpdrun.study.study import Study


def write(study: Study, folder: Path) -> Path:
    """Replace `folder`/tensorboard by the event files of the finished runs, and return its path."""
    logs = folder / "tensorboard"
    shutil.rmtree(logs, ignore_errors=True)
    for _, run, config in finished_runs(study):
        writer = EventFileWriter(str(logs / run.name))
        writer.add_event(event_pb2.Event(summary=_hyperparameters(config)))
        moment = run.done.stat().st_mtime  # The time at which the training ended, not that of the export.
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
