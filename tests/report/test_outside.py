"""Reports on what other tools left, by `write_run` or by hand: right where it can be, and honest about the rest."""

import pandas as pd
import yaml
from pytest import mark, raises

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

pytestmark = mark.usefixtures("no_pictures")


def fill(sweep, values, *, bits=None, seeds=3, **more):
    """A run for each format and seed; `values`: format -> the first seed's metrics; the others are .001 off."""
    for name, metrics in values.items():
        for seed in range(seeds):
            mine = {key: value + 0.001 * seed * (1 - 2 * (seed % 2)) for key, value in metrics.items()}
            write_run(
                sweep.dir.path, format=name, bits=(bits or {}).get(name), seed=seed, metrics=mine, **more
            )
    return sweep


def spoil(sweep, part, **said):
    """Add to done.json of the runs whose name has `part`."""
    for run in sweep.dir.runs():
        if part in run.name:
            write_json(run.done, read_json(run.done) | said)


def test_formats_of_another_tool_get_bits_differences_and_verdicts(new_sweep, report):
    bits = {"af4": 4.5, "int8-blockwise": 8.25}
    accuracies = {"fp32": 0.97, "int8-blockwise": 0.97, "af4": 0.6}
    values = {name: {"test_accuracy": value} for name, value in accuracies.items()}
    sweep = fill(new_sweep("theirs"), values, bits=bits, seeds=6, test_samples=10_000, num_classes=10)
    made = report(sweep, formats=["csv", "html"])
    assert made.sentences[0].startswith(
        ("CERTIFIED: int8-blockwise (8.25 bits)", "NOT TESTED: int8-blockwise")
    )
    assert made.table.set_index("format")["bits"].to_dict() == {"fp32": 32.0, **bits}
    assert set(made.table["n"]) == {6} and "refuted" in made.printed
    assert not [note for note in made.notes if "differ" in note or "lacks" in note]


def test_long_names_in_pictures_keep_what_tells_them_apart():
    assert short("int8-blockwise") == "int8-blockwise"
    assert short("int8-blockwise-64") == "int8-bl…ise-64" and short("int8-blockwise-128") == "int8-bl…se-128"
    assert short(4, 16) == "4"


def test_a_metric_that_falls_is_read_so(new_sweep, report):
    values = {"fp32": {"val_ppl": 12.0}, "e4m3": {"val_ppl": 15.0}, "e5m2": {"val_ppl": 12.01}}
    made = report(fill(new_sweep(), values, directions={"val_ppl": "lower"}), tolerance=0.05)
    assert made.verdicts[0]["candidate"] == "e5m2 without APS"
    assert "−3.0000" in made.printed and "If a higher" not in made.printed


def test_that_a_direction_is_a_guess_is_said_first(new_sweep, report):
    sweep = fill(
        new_sweep(), {"fp32": {"val_ppl": 12.0}, "e4m3": {"val_ppl": 15.0}}, directions={"val_ppl": "lower"}
    )
    spoil(sweep, "", measures={})
    warning, verdict = report(sweep, tolerance=0.05).sentences[:2]
    assert warning.startswith("Warning: no record says whether a higher val_ppl is better.")
    assert verdict.startswith("OPEN: ")


def test_runs_that_disagree_about_a_direction_are_not_compared(new_sweep, report):
    sweep = fill(new_sweep(), {"fp32": {"psnr": 30.0}}, directions={"psnr": "higher"})
    fill(sweep, {"e4m3": {"psnr": 20.0}}, directions={"psnr": "lower"})
    with raises(
        ReportError,
        match=r"disagree about whether higher values of psnr are better: fp32-s.* says yes, e4m3-s",
    ):
        report(sweep)


def test_units_and_bits_that_records_disagree_on_are_told(new_sweep, report):
    values = {"fp32": {"f1": 0.5}, "af4": {"f1": 0.4}}
    sweep = fill(new_sweep(), values, bits={"af4": 4}, directions={"f1": "share"})
    write_run(
        sweep.dir.path, format="af4", bits=4.5, seed=9, metrics={"f1": 0.4}, directions={"f1": "higher"}
    )
    notes = " ".join(report(sweep).notes)
    assert "do not agree on the bits of a format: af4 4, 4.5" in notes
    assert "do not agree on the unit of f1 (percent, plain). It is shown as percent" in notes


