"""`cpdrun predict --law` as it is typed: on run folders, on a committed reference, and where there is no law."""

import json
import math
from pathlib import Path

import jsonschema
import pytest
import yaml
from custom_fp.formats.names import parse

from cpdrun.cli import main
from cpdrun.comm.sums.orders.hierarchical import Hierarchical
from cpdrun.comm.sums.orders.rank import Rank
from cpdrun.comm.sums.orders.tree import Tree
from cpdrun.errors import UserError
from cpdrun.predict import law, law_loss, law_words, law_workers
from cpdrun.predict.law_read import Study, element_and_block, read, rounded
from cpdrun.record import SweepDir, write_json, write_text
from cpdrun.report.claims.values import references
from cpdrun.shell.telling import schema

FORMATS = {"fp32": None, "mxfp4_rceil": (2, 1, 32), "mxint4_b64": (0, 3, 64), "mxfp6_e2m3": (2, 3, 32)}


@pytest.fixture(autouse=True)
def few_draws(monkeypatch):
    """An interval of twenty draws is as wide as any; and runs are made up by the dozen."""
    monkeypatch.setattr("os.fsync", lambda fd: None)
    whole = law._fit
    monkeypatch.setattr(law, "_fit", lambda studies, ci, draws: whole(studies, ci, 20))


def loss_of(width, steps, fmt):
    size, tokens = 200.0 * width + 10 * width**2, 512.0 * steps
    loss = 60 / size**0.4 + 90 / tokens**0.4 + 1.2
    if fmt:
        e, m, b = fmt
        loss += tokens**0.4 / size**0.4 * math.log2(b) / (80 * (e + 0.5) ** 0.8 * (m + 0.5) ** 1.2)
    return loss * (1 + 1e-3 * math.sin(width * 7 + steps * 3 + 11 * sum(fmt or (0,))))


def made(folder, widths=(32, 48, 64, 96), steps=(80, 160, 320), formats=FORMATS, status="finished"):
    sweep = SweepDir(folder / "sizes")
    for width in widths:
        for step in steps:
            for name, fmt in formats.items():
                rules = [
                    {"modules": ["*"], "role": role, "product": "forward", "format": name}
                    for role in ("weight", "input")
                ]
                run = sweep.run(f"run-{width}-{step}-{name}")
                run.path.mkdir(parents=True)
                config = {
                    "exp": "sizes", "name": "sizes", "results_dir": str(folder), "format": "fp32", "aps": False,
                    "world_size": 1, "batch_size": 8, "seed": 0, "epochs": 1, "max_steps": step, "device": "cpu",
                    "model": {"_target_": "cpdrun.models.llama.Llama", "width": width}, "data": {"context": 64},
                    "precision": {"_target_": "cpdrun.train.precision.formats.Formats", "rules": rules},
                    "launcher": {"kind": "local"},
                }  # fmt: skip
                write_text(run.config, yaml.safe_dump(config))
                metrics = {"test_loss": loss_of(width, step, fmt), "train_loss": 1.0}
                size = 200 * width + 10 * width**2
                write_json(
                    run.done, {"status": status, "metrics": metrics, "wall_seconds": 1.0, "parameters": size}
                )
    return sweep


def typed(capsys, *words):
    code = main(["predict", *words])
    out, err = capsys.readouterr()
    return code, out, err


def valid(out):
    document = json.loads(out)
    jsonschema.validate(document, schema("law"), cls=jsonschema.Draft202012Validator)
    return document


def test_sizes_and_formats_of_run_folders_and_a_size_beyond_them(tmp_path, capsys):
    made(tmp_path)
    code, out, _ = typed(
        capsys,
        "--law",
        "sizes",
        f"results_dir={tmp_path}",
        "--at",
        "model.width=512,max_steps=1600",
        "--json",
    )
    assert code == 0
    [found] = valid(out)["loss"]
    assert (
        found["runs"] == 48 and found["unit"] == "tokens" and set(found["forms"]) == {"floating", "effective"}
    )
    form = found["forms"]["floating"]
    assert form["parameters"]["alpha"]["value"] == pytest.approx(0.4, abs=0.05)
    assert form["held_out"]["runs"] == 12 and form["held_out"]["factor"] == pytest.approx(2.08, abs=0.02)
    assert form["held_out"]["error"] < 0.01 and found["best"] == "floating"
    [asked] = found["at"]
    assert asked["parameters"] == pytest.approx(200 * 512 + 10 * 512**2, rel=1e-6)
    assert asked["data"] == 512 * 1600 and asked["beyond"][1] == pytest.approx(5)
    by_name = {row["format"]: row for row in asked["formats"]["floating"]}
    assert set(by_name) == {law_loss.PLAIN, *(set(FORMATS) - {"fp32"})}
    plain, coarse = by_name[law_loss.PLAIN], by_name["mxfp4_rceil"]
    assert plain["more"] == 0 and coarse["more"] > by_name["mxfp6_e2m3"]["more"] > 0
    truth = loss_of(512, 1600, (2, 1, 32))
    assert coarse["loss"] == pytest.approx(truth, rel=0.05)


