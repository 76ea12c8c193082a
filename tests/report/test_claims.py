"""Claims of papers: read as data, judged from the values of single runs, shown with what the seeds can see."""

import io
import math
import random
import re
from pathlib import Path

import cpdrun.conf
import pytest
import yaml
from made_up import Sweep
from rich.console import Console

from cpdrun.cli import main
from cpdrun.report.claims import claim as claims
from cpdrun.report.claims import judgement as judging
from cpdrun.report.claims import read_claims, values, write_claims
from cpdrun.report.claims.judgement import NOT_ASKED
from cpdrun.report.claims.render import as_markdown, power_sentence, tally
from cpdrun.report.page.markup import escape_markdown
from cpdrun.stats.evidence import Verdict
from cpdrun.study.errors import ReportUsageError
from cpdrun.study.metric import Metric

CERTIFIED, REFUTED, OPEN = Verdict.CERTIFIED, Verdict.REFUTED, Verdict.OPEN

PAPER = claims.Paper(title="A paper", arxiv="0000.00000", authors="Nobody", order=1)
APS_AGAINST_FP32 = {
    "sweep": "digits_bits",
    "metric": "test_accuracy",
    "ours": {"format": "e4m3", "aps": True},
    "against": {"format": "fp32"},
}


def claim(*asks: dict, holds_for: str = "every") -> claims.Claim:
    return claims.Claim(
        name="made_up",
        paper=PAPER,
        section="abstract",
        words="nothing is lost",
        says="nothing is lost",
        threshold="None.",
        holds_for=holds_for,
        asks=[claims.Ask(**{**APS_AGAINST_FP32, **ask}) for ask in asks],
        not_asked=None,
        note=None,
        order=1,
    )


def fill(sweep: Sweep, effects: dict, seeds: int = 8, spread: float = 0.002, **config) -> Sweep:
    """fp32 runs, and runs of each (format, aps) that differ from them by `effects`, with noise of their own."""
    noise = random.Random(1)
    for seed in range(seeds):
        base = 0.9 + noise.gauss(0, 0.01)
        common = {"seed": seed, "wire_bytes": 4000, **config}
        sweep.add("fp32", accuracy=base, **common)
        for (format, aps), effect in effects.items():
            value = base + effect + noise.gauss(0, spread)
            sweep.add(format, aps=aps, accuracy=value, **{**common, "wire_bytes": 1010 if aps else 1000})
    return sweep


def judged(sweep: Sweep, *asks: dict, **more) -> judging.Judgement:
    found = values.of_runs(sweep.dir)
    return judging.judge(claim(*asks, **more), lambda name: [found] if name == "digits_bits" else [])


@pytest.mark.parametrize(
    ("effect", "verdict"),
    [(0.0, CERTIFIED), (-0.02, REFUTED), (-0.005, OPEN)],
    ids=["equal", "worse", "near"],
)
def test_a_loss_is_judged_by_its_interval(new_sweep, effect, verdict):
    sweep = fill(new_sweep(), {("e4m3", True): effect})
    judgement = judged(sweep, {"at_least": -0.5})
    (finding,) = judgement.findings
    assert judgement.verdict == finding.verdict == verdict
    assert finding.seeds == 8
    assert finding.value == pytest.approx(100 * effect, abs=0.3)


def test_two_bounds(new_sweep):
    sweep = fill(new_sweep(), {("e4m3", True): -0.015})
    assert judged(sweep, {"at_least": -2, "at_most": -1}).verdict == CERTIFIED
    assert judged(sweep, {"at_least": -1, "at_most": 0}).verdict == REFUTED
    (finding,) = judged(sweep, {"at_least": -1.5, "at_most": 0}).findings
    assert finding.verdict == OPEN and finding.low < -1.5 < finding.high < 0
    (alone,) = judged(sweep, {"at_most": 0}).findings
    assert alone.verdict == CERTIFIED and alone.low < alone.value < alone.high < 0


def test_a_loss_metric_counts_the_other_way(new_sweep):
    sweep = new_sweep()
    for seed in range(4):
        for format, aps, loss in (("fp32", False, 1.0), ("e4m3", True, 1.2)):
            metrics = {"test_accuracy": 0.9, "test_loss": loss + 0.01 * seed * (2 if aps else 1)}
            sweep.add(format, aps=aps, seed=seed, metrics=metrics)
    assert judged(sweep, {"metric": "test_loss", "at_least": -0.05}).verdict == REFUTED


