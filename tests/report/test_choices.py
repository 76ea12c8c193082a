"""Choices of a group that names formats as an axis of bits: how many bits each has, and its baseline."""

import pandas as pd
import pytest

from cpdrun.record import write_text
from cpdrun.study import formats
from cpdrun.study.choices import bits_choice, choice, of_rows
from cpdrun.study.collect import other_axes

SCATTER = (-0.001, 0.0, 0.001, 0.0005)
FP32 = {
    "_target_": "Formats",
    "weights": "fp32",
    "activations": "fp32",
    "accumulator": "fp32",
    "loss_scale": 1.0,
}
PRECISION = {
    "fp32": FP32,
    "pure_fp16": {**FP32, "weights": "fp16", "activations": "fp16", "accumulator": "fp16"},
    "mixed_fp16": {**FP32, "weights": "fp16", "activations": "fp16", "loss_scale": "dynamic"},
    "pure_fp8": {**FP32, "weights": "e4m3", "activations": "e5m2", "accumulator": "fp16"},
    "int8": {"_target_": "Int8", "weight_bits": 8, "error_bits": None},
}


def fill(sweep, means: dict, *, typed=True, **config):
    """Add runs of each choice of `precision`, with the override that chose it where it was `typed`."""
    for name, mean in means.items():
        for seed, shift in enumerate(SCATTER):
            run = sweep.add(seed=seed, accuracy=mean + shift, precision=PRECISION[name], **config)
            words = [f"precision={name}"] if typed is True or name in (typed or ()) else []
            write_text(run.overrides, "\n".join([*words, f"seed={seed}"]) + "\n")
    return sweep


def facets(made):
    return [(each["facet"], each["scaling"]) for each in made.verdicts]


def test_a_choice_has_the_bits_of_the_widest_format_besides_accumulators():
    def bits(name, **more):
        flat = {f"precision.{key}": value for key, value in (PRECISION[name] | more).items()}
        return choice("", flat, "precision").bits

    expected = {"fp32": 32, "pure_fp16": 16, "mixed_fp16": 16, "pure_fp8": 8, "int8": 8}
    assert {name: bits(name) for name in PRECISION} == expected
    assert bits("fp32", accumulator="fp16") == 16
    rules = [{"modules": "*", "role": "weight", "format": "e3m0"}, {"role": "accumulator", "format": "fp16"}]
    assert bits("fp32", rules=rules) == 4
    assert bits("fp32", rules='[{"modules": "*", "role": "error", "format": "e4m3"}]') == 8
    assert (bits_choice(6).bits, bits_choice(None).bits, str(bits_choice(None))) == (6, 32, "fp32")


def test_a_compressor_has_the_bits_of_its_levels_and_sparse_ones_are_no_axis_of_bits():
    base = {"format": "fp32", "sync._target_": "X"}
    qsgd = base | {"sync.compressor._target_": "QSGD", "sync.compressor.levels": 7}
    min_max = base | {"sync.compressor._target_": "MinMax", "sync.compressor.bits": 8}
    rounded = base | {"sync.compressor._target_": "Rounded", "sync.compressor.format": "fp32"}
    top_k = rounded | {"sync.compressor._target_": "TopK", "sync.compressor.keep": 0.1}
    assert [choice("", row, "compressor").bits for row in (qsgd, min_max, rounded)] == [4, 8, 32]
    assert of_rows([rounded, min_max], ["rounded", "min_max"], "compressor") is not None
    assert of_rows([rounded, top_k], ["rounded", "top_k"], "compressor") is None
    silent = base | {"sync.compressor._target_": "Ternary", "sync.compressor.seed": 3}
    assert of_rows([silent, min_max], ["ternary", "min_max"], "compressor") is None  # it could have any width
    assert of_rows([rounded, rounded], ["rounded", "too"], "compressor") is None  # neither rounds


def test_bits_and_order_of_formats_count_their_scales():
    names = ["fp32", "e4m3", "dynamic_tree", "dynamic_tree_b64", "mxfp4", "made.up.NAME", "e4m33"]
    assert [formats.bits(name) for name in names] == [32, 8, 8, 8.5, 4.25, None, None]
    ordered = ["mxfp4", "e4m3", "dynamic_tree", "dynamic_tree_b64", "fp32"]
    assert sorted(names[:5], key=formats.order) == ordered
    assert formats.is_baseline("fp32") and not formats.is_baseline("linear")
    assert not formats.is_floating("linear") and formats.is_floating("e4m3")


