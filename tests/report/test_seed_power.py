"""The end of a sweep: which differences its seeds can settle, and when the test set is the limit."""

import json
import math
import random
from dataclasses import replace

import jsonschema
import numpy as np
import pytest
import yaml

import cpdrun
from cpdrun.cli import main
from cpdrun.commands import schema
from cpdrun.config.manifest import read_ledger
from cpdrun.record import ExampleOutcomes, write_example_outcomes, write_json, write_text
from cpdrun.record.measure import ACCURACY, NATS
from cpdrun.report.sweep_text import seed_power_text
from cpdrun.stats.evidence import Verdict, judge
from cpdrun.stats.seed_power import SeedPower
from cpdrun.study.metric import Metric
from cpdrun.study.reader import read_study
from cpdrun.study.seed_power import seed_power
from cpdrun.study.test_set import finite_test_set
from cpdrun.sweep import plan, write_manifest

SEEDS = 4


@pytest.fixture
def noisy(new_sweep):
    """A sweep of fp32 and two formats that equal it, with noise of 0.3 and 0.6 points in their differences."""
    sweep, scatter = new_sweep(), random.Random(1)
    for seed in range(SEEDS):
        base = 0.95 + scatter.gauss(0, 0.01)
        sweep.add("fp32", seed=seed, accuracy=base)
        sweep.add("e4m3", seed=seed, accuracy=base + scatter.gauss(0, 0.003))
        sweep.add("e5m2", seed=seed, accuracy=base + scatter.gauss(0, 0.006))
    return sweep


def test_the_noise_is_pooled_over_all_candidates(noisy):
    study = read_study([noisy.dir])
    power = seed_power(study)
    deviations = [judged.judgment.deviation for judged in study.judged.values()]
    assert (power.metric, power.pairs, power.comparisons) == ("test_accuracy", SEEDS, 2)
    assert power.deviation == pytest.approx(math.sqrt(sum(d**2 for d in deviations) / 2))
    assert power.margin == pytest.approx(0.005)
    assert math.isnan(power.test_set_settles) and not power.limited_by_test_set


def test_a_candidate_that_equals_its_baseline_is_certified_at_the_given_margin_and_pairs(noisy):
    study = read_study([noisy.dir])
    power = seed_power(study)
    (enough,) = {judged.enough for judged in study.judged.values()}
    certify = 10 ** -enough[0]

    def evidence(pairs, margin):
        """Of differences with mean 0 and the pooled deviation. Only the evidence after the last pair counts."""
        values = np.arange(pairs) - (pairs - 1) / 2
        gaps = (values / values.std(ddof=1) * power.deviation).tolist()
        return judge(gaps, margin, certify=certify, refute=certify, confidence=0.95).trace[-1]

    assert evidence(SEEDS, power.settles * 1.001) >= enough[0] > evidence(SEEDS, power.settles * 0.999)
    needed = power.pairs_needed
    assert evidence(needed, power.margin) >= enough[0] > evidence(needed - 1, power.margin)


def test_broken_and_identical_candidates_do_not_add_noise(noisy):
    before = seed_power(read_study([noisy.dir]))
    for seed in range(SEEDS):
        noisy.add("e3m0", seed=seed, accuracy=0.5 + 0.001 * seed)
        noisy.add("e2m1", seed=seed, accuracy=0.1)
        for run in list(noisy.dir.runs()):
            config = yaml.safe_load(run.config.read_text())
            if (config["format"], config["seed"]) == ("fp32", seed):
                done = json.loads(run.done.read_text())
                write_json(run.done, done | {"weights_sha256": f"{seed}"})
                noisy.add("e8m20", seed=seed, done=done | {"weights_sha256": f"{seed}"})
    study = read_study([noisy.dir])
    assert {judged.verdict for judged in study.judged.values()} >= {Verdict.REFUTED}
    after = seed_power(study)
    assert after.comparisons == 2 and after.deviation == before.deviation


@pytest.mark.parametrize("formats", [("fp32",), ("e4m3", "e5m2"), ("fp32", "e4m3")])
def test_without_two_pairs_there_is_no_power(new_sweep, formats):
    sweep = new_sweep()
    for format in formats:
        for seed in range(1 if "fp32" in formats and len(formats) > 1 else 3):
            sweep.add(format, seed=seed, accuracy=0.9 + 0.01 * seed)
    assert seed_power(read_study([sweep.dir])) is None


