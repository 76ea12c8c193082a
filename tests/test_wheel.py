"""Install custom_fp and cpdrun as users do: the wheels of `make wheel`, and the sources without a compiler."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def wheels(tmp_path_factory) -> list[Path]:
    """The wheels of custom_fp and cpdrun."""
    output_dir = tmp_path_factory.mktemp("dist")
    done = subprocess.run(
        [sys.executable, ROOT / "scripts/wheel.py", output_dir],
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return [Path(line) for line in done.stdout.splitlines()]


def create_venv(folder: Path) -> dict[str, str]:
    """Create an environment that finds the libraries of the tests, but not their cpdrun, and has no compiler.

    The libraries are not installed again (5 GB): a .pth file adds the site-packages of the tests to the path.

    Returns:
        The environment variables of a shell whose PATH contains only the new environment.
    """
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "venv"], check=True)
    libraries = [path for path in sys.path if path.endswith("site-packages")]
    (site_packages(folder) / "libraries.pth").write_text("\n".join(libraries))
    removed = ("PYTHONPATH", "CC", "CXX", "CPDRUN_ENGINE_MODULE")
    env = {key: value for key, value in os.environ.items() if key not in removed}
    return env | {"PATH": str(folder / "venv/bin"), "HOME": str(folder)}


def site_packages(folder: Path) -> Path:
    return next((folder / "venv/lib").glob("python*/site-packages"))


def run(env: dict[str, str], folder: Path, program: str, *arguments: str) -> str:
    """Run a program of the environment in a folder and return its output."""
    done = subprocess.run(
        [Path(env["PATH"]) / program, *arguments],
        cwd=folder,
        env=env,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel_env(wheels, tmp_path_factory) -> dict[str, str]:
    """The environment variables of a shell in which only the wheels are installed."""
    folder = tmp_path_factory.mktemp("bare")
    env = create_venv(folder)
    subprocess.run(
        [
            sys.executable,
            "-m",
            "pip",
            "install",
            "--quiet",
            "--no-deps",
            "--target",
            site_packages(folder),
            *wheels,
        ],
        check=True,
    )
    command = folder / "venv/bin/cpdrun"
    command.write_text(
        f"#!{folder}/venv/bin/python\nimport sys\nfrom cpdrun.cli import main\nsys.exit(main())\n"
    )
    command.chmod(0o755)
    return env


def test_wheels_have_portable_tags_and_package_data(wheels):
    compiled, pure = wheels
    assert "manylinux" in compiled.name and pure.name.endswith("-py3-none-any.whl")
    assert ("-cp312-abi3-" in compiled.name) == (sys.version_info >= (3, 12))
    names = [name for wheel in wheels for name in zipfile.ZipFile(wheel).namelist()]
    for needed in (
        "cpdrun/py.typed",
        "cpdrun/conf/config.yaml",
        "cpdrun/whatif/fitted.json",
        "cpdrun/report/page/page.html.j2",
        "cpdrun/report/page/page.js",
        "cpdrun/starter/project/waves/network.py",
        "custom_fp/py.typed",
        "custom_fp/__init__.pyi",
        "custom_fp/csrc/custom_fp.cu",
    ):
        assert needed in names
    assert not [name for name in names if name.startswith(("tests/", "results/", "scripts/", "conf/"))]


def test_installed_wheel_uses_its_own_kernels(wheel_env, tmp_path):
    code = "import custom_fp, custom_fp._native as n; print(custom_fp.backend(), n.__file__)"
    backend, file = run(wheel_env, tmp_path, "python", "-c", code).split()
    assert backend == "native" and file.startswith(wheel_env["HOME"])


def test_installed_wheel_sweeps_and_reports_without_compiler(wheel_env, tmp_path):
    axes = ("format=fp32,e4m3", "aps=true", "seed=0", "epochs=2")
    run(wheel_env, tmp_path, "cpdrun", "sweep", "exp=digits_bits", *axes)
    assert "e4m3" in run(wheel_env, tmp_path, "cpdrun", "report")
    assert (tmp_path / "results/digits_bits/report/report.html").exists()


def test_source_without_compiler_builds_pure_wheel(tmp_path):
    options = f"--no-deps --wheel-dir {tmp_path} --config-settings build-dir={tmp_path}/build"
    done = subprocess.run(
        [sys.executable, "-m", "pip", "wheel", ROOT / "kernels", *options.split()],
        env=os.environ | {"CXX": "/no/compiler"},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    (pure,) = tmp_path.glob("custom_fp-*-py3-none-any.whl")
    assert not [name for name in zipfile.ZipFile(pure).namelist() if name.endswith(".so")]


def test_editable_install_without_compiler_uses_reference(tmp_path):
    env = create_venv(tmp_path)
    pip = [sys.executable, "-m", "pip", "--python", tmp_path / "venv/bin/python", "install", "--no-deps"]
    done = subprocess.run(
        [*pip, "--config-settings", f"build-dir={tmp_path}/build", "--editable", ROOT / "kernels"],
        env=os.environ | {"CXX": "/no/compiler"},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    code = "import custom_fp; print(custom_fp.backend(), custom_fp.__file__)"
    backend, file = run(env | {"PYTHONWARNINGS": "ignore"}, tmp_path, "python", "-c", code).split()
    assert (backend, file) == ("reference", f"{ROOT}/kernels/custom_fp/__init__.py")


def test_failed_install_step_ends_with_its_name(tmp_path):
    for name in ("Makefile", "setup.py", "pyproject.toml", "constraints.txt", "kernels", "cpdrun", "conf"):
        (tmp_path / name).symlink_to(ROOT / name)
    make = ["make", "PYTHON=false", "demo"]
    # `make test` hands its own flags to every program below it, and this make is not a part of it.
    env = {key: value for key, value in os.environ.items() if key not in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL")}
    done = subprocess.run(
        make, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode
    error = "error: this step failed: Step 1 of 3: create .venv with false (3.11 or newer is needed). "
    assert done.stderr.startswith(f"{error}See the messages above.\n"), done.stderr  # there is no log yet
