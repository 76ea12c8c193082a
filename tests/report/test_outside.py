"""Reports on records that other tools or other versions wrote."""

import pandas as pd
import pytest
import yaml

from cpdrun.record import (
    NewerRecordError,
    RunDir,
    read_json,
    read_manifest,
    write_json,
    write_run,
    write_text,
)
from cpdrun.report import ReportError, tables
from cpdrun.study.axes import short

EQUAL = {"fp32": {"test_loss": 1.0}, "e4m3": {"test_loss": 1.0}}
ACCURATE = {"fp32": {"test_accuracy": 0.97}, "e4m3": {"test_accuracy": 0.97}}


@pytest.fixture
def fill(new_sweep):
    """fill({format: metrics of the first seed}) -> a sweep of 3 seeds, whose other values differ by 0.001."""

    def fill(values, *, sweep=None, bits=None, seeds=3, **more):
        sweep = sweep or new_sweep()
        for name, metrics in values.items():
            for seed in range(seeds):
                mine = {key: value + 0.001 * seed * (1 - 2 * (seed % 2)) for key, value in metrics.items()}
                known = {"bits": (bits or {}).get(name), "metrics": mine, **more}
                write_run(sweep.dir.path, format=name, seed=seed, **known)
        return sweep

    return fill


def change(sweep, part, **said):
    """Add to done.json of the runs whose name has `part`."""
    for run in sweep.dir.runs():
        if part in run.name:
            write_json(run.done, read_json(run.done) | said)


def test_formats_of_another_tool_get_bits_differences_and_verdicts(fill, report):
    bits = {"af4": 4.5, "int8-blockwise": 8.25}
    values = {
        name: {"test_accuracy": x} for name, x in {"fp32": 0.97, "int8-blockwise": 0.97, "af4": 0.6}.items()
    }
    made = report(
        fill(values, bits=bits, seeds=6, test_samples=10_000, num_classes=10), formats=["csv", "html"]
    )
    assert made.sentences[0].startswith(
        ("CERTIFIED: int8-blockwise (8.25 bits)", "NOT TESTED: int8-blockwise")
    )
    assert made.table.set_index("format")["bits"].to_dict() == {"fp32": 32.0, **bits}
    assert set(made.table["n"]) == {6} and "refuted" in made.printed
    assert not [note for note in made.notes if "differ" in note or "lacks" in note]


def test_short_names_differ():
    assert short("int8-blockwise") == "int8-blockwise"
    assert short("int8-blockwise-64") == "int8-bl…ise-64" and short("int8-blockwise-128") == "int8-bl…se-128"
    assert short(4, 16) == "4"


def test_the_direction_of_a_metric_is_recorded_or_guessed(fill, report):
    values = {"fp32": {"val_ppl": 12.0}, "e4m3": {"val_ppl": 15.0}, "e5m2": {"val_ppl": 12.01}}
    sweep = fill(values, directions={"val_ppl": "lower"})
    made = report(sweep, tolerance=0.05)
    assert made.verdicts[0]["candidate"] == "e5m2 without APS"
    assert "−3.0000" in made.printed and "If a higher" not in made.printed
    change(sweep, "", measures={})
    warning, *_ = report(sweep, tolerance=0.05).sentences
    assert warning.startswith("Warning: no record says whether a higher val_ppl is better.")


def test_runs_that_disagree_about_a_direction_are_not_compared(fill, report):
    sweep = fill({"fp32": {"psnr": 30.0}}, directions={"psnr": "higher"})
    fill({"e4m3": {"psnr": 20.0}}, sweep=sweep, directions={"psnr": "lower"})
    message = r"disagree about whether higher values of psnr are better: fp32-s.* says yes, e4m3-s"
    with pytest.raises(ReportError, match=message):
        report(sweep)


def test_disagreements_about_units_and_bits_are_noted(fill, report):
    sweep = fill({"fp32": {"f1": 0.5}, "af4": {"f1": 0.4}}, bits={"af4": 4}, directions={"f1": "share"})
    other = {"bits": 4.5, "directions": {"f1": "higher"}}
    write_run(sweep.dir.path, format="af4", seed=9, metrics={"f1": 0.4}, **other)
    notes = " ".join(report(sweep).notes)
    assert "do not agree on the bits of a format: af4 4, 4.5" in notes
    assert "do not agree on the unit of f1 (percent, plain). It is shown as percent" in notes


def test_percentages_in_place_of_shares_are_in_no_mean(fill, report):
    sweep = fill(ACCURATE, num_classes=10)
    change(sweep, "e4m3-s0", metrics={"test_accuracy": 97.0})
    made = report(sweep)
    assert made.table.set_index("format")["n"].to_dict() == {"fp32": 3, "e4m3": 2}
    assert "1 finished run has no valid test_accuracy and is in no mean (97 in e4m3-s0-" in made.printed


def test_a_seed_counts_once(new_sweep, report):
    sweep = new_sweep()
    for seed in range(2):
        sweep.add(seed=seed, accuracy=0.98)
        sweep.add("e4m3", seed=str(seed), accuracy=0.97)  # a seed that is text pairs with the number
    sweep.add("e4m3", seed=1, accuracy=0.97, name="same-again")
    assert not [note for note in report(sweep).notes if "another" in note or "lacks" in note]
    sweep.add("e4m3", seed=1, accuracy=0.6, name="another-value")
    said = "is in no mean (another-value), because another run with the same settings and seed"
    assert said in report(sweep).printed


