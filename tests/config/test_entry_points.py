"""Installed packages bring formats, recipes, experiments and launchers by entry points."""

import json
import os
import subprocess
import sys

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


RUNNER = """
import contextlib, io, json, sys
from cpdrun.cli import main

found = []
for words in json.loads(sys.argv[1]):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = main(words) if words != ["apply"] else 0
        except SystemExit as error:
            code = error.code
        if words == ["apply"]:
            import torch, custom_fp
            print(custom_fp.apply_recipe(torch.nn.Linear(3, 2), "labs"))
    found.append((code, out.getvalue(), err.getvalue()))
print(json.dumps(found))
"""


@pytest.fixture
def ran(tmp_path):
    """Run commands in a process that has the package installed; returns the code, the output and errors of each."""
    for name, text in FILES.items():
        (tmp_path / "site" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "site" / name).write_text(text)

    def run(*commands: str) -> list[tuple[int, str, str]]:
        paths = f"{tmp_path / 'site'}:{os.environ.get('PYTHONPATH', '')}"
        done = subprocess.run(
            [sys.executable, "-c", RUNNER, json.dumps([command.split() for command in commands])],
            cwd=tmp_path,
            env={"PATH": "/usr/bin:/bin", "PYTHONPATH": paths, "HOME": str(tmp_path), "COLUMNS": "200"},
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return run


def test_an_installed_package_brings_formats_experiments_recipes_and_launchers(ran):
    shown, slip, swept, ours, similar, recipe, applied, launcher = ran(
        "formats flat4",
        "formats flatt4",
        "sweep exp=labs device=cpu --dry-run",
        "sweep exp=digits_bits --dry-run",  # ours, not that of the package
        "sweep exp=lab --dry-run",
        "sweep exp=labs recipe=labs format=fp32 --dry-run",
        "apply",
        "sweep exp=labs --launcher labs",
    )
    assert shown[0] == 0 and "ScaledFormat" in shown[1] and "flat4" in slip[2]
    assert swept[0] == 0 and "2 runs" in swept[1], swept
    assert "39 runs" in ours[1] and "labs" in similar[2]
    assert recipe[0] == 0 and "e4m3" in applied[1]
    assert launcher[0] == 2 and "cannot import labkit.launch.Ours" in launcher[2]


def test_a_broken_package_is_named(ran, tmp_path):
    (tmp_path / "site/labkit/conf/__init__.py").write_text("import nothing_of_that_name\n")
    ((code, _, said),) = ran("sweep exp=digits_bits --dry-run")
    assert code == 2
    assert said.startswith(
        "error: the package labkit.conf of an entry point cannot be imported: No module named"
    )
