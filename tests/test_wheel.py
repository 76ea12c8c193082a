"""Install custom_fp and cpdrun as users do: the wheels of `make wheel`, and the sources without a compiler."""

import os
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
pytestmark = pytest.mark.timeout(1200)  # seconds; compiling takes minutes on a busy machine


def run(*command: str | Path, env: dict[str, str] | None = None, cwd: Path | None = None) -> str:
    """Run a program that must succeed, and return its output.

    To save time, pip does not compile the modules that it installs to bytecode.
    """
    env = (os.environ if env is None else env) | {"PIP_NO_COMPILE": "1"}
    done = subprocess.run(
        command, env=env, cwd=cwd, capture_output=True, text=True, timeout=1000, check=False
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout


class Environment:
    """A virtual environment that finds the libraries of the tests, but not their cpdrun, and has no compiler.

    The libraries are not installed again (5 GB): a .pth file adds the site-packages of the tests to the path.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        run(sys.executable, "-m", "venv", "--without-pip", folder / "venv")
        self.site_packages = next((folder / "venv/lib").glob("python*/site-packages"))
        libraries = [path for path in sys.path if path.endswith("site-packages")]
        (self.site_packages / "libraries.pth").write_text("\n".join(libraries))
        removed = ("PYTHONPATH", "CC", "CXX", "CPDRUN_MODULE_RUNNER")
        env = {key: value for key, value in os.environ.items() if key not in removed}
        self.variables = env | {
            "PATH": str(folder / "venv/bin"),
            "HOME": str(folder),
            "PYTHONWARNINGS": "ignore",
        }

    def python(self, *arguments: str) -> str:
        """Run Python in the folder, with no other program on the PATH."""
        return run(self.folder / "venv/bin/python", *arguments, env=self.variables, cwd=self.folder)

    def backend(self) -> tuple[str, str]:
        """Return the backend of custom_fp, and the file that it is imported from."""
        backend, file = self.python("-c", "import custom_fp as c; print(c.backend(), c.__file__)").split()
        return backend, file


@pytest.fixture(scope="module")
def wheels(tmp_path_factory) -> list[Path]:
    """The wheels of custom_fp and cpdrun."""
    built = run(sys.executable, ROOT / "scripts/wheel.py", tmp_path_factory.mktemp("dist"))
    return [Path(line) for line in built.splitlines()]


@pytest.fixture(scope="module")
def without_compiler(tmp_path_factory) -> dict[str, str]:
    """The variables of builds without isolation, in which CMake finds no C++ compiler."""
    tools = tmp_path_factory.mktemp("tools")
    requirements = tomllib.loads((ROOT / "kernels/pyproject.toml").read_text())["build-system"]["requires"]
    run(sys.executable, "-m", "pip", "install", "--quiet", "--target", tools, *requirements, "cmake", "ninja")
    path = f"{tools / 'bin'}:{os.environ['PATH']}"
    return os.environ | {"CXX": "/no/compiler", "PYTHONPATH": str(tools), "PATH": path}


def test_wheels_have_portable_tags_and_package_data(wheels):
    compiled, pure = wheels
    assert "manylinux" in compiled.name and pure.name.endswith("-py3-none-any.whl")
    assert ("-cp312-abi3-" in compiled.name) == (sys.version_info >= (3, 12))
    names = {name for wheel in wheels for name in zipfile.ZipFile(wheel).namelist()}
    of_cpdrun = (
        "py.typed",
        "conf/config.yaml",
        "whatif/fitted.json",
        "report/page/page.html.j2",
        "report/page/page.js",
    )
    assert {f"cpdrun/{name}" for name in (*of_cpdrun, "starter/project/waves/network.py")} <= names
    assert {f"custom_fp/{name}" for name in ("py.typed", "__init__.pyi", "csrc/custom_fp.cu")} <= names
    assert not [name for name in names if name.startswith(("tests/", "results/", "scripts/", "conf/"))]


def test_installed_wheels_sweep_and_report_with_their_own_kernels(wheels, tmp_path):
    environment = Environment(tmp_path)
    for wheel in wheels:
        zipfile.ZipFile(wheel).extractall(environment.site_packages)
    backend, file = environment.backend()
    assert backend == "native" and file.startswith(str(tmp_path))
    axes = ("format=e4m3", "aps=true", "seed=0", "epochs=1")
    environment.python("-m", "cpdrun.cli", "sweep", "exp=digits_bits", *axes)
    assert "e4m3" in environment.python("-m", "cpdrun.cli", "report")
    assert (tmp_path / "results/digits_bits/report/report.html").exists()


def test_source_without_compiler_builds_pure_wheel(without_compiler, tmp_path):
    options = (
        f"--no-build-isolation --no-deps --wheel-dir {tmp_path} --config-settings build-dir={tmp_path}/build"
    )
    run(sys.executable, "-m", "pip", "wheel", ROOT / "kernels", *options.split(), env=without_compiler)
    (pure,) = tmp_path.glob("custom_fp-*-py3-none-any.whl")
    assert not [name for name in zipfile.ZipFile(pure).namelist() if name.endswith(".so")]


def test_editable_install_without_compiler_uses_reference(without_compiler, tmp_path):
    environment = Environment(tmp_path)
    options = f"--no-build-isolation --no-deps --config-settings build-dir={tmp_path}/build --editable"
    pip = [sys.executable, "-m", "pip", "--python", tmp_path / "venv/bin/python", "install"]
    run(*pip, *options.split(), ROOT / "kernels", env=without_compiler)
    assert environment.backend() == ("reference", f"{ROOT}/kernels/custom_fp/__init__.py")


def test_failed_install_step_ends_with_its_name(tmp_path):
    for name in ("Makefile", "setup.py", "pyproject.toml", "constraints.txt", "kernels", "cpdrun", "conf"):
        (tmp_path / name).symlink_to(ROOT / name)
    # `make test` passes its own flags to every program that it starts, but this make is not part of it.
    env = {key: value for key, value in os.environ.items() if key not in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL")}
    make = ["make", "PYTHON=false", "demo"]
    done = subprocess.run(
        make, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode
    error = "error: this step failed: Step 1 of 3: create .venv with false (3.11 or newer is needed). "
    assert done.stderr.startswith(f"{error}See the messages above.\n"), done.stderr  # there is no log yet
