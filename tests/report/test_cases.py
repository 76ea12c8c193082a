"""Named cases: one axis in place of the keys that they set, compared with the case fp32, with what a worker keeps."""

import pandas as pd
import pytest

from cpdrun.record import read_json, write_json

CASES = {
    "fp32": ("fp32", {"weights": "fp32", "kahan_weights": False}, 0.90, 400),
    "pure": ("fp16", {"weights": "fp16", "kahan_weights": False}, 0.88, 200),
    "pure but Kahan weights": ("fp16", {"weights": "fp16", "kahan_weights": True}, 0.899, 200),
}


@pytest.fixture
def ablation(new_sweep):
    sweep = new_sweep("ablation")
    for case, (fmt, precision, accuracy, size) in CASES.items():
        for world_size in (8, 128):
            for seed in range(3):
                run = sweep.add(
                    fmt,
                    seed=seed,
                    world_size=world_size,
                    accuracy=accuracy + 0.0001 * seed,
                    done={"test_samples": 10_000, "num_classes": 10},
                    case=case,
                    precision=precision,
                    wire_bytes=size,
                )
                done = read_json(run.done)
                memory = {"model_bytes": size, "optimizer_bytes": 2 * size, "activation_bytes": 3 * size}
                write_json(run.done, done | {"memory": memory})
    return sweep


def test_the_case_is_the_axis_and_fp32_the_one_to_compare_with(ablation, report):
    made = report(ablation, formats=["csv", "md", "html"])
    assert list(made.table.columns[:5]) == ["format", "bits", "aps", "world_size", "case"]
    assert len(made.table) == 6 and not [c for c in made.table.columns if c.startswith("precision")]
    certified, refuted, *_ = made.answers
    assert certified.startswith("CERTIFIED, workers 8: 1 of 2 cases is at most 0.5 points worse than fp32")
    assert ": pure but Kahan weights (−0.10 points [" in certified
    assert refuted.startswith(
        "REFUTED, workers 8: 1 of 2 cases is more than 0.5 points worse than fp32: pure (−2.0 "
    )
    assert made.answers[4] == "fp32, workers 8: 90.0 %. 0.5 points are 50.0 of 10000 test samples."
    of_8, of_128 = ([line for line in made.answers if f"workers {n}:" in line] for n in (8, 128))
    assert [line.replace("workers 8", "workers 128") for line in of_8] == of_128
    names = {file.name for file in made.files}
    assert "accuracy_by_case.svg" in names and "accuracy_vs_bits.svg" not in names


def test_what_a_worker_keeps_and_sends_stands_side_by_side(ablation, report):
    folder = report(ablation, formats=["csv", "md", "html"]).folder
    details = pd.read_csv(folder / "details.csv").set_index(["case", "world_size"])
    row = details.loc[("pure", 8)]
    assert (row["model_bytes"], row["optimizer_bytes"], row["bytes_per_step"]) == (200, 400, 200)
    assert row["activation_bytes"] == 600
    assert "| bytes sent a step | model | optimizer | activations |" in (folder / "table.md").read_text(
        encoding="utf-8"
    )
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert (
        '<td data-value="200.0">200 B</td><td data-value="400.0">400 B</td><td data-value="600.0">600 B</td>'
        in page
    )


def test_a_hostile_case_is_only_text(new_sweep, report):
    sweep = new_sweep()
    for case in ("fp32", "<b>$x_1$</b> & 50%"):
        for seed in range(2):
            sweep.add(seed=seed, accuracy=0.9, case=case, optim={"lr": len(case)})
    folder = report(sweep, formats=["md", "html", "tex", "svg"]).folder
    assert "<b>$x" not in (folder / "report.html").read_text(encoding="utf-8")


def test_cases_beside_an_ordinary_sweep_keep_both(ablation, new_sweep, report):
    ordinary = new_sweep("digits_bits")
    for seed in range(3):
        for format, aps, accuracy in (("fp32", False, 0.98), ("e3m0", True, 0.978), ("e3m0", False, 0.1)):
            ordinary.add(format, aps=aps, seed=seed, accuracy=accuracy + 0.001 * seed)
    made = report(ablation, ordinary, formats=["csv", "md", "svg"])
    assert {each["facet"] for each in made.verdicts} == {
        "workers 8, sweep ablation",
        "workers 128, sweep ablation",
        "workers 8, sweep digits_bits",
    }
    assert any(", workers 8, sweep ablation: " in line and "pure (" in line for line in made.answers)
    assert {"accuracy_by_case.svg", "accuracy_vs_bits.svg"} <= {file.name for file in made.files}
    assert "None" not in (made.folder / "accuracy_by_case.svg").read_text(encoding="utf-8")
    assert len(made.table) == 9


def test_cases_are_doubted_as_formats_are(new_sweep, report, no_pictures):
    sweep = new_sweep("ablation")
    for seed, gap in enumerate((-0.02, 0.0, 0.03)):
        sweep.add(seed=seed, accuracy=0.9, case="fp32", tag=1)
        sweep.add("fp16", seed=seed, accuracy=0.9 + gap, case="half", tag=2)
    open_, _ = report(sweep).answers
    assert open_.startswith("OPEN: 1 of 1 case may be at most 0.5 points worse than fp32: half (+0.33 points")
