"""Named cases: one axis in place of the keys that they set, compared with the case fp32."""

import pandas as pd
import pytest

CASES = {
    "fp32": ("fp32", {"weights": "fp32", "kahan_weights": False}, 0.90, 400),
    "pure": ("fp16", {"weights": "fp16", "kahan_weights": False}, 0.88, 200),
    "pure but Kahan weights": ("fp16", {"weights": "fp16", "kahan_weights": True}, 0.899, 200),
}


@pytest.fixture
def ablation(new_sweep):
    sweep = new_sweep("ablation")
    for case, (fmt, precision, accuracy, size) in CASES.items():
        for workers in (8, 128):
            for seed in range(3):
                memory = {"model_bytes": size, "optimizer_bytes": 2 * size, "activation_bytes": 3 * size}
                done = {"test_samples": 10_000, "num_classes": 10, "memory": memory}
                config = {"case": case, "precision": precision, "world_size": workers}
                value = accuracy + 0.0001 * seed
                sweep.add(fmt, seed=seed, accuracy=value, done=done, wire_bytes=size, **config)
    return sweep


def test_the_case_is_the_axis(ablation, report, pictures):
    made = report(ablation, formats=["csv", "md", "html", "svg"])
    assert list(made.table.columns[:5]) == ["format", "bits", "aps", "world_size", "case"]
    assert len(made.table) == 6 and not [c for c in made.table.columns if c.startswith("precision")]
    of_8, of_128 = ([line for line in made.answers if f"workers {n}:" in line] for n in (8, 128))
    assert of_8 and [line.replace("workers 8", "workers 128") for line in of_8] == of_128
    names = {file.name for file in made.files}
    assert "accuracy_by_case.svg" in names and "accuracy_vs_bits.svg" not in names
    row = pd.read_csv(made.folder / "details.csv").set_index(["case", "world_size"]).loc[("pure", 8)]
    assert (row["model_bytes"], row["optimizer_bytes"], row["bytes_per_step"]) == (200, 400, 200)
    assert row["activation_bytes"] == 600
    header = "| bytes sent a step | model | optimizer | activations |"
    assert header in (made.folder / "table.md").read_text(encoding="utf-8")
    cells = "".join(f'<td data-value="{n}.0">{n} B</td>' for n in (200, 400, 600))
    assert cells in (made.folder / "report.html").read_text(encoding="utf-8")


def test_the_name_of_a_case_is_escaped(new_sweep, report, pictures):
    sweep = new_sweep()
    for case in ("fp32", "<b>$x_1$</b> & 50%"):
        for seed in range(2):
            sweep.add(seed=seed, accuracy=0.9, case=case, optim={"lr": len(case)})
    folder = report(sweep, formats=["md", "html", "tex", "svg"]).folder
    assert "<b>$x" not in (folder / "report.html").read_text(encoding="utf-8")


def test_a_sweep_of_cases_and_one_of_formats_share_a_report(ablation, new_sweep, report, pictures):
    formats = new_sweep("digits_bits")
    for seed in range(3):
        for format, aps, accuracy in (("fp32", False, 0.98), ("e3m0", True, 0.978), ("e3m0", False, 0.1)):
            formats.add(format, aps=aps, seed=seed, accuracy=accuracy + 0.001 * seed)
    made = report(ablation, formats, formats=["csv", "md", "svg"])
    sweeps = ("workers 8, sweep ablation", "workers 128, sweep ablation", "workers 8, sweep digits_bits")
    assert {each["facet"] for each in made.verdicts} == set(sweeps)
    assert any(", workers 8, sweep ablation: " in line and "pure (" in line for line in made.answers)
    assert {"accuracy_by_case.svg", "accuracy_vs_bits.svg"} <= {file.name for file in made.files}
    assert "None" not in (made.folder / "accuracy_by_case.svg").read_text(encoding="utf-8")
    assert len(made.table) == 9
