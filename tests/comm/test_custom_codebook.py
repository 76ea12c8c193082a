"""A codebook of one's own, from outside the package: one file and one yaml, with the installed command."""

import csv
import os
import subprocess
import sys
from pathlib import Path

import pytest

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
world_size: 4
epochs: 1
device: cpu
model: {width: 4}
sweep:
  format: [fp32, my_tables.POWERS]
"""


def cpdrun(*words: str, cwd: Path) -> subprocess.CompletedProcess:
    command = [Path(sys.executable).with_name("cpdrun"), *words]
    environment = {**os.environ, "COLUMNS": "200"}
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=200)


def test_one_file_and_one_yaml(tmp_path, monkeypatch):
    (tmp_path / "my_tables.py").write_text(TABLE, encoding="utf-8")
    (tmp_path / "conf" / "exp").mkdir(parents=True)
    (tmp_path / "conf" / "exp" / "powers.yaml").write_text(EXPERIMENT, encoding="utf-8")
    swept = cpdrun("sweep", "--config-dir", "conf", "exp=powers", cwd=tmp_path)
    assert swept.returncode == 0, swept.stdout + swept.stderr
    runs = {run.path.name: run for run in SweepDir(tmp_path / "results" / "powers").runs()}
    (own,) = [run for name, run in runs.items() if "my_tables.POWERS" in name]
    assert read_json(own.done)["status"] == "finished"
    facts = [read_json(run.format_facts) for run in (own, *(run for run in runs.values() if run is not own))]
    assert facts[0] == {"name": "my_tables.POWERS", "bits": 4.25, "exponent_bits": None}
    assert facts[1] == {"name": "fp32", "bits": 32, "exponent_bits": 8}
    assert cpdrun("report", "--format", "csv", cwd=tmp_path).returncode == 0
    table = tmp_path / "results" / "powers" / "report" / "table.csv"
    with table.open(encoding="utf-8", newline="") as file:
        bits = {row["format"]: float(row["bits"]) for row in csv.DictReader(file)}
    assert bits == {"fp32": 32.0, "my_tables.POWERS": 4 + 32 / 128}

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    with pytest.raises(ConfigError, match=r"format=my_tables.POWER: unknown format 'my_tables.POWER'"):
        plan(["exp=digits_bits", "format=my_tables.POWER", "aps=false", "seed=0"])
    with pytest.raises(ConfigError, match=r"format=my_tables.POWERS has its own scales\. Set aps=false"):
        plan(["exp=digits_bits", "format=my_tables.POWERS", "aps=true", "seed=0"])