def test_runs_without_seeds_are_in_no_pair(new_sweep, report):
    sweep = new_sweep()
    for i in range(2):
        sweep.add(accuracy=0.98, seed=None, name=f"a{i}")
        sweep.add("e4m3", accuracy=0.97, seed=None, name=f"b{i}")
    said = "4 of 4 finished runs record no seed. Each counts as a seed of its own and is in no pair"
    printed = report(sweep).printed
    assert said in printed and "lacks" not in printed


def test_a_failed_run_prevents_a_certificate_until_it_is_repeated(new_sweep, report):
    sweep = new_sweep()

    def write(format, seed, accuracy=None, **how):
        metrics = {} if accuracy is None else {"test_accuracy": accuracy}
        how |= {"test_samples": 10_000} if metrics else {}
        return write_run(sweep.dir.path, format=format, seed=seed, metrics=metrics, **how)

    for seed in range(8):
        for format in ("fp32", "e4m3"):
            write(format, seed, 0.97 + 0.001 * (seed % 3) + 0.0001 * (format == "e4m3") * seed)
    assert report(sweep, tolerance=1).sentences[0].startswith("CERTIFIED: e4m3")
    write("fp32", 8, 0.97)
    folders = [write("e4m3", 8, failed=True) for _ in range(2)]
    assert len(RunDir(folders[0]).attempts()) == 1
    made = report(sweep, tolerance=1)
    assert made.sentences[0].endswith("worse than fp32, because 1 of 9 runs of e4m3 failed.")
    write("e4m3", 8, 0.97)
    assert report(sweep, tolerance=1).sentences[0].startswith("CERTIFIED: e4m3")
    write("e4m3", 9, diverged=True)
    made = report(sweep, tolerance=1)
    assert made.sentences[0].endswith("because 1 of 10 runs of e4m3 failed (1 diverged).")
    assert made.table.set_index("format")["diverged"].to_dict() == {"fp32": 0, "e4m3": 1}


def test_records_of_newer_versions_are_not_read(fill, report):
    sweep = fill(EQUAL)
    change(sweep, "e4m3-s0", record=2)
    change(sweep, "e4m3-s1", record="1")
    made = report(sweep)
    line = "done.json is of record version '2', and this cpdrun reads versions up to 1: update cpdrun"
    assert line in made.printed and made.printed.count("its record cannot be read: e4m3-s") == 2
    assert made.table.set_index("format")["n"].to_dict() == {"fp32": 3, "e4m3": 1}
    change(sweep, "", record=2)
    with pytest.raises(ReportError, match=f"of 6 the record cannot be read, as of e4m3-s0-.*: {line}"):
        report(sweep)


def test_a_manifest_of_a_newer_version_is_ignored(fill, report):
    sweep = fill(EQUAL)
    write_text(sweep.dir.manifest, yaml.safe_dump({"record": 2, "search": {"tolerance": 5}, "runs": ["x"]}))
    with pytest.raises(NewerRecordError):
        read_manifest(sweep.dir)
    made = report(sweep)
    assert "sweep.yaml is of record version '2'" in made.printed
    assert made.sentences[0].startswith("OPEN: no verdict is possible without a valid margin.")


def test_records_without_a_version_and_without_a_manifest_are_read(fill, report):
    sweep = fill(EQUAL)
    for run in sweep.dir.runs():
        write_json(run.done, {key: value for key, value in read_json(run.done).items() if key != "record"})
    sweep.dir.manifest.unlink()
    assert set(report(sweep).table["n"]) == {3}


def test_sweep_yaml_may_name_the_baseline(fill, report):
    sweep = fill({"bf16": {"test_loss": 1.0}, "af4": {"test_loss": 1.0}}, bits={"af4": 4.5})
    with sweep.dir.manifest.open("a") as file:
        file.write("search: {baseline: {format: bf16}, tolerance: 0.1}\n")
    made = report(sweep)
    assert "0.1 worse than bf16" in made.sentences[0] and made.verdicts[0]["bits"] == 4.5


def test_settings_named_like_our_columns_hide_nothing(fill, new_sweep, report):
    sweep = new_sweep()
    for word in ("four", "two"):
        settings = dict.fromkeys((*sorted(tables.OWN), "status", "test_loss"), word)
        fill(EQUAL, sweep=sweep, config=settings)
    for run in sweep.dir.runs():
        RunDir(run.path).config.open("a").write("'metric:test_loss': 7\n'run:problem': no\n'run:path': /\n")
    made = report(sweep, formats=["csv", "md", "html"])
    assert made.table["bits"].tolist() == [32, 8, 32, 8] and set(made.table["n"]) == {3}
    assert made.table["config.bits"].tolist() == ["four", "four", "two", "two"]
    runs, details = (pd.read_csv(made.folder / f"{name}.csv") for name in ("runs", "details"))
    assert set(runs["status"]) == {"finished"} and set(runs["config.status"]) == {"four", "two"}
    assert set(runs["config.test_loss"]) == {"four", "two"} and runs["test_loss"].between(0.9, 1.1).all()
    own = {name for name in details if not name.startswith(("config.", "test_loss", "vs_baseline_ci"))}
    assert own - {"format", "aps", "world_size", "status"} == tables.OWN - {"sweep"}