def test_per_cent_in_place_of_a_share_is_in_no_mean(new_sweep, report):
    sweep = fill(
        new_sweep(), {"fp32": {"test_accuracy": 0.97}, "e4m3": {"test_accuracy": 0.5}}, num_classes=10
    )
    spoil(sweep, "e4m3-s0", metrics={"test_accuracy": 97.0})
    made = report(sweep)
    assert made.table.set_index("format")["n"].to_dict() == {"fp32": 3, "e4m3": 2}
    assert "1 finished run has no valid test_accuracy and is in no mean (97 in e4m3-s0-" in made.printed
    spoil(sweep, "", metrics={"test_accuracy": 97.0})
    assert report(sweep).sentences[0].startswith("No answer: fp32 has no value of test_accuracy")


def test_a_seed_that_is_there_twice_counts_once_and_is_told(new_sweep, report):
    sweep = new_sweep()
    for seed in range(2):
        sweep.add(seed=seed, accuracy=0.98)
        sweep.add("e4m3", seed=str(seed), accuracy=0.97)  # text, and yet it pairs
    sweep.add("e4m3", seed=1, accuracy=0.97, name="same-again")
    assert not [note for note in report(sweep).notes if "another" in note or "lacks" in note]
    sweep.add("e4m3", seed=1, accuracy=0.6, name="another-value")
    made = report(sweep)
    assert (
        "is in no mean (another-value), because another run with the same settings and seed" in made.printed
    )


def test_runs_without_seeds_are_said_to_be_in_no_pair(new_sweep, report):
    sweep = new_sweep()
    for i in range(2):
        sweep.add(accuracy=0.98, seed=None, name=f"a{i}")
        sweep.add("e4m3", accuracy=0.97, seed=None, name=f"b{i}")
    printed = report(sweep).printed
    assert (
        "4 of 4 finished runs record no seed. Each counts as a seed of its own and is in no pair" in printed
    )
    assert "lacks" not in printed


def test_a_run_that_diverged_without_a_figure_is_never_within(new_sweep, report):
    sweep = fill(
        new_sweep(), {"fp32": {"test_accuracy": 0.97}, "e4m3": {"test_accuracy": 0.97}}, num_classes=10
    )
    write_run(sweep.dir.path, format="e4m3", seed=9, metrics={}, diverged=True)
    made = report(sweep)
    assert made.sentences[0].endswith("worse than fp32, because 1 of 4 runs of e4m3 failed (1 diverged).")
    assert made.table.set_index("format")["diverged"].to_dict() == {"fp32": 0, "e4m3": 1}


def test_a_format_of_which_a_run_failed_elsewhere_is_not_certified(new_sweep, report):
    sweep = new_sweep()
    for seed in range(8):
        for format in ("fp32", "e4m3"):
            metrics = {"test_accuracy": 0.97 + 0.001 * (seed % 3) + 0.0001 * (format == "e4m3") * seed}
            write_run(sweep.dir.path, format=format, seed=seed, metrics=metrics, test_samples=10_000)
    assert report(sweep, tolerance=1).sentences[0].startswith("CERTIFIED: e4m3")
    write_run(sweep.dir.path, format="fp32", seed=8, metrics={"test_accuracy": 0.97}, test_samples=10_000)
    for _ in range(2):
        folder = write_run(sweep.dir.path, format="e4m3", seed=8, metrics={}, failed=True)
    assert len(RunDir(folder).attempts()) == 1
    made = report(sweep, tolerance=1)
    assert made.sentences[0].endswith("worse than fp32, because 1 of 9 runs of e4m3 failed.")
    assert "Certified" not in made.sentences[0]
    write_run(sweep.dir.path, format="e4m3", seed=8, metrics={"test_accuracy": 0.97}, test_samples=10_000)
    assert report(sweep, tolerance=1).sentences[0].startswith("CERTIFIED: e4m3")


def test_half_a_run_is_counted_as_such(new_sweep, report):
    sweep = fill(new_sweep(), {"fp32": {"test_loss": 1.0}, "e4m3": {"test_loss": 1.0}})
    next(sweep.dir.runs()).done.unlink()
    assert (
        "5 of 6 runs are finished (1 pending). Only finished runs are in the numbers" in report(sweep).printed
    )