def test_what_every_most_and_some_ask_for(new_sweep):
    sweep = fill(new_sweep(), {("e4m3", True): 0.0, ("e5m2", True): 0.0, ("e3m0", True): -0.1})
    ask = {"ours": {"format": ["e5m2", "e4m3", "e3m0"], "aps": True}, "at_least": -1}
    verdicts = {name: judged(sweep, ask, holds_for=name).verdict for name in ("every", "most", "some")}
    assert verdicts == {"every": REFUTED, "most": CERTIFIED, "some": CERTIFIED}
    worse = {"ours": {"format": "e3m0", "aps": True}, "at_least": -1}
    assert judged(sweep, worse, holds_for="some").verdict == REFUTED


def test_one_of_many_comparisons_must_stray_further_to_refute(new_sweep):
    """Outside by what is enough where it is asked alone, and may be chance where it is one of twenty."""
    sweep = new_sweep()
    gaps = [-0.010, -0.012, -0.011]
    for i in range(20):
        for seed, gap in enumerate(gaps):
            sweep.add("fp32", seed=seed, accuracy=0.9, epochs=i)
            other = gap if i == 0 else 0.002 * (seed - 1) + 1e-6 * i
            sweep.add("e4m3", aps=True, seed=seed, accuracy=0.9 + other, epochs=i)
    assert judged(sweep, {"at_least": -0.1, "where": {"epochs": 0}}).verdict == REFUTED
    among = judged(sweep, {"at_least": -0.1})
    assert among.verdict == OPEN and len(among.findings) == 20
    assert {finding.verdict for finding in among.findings} == {OPEN}
    some = judged(sweep, {"at_least": -0.1}, holds_for="some")
    assert [finding.verdict for finding in some.findings].count(REFUTED) == 1


def test_comparisons_whose_runs_are_equal_bit_for_bit_count_once(new_sweep):
    sweep = new_sweep()
    for order in ("rank", "ring", "tree"):
        for seed in range(4):
            weights = f"{seed} {order if order == 'tree' else 'chain'}"
            sync = {"sync": {"order": order}}
            sweep.add("fp32", seed=seed, accuracy=0.9, **sync)
            done = {"weights_sha256": weights}
            sweep.add("e4m3", aps=True, seed=seed, accuracy=0.9 + 0.001 * seed, done=done, **sync)
    judgement = judged(sweep, {"at_least": -5})
    repeated = [finding for finding in judgement.findings if finding.is_repeat]
    assert [finding.errors[1] for finding in judgement.findings] == [pytest.approx(0.025)] * 3
    assert len(repeated) == 1 and repeated[0].why.startswith("the same runs, bit for bit, as ")
    assert "of 2 comparisons 2 certified; 1 more is of runs equal bit for bit" in tally(judgement)


def test_a_failed_run_bars_a_claim_and_is_written_to_values(new_sweep, tmp_path):
    sweep = fill(new_sweep(), {("e4m3", True): 0.0})
    sweep.add("fp32", seed=8, accuracy=0.9)
    sweep.add("e4m3", aps=True, seed=8, status=None, outcome="failed")
    judgement = judged(sweep, {"at_least": -0.5})
    (finding,) = judgement.findings
    assert judgement.verdict == OPEN and finding.why == "1 of 9 runs failed"
    values.write_values([sweep.dir], tmp_path / "values.csv")
    found = values.of_reference(tmp_path)
    again = judging.judge(claim({"at_least": -0.5}), lambda name: [found] if name == "digits_bits" else [])
    assert again.findings[0].why == finding.why and again.findings[0].value == finding.value


def test_a_run_that_diverged_counts_as_the_worst_and_is_never_certified(new_sweep):
    sweep = fill(new_sweep(), {("e4m3", True): 0.0})
    assert judged(sweep, {"at_least": -0.5}).verdict == CERTIFIED
    sweep.add("e4m3", aps=True, seed=8, accuracy=0.9, status="diverged")
    sweep.add("fp32", seed=8, accuracy=0.9)
    judgement = judged(sweep, {"at_least": -0.5})
    (finding,) = judgement.findings
    assert judgement.verdict == OPEN
    assert (finding.seeds, finding.why) == (9, "1 of 9 runs diverged")
    assert finding.value == pytest.approx(-90 / 9, abs=0.3)
    for seed in (9, 10):  # with both: these seeds say nothing
        sweep.add("e4m3", aps=True, seed=seed, status="diverged")
        sweep.add("e4m3", seed=seed, status="diverged")
    for seed in range(8):
        sweep.add("e4m3", seed=seed, accuracy=0.9)
    among_ours = judged(sweep, {"against": {"format": "e4m3", "aps": False}, "at_least": -0.5})
    assert among_ours.findings[0].seeds == 8