def test_a_key_that_repeats_the_format_is_no_axis():
    runs = {"format": ["fp32", "e4m3", "fp32"], "model.errors": ["fp32", "e4m3", "fp32"]}
    runs["precision.errors"] = ["fp32", "e4m3", "e4m3"]
    assert other_axes(pd.DataFrame(runs)) == ["precision.errors"]


def test_a_seed_that_repeats_the_seed_of_the_run_is_no_axis():
    runs = pd.DataFrame({"format": ["fp32"] * 3, "seed": [0, 1, 2], "sync.topology.seed": [None, 1, 2]})
    assert other_axes(runs) == []
    assert other_axes(runs.assign(**{"sync.topology.seed": [0, 2, 2]})) == ["sync.topology.seed"]


def test_each_choice_has_a_row_with_its_bits_and_its_verdict(new_sweep, report):
    means = {"pure_fp8": 0.93, "fp32": 0.98, "pure_fp16": 0.9805, "mixed_fp16": 0.9795, "int8": 0.981}
    made = report(fill(new_sweep(), means), formats=["csv", "md", "tex"])
    assert list(made.table["precision"]) == ["fp32", "mixed_fp16", "pure_fp16", "pure_fp8", "int8"]
    assert list(made.table["bits"]) == [32, 16, 16, 8, 8]
    assert made.verdicts[0]["candidate"] == "int8 of precision" and "choice of precision" in made.answers[0]
    assert "note: A choice of precision has the bits of the widest format that it rounds to" in made.printed
    details = pd.read_csv(made.folder / "details.csv").set_index("precision")
    assert details.loc["pure_fp8", "vs_baseline"] == pytest.approx(-0.05)
    assert details.loc["int8", "baseline"] == "fp32" and details["verdict"].notna().sum() == 4
    for file in ("table.md", "table.tex"):
        assert "against fp32" in (made.folder / file).read_text(encoding="utf-8")


def test_a_default_choice_that_nobody_typed_is_found_by_its_formats(new_sweep, report):
    means = {"fp32": 0.98, "pure_fp8": 0.979}
    assert list(report(fill(new_sweep(), means, typed=("pure_fp8",))).table["precision"]) == list(means)
    untyped = report(fill(new_sweep("untyped"), means, typed=False))
    assert "precision" not in untyped.table.columns and "precision.activations" in untyped.table.columns
    assert "of activations" in untyped.answers[0]


def test_a_choice_with_the_name_of_a_format_has_the_bits_of_its_own_formats(new_sweep, report):
    sweep = fill(new_sweep(), {"fp32": 0.98})
    for seed, shift in enumerate(SCATTER):
        run = sweep.add(seed=seed, accuracy=0.98 + shift, precision=PRECISION["pure_fp8"])
        write_text(run.overrides, "precision=e3m0\n")
    assert list(report(sweep).table["bits"]) == [32, 8]


def test_a_key_of_the_group_that_varies_too_is_its_own_axis(new_sweep, report):
    sweep = new_sweep()
    for name in ("fp32", "pure_fp8"):
        for activations in ("fp32", "e5m2"):
            for seed, shift in enumerate(SCATTER):
                config = PRECISION[name] | {"activations": activations}
                run = sweep.add(seed=seed, accuracy=0.98 + shift, precision=config)
                write_text(run.overrides, f"precision={name}\nprecision.activations={activations}\n")
    made = report(sweep)
    held = ["precision.activations e5m2", "precision.activations fp32"]
    assert [facet for facet, _ in facets(made)] == held
    assert "precision.activations names formats too, but only runs with the same" in made.printed
    other = report(sweep, baseline={"precision.activations": "fp32"})
    assert facets(other) == [(f"precision {name}", "of activations") for name in ("fp32", "pure_fp8")]


def test_without_a_case_called_fp32_cases_are_facets(new_sweep, report):
    sweep = new_sweep()
    for case, momentum in (("own", 0.9), ("quasi-global", 0.0)):
        optim = {"_target_": "SGD", "momentum": momentum}
        fill(sweep, {"fp32": 0.98, "pure_fp8": 0.979}, case=case, optim=optim)
    assert facets(report(sweep)) == [(f"case {name}", "of precision") for name in ("own", "quasi-global")]


def test_a_case_has_the_bits_of_all_that_it_rounds(new_sweep, report):
    sweep = new_sweep()
    for case, name, format in (
        ("fp32", "fp32", "fp32"),
        ("pure", "pure_fp8", "fp16"),
        ("sent", "fp32", "e3m0"),
    ):
        fill(sweep, {name: 0.98}, case=case, format=format)
    table = report(sweep).table.set_index("case")
    assert table["bits"].to_dict() == {"fp32": 32, "pure": 16, "sent": 4}
