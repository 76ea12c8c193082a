"""The packages of cpdrun. The folder conf/ is installed as the package cpdrun.conf."""

from setuptools import find_packages, setup

setup(
    packages=[*find_packages(include=["cpdrun", "cpdrun.*"]), "cpdrun.conf"],
    package_dir={"cpdrun.conf": "conf"},
)