def test_the_test_set_is_the_limit_if_its_lasting_error_exceeds_the_margin(new_sweep):
    """40 samples, of which 4 are always answered by one side alone: 2 on either side."""
    sweep, rng = new_sweep(), np.random.default_rng(3)
    for seed in range(3):
        flips = rng.integers(30, 40)
        for format, wrong in (("fp32", (0, 1)), ("e4m3", (2, 3, flips))):
            right_N = np.ones(40, bool)
            right_N[list(wrong)] = False
            done = {"test_samples": 40, "num_classes": 10}
            run = sweep.add(format, seed=seed, accuracy=right_N.sum() / 40, done=done)
            bits = np.packbits(right_N).tobytes()
            write_example_outcomes(run, ExampleOutcomes("test_accuracy", 40, "0" * 64, bits))
    study = read_study([sweep.dir])
    power = seed_power(study)
    (group,) = study.judged
    assert power.test_set_settles == pytest.approx(1.644854 * finite_test_set(study, group).error.lasting)
    assert power.limited_by_test_set
    said = seed_power_text(power, study.metric)
    assert said.startswith(
        "40 test samples cannot settle 0.5 points with any number of seeds, only differences of"
    )


def test_the_sentences(snapshot):
    points, loss = Metric("test_accuracy", ACCURACY), Metric("test_loss", NATS)
    power = SeedPower("test_accuracy", 3, 2, 0.011, 0.0463, 0.01, 15, 360, math.nan)
    cases = [
        ({}, points),
        ({"margin": 0.005, "pairs_needed": 50}, points),
        ({"margin": 0.001, "pairs_needed": None}, points),
        ({"pairs": 2, "settles": math.inf}, points),
        ({"settles": 0.004}, points),
        ({"test_set_settles": 0.0123}, points),
        ({"settles": 0.0537, "margin": 0.02, "pairs_needed": 7}, loss),
        ({"margin": math.nan, "pairs_needed": None}, loss),
    ]
    lines = [f"{changed}: {seed_power_text(replace(power, **changed), metric)}" for changed, metric in cases]
    snapshot("seed_power", "\n".join(lines) + "\n")


def test_a_sweep_prints_and_returns_its_power(tmp_path, capsys):
    typed = ("exp=digits_bits", "format=fp32,e4m3", "aps=false", "seed=0,1,2", f"results_dir={tmp_path}")
    sweep = plan(typed)
    for run in sweep.runs:
        folder = sweep.directory.run(run.name)
        folder.path.mkdir(parents=True)
        write_text(folder.config, yaml.safe_dump(run.config))
        seed = run.config["seed"]
        accuracy = 0.95 + 0.01 * seed + (run.config["format"] == "e4m3") * 0.001 * seed
        done = {"status": "finished", "metrics": {"test_accuracy": accuracy}, "num_classes": 10}
        write_json(folder.done, done | {"test_samples": 360})
    write_manifest(sweep)
    assert main(["sweep", *typed]) == 0
    counts, nothing, verdict, *_, said, last = capsys.readouterr().out.splitlines()
    assert counts.endswith("6 done, 0 to run") and nothing == "Nothing to do."
    assert verdict.startswith("OPEN: no format without APS is certified")
    assert said.startswith(
        "For a candidate exactly as good as the baseline, 3 seeds are enough for a margin of "
    )
    assert last == f"For the report: cpdrun report {sweep.directory.path}"
    assert main(["sweep", *typed, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    jsonschema.validate(document, schema("sweep"), cls=jsonschema.Draft202012Validator)
    told = document["seed_power"]
    assert (told["pairs"], told["comparisons"], told["test_set_settles"]) == (3, 1, None)
    assert cpdrun.sweep(*typed, quiet=True)["seed_power"] == told
    (asked,) = read_ledger(sweep.directory).hypotheses
    assert (asked.metric, asked.opened_by) == ("test_accuracy", ()) and asked.weight == pytest.approx(0.8)
    assert main(["sweep", *typed, "--json", "--dry-run"]) == 0
    assert json.loads(capsys.readouterr().out)["seed_power"] is None
