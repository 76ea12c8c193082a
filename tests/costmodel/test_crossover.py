"""scripts/benchmarks/exchange_crossover.py on made-up times: the crossing of two lines, and the table."""

import sys
from pathlib import Path

import pytest

from cpdrun.costmodel import Codec, Network

ROOT = Path(__file__).parents[2]
VALUES, RANKS = 1_000_000, 2


@pytest.fixture
def bench(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "scripts" / "benchmarks")
    import exchange_crossover

    yield exchange_crossover
    for name in ("exchange_crossover", "slow_links", "harness"):
        sys.modules.pop(name, None)


def found(bench, rate: float, codec_s: float) -> dict:
    """Return the output of a rank whose measured times equal the predictions, so that both cross at one rate."""
    bits = {"fp32": 32, "bf16": 16, "e4m3": 8, "e2m1": 4, "top-k": 0.5}
    codecs = {
        name: {"bits": k, "add_s": codec_s, "sum_s": codec_s, "pack_s": codec_s, "unpack_s": codec_s}
        for name, k in bits.items()
    }
    link = {"latency_s": 1e-5, "bandwidth_bytes_per_s": rate, "message_s": 0.0, "burst_bytes": 0.0}
    made = {name: Codec(**codec) for name, codec in codecs.items()}
    seconds = {
        label: [bench.predicted_s(label, RANKS, VALUES, made, Network(**link))] * 3 for label in bench.METHODS
    }
    return {"network": link, "codecs": codecs, "seconds": seconds}


def test_lines_cross_where_their_ratio_is_one(bench):
    assert bench.crossing([1.0, 100.0], [4.0, 0.25]) == pytest.approx(10.0)
    assert bench.crossing([1.0, 100.0, 1e4], [0.5, 0.5, 2.0]) == pytest.approx(1000.0), "upwards too"
    assert bench.crossing([1.0, 100.0], [4.0, 2.0]) is None


def test_the_measured_crossover_is_the_predicted_one_if_the_model_is_right(bench):
    rates = [10 ** (7 + i / 10) for i in range(41)]
    by_rate = {f"{rate:.3g}": found(bench, rate, 1e-9) for rate in rates}
    lines = dict(line.removeprefix("- ").split(": ", 1) for line in bench.crossovers(RANKS, VALUES, by_rate))
    assert set(lines) == set(bench.METHODS) - {bench.REFERENCE}
    for label in ("8 bits, APS", "4 bits, APS", "top-k 1%"):
        measured, predicted = lines[label].removesuffix(".").split("; predicted, ")
        assert measured.removeprefix("measured, ").split(" below ")[0] == "faster than bf16's ring", label
        at = [float(text.split(" below ")[1].removesuffix(" Gbit/s")) for text in (measured, predicted)]
        assert at[0] == pytest.approx(at[1], rel=0.06), label
    assert "above" in lines["fp32 ring"], "which converts nothing"


def test_the_table_has_a_row_for_each_link_and_method(bench):
    by_rate = {"1gbit": found(bench, 1.2e8, 0.0), "10gbit": found(bench, 1.2e9, 0.0)}
    rows = bench.table(RANKS, VALUES, by_rate).splitlines()[2:]
    assert len(rows) == 2 * len(bench.METHODS)
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]
    assert {row[-1] for row in cells} == {"+0%"}
    ring, eight = (next(row for row in cells if row[2] == label) for label in ("bf16 ring", "8 bits, APS"))
    assert float(ring[5]) == 1 and float(eight[5]) == pytest.approx(2, rel=0.02), "half of the bytes"
    assert float(ring[3]) == pytest.approx(1e3 * (2e-5 + VALUES * 2 / 1.2e8), rel=0.01)
