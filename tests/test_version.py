"""The version is written once; the citation follows it."""

import tomllib
from pathlib import Path

import yaml

import cpdrun

ROOT = Path(__file__).parents[1]


def test_the_citation_and_the_package_have_the_version_of_pyproject():
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert cpdrun.__version__ == version == citation["version"]
    assert {"title", "message", "authors", "cff-version"} <= set(citation)