def test_what_always_diverges_is_refuted_and_what_it_is_compared_with_wins(new_sweep):
    sweep = fill(new_sweep(), {("e4m3", True): 0.0})
    for seed in range(4):
        sweep.add("e4m3", seed=seed, status="diverged")
    broken = judged(sweep, {"ours": {"format": "e4m3", "aps": False}, "at_least": -10})
    assert (broken.verdict, broken.findings[0].why) == (REFUTED, "4 of 4 runs diverged")
    better = {"ours": {"aps": True}, "against": {"aps": False}, "where": {"format": "e4m3"}, "at_least": 0}
    assert judged(sweep, better).verdict == CERTIFIED


def test_of_a_metric_without_bounds_a_diverged_run_is_worse_though_the_claim_is_of_no_loss(new_sweep):
    sweep = new_sweep()
    for seed in range(5):
        sweep.add("fp32", seed=seed, metrics={"test_perplexity": 9.0 + 0.01 * seed})
        sweep.add("e4m3", aps=True, seed=seed, status="diverged")
    judgement = judged(sweep, {"metric": "test_perplexity", "at_least": 0})
    assert judgement.verdict == REFUTED and judgement.findings[0].value < 0


def test_a_baseline_that_diverged_is_no_answer(new_sweep):
    broken = fill(new_sweep("broken"), {("e4m3", True): 0.0})
    broken.add("fp32", seed=8, accuracy=0.1, status="diverged")
    broken.add("e4m3", aps=True, seed=8, accuracy=0.9)
    judgement = judged(broken, {"at_least": -0.5})
    assert judgement.verdict == OPEN
    assert "fp32 diverged" in judgement.findings[0].why


def test_cells_are_compared_with_their_equals_alone(new_sweep):
    """Two world sizes, APS with two scaling rules: each beside its own fp32, or its own run without APS."""
    sweep = new_sweep()
    for world_size, base in ((8, 0.9), (64, 0.5)):
        fill(sweep, {("e4m3", True): 0.0, ("e4m3", False): -0.2}, world_size=world_size)
        for run in range(8):
            sweep.add(
                "e4m3",
                aps=True,
                seed=run,
                accuracy=base,
                world_size=world_size,
                scaling={"_target_": "a.Other"},
            )
    assert len(judged(sweep, {"at_least": -0.5}).findings) == 4
    both = judged(sweep, {"ours": {"aps": True}, "against": {"aps": False}, "at_least": 0})
    assert {finding.cell for finding in both.findings} == {
        f"with APS, workers {n}, scaling {rule}" for n in (8, 64) for rule in ("APS", "Other")
    }
    one = judged(sweep, {"where": {"world_size": 64}, "at_least": -0.5})
    assert len(one.findings) == 2


def test_a_case_stands_for_what_it_settles(new_sweep):
    sweep = new_sweep()
    for seed in range(6):
        noise = 0.001 * (seed % 3)
        for skew in ("cpdrun.data.partition.Iid", "cpdrun.data.partition.Skewed"):
            partition = {"_target_": skew}
            sweep.add("fp32", seed=seed, case="fp32", partition=partition, accuracy=0.9)
            sweep.add("e4m3", aps=True, seed=seed, case="8 bits", partition=partition, accuracy=0.9 + noise)
    ask = {"ours": {"case": "8 bits"}, "against": {"case": "fp32"}, "at_least": -1}
    assert [f.cell for f in judged(sweep, ask).findings] == [
        "8 bits, partition Iid",
        "8 bits, partition Skewed",
    ]
    skewed = judged(sweep, {**ask, "where": {"partition._target_": "Skewed"}})
    assert len(skewed.findings) == 1
    assert skewed.verdict == CERTIFIED


