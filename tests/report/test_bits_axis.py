"""Axes of bits other than `format`: what a report compares, and with what."""

import yaml

from cpdrun.record import write_text

SCATTER = (-0.001, 0.0, 0.001, 0.0005)


def precision(weights: str, errors: str = "fp32") -> dict:
    return {"weights": weights, "activations": "fp32", "errors": errors}


def fill(sweep, means: dict, **config):
    for key, mean in means.items():
        parts = key if isinstance(key, tuple) else (key,)
        for seed, shift in enumerate(SCATTER):
            sweep.add(seed=seed, accuracy=mean + shift, precision=precision(*parts), **config)
    return sweep


def test_formats_of_weights_are_compared_with_their_fp32(new_sweep, report, no_pictures):
    made = report(fill(new_sweep(), {"fp32": 0.98, "e4m3": 0.981, "e3m2": 0.3}))
    assert made.verdicts[0]["candidate"] == "e4m3 of weights"
    assert "precision.weights  bits" in made.printed and "against fp32" in made.printed
    assert list(made.table["bits"]) == [32, 8, 6]
    assert list(made.table["format"]) == ["fp32", "e4m3", "e3m2"]  # what is compared, not what workers send


def test_the_format_of_gradients_may_be_any_and_scaled(new_sweep, report, no_pictures):
    made = report(fill(new_sweep(), {"fp32": 0.98, "e4m3": 0.981}, format="e5m2", aps=True))
    assert (
        made.verdicts[0]["candidate"] == "e4m3 of weights" and "0.5 points worse than fp32" in made.answers[0]
    )


def test_what_always_has_the_same_format_is_named_too(new_sweep, report, no_pictures):
    made = report(fill(new_sweep(), {("fp32", "fp32"): 0.98, ("e4m3", "e4m3"): 0.981}))
    assert made.verdicts[0]["scaling"] in ("of weights and errors", "of errors and weights")


def test_of_two_axes_one_is_compared_while_the_other_is_held(new_sweep, report, no_pictures):
    cells = {(w, e): 0.98 for w in ("fp32", "e4m3", "e3m2") for e in ("fp32", "e5m2")}
    made = report(fill(new_sweep(), cells))
    assert [(each["facet"], each["scaling"]) for each in made.verdicts] == [
        ("precision.errors e5m2", "of weights"),
        ("precision.errors fp32", "of weights"),
    ]


def test_without_fp32_the_widest_is_the_baseline_and_the_report_says_so(new_sweep, report, no_pictures):
    made = report(fill(new_sweep(), {"bf16": 0.98, "e4m3": 0.981}))
    assert "0.5 points worse than bf16" in made.answers[0] and made.answers[1].startswith("bf16: 98")
    assert (
        "No value of precision.weights is fp32, so the others are compared with the widest, bf16."
        in made.printed
    )
    assert "against bf16" in made.printed


def test_the_baseline_of_a_search_is_that_of_its_report(new_sweep, report, no_pictures):
    sweep = new_sweep()
    for name in ("fp32", "bf16", "e4m3"):
        for seed, shift in enumerate(SCATTER):
            sweep.add(name, seed=seed, accuracy=0.98 + shift)
    search = {"tolerance": 1, "baseline": {"format": "bf16", "aps": False}}
    write_text(sweep.dir.manifest, yaml.safe_dump({"runs": [], "search": search}))
    printed = report(sweep).printed
    assert "at most 1 point worse than bf16" in printed and "The baseline is bf16." in printed


def test_an_axis_of_formats_beside_format_itself_is_held(new_sweep, report, no_pictures):
    sweep = new_sweep()
    for format in ("fp32", "e4m3"):
        fill(sweep, {"fp32": 0.98, "e5m2": 0.98}, format=format)
    made = report(sweep)
    assert [(each["facet"], each["scaling"]) for each in made.verdicts] == [
        ("precision.weights e5m2", "without APS"),
        ("precision.weights fp32", "without APS"),
    ]


def test_its_pictures_are_drawn(new_sweep, report):
    made = report(fill(new_sweep(), {"fp32": 0.98, "e4m3": 0.981, "e3m2": 0.3}), formats=["svg"])
    assert {"accuracy_vs_bits.svg", "evidence_vs_pairs.svg"} <= {file.name for file in made.files}
