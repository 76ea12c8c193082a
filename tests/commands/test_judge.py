"""`cpdrun judge`: verdicts on tables from anywhere, sessions of ideas, and messages about bad input."""

import json
import math
import re
import shlex
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import jsonschema
import pytest

import cpdrun
from cpdrun.cli import main
from cpdrun.commands import schema
from cpdrun.stats.evidence import judge

REPOSITORY = Path(__file__).parents[2]
GAPS = (0.010, 0.012, 0.009, 0.011, 0.0105, 0.0095, 0.0112, 0.0101)
BASE = (0.90, 0.91, 0.905, 0.902, 0.908, 0.906, 0.901, 0.909)
MARGIN = ("--baseline", "base", "--margin", "0.05")
BETTER = ("--baseline", "base", "--better-by", "0")


def long_table(arms: dict[str, tuple]) -> str:
    rows = [f"{arm},{seed},{value}" for arm, values in arms.items() for seed, value in enumerate(values)]
    return "\n".join(["arm,seed,value", *rows, ""])


def better(pairs: int) -> tuple[float, ...]:
    return tuple(b + g for b, g in zip(BASE[:pairs], GAPS, strict=False))


TABLE = long_table({"base": BASE, "new": better(8)})


@pytest.fixture
def told(capsys, tmp_path):
    """Write the table, run the command on it, and return the document."""

    def call(text: str, *typed: str) -> dict:
        file = tmp_path / "table"
        file.write_text(text)
        code = main(["judge", str(file), *typed, "--json"])
        document = json.loads(capsys.readouterr().out)
        kind = document["schema"].partition(".")[2].partition("/")[0]
        jsonschema.validate(document, schema(kind), cls=jsonschema.Draft202012Validator)
        assert document["exit_code"] == code
        return document

    return call


def test_the_verdict_is_that_of_the_evidence(told):
    (found,) = told(TABLE, *MARGIN, "--resolution", "1e-9")["candidates"]
    gaps = [n - b for n, b in zip(better(8), BASE, strict=True)]
    expected = judge(gaps, 0.05, certify=0.05, refute=0.05, confidence=0.95)
    assert found["verdict"] == "certified" == expected.verdict
    assert (found["low"], found["high"]) == pytest.approx((expected.low, expected.high))
    assert found["at_most_fail"] == pytest.approx(1 - 0.05 ** (1 / 8))


def test_all_kinds_of_files_give_the_same_verdicts(told, tmp_path):
    arms = {"base": BASE, "new": better(8)}
    pairs = (f"{i}.0;{b};{n}" for i, (b, n) in enumerate(zip(*arms.values(), strict=True)))
    rows = [{"arm": a, "seed": s, "value": v} for a, values in arms.items() for s, v in enumerate(values)]
    renamed = TABLE.replace("arm,seed,value", "\ufeffrecipe,run,score")
    first = told(TABLE, *MARGIN)["candidates"]
    for text in ("\n".join(["seed;base;new", *pairs]), "\n".join(map(json.dumps, rows)), json.dumps(rows)):
        assert told(text, *MARGIN)["candidates"] == first
    options = ("--arm", "recipe", "--seed", "run", "--value", "score")
    assert told(renamed, *MARGIN, *options)["candidates"] == first
    (tmp_path / "t.csv").write_text(TABLE)
    assert cpdrun.judge(tmp_path / "t.csv", baseline="base", margin=0.05)["candidates"] == first


def test_equal_rounded_values_decide_nothing(told):
    rounded = long_table({"base": (0.91,) * 4, "near": (0.90,) * 4})
    typed = ("--baseline", "base", "--margin", "0.013")
    (found,) = told(rounded, *typed)["candidates"]
    assert found["verdict"] == "open"
    (sure,) = told(rounded.replace("0.91", "0.9100").replace("0.90", "0.9000"), *typed)["candidates"]
    assert sure["verdict"] == "certified"


def test_lower_is_better_reverses_the_verdict(told):
    (found,) = told(TABLE, *BETTER)["candidates"]
    (reversed_,) = told(TABLE, *BETTER, "--lower-is-better")["candidates"]
    assert (found["verdict"], reversed_["verdict"]) == ("certified", "refuted")
    assert found["difference"] == -reversed_["difference"] > 0


