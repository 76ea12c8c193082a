"""Tests of claims from papers: how they are read, which cells they compare, their verdicts, and their page."""

import random
import re
from pathlib import Path

import pandas as pd
import pytest
import yaml
from made_up import Sweep
from research.claims.cells import find_pairs
from research.claims.claim import Claim, Comparison, Paper, read_claims
from research.claims.judgment import ClaimVerdict, Judgment, judge
from research.claims.page import describe_verdict, page, tally
from research.claims.paper_tables import paper_tables
from research.claims.values import FAILED, Values, read_table, read_values, write_values

from cpdrun.study import ReportError

ROOT = Path(__file__).parents[2]
STORED = ROOT / "results" / "reference"
CERTIFIED, REFUTED, OPEN = ClaimVerdict.CERTIFIED, ClaimVerdict.REFUTED, ClaimVerdict.OPEN
COUNTED, NOT_RUN = ClaimVerdict.COUNTED, ClaimVerdict.NOT_RUN


def claim(*comparisons: dict, **changes) -> Claim:
    cells = {"candidate": {"format": "e4m3", "aps": True}, "baseline": {"format": "fp32"}}
    usual = {"sweep": "digits_bits", "metric": "test_accuracy", **cells}
    return claim_of(*(Comparison(**{**usual, **changed}) for changed in comparisons), **changes)


def claim_of(*comparisons: Comparison, **changes) -> Claim:
    facts = {"statement": "nothing is lost", "quote": "nothing", "section": "abstract", "threshold": "None."}
    return Claim(paper=Paper("A paper", "Nobody", "0000.00000"), comparisons=comparisons, **facts, **changes)


class Table:
    """Stored values under construction."""

    def __init__(self, *axes: str):
        self.rows: list[dict] = []
        self.axes = ["format", "aps", "world_size", *axes]

    def add(self, format="fp32", *, aps=False, seed=0, value=0.9, diverged=False, weights=None, **more):
        usual = {"world_size": 8, "test_samples": 10_000, "num_classes": 10, "commit": "a" * 40}
        row = {
            "format": format,
            "aps": aps,
            "seed": seed,
            "metric:test_accuracy": value,
            "diverged": diverged,
        }
        self.rows.append({**usual, **row, "weights_sha256": weights or f"w{len(self.rows)}", **more})

    def fill(self, effects: dict, seeds: int = 8, spread: float = 0.002, **more) -> "Table":
        """Add runs of fp32, and of each format with APS that differ from them by `effects` and noise."""
        noise = random.Random(1)
        for seed in range(seeds):
            base = 0.9 + noise.gauss(0, 0.01)
            self.add(seed=seed, value=base, **more)
            for format, effect in effects.items():
                self.add(format, aps=True, seed=seed, value=base + effect + noise.gauss(0, spread), **more)
        return self

    def values(self, sweep: str = "digits_bits") -> Values | None:
        if sweep != "digits_bits":
            return None
        rows = pd.DataFrame(self.rows, dtype=object)
        rows = rows.assign(**{column: None for column in FAILED if column not in rows})
        return Values(rows, self.axes, "made up")

    def judge(self, *comparisons: dict, **changes) -> Judgment:
        return judge(claim(*comparisons, **changes), self.values)


@pytest.mark.parametrize(("effect", "verdict"), [(0.0, CERTIFIED), (-0.02, REFUTED), (-0.005, OPEN)])
def test_a_loss_is_compared_with_the_threshold(effect, verdict):
    judgment = Table().fill({"e4m3": effect}).judge({"at_least": -0.5})
    (finding,) = judgment.findings
    assert judgment.verdict == finding.verdict == verdict
    assert finding.pairs == 8 and finding.low < finding.value < finding.high
    assert finding.value == pytest.approx(100 * effect, abs=0.3)


def test_two_bounds_must_both_hold():
    table = Table().fill({"e4m3": -0.015})
    assert table.judge({"at_least": -2, "at_most": -1}).verdict is CERTIFIED
    assert table.judge({"at_least": -1, "at_most": 0}).verdict is REFUTED
    assert table.judge({"at_least": -1.5, "at_most": 0}).verdict is OPEN
    (finding,) = table.judge({"at_most": 0}).findings
    assert finding.verdict is CERTIFIED and finding.low < finding.value < finding.high < 0


