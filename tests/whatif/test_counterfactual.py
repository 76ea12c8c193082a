"""Explanations that use an observed run. The process that computes effects is replaced."""

import math
from collections import Counter

import numpy as np
import pytest
import torch
import yaml

from cpdrun.record import SweepDir, read_config, write_json, write_text
from cpdrun.report.diagnosis import explain as document
from cpdrun.report.plots import NotDrawnError
from cpdrun.report.plots.exponents import draw_tensors
from cpdrun.study.reader import read_study
from cpdrun.study.records import read_observed
from cpdrun.sweep import plan
from cpdrun.whatif.changes import changes_of_products, changes_of_sums
from cpdrun.whatif.collect.moments import tables
from cpdrun.whatif.collect.observation import Observation, TensorStatistics
from cpdrun.whatif.counterfactual import OWN, worst_layers
from cpdrun.whatif.diagnosis import MEASURED, OBSERVED, diagnose


def explain(run):
    return document(diagnose(run))


@pytest.fixture
def add(tmp_path):
    """add(accuracy, "format=e3m0", ...) -> the RunDir of a digits run that ended so, untrained."""

    def make(accuracy: float, *typed: str, layers: dict | None = None):
        words = ["exp=digits_bits", "seed=0", *typed, f"results_dir={tmp_path}", "name=s"]
        (planned,) = plan(words).runs
        run = SweepDir(tmp_path / "s").run(planned.name)
        run.path.mkdir(parents=True)
        write_text(run.config, yaml.safe_dump(planned.config))
        done = {"status": "finished", "metrics": {"test_accuracy": accuracy}, "judged_by": "test_accuracy"}
        write_json(run.done, done | {"test_samples": 10_000, "num_classes": 10})
        if layers:
            write_text(run.metrics, "")
            write_json(run.metrics, {})
            run.metrics.write_text(f'{{"epoch": 1, "layers": {layers}}}\n'.replace("'", '"'))
        return run

    return make


def effects(cosine, sum_error, **others):
    figures = {"cosine": cosine, "sum_error": sum_error, "underflow": 0.4, "growth": 2.0, "snr_db": 3.0}
    roles = {"gradient": {"all": figures, "layers": {"a": figures}}}
    roles |= {role: {"all": of, "layers": {"conv": of}} for role, of in others.items()}
    return {"role": roles, "uncovered": []}


def test_fixes_are_ranked_by_their_computed_gain(add, monkeypatch):
    baseline = add(0.98, "format=fp32", "aps=false")
    baseline.observed.touch()
    layer = {"format": "e3m0", "exponent_min": -20, "exponent_max": -6, "underflow": 1.0, "sum_error": 1.0}
    run = add(0.12, "format=e3m0", "aps=false", "sync.order=rank", layers={"features.0.0.weight": layer})
    asked = {}

    def compute(observed, configs, sweep, may_import=()):
        asked.update(configs, observed=observed)
        found = {name: effects(None, 1.0) for name in configs}
        for name, config in configs.items():
            if config["aps"]:
                found[name] = effects(0.8, 0.6)
            if config["sync"]["rounding"] == "stochastic":
                found[name] = effects(0.3, 3.0)
            if config["format"] == "e8m0":
                found[name] = effects(0.9, 0.7 if config["sync"]["requantise"] is None else 0.2)
            if config["sync"]["error_feedback"]:
                found[name]["role"]["gradient"]["all"] |= {"steps_cosine": 0.7, "steps": 16.0}
            if config["sync"]["kahan"]:
                found[name] = {"role": {}, "uncovered": ["does not fit"]}
        return found

    monkeypatch.setattr("cpdrun.whatif.forecast.compute_effects", compute)
    found = explain(run)
    assert asked["observed"].name == found.observed == baseline.name and asked[OWN]["format"] == "e3m0"
    assert [fix.words for fix in found.fixes[:1]] == [("aps=true",)]
    assert {fix.basis for fix in found.fixes} == {OBSERVED}
    assert (found.fixes[0].figure, found.fixes[0].before, found.fixes[0].after) == ("cosine", 0.0, 0.8)
    assert not any("kahan" in word or "order" in word for fix in found.fixes for word in fix.words)
    assert found.parts == {"range": pytest.approx(0.3), "additions": pytest.approx(0.5), "mantissa": 0.2}
    said = "50% from rounded additions, 30% from the format's range"
    assert any(said in line for line in found.sentences)
    assert "the sum keeps 80% of its direction instead of nothing" in found.fixes[0].text
    [fed] = [fix for fix in found.fixes if fix.words == ("sync.error_feedback=true",)]
    assert (fed.figure, fed.before, fed.after) == ("steps_cosine", 0.0, 0.7)
    assert "over the 16 observed steps" in fed.text
    assert "70% of their direction instead of nothing" in fed.text
    assert not found.not_seen


