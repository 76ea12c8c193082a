"""Runs of other tools: written whole, read back as given, refused in a line where they mean nothing or two things."""

import csv
import io
import math
from pathlib import Path

import numpy as np
import pytest
import yaml

from cpdrun.config.identity import identity_hash
from cpdrun.errors import CannotWriteError
from cpdrun.record import (
    InvalidValueError,
    Measure,
    RunDir,
    State,
    SweepDir,
    claim,
    read_config,
    read_json,
    read_manifest,
    release,
    state_of,
    write_json,
    write_run,
)
from cpdrun.sweep import listed


@pytest.fixture(autouse=True)
def unsynced(monkeypatch):
    """None of these runs needs to outlive a power cut."""
    monkeypatch.setattr("os.fsync", lambda fd: None)


@pytest.fixture
def write(tmp_path):
    """write_run of an ordinary run, other arguments in its place; gives the run's directory."""

    def go(**given):
        ordinary = {"format": "e4m3", "seed": 0, "metrics": {"test_accuracy": 0.97}}
        return RunDir(write_run(tmp_path / "theirs", **ordinary | given))

    return go


def test_a_written_run_is_read_back_with_equal_values(write, tmp_path):
    run = write(
        format="af4",
        bits=4.5,
        seed=np.int64(3),
        aps=np.True_,
        world_size=8,
        metrics={"val_loss": np.float32(0.5), "test_accuracy": 0.97},
        directions={"val_loss": "lower"},
        config={"model": "resnet50", "optim": {"lr": np.float64(0.1), "betas": (0.9, 0.99)}, "note": "1e-4"},
        rows=[{"epoch": 1, "val_loss": 2.0, "step": 7}, {"epoch": 2, "val_loss": math.nan}],
        test_samples=360,
        num_classes=10,
        train_seconds=2.5,
        bytes_per_step=1000,
        env={"torch": "2.9"},
    )
    assert read_config(run) == {
        "format": "af4",
        "aps": True,
        "seed": 3,
        "world_size": 8,
        "model": "resnet50",
        "optim": {"lr": 0.1, "betas": [0.9, 0.99]},
        "note": "1e-4",
    }
    assert run.name == f"af4-aps-w8-s3-{identity_hash(read_config(run))}"
    assert read_json(run.format_facts) == {"name": "af4", "bits": 4.5, "exponent_bits": None}
    result = run.result()
    assert result.metrics == {"val_loss": 0.5, "test_accuracy": 0.97} and result.judge == "val_loss"
    assert result.measures["val_loss"] == Measure(higher_is_better=False)
    assert result.measures["test_accuracy"].of_samples
    assert (result.test_samples, result.num_classes, result.train_seconds) == (360, 10, 2.5)
    assert [(row.epoch, row.step, row.metrics) for row in run.rows()] == [
        (1, 7, {"val_loss": 2.0}),
        (2, 0, {"val_loss": None}),
    ]
    assert state_of(run) is State.DONE and read_json(run.env) == {"torch": "2.9"}
    assert read_manifest(SweepDir(tmp_path / "theirs"))["record"] == read_json(run.done)["record"] == 1


def test_the_docstring_example_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    table = [["fmt", "bits", "seed", "acc", "loss"], ["fp32", 32, 0, 0.97, 0.1], ["af4", 4.5, 0, 0.96, 0.2]]
    csv.writer(file := io.StringIO()).writerows(table)
    (tmp_path / "theirs.csv").write_text(file.getvalue())
    example = write_run.__doc__.split("::\n\n")[1].split("\n\n    Numbers may be")[0]
    lines = [line.removeprefix("        ") for line in example.splitlines()]
    exec("\n".join(lines), {})
    assert [run.name[:7] for run in SweepDir(tmp_path / "results" / "theirs").runs()] == [
        "af4-s0-",
        "fp32-s0",
    ]
    page = (Path(__file__).parents[2] / "docs" / "record.md").read_text(encoding="utf-8")
    assert "\n".join(f"    {line}".rstrip() for line in lines) in page


