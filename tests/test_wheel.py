"""What `make wheel` makes, installed where there is no compiler: the kernels are there, and a sweep answers."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    into = tmp_path_factory.mktemp("dist")
    made = subprocess.run(
        [sys.executable, ROOT / "scripts/wheel.py", into],
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert made.returncode == 0, made.stderr[-2000:]
    return Path(made.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def bare(wheel, tmp_path_factory) -> dict[str, str]:
    """The environment of a shell with nothing on its path but a new Python that has the wheel in it.

    What cpdrun depends on is not installed anew (5 GB) but found in the environment of the tests, behind it.
    """
    home = tmp_path_factory.mktemp("bare")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", home / "venv"], check=True)
    libraries = next((home / "venv/lib").glob("python*/site-packages"))
    subprocess.run(
        [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", libraries, wheel],
        check=True,
    )
    (home / "venv/bin/cpdrun").write_text(
        f"#!{home}/venv/bin/python\nimport sys\nfrom cpdrun.cli import main\nsys.exit(main())\n"
    )
    (home / "venv/bin/cpdrun").chmod(0o755)
    (libraries / "behind.pth").write_text(
        "\n".join(path for path in sys.path if path.endswith("site-packages"))
    )
    kept = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "CC", "CXX")}
    return kept | {"PATH": str(home / "venv/bin"), "HOME": str(home)}


def type_in(bare: dict[str, str], folder: Path, *words: str) -> str:
    program = Path(bare["PATH"]) / words[0]
    done = subprocess.run(
        [program, *words[1:]], cwd=folder, env=bare, capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_wheel_runs_on_other_machines_and_has_what_it_needs(wheel):
    assert "manylinux" in wheel.name
    assert ("-cp312-abi3-" in wheel.name) == (sys.version_info >= (3, 12))
    names = zipfile.ZipFile(wheel).namelist()
    for needed in (
        "cpdrun/py.typed",
        "custom_fp/py.typed",
        "custom_fp/__init__.pyi",
        "cpdrun/conf/config.yaml",
        "custom_fp/csrc/custom_fp.cu",
        "cpdrun/predict/fitted.json",
        "cpdrun/report/page/page.js",
    ):
        assert needed in names
    assert not [name for name in names if name.startswith(("tests/", "results/", "scripts/"))]


def test_the_kernels_are_those_of_the_wheel(bare, tmp_path):
    code = "import custom_fp, custom_fp._native as n; print(custom_fp.backend(), n.__file__)"
    backend, file = type_in(bare, tmp_path, "python", "-c", code).split()
    assert backend == "native" and file.startswith(bare["HOME"])


def test_a_sweep_and_its_report_without_a_compiler(bare, tmp_path):
    type_in(
        bare,
        tmp_path,
        "cpdrun",
        "sweep",
        "exp=digits_bits",
        "format=fp32,e4m3",
        "aps=true",
        "seed=0",
        "epochs=2",
    )
    assert "e4m3" in type_in(bare, tmp_path, "cpdrun", "report")
    assert (tmp_path / "results/digits_bits/report/report.html").exists()


def test_from_source_without_a_compiler_the_reference_is_installed(tmp_path):
    words = (
        f"--no-deps --no-build-isolation --wheel-dir {tmp_path} --config-settings build-dir={tmp_path}/build"
    )
    made = subprocess.run(
        [sys.executable, "-m", "pip", "wheel", ROOT, *words.split()],
        env=os.environ | {"CXX": "/no/compiler"},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert made.returncode == 0, made.stderr[-2000:]
    (pure,) = tmp_path.glob("cpdrun-*-py3-none-any.whl")
    assert not [name for name in zipfile.ZipFile(pure).namelist() if name.endswith(".so")]
