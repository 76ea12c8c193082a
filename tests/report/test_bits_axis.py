"""Axes of bits other than `format` in tables, sentences and pictures. tests/search/test_agreement.py has more."""

import yaml

from cpdrun.record import write_text

SCATTER = (-0.001, 0.0, 0.001, 0.0005)


def fill(sweep, means: dict, **config):
    """`means` maps the format of weights, or those of weights and errors, to a mean accuracy."""
    for key, mean in means.items():
        weights, errors = key if isinstance(key, tuple) else (key, "fp32")
        precision = {"weights": weights, "activations": "fp32", "errors": errors}
        for seed, shift in enumerate(SCATTER):
            sweep.add(seed=seed, accuracy=mean + shift, precision=precision, **config)
    return sweep


def test_formats_of_weights_are_compared_with_fp32_weights(new_sweep, report):
    made = report(fill(new_sweep(), {"fp32": 0.98, "e4m3": 0.981, "e3m2": 0.3}, format="e5m2", aps=True))
    assert made.verdicts[0]["candidate"] == "e4m3 of weights"
    assert "0.5 points worse than fp32" in made.answers[0]
    assert "precision.weights  bits" in made.printed and "against fp32" in made.printed
    assert list(made.table["bits"]) == [32, 8, 6]
    assert list(made.table["format"]) == ["fp32", "e4m3", "e3m2"]  # what is compared, not what workers send


def test_roles_that_always_have_the_same_format_are_named_together(new_sweep, report):
    made = report(fill(new_sweep(), {("fp32", "fp32"): 0.98, ("e4m3", "e4m3"): 0.981}))
    assert made.verdicts[0]["scaling"] in ("of weights and errors", "of errors and weights")


def test_without_fp32_the_widest_format_is_the_baseline(new_sweep, report):
    made = report(fill(new_sweep(), {"bf16": 0.98, "e4m3": 0.981}))
    assert "0.5 points worse than bf16" in made.answers[0] and made.answers[1].startswith("bf16: 98")
    assert (
        "No value of precision.weights is fp32, so the others are compared with the widest, bf16."
        in made.printed
    )


def test_an_axis_of_bits_is_drawn(new_sweep, report, pictures):
    made = report(fill(new_sweep(), {"fp32": 0.98, "e4m3": 0.981, "e3m2": 0.3}), formats=["svg"])
    assert {"accuracy_vs_bits.svg", "evidence_vs_pairs.svg"} <= {file.name for file in made.files}


def test_the_baseline_is_named_if_only_its_runs_have_ended(new_sweep, report):
    sweep = new_sweep()
    for seed in (0, 1):
        sweep.add(seed=seed, accuracy=0.9 + seed / 100, recipe="bf16", precision={"input": "e8m7"})
    manifest = {"runs": [], "overrides": [], "search": {"baseline": {"recipe": "bf16"}, "axis": "recipe"}}
    write_text(sweep.dir.manifest, yaml.safe_dump(manifest))
    made = report(sweep)
    assert made.sentences[-1].startswith("bf16: ") and "The baseline is bf16." in made.notes
    assert list(made.table["format"]) == ["bf16"]
