"""A report on the folder of a search has the verdicts, differences and intervals of the search."""

import json
import math
import re

import instant_executor
import pytest
from verdicts import reported, told

from cpdrun.record import write_json
from cpdrun.report.answers_text import headline
from cpdrun.report.search_text import describe_results
from cpdrun.report.study_text import question_notes
from cpdrun.report.tables import brief, means
from cpdrun.search.results import search_result
from cpdrun.stats.evidence import Verdict
from cpdrun.stats.means import FIRST_SEED
from cpdrun.study.answers import ladder_verdicts
from cpdrun.study.reader import read_study

TYPED = ["search.tolerance=1", "search.most_seeds=12", "name=found"]
NAN = math.nan
WIDTH = ("format=fp32,e4m3,e5m2,e3m0,e1m2", "aps=true")
LADDERS = ("format=fp32,e4m3,e3m2,e3m0", "aps=false,true")
TUNED = ("format=fp32,e4m3,e5m2,e3m0", "aps=true", "search.tune.optim.lr=.05,.1")
BF16 = ("format=bf16,e4m3,e3m0", "aps=true", "search.baseline={format: bf16}")


def test_a_certificate_is_lost_when_a_later_run_diverges(launch, asked, tmp_path, monkeypatch):
    train = instant_executor.train

    def diverges_late(job):
        ending = train(job)
        if job.config["format"] == "e4m3" and job.config["seed"] == 5:
            write_json(job.run.done, json.loads(job.run.done.read_text()) | {"status": "diverged"})
            return job.run.result().status
        return ending

    monkeypatch.setattr(instant_executor, "train", diverges_late)
    monkeypatch.setattr(instant_executor, "GAPS", {})
    results, *_ = launch(asked("format=fp32,e4m3,e3m0", "aps=true"), tmp_path / "found", 6)
    assert told(results)["e4m3 with APS"][0] is Verdict.OPEN and reported(results) == told(results)
    assert re.search(r"e4m3 \(8 bits\): −.* 1 of 9 runs failed \(1 diverged\)", describe_results(results)[0])


def test_runs_equal_to_the_baseline_bit_for_bit_are_no_evidence(launch, asked, tmp_path, monkeypatch):
    train = instant_executor.train

    def rounds_nothing(job):
        status = train(job)
        if job.config["format"] in ("fp32", "e4m3"):
            seed, done = job.config["seed"], json.loads(job.run.done.read_text())
            equal = {"weights_sha256": f"weights {seed}", "metrics": {"test_accuracy": 0.98 + seed / 1000}}
            write_json(job.run.done, done | equal)
        return status

    monkeypatch.setattr(instant_executor, "train", rounds_nothing)
    results, *_ = launch(asked("format=fp32,e4m3", "aps=true"), tmp_path / "found")
    said = describe_results(results)[0]
    assert said.startswith("NOT TESTED: e4m3 (8 bits) with APS, because all of its runs equal those of fp32.")
    assert "fp32 and e4m3 are identical: equal bit for bit in every seed" in said
    assert "certified" not in said.lower()
    study = read_study([results.question.directory])
    not_tested, _, baseline = headline(study)[0]
    assert not_tested == "NOT TESTED: e4m3 (8 bits) with APS, because its runs equal those of fp32."
    assert "fp32 and e4m3 with APS are identical" in baseline
    assert [row[-1] for row in means(study).rows] == ["baseline", "= not tested (identical)"]
    assert [row[-1] for row in brief(study).rows] == ["baseline", "not tested (identical)"]
    (answer,) = ladder_verdicts(study)
    assert answer.verdict is Verdict.CERTIFIED and answer.is_identical


def test_tuning_seeds_are_in_no_pair_of_a_later_search(launch, asked, tmp_path):
    plain = [text for text in TUNED if "tune" not in text]
    launch(asked(*TUNED), tmp_path / "found")
    results, *_ = launch(asked(*plain), tmp_path / "found")
    study = read_study([results.question.directory])
    seeds = {seed for group in study.groups for seed in group.by_seed}
    assert max(seeds) < FIRST_SEED and "that chose the tuned values" in " ".join(question_notes(study))
    again, *_ = launch(asked(*TUNED), tmp_path / "found")
    assert reported(again) == told(again)


def test_a_baseline_without_an_ingredient_serves_all_values_of_it(launch, asked, tmp_path, monkeypatch):
    train = instant_executor.train

    def worse_to_nearest(job):
        status = train(job)
        done = json.loads(job.run.done.read_text())
        lost = 0.3 * (job.config["ingredients"].get("rounding") == "nearest_even")
        noise = 1e-3 * (len(job.config["ingredients"]) * job.config["seed"] % 5)
        done["metrics"]["test_accuracy"] -= lost + noise
        done["products"] = {"mean_operand_bits": 6.21}
        write_json(job.run.done, done)
        return status

    monkeypatch.setattr(instant_executor, "train", worse_to_nearest)
    typed = ("exp=digits_recipes", "recipe=nvfp4", "ingredients.rounding=stochastic,nearest_even")
    results, printed, _ = launch(asked(*typed, "search.baseline.recipe=bf16"), tmp_path / "found")
    assert "stochastic" in printed and "(6.21 bits on average)" in printed
    lines = describe_results(results)
    assert all("nvfp4 (6.21 bits on average)" in line for line in lines if line.startswith(("CERT", "REF")))
    found = [candidate for chain in search_result(results).chains for candidate in chain.candidates]
    assert {(candidate.bits, candidate.mean_operand_bits) for candidate in found} == {(4.5, 6.21)}
    mine = told(results)
    assert reported(results) == mine
    verdicts = {label.split()[-1]: found[0] for label, found in mine.items()}
    assert verdicts == {"stochastic": Verdict.CERTIFIED, "nearest_even": Verdict.REFUTED}


@pytest.mark.parametrize(
    ("typed", "gaps"),
    [
        (WIDTH, {}),  # of 8 bits one format alone is tried, at half of the error
        (WIDTH, {("e4m3", True): NAN, ("e5m2", True): NAN}),
        (WIDTH, {("e4m3", True): -0.5, ("e1m2", True): NAN}),
        (LADDERS, {("e4m3", False): NAN, ("e3m2", True): NAN, ("e3m0", True): -0.002}),
        (TUNED, {("e3m0", True): NAN}),
        (BF16, {("e3m0", True): -0.012}),
        (("precision.weights=fp32,e4m3,e3m2", "format=e5m2", "aps=true"), {}),
        (("precision.weights=bf16,e4m3", "format=fp32"), {}),  # the widest is the baseline
        (("precision.weights=fp32,e4m3", "precision.activations=fp32,e5m2", "format=fp32"), {}),
        (("precision=fp32,pure_fp16,mixed_fp16,pure_fp8,int8", "format=fp32"), {}),
        (("precision=int8", "precision.weight_bits=null,8,6", "format=fp32"), {}),
        (("format=fp32,e4m3", "optim.lr=.05,.2", "search.baseline={format: fp32, optim.lr: .1}"), {}),
        (
            ("format=e4m3,e3m0", "scaling=none,aps", "search.baseline={scaling: none}"),
            {("e3m0", False): -0.5},
        ),
        (("format=fp32,e4m3", "world_size=4,8", "aps=false"), {}),
    ],
)
def test_the_report_has_the_verdicts_of_the_search(launch, asked, tmp_path, monkeypatch, typed, gaps):
    monkeypatch.setattr(instant_executor, "GAPS", gaps)
    results, *_ = launch(asked(*typed), tmp_path / "found")
    assert reported(results) == told(results)