def test_lower_is_better_for_a_column_of_losses_unless_typed_otherwise(told):
    losses = TABLE.replace("value", "val_loss")
    document = told(losses, *BETTER, "--value", "val_loss")
    assert document["lower_is_better"] and document["candidates"][0]["verdict"] == "refuted"
    assert "add --higher-is-better" in document["notes"][0]
    typed = told(losses, *BETTER, "--value", "val_loss", "--higher-is-better")
    assert typed["candidates"][0]["verdict"] == "certified" and not typed["notes"]


def test_a_margin_for_shares_is_pointed_out_if_the_values_are_percentages(told):
    arms = {"base": BASE, "new": better(8)}
    percentages = long_table({arm: tuple(100 * v for v in values) for arm, values in arms.items()})
    percentages = percentages.replace("value", "accuracy")
    typed = ("--baseline", "base", "--value", "accuracy", "--margin")
    assert "0.01 percentage points" in told(percentages, *typed, "0.01")["notes"][0]
    assert not told(percentages, *typed, "1")["notes"] and not told(percentages, *typed, "1%")["notes"]


def test_a_margin_in_percent_is_of_the_baseline(told):
    table = long_table({"base": (2.0, 4.0), "new": (2.0, 4.0)})
    assert told(table, "--baseline", "base", "--margin", "2%")["margin"] == pytest.approx(0.06)


def test_a_failed_run_prevents_a_certificate(told):
    for failed in ("", "failed", "diverged", "inf"):
        (found,) = told(long_table({"base": BASE, "new": (*better(7), failed)}), *MARGIN)["candidates"]
        assert (found["verdict"], found["runs_failed"], found["runs"]) == ("open", 1, 8)
    (found,) = told(long_table({"base": BASE, "new": (*better(7), "-")}), *MARGIN)["candidates"]
    assert (found["verdict"], found["runs_failed"], found["runs"]) == ("certified", 0, 7)


def test_a_failed_baseline_leaves_its_pair_out(told):
    document = told(long_table({"base": ("diverged", *BASE[1:]), "new": better(8)}), *MARGIN)
    (found,) = document["candidates"]
    assert (found["pairs"], found["pairs_left_out"], found["runs_failed"]) == (7, 1, 0)
    assert any("left out because the baseline's run failed" in line for line in document["says"])


def test_a_column_of_states_makes_crashed_runs_failures(told):
    text = "arm,seed,value,state\n" + "".join(
        f"{arm},{s},{v},{'crashed' if arm == 'new' and s == 3 else 'finished'}\n"
        for arm, values in (("base", BASE), ("new", better(8)))
        for s, v in enumerate(values)
    )
    (found,) = told(text, *MARGIN, "--state", "state")["candidates"]
    assert (found["verdict"], found["runs_failed"]) == ("open", 1)


def test_different_seeds_are_paired_in_order_and_missing_ones_at_random(told):
    shifted = long_table({"base": BASE}) + "".join(f"new,{100 + s},{v}\n" for s, v in enumerate(better(6)))
    (found,) = told(shifted, *MARGIN)["candidates"]
    assert (found["pairing"], found["pairs"]) == ("order", 6)
    rows = [f"{arm},{v}" for arm, values in (("base", BASE), ("new", better(8))) for v in values]
    by_file = [
        told("\n".join(["arm,value", *order]), *MARGIN)["candidates"][0] for order in (rows, sorted(rows))
    ]
    assert by_file[0] == by_file[1] and by_file[0]["pairing"] == "shuffled"


def test_one_pair_is_decided_only_with_a_given_deviation(told):
    table = long_table({"base": (0.90,), "new": (0.91,)})
    (found,) = told(table, *MARGIN)["candidates"]
    (stated,) = told(table, *MARGIN, "--sd", "0.005")["candidates"]
    assert found["verdict"] == "open" and found["low"] is None and not found["is_conditional"]
    assert stated["verdict"] == "certified" and stated["is_conditional"] and stated["own_low"] is None
    assert stated["prior"]["deviation"] == pytest.approx(0.005 * math.sqrt(2))


def test_several_arms_pool_their_spread_and_share_the_error(told):
    arms = {"base": (2.91, 2.90), "a": (2.92, 2.9), "b": (2.91, 2.91), "c": (2.9, 2.905), "d": (2.915, 2.9)}
    document = told(long_table(arms), "--baseline", "base", "--margin", "0.2", "--lower-is-better")
    assert [each["verdict"] for each in document["candidates"]] == ["certified"] * 4
    assert all(each["error_probability"] == pytest.approx(0.0125) for each in document["candidates"])
    assert all(each["prior"]["degrees"] > 0 and each["own_low"] is None for each in document["candidates"])


