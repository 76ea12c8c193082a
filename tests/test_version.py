"""The version is written in pyproject.toml, and all other files agree with it."""

import tomllib
from importlib.metadata import version as installed_version
from pathlib import Path

import yaml
from packaging.requirements import Requirement

import cpdrun

ROOT = Path(__file__).parents[1]


def read_project(path: str) -> dict:
    return tomllib.loads((ROOT / path).read_text())["project"]


def test_all_files_have_the_version_of_pyproject():
    project = read_project("pyproject.toml")
    version = project["version"]
    assert read_project("kernels/pyproject.toml")["version"] == version
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"] == version
    headings = [line for line in (ROOT / "CHANGELOG.md").read_text().splitlines() if line.startswith("## ")]
    assert headings[0].split()[1] == version


def test_cpdrun_requires_custom_fp_of_its_own_version():
    project = read_project("pyproject.toml")
    (custom_fp,) = (item for item in map(Requirement, project["dependencies"]) if item.name == "custom-fp")
    major, minor, _ = map(int, project["version"].split("."))
    assert custom_fp.specifier.contains(project["version"])
    assert not custom_fp.specifier.contains(f"{major}.{minor + 1}.0")
    assert not custom_fp.specifier.contains(f"{major}.{minor - 1}.0")


def test_version_of_the_package_is_that_of_the_installed_distribution():
    assert cpdrun.__version__ == installed_version("cpdrun")
