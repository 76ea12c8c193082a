"""Compare the committed measurements with the model, so that no change of a formula goes unnoticed."""

import sys
from pathlib import Path

import pytest

from cpdrun.record import read_json

ROOT = Path(__file__).parents[2]
REFERENCE = ROOT / "results" / "reference" / "costmodel"


@pytest.fixture
def bench(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "scripts" / "benchmarks")
    import cost_model

    yield cost_model
    for name in ("cost_model", "slow_links", "harness"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize("rate", ["1gbit", "100mbit"])
def test_predictions_are_within_15_per_cent_of_the_measured_steps(bench, rate):
    text, errors = bench.table(rate, read_json(REFERENCE / f"measured-{rate}.json"), ranks=2)
    assert set(errors) == set(bench.METHODS)
    for label, error in errors.items():
        if not bench.METHODS[label].ddp:
            assert abs(error) <= bench.ALLOWED_ERROR, label
    assert text in (REFERENCE / "validation.md").read_text(encoding="utf-8")
