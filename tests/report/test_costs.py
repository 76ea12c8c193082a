"""Costs of formats and recipes: what is counted, the Pareto front and its knee, and what a report says."""

import math

import pandas as pd
import pytest
from made_up import Sweep, fill_digits

from cpdrun.costmodel import costs
from cpdrun.costmodel.costs import coverage, transistors
from cpdrun.errors import UserError
from cpdrun.report.cost import COSTS, show_count
from cpdrun.study.group import Group
from cpdrun.study.pareto import front, knee


def test_front_and_knee_by_hand():
    points = [(1, 0.0), (2, 0.8), (4, 0.9), (4, 0.5), (16, 1.0), (32, 0.99)]
    chosen = front(points)
    assert chosen == [0, 1, 2, 4]
    # above the chord, with cost as log2 / 4: 0, .8 - .25, .9 - .5, 0
    assert knee([points[i] for i in chosen]) == 1
    assert knee([(1, 0.0), (4, 0.5), (16, 1.0)]) is None, "a straight line"
    assert knee([(1, 0.0), (4, 0.2), (16, 1.0)]) is None, "below the chord"
    assert knee([(1, 0.0), (2, 1.0)]) is None and knee([(1, 0.5)]) is None and knee([]) is None
    assert front([(1, 1.0), (1, 1.0), (2, 1.0)]) == [0, 1], "equal in both: neither beats the other"


def test_the_table_of_areas_has_the_known_multipliers_and_grows_with_every_bit():
    rows = costs.area_rows()
    squares = {
        r["a"]: int(r["significands"]) for r in rows if r["a"] == r["b"] and r["accumulator"] == "fp32"
    }
    known = {"e2m1": 58, "e4m3": 508, "bf16": 2688, "fp16": 5436, "fp32": 27406}
    assert known.items() <= squares.items()
    table = costs.mac_table()
    for accumulator in ("fp32", "fp16", "bf16"):
        units = [table[f, f, accumulator] for f in ("e2m1fn", "e4m3fn", "bf16", "fp16", "fp32")]
        assert units == sorted(units) and len(set(units)) == 5
    assert all(
        int(r["mac"]) > int(r["significands"]) for r in rows if r["accumulator"] in ("fp32", "fp16", "bf16")
    )
    assert all(int(r["cases"]) >= min(2**20, 2 ** (4 + 4 + 16)) for r in rows), (
        "simulated inputs of each circuit"
    )


def products(*kinds: tuple[str, str, str, int], bits: int = 1000) -> dict:
    names = ("a", "b", "accumulator", "macs")
    macs = sum(kind[3] for kind in kinds)
    counted = {"macs_per_step": macs, "bit_operations_per_step": bits}
    return counted | {"by_format": [dict(zip(names, kind, strict=True)) for kind in kinds]}


def of(found: dict | None) -> Group:
    return Group({"format": "fp32", "aps": False}, {0: 1.0}, 1, 0, products=found)


def test_area_is_the_mean_over_the_multiply_accumulates_and_is_never_guessed():
    table = costs.mac_table()
    both = of(products(("bf16", "bf16", "fp32", 1), ("e4m3fn", "e4m3fn", "fp32", 3)))
    want = (table["bf16", "bf16", "fp32"] + 3 * table["e4m3fn", "e4m3fn", "fp32"]) / 4
    assert transistors(both) == (pytest.approx(want), [])
    integers = of(products(("int8", "int8", "fp32", 1)))
    assert transistors(integers)[0] == table["int8", "int8", "int32"], "integers are summed as integers"
    odd = of(products(("bf16", "bf16", "fp32", 1), ("e5m6", "e5m6", "fp32", 1)))
    assert math.isnan(transistors(odd)[0])
    known, (why,) = COSTS["area"].find([both, odd])
    assert list(known) == [both] and why.startswith(
        "e5m6 x e5m6 summed up in fp32 has no known area: PYTHONPATH="
    )
    assert "no unit takes both" in COSTS["area"].find([of(products(("int8", "fp32", "fp32", 1)))])[1][0]


def test_malformed_counts_are_no_cost():
    malformed = [
        {},
        {"by_format": 3},
        {"by_format": [1, {"a": 1}], "bit_operations_per_step": "x"},
        {"uncounted": 1},
    ]
    for counts in malformed:
        for key in ("bitops", "area"):
            known, why = COSTS[key].find([of(counts), of(None)])
            assert not known and len(why) == 1


def test_reasons_name_what_could_not_be_counted():
    lstm = products(("fp32", "fp32", "fp32", 1)) | {"uncounted": ["lstm (LSTM): mkldnn_rnn_layer"]}
    assert "mkldnn_rnn_layer" in COSTS["bitops"].find([of(lstm)])[1][0]
    assert "RuntimeError: no" in COSTS["area"].find([of({"problem": "RuntimeError: no"})])[1][0]
    assert [show_count(n) for n in (512, 59228160, 7.6e9)] == ["512", "59.2 M", "7.6 G"]


UNITS = {
    "bf16": (0.985, "bf16", 256),
    "mxfp8": (0.983, "e4m3fn", 64),
    "nvfp4": (0.940, "e2m1fn", 16),
    "fp16_mixed": (0.980, "fp16", 256),
}


@pytest.fixture
def recipes(new_sweep) -> Sweep:
    sweep = new_sweep("recipes")
    for name, (accuracy, fmt, bits) in UNITS.items():
        memory = {"model_bytes": bits, "optimizer_bytes": 50}
        about = {"test_samples": 10000, "num_classes": 10, "memory": memory}
        about |= {"products": products((fmt, fmt, "fp32", 1000), bits=1000 * bits)}
        precision = {"_target_": "x.Formats", "rules": [{"format": fmt}]}
        for seed in range(4):
            value = accuracy + 1e-4 * seed
            sweep.add(seed=seed, accuracy=value, recipe=name, precision=precision, done=about)
    return sweep