def test_the_quantifier_is_part_of_the_verdict():
    table = Table().fill({"e4m3": 0.0, "e5m2": 0.0, "e3m0": -0.1})
    comparison = {"candidate": {"format": ["e5m2", "e4m3", "e3m0"], "aps": True}, "at_least": -1}
    found = {
        holds_for: table.judge(comparison, holds_for=holds_for, across="formats")
        for holds_for in ("every", "most", "some")
    }
    assert {holds_for: describe_verdict(judgment) for holds_for, judgment in found.items()} == {
        "every": "in all formats: refuted (e3m0)",
        "most": "in most formats (e5m2; e4m3): certified; in others (e3m0): refuted",
        "some": "in some formats (e5m2; e4m3): certified; in others (e3m0): refuted",
    }


def test_comparisons_that_were_not_run_are_counted_in_the_verdict():
    table = Table().fill({"e4m3": 0.0})
    judgment = table.judge({"at_least": -1}, {"sweep": "never_run", "at_least": -1})
    assert describe_verdict(judgment) == "in all comparisons: certified; 1 of 2 comparisons not run"
    assert table.judge({"sweep": "never_run", "at_least": -1}).verdict is NOT_RUN


def test_comparisons_with_identical_weights_count_once():
    table = Table("sync.order")
    for order in ("rank", "ring", "tree"):
        for seed in range(4):
            weights = f"{seed} {'tree' if order == 'tree' else 'chain'}"
            table.add(seed=seed, **{"sync.order": order})
            more = {"weights": weights, "sync.order": order}
            table.add("e4m3", aps=True, seed=seed, value=0.9 + 0.001 * seed, **more)
    judgment = table.judge({"at_least": -5})
    repeats = [finding.repeats for finding in judgment.findings]
    assert repeats == [None, ("e4m3", "with APS", "order rank"), None]
    said = "of 2 comparisons 2 certified; 1 more with the same weights as another, bit for bit"
    assert tally(judgment) == said


def test_identical_comparisons_leave_their_share_of_the_error_to_the_others():
    """The evidence refutes a claim about one comparison, but not a claim about twenty."""
    alone, distinct, identical = Table("epochs"), Table("epochs"), Table("epochs")
    for i in range(20):
        for seed, gap in enumerate((-0.010, -0.012, -0.011)):
            other = gap if i == 0 else 0.002 * (seed - 1) + 1e-6 * i
            for table in (alone, distinct, identical)[0 if i == 0 else 1 :]:
                weights = f"{seed}" if table is identical else None
                table.add(seed=seed, epochs=i)
                table.add("e4m3", aps=True, seed=seed, value=0.9 + other, weights=weights, epochs=i)
    assert alone.judge({"at_least": -0.1}).verdict is REFUTED
    assert distinct.judge({"at_least": -0.1}).verdict is OPEN
    assert identical.judge({"at_least": -0.1}).verdict is REFUTED


def test_a_diverged_run_counts_as_the_worst_and_prevents_a_certificate():
    table = Table().fill({"e4m3": 0.0})
    table.add(seed=8)
    table.add("e4m3", aps=True, seed=8, diverged=True)
    (finding,) = table.judge({"at_least": -0.5}).findings
    assert (finding.verdict, finding.pairs) == (OPEN, 9)
    assert finding.note == "1 of 9 runs failed (1 diverged)"
    assert finding.value == pytest.approx(-90 / 9, abs=0.3)


def test_pairs_with_a_diverged_fp32_baseline_are_ignored():
    table = Table().fill({"e4m3": 0.0})
    table.add(seed=8, value=0.1, diverged=True)
    (finding,) = table.judge({"at_least": -0.5}).findings
    assert finding.verdict is OPEN and "fp32 itself diverged" in finding.note


def test_one_pair_settles_nothing():
    (finding,) = Table().fill({"e4m3": 0.0}, seeds=1).judge({"at_least": -0.5}).findings
    assert (finding.verdict, finding.note) == (OPEN, "one pair")


def test_bytes_are_counted():
    table = Table()
    for seed in range(3):
        table.add(seed=seed, **{"wire:bytes_per_step_real_worker": 4000.0})
        table.add("e4m3", aps=True, seed=seed, **{"wire:bytes_per_step_real_worker": 1010.0})
    count = {"metric": None, "count": "wire_bytes"}
    judgment = table.judge({**count, "at_least": 3.5})
    assert judgment.verdict is COUNTED and not judgment.is_tested
    assert "3.96 times fewer bytes" in page([judgment], 0.95)
    swapped = {"candidate": {"format": "fp32", "aps": False}, "baseline": {"format": "e4m3", "aps": True}}
    more = {**count, "counted_as": "percent_more", **swapped}
    assert table.judge({**more, "at_most": 100}).verdict is REFUTED