WRONG = [
    ({"format": "float32", "bits": 32}, "format='float32' is called 'fp32' in cpdrun"),
    ({"format": "bfloat16"}, "unknown format 'bfloat16' (did you mean 'bf16'?)"),
    ({"format": "af4"}, "unknown format 'af4'. A format of another tool needs the number of bits per value"),
    ({"format": "evil.F"}, "unknown format 'evil.F'. A format of another tool needs the number of bits"),
    ({"format": "e4m3", "bits": 4}, "bits=4, but e4m3 has 8"),
    ({"format": "af4", "bits": "4"}, "bits='4' must be a number"),
    ({"format": "af4", "bits": -4}, "bits=-4 must be more than 0 and at most 1024"),
    ({"format": 4, "bits": 4}, "format='4' must be a name"),
    ({"format": "a" * 5000, "bits": 4}, "must be a name"),
    ({"format": "a\nb", "bits": 4}, "format='a\\nb' must be a name"),
    ({"seed": "0"}, "seed='0' must be a whole number, e.g. int(seed)"),
    ({"seed": 0.5}, "seed=0.5 must be a whole number"),
    ({"seed": True}, "seed=True must be a whole number"),
    ({"seed": -1}, "seed=-1 must be at least 0"),
    ({"aps": "no"}, "aps='no' must be True or False"),
    ({"world_size": 0}, "world_size=0 must be at least 1"),
    ({"metrics": {}}, "metrics={} must have a metric"),
    ({"metrics": 0.97}, "metrics=0.97 must have a metric"),
    ({"metrics": {"test_accuracy": "0.97"}}, "test_accuracy='0.97' must be a number, e.g. float(...)"),
    ({"metrics": {"test_accuracy": math.nan}}, "test_accuracy=nan must be finite; leave out a metric"),
    ({"metrics": {"test_accuracy": None}}, "test_accuracy=None must be finite"),
    ({"metrics": {"test_loss": 10**400}}, "must be finite"),
    ({"metrics": {"test_accuracy": 97.0}}, "test_accuracy=97 must be a share from 0 to 1, e.g. 0.97 for 97%"),
    ({"metrics": {"psnr": 30}}, "is a higher psnr better? Pass directions={'psnr': 'higher'}, or lower"),
    ({"metrics": {"psnr": 30}, "directions": {"psnr": "up"}}, "directions has 'up' for psnr; allowed: higher, lower"),
    ({"metrics": {"f1": 55}, "directions": {"f1": "share"}}, "f1=55 must be a share from 0 to 1"),
    ({"directions": {"test_accuracy": "lower"}}, "a higher test_accuracy is better. For a metric"),
    ({"directions": ["higher"]}, "directions=['higher'] must be a mapping"),
    ({"judged_by": "val_loss"}, "judged_by='val_loss' is not a metric of this run; allowed: test_accuracy"),
    ({"config": {"seed": 1}}, "config has 'seed', which is a separate argument"),
    ({"config": {"norm": "layer"}}, "config has 'norm', which cpdrun does not use to distinguish runs"),
    ({"config": {"case": "a"}}, "config has 'case', which cpdrun does not use to distinguish runs"),
    ({"config": {"scaling": "x"}}, "config has 'scaling', which is allowed only with aps=True"),
    ({"config": {"run:state": "done"}}, "config has the key 'run:state'; keys must be printable text without a colon"),
    ({"config": {1: 2}}, "config has the key 1; keys must be"),
    ({"config": {"model": object}}, "config.model is a type; allowed are text, numbers"),
    ({"config": {"lr": math.nan}}, "config.lr=nan must be finite"),
    ({"config": {"x": "y" * (2 << 20)}}, "config is larger than 1 MiB"),
    ({"config": {"x": "\ud800"}}, "config.x is a str"),
    ({"config": {"a.b": 1, "a": {"b": 2}}}, "config has 'a.b' twice"),
    ({"bytes_per_step": -1}, "bytes_per_step=-1 must be at least 0"),
    ({"rows": 5}, "rows=5 must be a list of mappings"),
    ({"rows": {"epoch": 1}}, "rows={'epoch': 1} must be a list of mappings"),
    ({"rows": [{"test_accuracy": 1}]}, "rows[0]={'test_accuracy': 1} must be a mapping with an epoch"),
    ({"rows": [{"epoch": 2}, {"epoch": 1}]}, "rows[1] epoch=1 follows epoch 2; epochs must increase"),
    ({"rows": [{"epoch": 1, "test_accuracy": 97}]}, "rows[0] test_accuracy=97 must be a share from 0 to 1"),
    ({"rows": [{"epoch": 1, "lr": "x"}]}, "lr='x' must be a number"),
    ({"test_samples": 0}, "test_samples=0 must be at least 1"),
    ({"env": {"torch": object()}}, "env.torch is a object"),
]  # fmt: skip


@pytest.mark.parametrize(("given", "message"), WRONG, ids=range(len(WRONG)))
def test_invalid_values_are_refused_in_one_line(write, tmp_path, given, message):
    with pytest.raises(InvalidValueError) as caught:
        write(**given)
    assert message in str(caught.value) and "\n" not in str(caught.value)
    assert isinstance(caught.value, ValueError) and not list(tmp_path.iterdir())


def test_a_mapping_that_contains_itself_is_refused(write):
    loop = {}
    loop["loop"] = loop
    with pytest.raises(InvalidValueError, match="config is nested too deeply, or contains itself"):
        write(config=loop)