def test_a_report_names_the_knee_of_every_cost_that_differs(recipes, report, pictures):
    made = report(recipes, baseline={"recipe": "bf16"}, formats=["md", "csv", "html", "svg"])
    lines = {line.split(":")[0]: line for line in made.sentences if "Pareto front" in line}
    assert list(lines) == ["Bytes kept", "Bit operations", "Area"]
    bits = lines["Bit operations"]
    assert bits.startswith("Bit operations: mxfp8 (64 k bit operations a step, 4 times less than bf16; −0.2")
    assert bits.endswith("is the knee of the Pareto front (nvfp4, mxfp8, bf16).") and ", open)" in bits
    (front,) = (found for found in made.fronts if found["cost"] == "bitops")
    assert [point["name"] for point in front["front"]] == ["nvfp4", "mxfp8", "bf16"]
    assert front["knee"] == "mxfp8" and front["front"][0]["cost"] == 16000
    for name in ("accuracy_vs_area", "accuracy_vs_bit_operations", "accuracy_vs_kept"):
        picture = (made.folder / f"{name}.svg").read_text()
        assert "its knee" in picture and "fp16_mixed" in picture
    assert lines["Area"].split(" (")[0] in (made.folder / "report.html").read_text()
    assert not (made.folder / "accuracy_vs_bytes.svg").exists()
    assert "transistors_per_mac" not in made.table
    assert "transistors_per_mac" in (made.folder / "details.csv").read_text().splitlines()[0]
    assert set(made.table["format"]) == set(made.table["recipe"]) and "config.format" not in made.table
    runs = pd.read_csv(made.folder / "runs.csv")
    assert (runs["format"] == runs["recipe"]).all()


def test_coverage_is_the_share_of_rounded_products(recipes, report):
    float32 = ("fp32", "fp32", "fp32", 1)
    assert coverage(of(products(float32))) == 0 and math.isnan(coverage(of(None)))
    some = products(float32, ("e4m3fn", "e4m3fn", "fp32", 2), ("fp32", "fp32", "fp16", 1))
    assert coverage(of(some)) == 0.75
    made = report(recipes, baseline={"recipe": "bf16"})
    assert set(pd.read_csv(made.folder / "details.csv")["coverage"]) == {1.0}
    assert "| coverage |" in (made.folder / "table.md").read_text()


def test_the_bits_of_a_recipe_are_the_mean_over_all_counted_operands(new_sweep, report):
    """nvfp4 rounds 60% of the operands, so their mean is 0.6 * 4.5 + 0.4 * 32 bits. mxfp8 was not counted."""
    sweep = new_sweep("recipes")
    counted = {"nvfp4": {"products": {"mean_operand_bits": 15.5}}, "mxfp8": {}}
    for name, fmt in {"fp32": "fp32", "mxfp8": "mxfp8_e4m3", "nvfp4": "nvfp4"}.items():
        rules = [{"role": "input", "format": fmt}] if name != "fp32" else []
        precision = {"_target_": "x.Formats", "rules": rules}
        for seed in range(3):
            value = 0.9 + 0.01 * seed + 1e-4 * len(name)
            sweep.add(seed=seed, accuracy=value, recipe=name, precision=precision, done=counted.get(name, {}))
    made = report(sweep, baseline={"recipe": "fp32"}, formats=["md", "csv", "html"])
    table = (made.folder / "table.md").read_text()
    assert "| recipe | mean bits |" in table
    for cells in ("| fp32 | 32 |", "| mxfp8 | 8.25 planned |", "| nvfp4 | 15.5 |"):
        assert cells in table
    assert dict(zip(made.table["format"], made.table["bits"], strict=True))["nvfp4"] == 15.5
    assert "nvfp4 (15.5 bits on average)" in " ".join(made.sentences)
    page = " ".join((made.folder / "report.html").read_text().split())
    assert (
        "The bits of a recipe are the mean bits of the operands of all multiply-accumulates in a step" in page
    )


def test_a_report_says_why_a_coverage_was_not_counted(new_sweep, report):
    sweep = new_sweep()
    problem = {"products": {"problem": "the model is compiled"}}
    for name in ("fp32", "bf16"):
        precision = {"_target_": "x.Formats", "rules": [{"format": "bf16"}] if name == "bf16" else []}
        for seed in range(2):
            about = problem if name == "bf16" else {}
            sweep.add(seed=seed, accuracy=0.9 + 0.01 * seed, recipe=name, precision=precision, done=about)
    made = report(sweep, baseline={"recipe": "fp32"}, formats=["md", "csv", "html"])
    assert "| not counted |" in (made.folder / "table.md").read_text()
    note = "The coverage of bf16 was not counted: the model is compiled."
    assert note in " ".join((made.folder / "report.html").read_text().split())


def test_an_unknown_cost_is_refused(new_sweep, report):
    with pytest.raises(UserError, match="unknown cost 'gates'; there are: bytes, kept, bitops, area"):
        report(fill_digits(new_sweep(), seeds=1), costs=["gates"])


def test_the_format_of_gradients_has_its_own_column_if_it_varies_too(new_sweep, report):
    sweep = new_sweep()
    for format in ("fp32", "e4m3"):
        for weights in ("fp32", "e5m2", "e3m0"):
            for seed in range(2):
                sweep.add(format, seed=seed, accuracy=0.98 + 1e-3 * seed, precision={"weights": weights})
    table = report(sweep, baseline={"precision.weights": "fp32"}).table
    assert set(table["format"]) == {"fp32", "e5m2", "e3m0"}
    assert set(table["config.format"]) == {"fp32", "e4m3"}