def test_a_case_that_differs_in_one_setting_is_a_measured_fix(add):
    """Runs of cases also differ in the name of their case, which is not a setting."""
    cases = "exp=digits_products", "observe=0"
    add(0.98, *cases, "case=fp32")
    run = add(0.60, *cases, "case=e2m1 with APS")
    better = add(0.97, *cases, "case=e4m3 with APS")
    add(0.50, *cases, "case=e2m0 with APS")
    found = explain(run)
    assert found.lost == pytest.approx(0.38)
    [fix] = found.fixes
    assert (fix.basis, fix.run, fix.value) == (MEASURED, better.name, 0.97)
    assert fix.words == tuple(f"precision.{role}=e4m3" for role in ("activations", "errors", "weights"))


def test_the_role_with_the_largest_damage_is_the_reason(add, monkeypatch):
    baseline = add(0.98, "exp=digits_recipes", "recipe=bf16")
    baseline.observed.touch()
    run = add(0.90, "exp=digits_recipes", "recipe=fp8_tensorwise")
    changes = changes_of_products(read_config(run))
    roles = ("weights", "activations", "errors")
    assert [one.description for one in changes][:3] == [f"{role} in bf16" for role in roles]
    assert changes[1].config["precision"]["rules"][0]["role"] == "input"
    assert not changes_of_sums(read_config(run))

    def compute(observed, configs, sweep, may_import=()):
        def of(config):
            first = config["precision"]["rules"][0]
            snr = 40.0 if first["role"] == "input" and first["format"] == "bf16" else 9.0
            return effects(1.0, 0.0, activation={"snr_db": snr, "underflow": 0.2}, weight={"snr_db": 30.0})

        return {name: of(config) for name, config in configs.items()}

    monkeypatch.setattr("cpdrun.whatif.forecast.compute_effects", compute)
    found = explain(run)
    assert found.role == "activation" and found.sentences[0].endswith(
        "rounding activations leaves a signal-to-noise ratio of 9.0 dB, and 20% of them become 0."
    )
    assert found.fixes[0].words[0].startswith("a rule in front: ") and found.fixes[0].after == 40.0
    assert "the signal-to-noise ratio of activations is 40.0 dB instead of 9.0 dB" in found.fixes[0].text


def test_the_worst_layers_are_those_with_the_lowest_ratio():
    from types import SimpleNamespace

    layers = {"a": {"snr_db": 20.0}, "b": {"snr_db": 3.0}, "c": {"snr_db": None}}
    own = SimpleNamespace(layers=lambda role: layers)
    assert [name for name, _ in worst_layers(own, "weight")] == ["b", "a"]


def test_an_observation_is_read_and_drawn_without_torch(add):
    baseline = add(0.98, "format=fp32", "aps=false")
    add(0.12, "format=e3m0", "aps=false")
    study = read_study([baseline.sweep])
    with pytest.raises(NotDrawnError, match="no run was observed"):
        draw_tensors(study)
    assert read_observed(baseline) is None
    seen = {}
    normal = torch.randn(500, generator=torch.Generator().manual_seed(0))
    for name, scale in (("a", 2.0**-20), ("b", 2.0**-4)):
        ((binades, rows),) = tables([normal * scale])
        largest = float(normal.abs().max()) * scale
        seen[name] = TensorStatistics(binades.numpy().astype(np.int16), rows.numpy(), 0, 0, largest, 500)
    about = {"world_size": 8, "steps": 1}
    steps = {0: {"gradient": seen, "weight": {"a": seen["b"]}}, 3: {"gradient": {"a": seen["a"]}}}
    Observation(about, steps).save(baseline.observed)
    found = read_observed(baseline)
    assert (found.workers, found.steps, list(found.looks)) == (8, 2, ["gradient", "weight"])
    wanted = Counter(math.frexp(value)[1] - 21 for value in normal.abs().tolist())
    assert [look.counts for look in found.looks["gradient"]["a"]] == [wanted, wanted]
    figure = draw_tensors(study)
    texts = [text.get_text() for axes in figure.axes for text in axes.texts]
    assert texts[0].startswith("100% below") and not texts[1].startswith("100%")
    baseline.observed.write_bytes(b"PK")
    assert read_observed(baseline) is None