def test_bytes_are_counted(new_sweep):
    sweep = fill(new_sweep(), {("e4m3", True): 0.0, ("e4m3", False): 0.0})
    count = {"metric": None, "count": "wire:bytes_per_step_real_worker"}
    fewer = judged(sweep, {**count, "at_least": 3.5})
    assert (fewer.verdict, fewer.findings[0].figure) == (CERTIFIED, "3.96 times fewer")
    more = {**count, "counted_as": "per_cent_more", "ours": {"aps": True}, "against": {"aps": False}}
    assert judged(sweep, {**more, "at_most": 2}).findings[0].figure == "1 % more"
    assert judged(sweep, {**more, "at_most": 0.5}).verdict == REFUTED


def test_without_runs_or_with_one_seed_it_is_open(new_sweep):
    sweep = new_sweep()
    sweep.add("fp32", accuracy=0.9)
    sweep.add("e4m3", aps=True, accuracy=0.9)
    assert [f.why for f in judged(sweep, {"at_least": -0.5}).findings] == ["one seed"]
    nothing = judged(sweep, {"sweep": "never_run", "at_least": -0.5})
    assert (nothing.verdict, nothing.findings[0].why) == (OPEN, "no runs")


def test_committed_values_give_the_same_verdicts(new_sweep, tmp_path):
    sweep = fill(
        new_sweep(),
        {("e4m3", True): -0.003, ("e3m0", True): -0.3},
        env={"git_commit": "a" * 40, "git_diff": "none"},
    )
    reference = tmp_path / "reference" / "digits_bits"
    reference.mkdir(parents=True)
    values.write_values([sweep.dir], reference / values.VALUES)
    asked = claim({"ours": {"aps": True}, "at_least": -0.5}, holds_for="some")
    live, kept = (
        judging.judge(asked, lambda _, found=found: [found])
        for found in (values.of_runs(sweep.dir), values.of_reference(reference))
    )
    assert live.verdict == kept.verdict == OPEN
    assert {finding.verdict for finding in live.findings} == {OPEN, REFUTED}
    assert [(f.cell, f.verdict, f.value, f.low, f.high, f.more) for f in live.findings] == [
        (f.cell, f.verdict, f.value, f.low, f.high, f.more) for f in kept.findings
    ]
    assert kept.findings[0].source == f"digits_bits/values.csv, commit {'a' * 10}"


def test_runs_here_come_before_committed_values(new_sweep, tmp_path):
    sweep = fill(new_sweep(), {("e4m3", True): -0.1})
    other = fill(new_sweep("elsewhere"), {("e4m3", True): 0.0})
    reference = tmp_path / "results" / "reference" / "digits_bits"
    reference.mkdir(parents=True)
    values.write_values([other.dir], reference / values.VALUES)
    asked = [claim({"at_least": -0.5})]
    quiet = {"claims": asked, "console": Console(file=io.StringIO())}
    assert write_claims(sweep.dir.path.parent, **quiet)[0].verdict == REFUTED
    out = tmp_path / "claims.md"
    assert write_claims(None, references=reference.parent, out=out, **quiet)[0].verdict == CERTIFIED


def test_equal_seeds_on_an_unknown_number_of_samples_settle_nothing_and_see_nothing(new_sweep):
    sweep = new_sweep()
    for seed in range(3):
        sweep.add("fp32", seed=seed, accuracy=0.9)
        sweep.add("e4m3", aps=True, seed=seed, accuracy=0.8)
    judgement = judged(sweep, {"at_least": -0.05})
    assert judgement.verdict == OPEN
    assert judgement.findings[0].why.startswith("the same for every seed")
    assert power_sentence(judgement) == ""


def test_power_is_said(new_sweep):
    sweep = fill(new_sweep(), {("e4m3", True): 0.0}, seeds=3)
    sentence = power_sentence(judged(sweep, {"at_least": -0.05}))
    assert sentence.startswith("3 seeds settle what lies 1.4 points from the threshold; ")
    assert "a threshold of 0.05 points would take more than 1,000 seeds" in sentence
    (finding,) = judged(sweep, {"at_least": -0.5}).findings
    assert finding.verdict == OPEN and 0 < finding.more < 10