def test_a_target_replaces_the_baseline(told):
    typed = ("--target", "3.28", "--better-by", "0", "--lower-is-better", "--value", "loss")
    text = "seed,loss\n" + "".join(f"{s},{3.27 + s / 10000}\n" for s in range(6))
    (found,) = told(text, *typed)["candidates"]
    assert (found["verdict"], found["pairing"], found["pairs"]) == ("certified", "target", 6)


def test_a_session_counts_its_ideas(told, tmp_path):
    ledger = tmp_path / "ideas.jsonl"
    typed = (*BETTER, "--session", str(ledger), "--candidate", "new")
    few = told(long_table({"base": BASE, "new": better(2), "other": BASE}), *typed)
    assert few["candidates"][0]["decision"] == "undecided" and few["session"]["ideas"] == 1
    size = ledger.stat().st_size
    told(long_table({"base": BASE, "new": better(2)}), *typed)
    assert ledger.stat().st_size == size, "the same question again changes nothing"
    more = told(TABLE, *typed)
    assert more["session"]["ideas"] == 1 and more["session"]["kept"] == ["new"]
    assert more["candidates"][0]["decision"] == "keep" and more["candidates"][0]["number"] == 1
    other = told(long_table({"base": BASE, "more": better(3)}), *BETTER, "--session", str(ledger))
    assert other["session"]["ideas"] == 2 and other["candidates"][0]["number"] == 2


def test_a_session_refuses_changed_values_and_questions(told, tmp_path):
    ledger = tmp_path / "ideas.jsonl"
    typed = (*BETTER, "--session", str(ledger))
    told(long_table({"base": BASE, "new": better(3)}), *typed)
    before = ledger.read_bytes()
    changed = long_table({"base": BASE, "new": (0.99, *better(3)[1:])})
    for table, words, said in (
        (changed, (), "with other values"),
        (long_table({"base": BASE, "new": better(2)}), (), "is missing now"),
        (long_table({"base": BASE, "new": better(3)}), ("--confidence", "90"), "cannot change"),
        (long_table({"base": BASE, "new": better(3)}), ("--lower-is-better",), "another metric"),
        ("arm,value\nbase,1\nnew,2\n", (), "needs seeds"),
    ):
        (line,) = told(table, *typed, *words)["lines"]
        assert said in line
    assert ledger.read_bytes() == before
    csv = tmp_path / "no_session.csv"
    csv.write_text("arm,seed,value\n")
    (line,) = told(long_table({"base": BASE, "new": better(3)}), *BETTER, "--session", str(csv))["lines"]
    assert "not a session" in line and csv.read_text() == "arm,seed,value\n"


def test_a_session_survives_a_kill_at_any_byte(told, tmp_path):
    ledger = tmp_path / "ideas.jsonl"
    typed = (*BETTER, "--session", str(ledger))
    told(long_table({"base": BASE, "new": better(3)}), *typed)
    whole = ledger.read_bytes()
    end = whole.index(b"\n")
    for cut in (0, 1, 25, end, end + 1, len(whole) - 30, len(whole) - 1):
        ledger.write_bytes(whole[:cut])
        document = told(TABLE, *typed)
        assert document["session"]["ideas"] == 1 and document["session"]["kept"] == ["new"], cut


def test_several_writers_share_a_session(tmp_path):
    ledger, writers = tmp_path / "ideas.jsonl", 3

    def write(number: int) -> int:
        file = tmp_path / f"{number}.csv"
        file.write_text(long_table({"base": BASE, f"idea {number}": better(3)}))
        command = [sys.executable, "-m", "cpdrun.cli", "judge", str(file), *BETTER, "--session", str(ledger)]
        return subprocess.run(command, capture_output=True).returncode

    with ThreadPoolExecutor(writers) as pool:
        assert list(pool.map(write, range(writers))) == [0] * writers
    rows = [json.loads(line) for line in ledger.read_text().splitlines()]
    assert sum(row["kind"] != "idea" for row in rows) == 1
    assert {row["number"] for row in rows[1:]} == set(range(1, writers + 1))


