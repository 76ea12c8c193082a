"""Make the packages of scripts/, and the made-up sweeps of tests/report, importable."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2] / "scripts"))
sys.path.append(str(Path(__file__).parents[1] / "report"))