def test_sentences_say_how_far_outside_a_question_is(tmp_path, capsys):
    made(tmp_path)
    code, out, _ = typed(
        capsys, "--law", "sizes", f"results_dir={tmp_path}", "--at", "parameters=1e9,data=2e10"
    )
    assert code == 0
    assert "4 sizes of 16,640 to 111,360 parameters, 3 budgets of 40,960 to 163,840 tokens" in out
    assert (
        "arXiv 2501.02423" in out and "arXiv 2411.04330" in out and "tested without the largest size" in out
    )
    assert "outside what was trained: 8.98e+03 times in parameters, 1.22e+05 times in data" in out
    assert "bootstrap of what is left over" in out and out.startswith("How far to trust the intervals")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"widths": (32,)}, "several sizes"),
        ({"steps": (80,)}, "several amounts of data"),
        ({"formats": {"fp32": None}}, "at least two"),
        ({"status": "diverged"}, "has none of use"),
    ],
)
def test_runs_without_a_law_are_one_line(tmp_path, capsys, change, words):
    made(tmp_path, **change)
    code, out, err = typed(capsys, "--law", "sizes", f"results_dir={tmp_path}")
    assert code == 2 and not out
    assert words in err and len(err.strip().splitlines()) == 1


def test_a_reference_of_workers_is_fitted_tested_and_asked(capsys):
    code, out, _ = typed(
        capsys, "--law", str(references() / "digits_workers"), "--at", "world_size=1024", "--json"
    )
    assert code == 0
    [found] = valid(out)["workers"]
    b = found["law"]["parameters"]["b"]
    assert b["low"] < 1.07 < b["high"] and b["value"] == pytest.approx(
        1.07, abs=0.02
    )  # doublings a mantissa bit
    assert found["held_out"]["workers"] == 64 and found["held_out"]["runs"] == 48
    tested = {row["order"]: (row["low"], row["high"], row["measured"]) for row in found["held_out"]["fewest"]}
    for order in ("rank", "hierarchical", "tree"):
        low, high, measured = tested[order]
        assert low <= measured <= high, order
    at = {row["order"]: row for row in found["at"]}
    assert at["tree"]["bits"] == 4 and at["hierarchical"]["chain"] == 31 and at["rank"]["chain"] == 1023
    assert at["tree"]["bits"] < at["hierarchical"]["bits"] < at["rank"]["bits"]
    assert any("stochastic" in note for note in found["notes"])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--at", "world_size=8"], "--at asks a law"),
        (["--law", "no_such_sweep"], "digits_workers"),
        (["--law", "digits_bits"], "several sizes"),
        (["exp=digits_bits", "--law", "digits_workers"], "finished runs"),
        (["--law", "digits_workers", "--at", "world_size=2.5"], "world_size is a whole number from 1"),
        (["--law", "digits_workers", "--at", "world_size=0"], "world_size is a whole number from 1"),
        (["--law", "digits_workers", "--at", "parameters=-1"], "parameters is above 0"),
        (["--law", "digits_workers", "--at", "data=1,data=2"], "data has two values"),
    ],
)
def test_what_is_typed_wrong_is_one_line(capsys, words, said, monkeypatch):
    if "digits_bits" not in words:  # whose runs say so themselves
        monkeypatch.setattr("cpdrun.predict.law._fit", lambda *_: pytest.fail("fitted before it was refused"))
    code, out, err = typed(capsys, *words)
    assert code == 2 and not out and said in err


