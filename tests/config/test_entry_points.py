"""What installed packages bring: formats, recipes, experiments and launchers, by entry points."""

import subprocess
import sys
from pathlib import Path

import pytest

FILES = {
    "labkit/__init__.py": "",
    "labkit/formats.py": "import custom_fp\nFLAT = custom_fp.Codebook('flat4', (-1.0, -0.5, 0.5, 1.0))\n",
    "labkit/conf/__init__.py": "",
    "labkit/conf/exp/labs.yaml": "world_size: 2\nepochs: 1\nsweep: {format: [fp32, e4m3], seed: [0]}\n",
    "labkit/conf/exp/digits_bits.yaml": "epochs: 77\n",
    "labkit/conf/recipe/labs.yaml": "rules:\n- {modules: '*', role: input, format: e4m3}\n",
    "labkit/conf/launcher/labs.yaml": "_target_: labkit.launch.Ours\n",
    "labkit-1.dist-info/METADATA": "Metadata-Version: 2.1\nName: labkit\nVersion: 1\n",
    "labkit-1.dist-info/entry_points.txt": "[cpdrun.formats]\nflat4 = labkit.formats:FLAT\n"
    "[cpdrun.experiments]\nlabs = labkit.conf\n[cpdrun.recipes]\nlabs = labkit.conf\n"
    "[cpdrun.launchers]\nlabs = labkit.conf\n",
}


@pytest.fixture
def labkit(tmp_path) -> Path:
    for name, text in FILES.items():
        path = tmp_path / "site" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path / "site"


def typed(labkit: Path, *words: str) -> subprocess.CompletedProcess:
    code = "import sys; from cpdrun.cli import main; sys.exit(main(sys.argv[1:]))"
    return ran(labkit, code, *words)


def ran(labkit: Path, code: str, *words: str) -> subprocess.CompletedProcess:
    code = f"import sys; sys.path.insert(0, {str(labkit)!r}); {code}"
    return subprocess.run(
        [sys.executable, "-c", code, *words],
        cwd=labkit.parent,
        env={
            "PATH": "/usr/bin:/bin",
            "PYTHONPATH": str(labkit),
            "HOME": str(labkit.parent),
            "COLUMNS": "200",
        },
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_a_format(labkit):
    shown = typed(labkit, "formats", "flat4")
    assert shown.returncode == 0 and "ScaledFormat" in shown.stdout, shown.stderr
    assert "flat4" in typed(labkit, "formats", "flatt4").stderr


def test_an_experiment_that_is_swept_and_ours_of_the_same_name(labkit):
    swept = typed(labkit, "sweep", "exp=labs", "device=cpu")
    assert swept.returncode == 0, swept.stderr
    assert len(list((labkit.parent / "results/labs/runs").iterdir())) == 2
    assert "39 runs" in typed(labkit, "sweep", "exp=digits_bits", "--dry-run").stdout
    assert "labs" in typed(labkit, "sweep", "exp=lab", "--dry-run").stderr


def test_a_recipe_for_runs_and_for_a_model(labkit):
    planned = typed(labkit, "sweep", "exp=labs", "recipe=labs", "format=fp32", "--dry-run")
    assert planned.returncode == 0, planned.stderr
    code = "import torch, custom_fp; print(custom_fp.apply_recipe(torch.nn.Linear(3, 2), 'labs'))"
    applied = ran(labkit, code)
    assert applied.returncode == 0 and "e4m3" in applied.stdout, applied.stdout + applied.stderr


def test_a_launcher(labkit):
    lacking = typed(labkit, "sweep", "exp=labs", "--launcher", "labs")
    assert lacking.returncode == 2
    assert "cannot import labkit.launch.Ours" in lacking.stderr


def test_a_package_that_is_broken_is_named(labkit):
    (labkit / "labkit/conf/__init__.py").write_text("import nothing_of_that_name\n")
    broken = typed(labkit, "sweep", "exp=digits_bits", "--dry-run")
    assert broken.returncode == 2
    assert broken.stderr.startswith("error: entry point labkit.conf: No module named 'nothing_of_that_name'")
