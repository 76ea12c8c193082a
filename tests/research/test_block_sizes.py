"""Test the measured errors of block sizes."""

import importlib
from pathlib import Path

import pandas as pd
import pytest
import torch

ROOT = Path(__file__).parents[2]
STORED = ROOT / "results" / "reference" / "numerics" / "block_sizes.csv"


@pytest.fixture
def script(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "scripts" / "research" / "formats")
    return importlib.import_module("block_sizes")


def test_small_blocks_of_small_values_have_large_errors(script):
    x = torch.randn(64, 256, generator=torch.Generator().manual_seed(1))
    wide, narrow = script.errors_of([x]), script.errors_of([x * 2.0**-7])
    assert wide["error of 8 / 16"] < 1 and wide["error of 16 / 32"] < 1
    assert narrow["error of 8 / 16"] > 1 and narrow["error of 16 / 32"] > 1
    assert narrow["error of 16, ue5m3"] == pytest.approx(wide["error of 16, ue5m3"])


def test_gaussian_rows_of_the_stored_table_are_reproduced(script):
    table = pd.read_csv(STORED, comment="#", index_col=["values", "part"])
    stored, numbers = table.loc["Gaussian"], script.gaussian_numbers()
    assert list(stored.index) == list(numbers) and len(table.loc["MiniLM"]) == 8
    for part, tensors in numbers.items():
        assert script.errors_of(tensors) == pytest.approx(dict(stored.loc[part]), rel=1e-3), part
