"""A user's codebook from outside the package: one file and one yaml."""

import csv
import sys

import pytest

from cpdrun.cli import main
from cpdrun.config.errors import ConfigError
from cpdrun.record import SweepDir, read_json
from cpdrun.sweep import plan

TABLE = """
from custom_fp import Codebook

powers = [2.0**-i for i in range(7)]
POWERS = Codebook("powers of two", (0.0, *powers, *(-p for p in powers)), block=128)
"""
EXPERIMENT = """
defaults:
  - override /sync: requantised
world_size: 2
epochs: 1
device: cpu
model: {width: 4}
sweep:
  format: [fp32, my_tables.POWERS]
"""


def test_a_codebook_needs_one_file_and_one_yaml(tmp_path, monkeypatch):
    (tmp_path / "my_tables.py").write_text(TABLE, encoding="utf-8")
    (tmp_path / "conf" / "exp").mkdir(parents=True)
    (tmp_path / "conf" / "exp" / "powers.yaml").write_text(EXPERIMENT, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    assert main(["sweep", "--config-dir", "conf", "exp=powers"]) == 0
    runs = {run.path.name: run for run in SweepDir(tmp_path / "results" / "powers").runs()}
    (own,) = [run for name, run in runs.items() if "my_tables.POWERS" in name]
    assert read_json(own.done)["status"] == "finished"
    facts = [read_json(run.format_facts) for run in (own, *(run for run in runs.values() if run is not own))]
    assert facts[0] == {"name": "my_tables.POWERS", "bits": 4.25, "exponent_bits": None}
    assert facts[1] == {"name": "fp32", "bits": 32, "exponent_bits": 8}
    assert main(["report", "--format", "csv"]) == 0
    table = tmp_path / "results" / "powers" / "report" / "table.csv"
    with table.open(encoding="utf-8", newline="") as file:
        bits = {row["format"]: float(row["bits"]) for row in csv.DictReader(file)}
    assert bits == {"fp32": 32.0, "my_tables.POWERS": 4 + 32 / 128}
    with pytest.raises(ConfigError, match=r"format=my_tables.POWER: unknown format 'my_tables.POWER'"):
        plan(["exp=digits_bits", "format=my_tables.POWER", "aps=false", "seed=0"])
    with pytest.raises(ConfigError, match=r"format=my_tables.POWERS has its own scales\. Set aps=false"):
        plan(["exp=digits_bits", "format=my_tables.POWERS", "aps=true", "seed=0"])
