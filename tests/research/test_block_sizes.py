"""Test the measured errors of block sizes."""

import csv
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[2]
STORED = ROOT / "results" / "reference" / "numerics" / "block_sizes.csv"


@pytest.fixture
def errors_of(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "scripts" / "research" / "formats")
    import block_sizes

    yield block_sizes.errors_of
    sys.modules.pop("block_sizes")


def test_small_blocks_of_small_values_have_large_errors(errors_of):
    x = torch.randn(64, 256, generator=torch.Generator().manual_seed(1))
    wide, narrow = errors_of([x]), errors_of([x * 2.0**-7])
    assert wide["error of 8 / 16"] < 1 and wide["error of 16 / 32"] < 1
    assert narrow["error of 8 / 16"] > 1 and narrow["error of 16 / 32"] > 1
    assert narrow["error of 16, ue5m3"] == pytest.approx(wide["error of 16, ue5m3"])


def test_gaussian_rows_of_the_stored_table_are_reproduced(errors_of):
    with STORED.open() as file:
        rows = list(csv.DictReader(line for line in file if not line.startswith("#")))
    standard = torch.randn(384, 1536, generator=torch.Generator().manual_seed(0))
    stored = {row["part"]: row for row in rows if row["values"] == "Gaussian"}
    assert len(stored) == 6 and sum(row["values"] == "MiniLM" for row in rows) == 8
    row = stored["deviation 0.01"]
    assert errors_of([standard * 0.01]) == {
        key: pytest.approx(float(value), rel=1e-3)
        for key, value in row.items()
        if key not in ("values", "part")
    }