def test_cells_are_compared_only_if_their_other_axes_are_equal():
    table = Table("scaling._target_")
    for world_size in (8, 64):
        table.fill({"e4m3": 0.0}, world_size=world_size, **{"scaling._target_": "a.APS"})
        for seed in range(3):
            table.add("e4m3", aps=True, seed=seed, world_size=world_size, **{"scaling._target_": "a.Other"})
    pairs = find_pairs(claim({"at_least": 0}).comparisons[0], table.values())
    assert {pair.cell for pair in pairs} == {
        ("e4m3", "with APS", f"workers {n}", f"scaling {rule}") for n in (8, 64) for rule in ("APS", "Other")
    }
    assert all(pair.candidate.keys["world_size"] == pair.baseline.keys["world_size"] for pair in pairs)
    only = claim({"at_least": 0, "where": {"world_size": 64}}).comparisons[0]
    assert len(find_pairs(only, table.values())) == 2


def test_a_baseline_that_several_cells_match_is_an_error():
    """If only the candidate names its format, the format of the baseline is ambiguous."""
    table = Table().fill({"e3m0": 0.0})
    for seed in range(3):
        table.add("e3m0", seed=seed, value=0.1)
    sides = {"candidate": {"format": "e3m0", "aps": True}, "baseline": {"aps": False}, "at_least": 5}
    with pytest.raises(ReportError, match="several cells match the baseline"):
        table.judge(sides)
    same_format = {**sides, "candidate": {"aps": True}, "where": {"format": "e3m0"}}
    assert table.judge(same_format).findings[0].value == pytest.approx(80, abs=2)


def test_a_case_determines_its_format():
    table = Table("case", "partition._target_")
    for seed in range(6):
        for skew in ("a.Iid", "a.Skewed"):
            table.add(seed=seed, case="fp32", **{"partition._target_": skew})
            more = {"case": "8 bits", "partition._target_": skew}
            table.add("e4m3", aps=True, seed=seed, value=0.9 + 0.001 * (seed % 3), **more)
    cases = {"candidate": {"case": "8 bits"}, "baseline": {"case": "fp32"}, "at_least": -1}
    assert len(table.judge(cases).findings) == 2
    skewed = table.judge({**cases, "where": {"partition._target_": "Skewed"}})
    assert (len(skewed.findings), skewed.verdict) == (1, CERTIFIED)


def test_text_of_a_record_does_not_become_markup():
    table = Table("case")
    for seed in range(3):
        for case in ("fp32", "<b>|`x`"):
            table.add(seed=seed, case=case, value=0.9 + 0.001 * seed * (case == "fp32"))
    cases = {"candidate": {"case": "<b>|`x`"}, "baseline": {"case": "fp32"}, "at_least": -1}
    text = page([table.judge(cases)], 0.95)
    assert r"&lt;b&gt;\|\`x\`" in text and "<b>" not in text


def test_the_page_says_how_many_wrong_verdicts_it_allows():
    table = Table().fill({"e4m3": 0.0})
    text = page([table.judge({"at_least": -1}), table.judge({"sweep": "never_run", "at_least": -1})], 0.95)
    assert "With 1 tested claims, at most 0.05 wrong verdicts are expected" in text
    assert "2 claims: 1 certified, 1 not run" in text


def test_failed_runs_are_written_to_values_and_read_again(tmp_path):
    sweep = Sweep(tmp_path / "results" / "digits_bits")
    for seed in range(5):
        sweep.add("fp32", seed=seed, accuracy=0.9, env={"git_commit": "a" * 40, "git_diff": "none"})
        failed = {"status": None, "outcome": "failed"} if seed == 4 else {"accuracy": 0.9 + 0.001 * seed}
        sweep.add("e4m3", aps=True, seed=seed, env={"git_commit": "a" * 40, "git_diff": "none"}, **failed)
    write_values([sweep.dir], tmp_path / "values.csv")
    (finding,) = judge(claim({"at_least": -0.5}), lambda name: read_values(tmp_path)).findings
    assert (finding.verdict, finding.note) == (OPEN, "1 of 5 runs failed")
    assert finding.source == f"{tmp_path.name}/values.csv, commit {'a' * 10}"


def test_every_claim_finds_its_cells_in_the_stored_values():
    for item in read_claims():
        for comparison in item.comparisons:
            values = read_values(STORED / comparison.sweep) if comparison.sweep else None
            if values is not None:
                assert all(pair.candidate for pair in find_pairs(comparison, values)), (
                    item.statement,
                    comparison,
                )


def test_the_stored_page_is_up_to_date():
    judgments = [
        judge(item, lambda sweep: read_values(STORED / sweep), tables=lambda name: read_table(STORED / name))
        for item in read_claims()
    ]
    assert (STORED / "claims.md").read_text() == page(judgments, 0.95), "run `make claims`"
    tables = paper_tables(lambda sweep: read_values(STORED / sweep))
    assert (STORED / "paper_tables.md").read_text() == tables, "run `make claims`"