def test_an_interval_of_shares_ends_where_they_do_and_what_is_unknown_is_infinite():
    accuracy, loss = Metric("test_accuracy"), Metric("test_loss")
    assert accuracy.show_between(-0.9, -1.3, math.inf) == "−90.00 [−100.00, +∞]"
    assert loss.show_between(-1.5, -2.0, 0.25) == "−1.5000 [−2.0000, +0.2500]"
    assert loss.show_between(math.nan, -math.inf, math.inf) == "-"


def test_nothing_of_a_record_becomes_markup(new_sweep):
    sweep = new_sweep()
    for seed in range(3):
        for case in ("fp32", "<b>|`x`"):
            sweep.add("fp32", seed=seed, case=case, accuracy=0.9 + 0.001 * seed * (case == "fp32"))
    ask = {"ours": {"case": "<b>|`x`"}, "against": {"case": "fp32"}, "at_least": -1}
    text = as_markdown([judged(sweep, ask)], 95)
    assert r"&lt;b&gt;\|\`x\`" in text
    assert "<b>" not in text


def test_every_claim_that_ships_asks_for_a_sweep_that_ships():
    """And for cells that it has, which tests/exp/test_experiments.py looks for."""
    found = read_claims()
    assert len({item.paper.arxiv for item in found}) == 12
    ships = {file.stem for file in Path(cpdrun.conf.__file__).with_name("exp").glob("*.yaml")}
    for item in found:
        assert item.words is None or item.words == item.words.strip() != ""
        assert {ask.sweep for ask in item.asks} <= ships


def test_the_command_writes_every_verdict(new_sweep, tmp_path, capsys):
    sweep = fill(new_sweep(), {("e4m3", True): 0.0, ("e4m3", False): 0.0})
    results = sweep.dir.path.parent
    assert main(["report", "--claims", f"results_dir={results}"]) == 0
    printed = capsys.readouterr().out
    written = (results / "claims.md").read_text()
    for item in read_claims():
        assert item.says in printed
        assert item.not_asked is None or item.not_asked in printed
        verdict = NOT_ASKED if item.not_asked else f"({CERTIFIED}|{REFUTED}|{OPEN})"
        assert re.search(f"### {re.escape(escape_markdown(item.says))}: {verdict}\n", written)
    assert main(["report", "--claims", "digits_bits"]) == 2
    assert "takes results_dir=PATH alone" in capsys.readouterr().err
    assert main(["report", "--claims", "--ci", "100", f"results_dir={results}"]) == 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"asks": None, "not_asked": None}, "needs either asks, or not_asked"),
        ({"holds_for": "all"}, "holds_for must be one of"),
        ({"colour": 1}, "unknown key 'colour'"),
        (
            {"says": None, "order": 1, "section": 3, "asks": [{"sweep": "a"}]},
            "each needs sweep, ours and against",
        ),
        ({"threshold": None}, "needs a threshold"),
        ({"asks": [{"sweep": "a", "ours": {}, "against": {}, "metric": "m"}]}, "needs at_least or at_most"),
        ({"asks": [{"sweep": "a", "ours": {}, "against": {}, "at_least": 0}]}, "either a metric or a count"),
    ],
)
def test_a_file_that_is_no_claim_is_refused_in_a_line(tmp_path, change, message):
    folder = tmp_path / "paper"
    folder.mkdir()
    about = {"title": "T", "arxiv": "1", "authors": "A", "order": 1}
    (folder / "paper.yaml").write_text(yaml.safe_dump(about))
    good = {"order": 1, "section": "s", "words": None, "says": "x", "threshold": "t", "asks": []}
    good["asks"] = [{"sweep": "a", "ours": {}, "against": {}, "metric": "m", "at_least": 0}]
    (folder / "one.yaml").write_text(yaml.safe_dump(good))
    assert len(read_claims(tmp_path)) == 1
    changed = {
        key: value
        for key, value in {**good, **change}.items()
        if value is not None or key in ("words", "says")
    }
    (folder / "one.yaml").write_text(yaml.safe_dump(changed))
    with pytest.raises(ReportUsageError, match=message) as error:
        read_claims(tmp_path)
    assert "one.yaml" in str(error.value)


def test_claims_are_no_choice_of_a_run(capsys):
    assert main(["sweep", "exp=digits_bits", "claims=aps", "--dry-run"]) == 2
    assert "unknown key 'claims'" in capsys.readouterr().err


def test_claims_ship_with_the_command():
    assert (Path(claims.shipped()) / "aps" / "paper.yaml").is_file()
