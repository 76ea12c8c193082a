"""Test scripts/gpu_check.sh with a fake Python: that it reports steps that fail or hang, and that it ends."""

import ast
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FAKE = """#!/bin/bash
case "$*" in
    *get_device_name*\\"torch\\"*custom_fp*) echo "AssertionError: backend | native" >&2; exit 3 ;;
    *get_device_name*) echo "A fake torch 0" ;;
    *pytest*) sleep 600 ;;
    *) echo "ran $*" ;;
esac
"""


@pytest.fixture
def checkout(tmp_path):
    for folder in ("scripts", "tests", "results/reference/numerics"):
        (tmp_path / folder).mkdir(parents=True)
    shutil.copy(ROOT / "scripts/gpu_check.sh", tmp_path / "scripts")
    (tmp_path / "tests/test_one.py").write_text("import pytest\n\npytestmark = pytest.mark.gpu\n")
    (tmp_path / "python").write_text(FAKE)
    (tmp_path / "python").chmod(0o755)
    return tmp_path


def check(checkout, python, total_s):
    return subprocess.run(
        [checkout / "scripts/gpu_check.sh"],
        env={
            "PATH": "/usr/bin:/bin",
            "PYTHON": str(python),
            "TOTAL_S": str(total_s),
            "CUDA_VISIBLE_DEVICES": "",
        },
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_steps_that_fail_or_hang_are_reported_and_the_others_run(checkout):
    ended = check(checkout, checkout / "python", 8)
    assert ended.returncode == 1
    table = (checkout / "results/reference/numerics/gpu_check.md").read_text()
    assert ended.stdout.endswith(table) and "A fake torch 0" in table
    rows = dict(line.split(" | ")[:2] for line in table.splitlines() if line.startswith("| "))
    assert rows["| device"] == "FAILED (exit 3): AssertionError: backend / native"
    assert rows["| tests"].startswith("FAILED: not done after ")
    assert [rows[f"| {name}"] for name in ("install", "compile all kernels", "benchmark, GPU")] == ["ok"] * 3
    committed = (ROOT / "results/reference/numerics/gpu_check.md").read_text()
    assert [row for row in rows if row[2:] in committed] == list(rows)


def test_without_a_gpu_it_starts_nothing(checkout):
    ended = check(checkout, sys.executable, 600)
    assert ended.returncode == 2 and not ended.stdout
    assert ended.stderr.startswith("error: no GPU that ") and ended.stderr.count("\n") == 1
    assert not list((checkout / "results/reference/numerics").iterdir())


def test_its_imports_from_custom_fp_exist():
    """Its Python code needs a GPU, so the names are looked up in the sources."""
    programs = re.findall(r" -c '([^']*)'", (ROOT / "scripts/gpu_check.sh").read_text())
    nodes = [node for program in programs for node in ast.walk(ast.parse(program))]
    imports = [n for n in nodes if isinstance(n, ast.ImportFrom) and n.module == "custom_fp"]
    modules = {alias.name: ROOT / f"kernels/custom_fp/{alias.name}.py" for n in imports for alias in n.names}
    assert modules, "the step that compiles all kernels uses modules of custom_fp"
    for node in nodes:
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in modules:
            source = modules[node.value.id].read_text(encoding="utf-8")
            assert re.search(rf"^(def )?{node.attr}\b", source, re.MULTILINE), f"{node.value.id}.{node.attr}"