def test_questions_that_no_law_answers(tmp_path, capsys):
    made(tmp_path, widths=(32, 64), steps=(80, 320), formats=dict(list(FORMATS.items())[:3]))
    code, _, err = typed(capsys, "--law", "sizes", f"results_dir={tmp_path}", "--at", "world_size=1024")
    assert code == 2 and "no law of workers" in err
    [study] = read(["sizes", f"results_dir={tmp_path}"])
    laws = law_loss.fit_losses(study, starts=4, draws=20)
    assert not laws.held and "three sizes" in laws.notes[-1]
    for at, said in {
        "model.depth=3": "does not follow model.depth",
        "parameters=much": "KEY=NUMBER",
        "parameters": "KEY=NUMBER",
        "parameters=-1": "above 0",
    }.items():
        with pytest.raises(UserError, match=said):
            law_loss.asked_of(at, laws)
    assert law_loss.asked_of("world_size=4", laws) is None


def test_what_products_read_is_what_the_first_rule_for_all_layers_says():
    late = {"modules": ["*"], "last": 0.15, "role": ["weight", "input"], "format": "bf16"}
    weight = {
        "modules": ["*", "MultiheadAttention"],
        "role": "weight",
        "product": "forward",
        "format": "mxint8",
    }
    both = {"modules": "*", "role": ["weight", "input"], "format": "nvfp4"}
    read = rounded({"precision.rules": [late, weight, both]})
    assert (read.weight.name, read.activation.name, read.narrowest.name) == ("mxint8", "nvfp4", "nvfp4")
    assert rounded({"precision.rules": [{**both, "format": "bf16"}]}).narrowest is None
    assert rounded({"precision.rules": [{**both, "product": "weight_gradient"}]}).narrowest is None
    assert rounded({}).narrowest is None


@pytest.mark.parametrize(
    ("name", "element"),
    [
        ("mxfp4_rceil", (2, 1, 32)), ("nvfp4", (2, 1, 16)), ("fp8_block128", (4, 3, 128 * 128)), ("mxint8", (0, 7, 32)),
        ("mxfp8_e5m2", (5, 2, 32)), ("fp8_tensor", None), ("e4m3", None), ("int8_row", None),
    ],
)  # fmt: skip
def test_element_and_block_as_the_paper_counts_them(name, element):
    assert element_and_block(parse(name)) == element


@pytest.mark.parametrize("workers", [*range(2, 40), 64, 97, 1024])
def test_longest_run_is_that_of_the_orders_themselves(workers):
    orders = {"rank": Rank(), "tree": Tree(), "hierarchical": Hierarchical("auto")}
    for name, order in orders.items():
        levels = [max(map(len, groups)) - 1 for groups in order.cuts(workers)]
        assert law_workers.longest_run(name, workers) == max(levels)
    assert law_workers.longest_run("ring", workers) == workers - 1
    if workers % 4 == 0:
        cut = Hierarchical(4).cuts(workers)
        assert law_workers.longest_run("hierarchical", workers, 4) == max(max(map(len, g)) - 1 for g in cut)


def test_an_order_without_a_chain_is_named_among_what_was_left_out():
    run = {
        "aps": True,
        "world_size": 8,
        "metric:train_loss": 0.1,
        "metric:test_accuracy": 0.9,
        "num_classes": 10,
    }
    rows = [
        {**run, "format": fmt, "sync.order": order, "seed": 0}
        for fmt in ("fp32", "e3m1")
        for order in ("tree", "exact", "aligned_3")
    ]
    notes = []
    kept, _ = law_workers._rows(Study("made", "runs made up", rows, ["format", "aps", "sync.order"]), notes)
    assert [row[0] for row in kept] == [1]
    assert notes == ["runs left out: of a sum by aligned_3, exact, which is no chain of rounded additions"]


def test_an_order_that_is_none():
    with pytest.raises(ValueError, match="no order 'star'"):
        law_workers.longest_run("star", 8)


def test_the_first_sentence_says_how_often_intervals_hold_as_the_committed_table_has_it():
    table = Path(__file__).parents[2] / "results/reference/llama_scaling_small/coverage.md"
    rows = {
        cells[1].strip("* "): [float(cell.split("%")[0]) for cell in cells[2:-1]]
        for line in table.read_text(encoding="utf-8").splitlines()
        if len(cells := [cell.strip() for cell in line.split("|")]) > 4
        and "%" in line
        and "noise" not in line
    }
    far = rows.pop("loss at four times the largest size")
    rows.pop("a run of the largest size, by a law without it")
    assert len(rows) == 8 and f"{min(far):.0f} to {max(far):.0f} % of losses" in law_words.COVERAGE
    assert f"as few as {min(map(min, rows.values())):.0f} %" in law_words.COVERAGE