def test_directions_name_the_kind_of_a_metric(write):
    metrics = {"val_accuracy": 0.5, "f1": 0.4, "bpc": 1.2, "psnr": 30, "nll": 2.0, "r": -2}
    ways = {"val_accuracy": "accuracy", "f1": "share", "bpc": "bits", "psnr": "higher", "nll": "nats"}
    found = (
        write(metrics=metrics, directions={**ways, "r": Measure(True), "unused": "lower"}).result().measures
    )
    assert {name: (m.higher_is_better, m.shown) for name, m in found.items()} == {
        "val_accuracy": (True, "percent"),
        "f1": (True, "percent"),
        "bpc": (False, "bits"),
        "psnr": (True, "plain"),
        "nll": (False, "nats"),
        "r": (True, "plain"),
    }
    assert found["val_accuracy"].of_samples and not found["f1"].of_samples


def test_a_diverged_run_needs_no_metric(write):
    assert write(diverged=True, metrics={}).result().status == "diverged"
    result = write(seed=1, diverged=True, metrics={"test_accuracy": math.nan}).result()
    assert result.metrics == {"test_accuracy": None} and result.judge == "test_accuracy"


def test_writing_the_same_run_again_changes_nothing_and_other_results_need_replace(write):
    run = write(rows=[{"epoch": 1, "test_accuracy": 0.5}])
    before = run.done.stat().st_mtime_ns
    assert write(rows=[{"epoch": 1, "test_accuracy": 0.5}]).path == run.path
    assert run.done.stat().st_mtime_ns == before
    with pytest.raises(
        InvalidValueError, match=r"this seed \(test_accuracy=0.97, not 0.5\). Pass what distinguishes"
    ):
        write(metrics={"test_accuracy": 0.5})
    with pytest.raises(InvalidValueError, match=r"this seed \(other values\)"):
        write()
    assert write(metrics={"test_accuracy": 0.5}, replace=True).result().metrics == {"test_accuracy": 0.5}
    assert not run.metrics.exists()
    assert write(metrics={"test_accuracy": 0.5}, config={"lr": 0.1}).path != run.path


def test_a_writer_killed_at_any_file_leaves_no_partial_result(tmp_path, monkeypatch):
    def stopped_after(renames):
        left, real = [renames], Path.replace

        def replace(self, target):
            if not left[0]:
                raise KeyboardInterrupt
            left[0] -= 1
            return real(self, target)

        with monkeypatch.context() as patch:
            patch.setattr(Path, "replace", replace)
            try:
                write_run(
                    tmp_path, format="af4", bits=4, seed=0, metrics={"test_loss": 1.0}, rows=[{"epoch": 1}]
                )
            except KeyboardInterrupt:
                return [state_of(run) for run in SweepDir(tmp_path).runs()]
        return [state_of(run) for run in SweepDir(tmp_path).runs()]

    assert stopped_after(0) == []
    for renames in (1, 2, 3):
        assert stopped_after(renames) == [State.PENDING]
    assert stopped_after(4) == [State.DONE]
    (run,) = SweepDir(tmp_path).runs()
    assert run.result().metrics == {"test_loss": 1.0} and len(list(run.rows())) == 1


def test_a_run_claimed_by_another_process_is_not_written(write, monkeypatch):
    run = write()
    monkeypatch.setattr("cpdrun.record.lock.CLAIM_PATIENCE_S", 0)
    fd = claim(run)
    with pytest.raises(InvalidValueError, match="is being written by another process"):
        write(replace=True, metrics={"test_accuracy": 0.5})
    release(run, fd)


def test_unwritable_folders_and_newer_record_versions_are_named(write, tmp_path):
    run = write()
    write_json(run.done, read_json(run.done) | {"record": 2})
    with pytest.raises(
        InvalidValueError, match=r"done.json is of record version '2', and this cpdrun reads versions up to 1"
    ):
        write()
    (tmp_path / "theirs" / "sweep.yaml").write_text("record: 2\n")
    with pytest.raises(InvalidValueError, match=r"sweep.yaml is of record version '2'"):
        write(seed=1)
    (tmp_path / "file").touch()
    with pytest.raises(CannotWriteError, match=r"cannot write .*file"):
        write_run(tmp_path / "file", format="fp32", seed=0, metrics={"test_loss": 1})


def test_the_manifest_of_a_sweep_is_kept_and_sweeps_ignore_written_runs(write, tmp_path):
    from cpdrun.config.errors import ConfigError

    write()
    with pytest.raises(ConfigError, match=r"sweep.yaml was not written by cpdrun: move it away"):
        listed(SweepDir(tmp_path / "theirs"))
    ours = yaml.safe_dump({"runs": ["a"], "axes": {}})
    (tmp_path / "theirs" / "sweep.yaml").write_text(ours)
    write(seed=1)
    assert (tmp_path / "theirs" / "sweep.yaml").read_text() == ours
