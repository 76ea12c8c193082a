"""The outcomes of single test examples in a record are read back, and files that do not fit are refused."""

import json
import re

import pytest

from cpdrun.record import (
    MAX_EXAMPLES,
    Ending,
    ExampleOutcomes,
    NotRegularError,
    Result,
    RunDir,
    example_outcomes,
    read_example_outcomes,
    write_example_outcomes,
)

RIGHT = [1, 0, 1, 1, 1, 0, 1, 1, 1, 0, 0]
OURS = ExampleOutcomes("test_accuracy", 11, "ab" * 32, bytes([0b10111011, 0b10000000]))
DONE = Result(Ending.FINISHED, {"test_accuracy": 7 / 11, "test_loss": 0.5})
HEADER = {"record": 1, "metric": "test_accuracy", "samples": 11, "labels_sha256": "ab" * 32}


@pytest.fixture
def run(tmp_path):
    return RunDir(tmp_path)


def written(run, content: bytes):
    run.example_outcomes.write_bytes(content)
    return read_example_outcomes(run, DONE)


def test_outcomes_are_read_back(run):
    write_example_outcomes(run, OURS)
    found = read_example_outcomes(run, DONE)
    assert found == OURS and found.mean == 7 / 11
    assert found.unpack().tolist() == RIGHT


def test_the_documented_header_is_written(run):
    write_example_outcomes(run, OURS)
    keys = re.findall(r"^    (\w+)(?: \(required\))?: ", example_outcomes.__doc__, re.MULTILINE)
    assert keys == list(json.loads(run.example_outcomes.read_bytes().partition(b"\n")[0])) == list(HEADER)


@pytest.mark.parametrize(
    ("change", "bits", "problem"),
    [
        ({}, b"\xbb", "does not contain exactly 11 bits"),
        ({}, b"\xbb\x80\x00", "does not contain exactly 11 bits"),
        ({}, b"\xbb\x81", "does not contain exactly 11 bits"),
        ({}, b"\xbb\xa0", "belongs to another result"),
        ({"samples": 12}, b"\xbb\x80", "belongs to another result"),
        ({"samples": 0}, b"", "valid metric and number of examples"),
        ({"samples": True}, b"\x80", "valid metric and number of examples"),
        ({"samples": "11"}, b"\xbb\x80", "valid metric and number of examples"),
        ({"samples": 10**9}, b"\xbb\x80", "valid metric and number of examples"),
        ({"metric": "test_loss"}, b"\xbb\x80", "belongs to another result"),
        ({"metric": "no such"}, b"\xbb\x80", "belongs to another result"),
        ({"metric": ["test_accuracy"]}, b"\xbb\x80", "valid metric and number of examples"),
        ({"labels_sha256": "ab"}, b"\xbb\x80", "does not contain the digest"),
        ({"labels_sha256": None}, b"\xbb\x80", "does not contain the digest"),
        ({"record": 2}, b"\xbb\x80", "update cpdrun"),
    ],
)
def test_a_file_that_does_not_fit_is_refused(run, change, bits, problem):
    with pytest.raises(ValueError, match=problem):
        written(run, json.dumps(HEADER | change).encode() + b"\n" + bits)


@pytest.mark.parametrize(
    "content", [b"", b"\n", b"\xbb\x80", b"[]\n\xbb\x80", b"{\n", b"[" * 1000 + b"\n", b"x" * 5000 + b"\n"]
)
def test_files_without_a_header_are_refused(run, content):
    with pytest.raises(ValueError, match="does not begin with a line of JSON"):
        written(run, content)


def test_links_pipes_and_large_files_are_refused(run, tmp_path):
    path = run.example_outcomes
    with pytest.raises(FileNotFoundError):
        read_example_outcomes(run, DONE)
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(NotRegularError):
        read_example_outcomes(run, DONE)
    path.unlink()
    with path.open("wb") as file:
        file.truncate(MAX_EXAMPLES)  # sparse: it takes no space
    with pytest.raises(NotRegularError, match="larger than"):
        read_example_outcomes(run, DONE)