def test_a_paper_table_has_a_row_for_each_format_and_says_what_failed(tmp_path, monkeypatch):
    table = Table().fill({"e4m3": -0.01}, seeds=3)
    table.add("e4m3", aps=True, seed=3, value=0.1, diverged=True)
    (tmp_path / "tables.yaml").write_text(
        "- title: A paper\n  rows: [format, aps]\n  columns:\n"
        "    - {title: digits, values: digits_bits, where: {world_size: 8}}\n    - {title: other, values: other}\n"
    )
    monkeypatch.setattr("research.claims.paper_tables.TABLES", tmp_path / "tables.yaml")
    lines = paper_tables({"digits_bits": table.values(), "other": None}.get).splitlines()
    rows = [line for line in lines if line.startswith("| ")]
    assert rows[0] == "| format | APS | digits | other |"
    assert re.fullmatch(r"\| fp32 \| no \| 90\.\d ± \d\.\d \(3\) \|  \|", rows[2])
    assert re.fullmatch(r"\| e4m3 \| yes \| 69\.\d ± 39\.\d \(4, 1 failed\) \|  \|", rows[3])


COMPARISONS = [comparison for item in read_claims() for comparison in item.comparisons]
SWEEPS = {comparison.sweep for comparison in COMPARISONS if comparison.sweep}


def test_the_values_of_each_claim_are_stored_and_can_be_made_again():
    references = yaml.safe_load((ROOT / "scripts" / "references.yaml").read_text())
    assert references.keys() >= SWEEPS
    assert all((STORED / sweep / "values.csv").exists() for sweep in SWEEPS)


@pytest.mark.parametrize(
    "comparison", [each for each in COMPARISONS if each.table], ids=lambda each: each.column
)
def test_each_claim_about_a_table_finds_its_rows(comparison):
    found = judge(
        claim_of(comparison), lambda sweep: None, tables=lambda name: read_table(STORED / name)
    ).findings
    assert all(finding.was_run for finding in found)


def test_numbers_of_a_table_are_compared_with_the_bounds():
    table = pd.DataFrame({"link": ["fast", "slow"], "GPUs": [8, 8], "speed-up": [3.0, 7.0]})
    comparison = Comparison(table="t.csv", column="speed-up", where={"GPUs": 8}, at_least=5)
    some = judge(claim_of(comparison, holds_for="some"), lambda sweep: None, tables=lambda name: table)
    assert [(found.cell, found.verdict) for found in some.findings] == [
        (("fast", "GPUs 8"), REFUTED),
        (("slow", "GPUs 8"), COUNTED),
    ]
    assert (some.verdict, some.is_tested) == (COUNTED, False)
    assert "| t.csv | slow, GPUs 8 | - | speed-up 7 | - | counted |" in page([some], 0.95)
    assert judge(claim_of(comparison), lambda sweep: None, tables=lambda name: table).verdict is REFUTED
    assert judge(claim_of(comparison), lambda sweep: None).verdict is NOT_RUN


CELLS = {"sweep": "a", "candidate": {"format": "e4m3"}, "baseline": {"format": "fp32"}}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"comparisons": []}, "needs comparisons"),
        ({"holds_for": "all"}, "holds_for must be one of every, most, some"),
        ({"colour": 1}, "colour"),
        ({"threshold": None}, "needs a threshold"),
        ({"comparisons": [{**CELLS, "metric": "m"}]}, "at_least or at_most"),
        ({"comparisons": [{**CELLS, "at_least": 0}]}, "a metric, a count or a table"),
        ({"comparisons": [{"sweep": "a", "metric": "m"}]}, "a candidate and a baseline"),
        ({"comparisons": [{"table": "t.csv", "at_least": 0}]}, "needs a column"),
    ],
)
def test_an_invalid_claim_is_named_in_the_error(tmp_path, change, message):
    comparisons = [{**CELLS, "metric": "m", "at_least": 0}]
    good = {
        "statement": "all is well",
        "quote": None,
        "section": "s",
        "threshold": "t",
        "comparisons": comparisons,
    }
    path = tmp_path / "claims.yaml"
    for content, error in ((good, None), ({**good, **change}, message)):
        path.write_text(yaml.safe_dump([{"title": "T", "authors": "A", "arxiv": "1", "claims": [content]}]))
        if error is None:
            assert len(read_claims(path)) == 1
        else:
            with pytest.raises(ValueError, match=f"'all is well': .*{re.escape(error)}"):
                read_claims(path)