def test_a_run_of_a_newer_version_gets_its_line_and_the_others_their_table(new_sweep, report):
    sweep = fill(new_sweep(), {"fp32": {"test_loss": 1.0}, "e4m3": {"test_loss": 1.0}})
    spoil(sweep, "e4m3-s0", record=2)
    spoil(sweep, "e4m3-s1", record="1")
    made = report(sweep)
    line = "done.json is of record version '2', and this cpdrun reads versions up to 1: update cpdrun"
    assert line in made.printed and made.printed.count("its record cannot be read: e4m3-s") == 2
    assert made.table.set_index("format")["n"].to_dict() == {"fp32": 3, "e4m3": 1}
    spoil(sweep, "", record=2)
    with raises(ReportError, match=f"of 6 the record cannot be read, as of e4m3-s0-.*: {line}"):
        report(sweep)


def test_a_record_that_says_no_version_is_of_the_first(new_sweep, report):
    sweep = fill(new_sweep(), {"fp32": {"test_loss": 1.0}, "e4m3": {"test_loss": 1.0}})
    for run in sweep.dir.runs():
        write_json(run.done, {key: value for key, value in read_json(run.done).items() if key != "record"})
    sweep.dir.manifest.unlink()
    assert set(report(sweep).table["n"]) == {3}


def test_a_manifest_of_a_newer_version_asks_nothing(new_sweep, report):
    sweep = fill(new_sweep(), {"fp32": {"test_loss": 1.0}, "e4m3": {"test_loss": 1.0}})
    write_text(sweep.dir.manifest, yaml.safe_dump({"record": 2, "search": {"tolerance": 5}, "runs": ["x"]}))
    with raises(NewerRecordError):
        read_manifest(sweep.dir)
    made = report(sweep)
    assert (
        "sweep.yaml is of record version '2'" in made.printed and "The question that it asks" in made.printed
    )
    assert made.sentences[0].startswith("OPEN: no verdict is possible without a valid margin.")


def test_another_baseline_than_fp32_is_asked_for_in_sweep_yaml(new_sweep, report):
    sweep = fill(new_sweep(), {"bf16": {"test_loss": 1.0}, "af4": {"test_loss": 1.0}}, bits={"af4": 4.5})
    with sweep.dir.manifest.open("a") as file:
        file.write("search: {baseline: {format: bf16}, tolerance: 0.1}\n")
    made = report(sweep)
    assert "0.1 worse than bf16" in made.sentences[0] and made.verdicts[0]["bits"] == 4.5


def test_a_strangers_setting_is_not_taken_for_what_the_record_says(new_sweep, report):
    sweep = fill(new_sweep(), {"fp32": {"test_loss": 1.0}, "e4m3": {"test_loss": 1.0}})
    for run in sweep.dir.runs():
        RunDir(run.path).config.open("a").write("'metric:test_loss': 7\n'run:problem': no\n'run:path': /\n")
    made = report(sweep)
    assert set(made.table["n"]) == {3} and set(made.table["test_loss_mean"].round(2)) == {1.0}


def test_a_setting_that_is_called_as_a_column_of_ours_hides_no_figure(new_sweep, report):
    sweep = new_sweep()
    for word in ("four", "two"):
        settings = dict.fromkeys((*sorted(tables.OWN), "status", "test_loss"), word)
        fill(sweep, {"fp32": {"test_loss": 1.0}, "e4m3": {"test_loss": 1.0}}, config=settings)
    made = report(sweep, formats=["csv", "md", "html"])
    assert made.table["bits"].tolist() == [32, 8, 32, 8] and set(made.table["n"]) == {3}
    assert made.table["config.bits"].tolist() == ["four", "four", "two", "two"]
    runs, details = (pd.read_csv(made.folder / f"{name}.csv") for name in ("runs", "details"))
    assert set(runs["status"]) == {"finished"} and set(runs["config.status"]) == {"four", "two"}
    assert set(runs["config.test_loss"]) == {"four", "two"} and runs["test_loss"].between(0.9, 1.1).all()
    own = {name for name in details if not name.startswith(("config.", "test_loss", "vs_baseline_ci"))}
    assert own - {"format", "aps", "world_size", "status"} == tables.OWN - {"sweep"}