@pytest.mark.parametrize(
    ("text", "typed", "said"),
    [
        ("", MARGIN, "is empty"),
        ("arm,seed,value\n", MARGIN, "is empty"),
        (TABLE, ("--baseline", "bse", "--margin", "0.05"), "(did you mean 'base'?)"),
        (TABLE.replace("value", "loss"), MARGIN, "has no column 'value'"),
        (TABLE, (*MARGIN, "--seed", "sed"), "has no column 'sed' (did you mean 'seed'?)"),
        (TABLE, (*MARGIN, "--candidate", "old"), "has no candidate 'old'. Its arms: base, new."),
        (long_table({"base": BASE}), MARGIN, "only one arm"),
        (long_table({"base": BASE, "new": (0.9, "98%")}), MARGIN, "line 11: '98%' in the column 'value'"),
        (TABLE + "new,3,0.9\n", MARGIN, "has seed 3 twice, in lines 13 and 18"),
        (long_table({"base": ("failed", "inf"), "new": (1, 2)}), MARGIN, "no run of the baseline 'base'"),
        (long_table({"base": BASE, "new": (0.9, "nan")}), MARGIN, "line 11: 'nan' in the column 'value'"),
        ('{"arm": "base", "seed": 0, "value": NaN}', MARGIN, "line 1: 'nan' in the column 'value'"),
        (long_table({"base": ("91%",)}), MARGIN, "Remove the percent sign"),
        (TABLE, ("--baseline", "BASE", "--margin", "1%"), "did you mean 'base'?"),
        (TABLE, ("--baseline", "base", "--margin", "-1"), "use --better-by 1"),
        (TABLE, ("--baseline", "base", "--margin", "little"), "a number such as 0.05"),
        (TABLE, ("--baseline", "base", "--margin", "nan"), "a number such as 0.05"),
        (TABLE, ("--baseline", "base", "--margin", "120%"), "below 100%"),
        (TABLE, ("--baseline", "base", "--margin", "2"), "makes no sense for values between 0 and 1"),
        ("base,new\n10,11\n12,11\n", ("--baseline", "base", "--margin", "20"), "it is not below"),
        ("base,new\n-1,1\n1,1\n", ("--baseline", "base", "--margin", "2%"), "differ from 0"),
        (TABLE, (*MARGIN, "--idea", "x"), "need --session"),
        ('{"arm": "base"', MARGIN, "not valid JSON"),
        ("[1]", MARGIN, "a JSON object is needed"),
        ("arm,seed,value\nbase,1,2,3\n", MARGIN, "4 cells under 3 columns"),
        ("arm,arm,value\nbase,1,2\n", MARGIN, "two columns named 'arm'"),
    ],
    ids=lambda value: value if isinstance(value, str) and "\n" not in value else None,
)
def test_bad_input_is_one_line(told, text, typed, said):
    document = told(text, *typed)
    (line,) = document["lines"]
    assert document["exit_code"] == 2 and said in line


def test_an_endless_file_is_refused(capsys):
    assert main(["judge", "/dev/zero", *MARGIN]) == 2
    assert "error: /dev/zero is larger than 64 MiB" in capsys.readouterr().err


def test_the_answers_on_the_page_are_those_of_the_command(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(REPOSITORY)
    said: list[str] = []
    compared = 0
    for line in (REPOSITORY / "docs" / "judge.md").read_text(encoding="utf-8").splitlines():
        if line.startswith("    cpdrun judge "):
            words = shlex.split(line)[1:]
            assert main([str(tmp_path / word) if word == "ideas.jsonl" else word for word in words]) == 0
            said = capsys.readouterr().out.splitlines()
        elif line.startswith("    "):
            parts = [part for part in re.split(r" ?\.\.\. ?", line.strip()) if part]
            assert any(all(part in answer for part in parts) for answer in said), line
            compared += 1
    assert compared >= 7


def test_the_command_imports_neither_torch_nor_numpy(tmp_path):
    (tmp_path / "t.csv").write_text(TABLE)
    code = (
        "import sys; from cpdrun.cli import main; code = main(sys.argv[1:]); "
        "heavy = {'torch', 'numpy', 'scipy', 'pandas', 'rich'} & set(sys.modules); "
        "sys.exit(str(heavy) if heavy else code)"
    )
    command = [sys.executable, "-c", code, "judge", str(Path(tmp_path / "t.csv")), *MARGIN]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0 and "new: certified" in done.stdout, done.stderr
