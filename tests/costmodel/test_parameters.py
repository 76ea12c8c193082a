"""Networks by name, and calibrations from disk."""

import json
from pathlib import Path

import pytest

from cpdrun.costmodel import (
    Calibration,
    CalibrationError,
    Codec,
    Network,
    Workload,
    network,
    network_names,
    read_calibration,
)

CALIBRATION = Calibration(
    {"model": {"_target_": "a.B"}, "ranks": 2},
    Workload((10, 20), 0.1, 0.2, 0.05),
    {"e4m3": Codec(8, 1e-9, 2e-9, 3e-9, 4e-9, 5e-10)},
    Network(1e-4, 1e8, 1e-5, 2e5),
)


def test_every_named_network_has_the_rate_of_its_name():
    assert network_names() == ["100mbit", "1gbit", "10gbit", "100gbit", "400gbit"]
    bits_per_s = {"mbit": 1e6, "gbit": 1e9}
    for name in network_names():
        nominal = float(name[:-4]) * bits_per_s[name[-4:]]
        assert 0.9 * nominal < 8 * network(name).bandwidth_bytes_per_s < nominal
    assert network("400gbit").latency_s <= network("100gbit").latency_s


def test_a_network_may_be_a_yaml_file(tmp_path):
    path = tmp_path / "lab.yaml"
    path.write_text("latency_s: 1.0e-3\nbandwidth_bytes_per_s: 5.0e+6\n")
    assert network(str(path)) == Network(1e-3, 5e6)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("latency_s: 1e-3\nbandwidth_bytes_per_s: 5.0e+6\n", "latency_s='1e-3' is not a number"),
        ("latency_s: 1.0e-3\n", "bandwidth_bytes_per_s"),
        ("latency_s: 1.0e-3\nbandwidth_bytes_per_s: 5\nspeed: 3\n", "speed"),
    ],
)
def test_a_network_with_a_mistake_names_it(tmp_path, text, message):
    path = tmp_path / "lab.yaml"
    path.write_text(text)
    with pytest.raises(CalibrationError, match=message):
        network(str(path))


def test_an_unknown_network_lists_the_known_ones():
    with pytest.raises(CalibrationError, match="choose 100mbit, 1gbit, 10gbit, 100gbit"):
        network("2gbit")


def test_a_calibration_survives_the_disk(tmp_path):
    path = tmp_path / "calibration.json"
    assert read_calibration(path) is None
    path.write_text(json.dumps(CALIBRATION.as_json()))
    assert read_calibration(path) == CALIBRATION


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"workload": 3}', '{"about": {}, "workload": {}}'])
def test_a_malformed_calibration_is_refused(tmp_path, text):
    path = Path(tmp_path / "calibration.json")
    path.write_text(text)
    with pytest.raises(CalibrationError, match=r"calibration\.json"):
        read_calibration(path)
