"""Model parallelism: examples by hand, laws that always hold, and the case of 96 GPUs."""

import math
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from cpdrun.costmodel import Codec, Network, ring_s

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "scripts" / "research" / "speedup"))
try:
    from alexnet_96gpu import ASSUMPTIONS, COMMAND, CaseError, main, page, read_case
    from model_parallel import (
        SCHEMES,
        Cluster,
        Model,
        exchange_s,
        exchange_to_compute,
        speedup,
        split_layers_s,
    )
finally:
    sys.path.remove(str(ROOT / "scripts" / "research" / "speedup"))

LINK = Network(latency_s=1e-3, bandwidth_bytes_per_s=1e8)
FAST = Network(latency_s=0.0, bandwidth_bytes_per_s=1e9)
MODEL = Model(compute_s=0.1, samples=8, convolution_values=400_000, widths=(1000, 500, 10))


def free(bits: int) -> Codec:
    return Codec(bits, 0.0, 0.0, 0.0, 0.0)


@pytest.fixture
def case():
    return read_case(ASSUMPTIONS.read_text(encoding="utf-8"))


def test_split_layers_by_hand():
    """N = 4, one group, 8 bits: 3 alpha + 3/4 of N B w bytes to gather each of 3 widths and to scatter two."""
    assert MODEL.connected_values == 1001 * 500 + 501 * 10
    batch = 4 * 8
    gathered, scattered = batch * (1000 + 500 + 10), batch * (1000 + 500)
    expected = 5 * 3 * 1e-3 + 0.75 * (gathered + scattered) / 1e8
    assert split_layers_s(MODEL, Cluster(4, 4, LINK, LINK), free(8)) == pytest.approx(expected)


def test_hybrid_with_one_group_is_model_parallel_and_with_groups_of_one_data_parallel():
    whole, alone = Cluster(4, 4, FAST, LINK), Cluster(4, 1, FAST, LINK)
    assert exchange_s(MODEL, whole, free(8), "hybrid") == exchange_s(MODEL, whole, free(8), "model")
    convolutions, connected = (
        ring_s(values, 4, free(8), LINK) for values in (MODEL.convolution_values, MODEL.connected_values)
    )
    assert exchange_s(MODEL, alone, free(8), "hybrid") == pytest.approx(convolutions + connected)
    flat = ring_s(MODEL.convolution_values + MODEL.connected_values, 4, free(8), LINK)
    assert exchange_s(MODEL, alone, free(8), "data") == pytest.approx(flat)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_speedups_grow_with_workers_and_with_fewer_bits(scheme):
    previous = 0.0
    for workers in (1, 2, 4, 8, 64, 1024):
        cluster = Cluster(workers, 4, FAST, LINK)
        at = {bits: speedup(MODEL, cluster, free(bits), scheme) for bits in (32, 8, 4)}
        assert 0 < at[32] <= at[8] <= at[4] <= workers
        assert at[8] <= speedup(MODEL, cluster, free(8), scheme, overlap=True) <= workers
        assert at[8] >= previous or scheme == "model"
        previous = at[8]
    assert speedup(MODEL, Cluster(1, 4, FAST, LINK), free(32), scheme) == 1.0
    nothing = Network(0.0, math.inf)
    assert speedup(MODEL, Cluster(96, 4, nothing, nothing), free(32), scheme) == pytest.approx(96)
    no_latency = Cluster(8, 4, FAST, replace(LINK, latency_s=0.0))
    whole, quarter = (exchange_s(MODEL, no_latency, free(bits), scheme) for bits in (32, 8))
    assert whole == pytest.approx(4 * quarter)


def test_the_numbers_of_the_abstract_are_consistent():
    c = exchange_to_compute(23, 96)
    assert 96 / (1 + c / 4) == pytest.approx(53.5, abs=0.1)


def test_the_case_of_96_gpus(case):
    """The numbers are those of results/reference/costmodel/alexnet_96gpu.md."""
    (model,) = {model.connected_values for model in case.models.values()}
    assert model + 2_469_696 == 61_100_840  # AlexNet of torchvision: the same layers
    found = [
        case.speedup("Titan X, cuda-convnet2", "FDR InfiniBand, 56 Gbit/s", bits, "model") for bits in (32, 8)
    ]
    assert found == pytest.approx([25, 55], rel=0.03)
    assert "Within 20% of both numbers of the abstract: Titan X, cuda-convnet2, FDR" in page(case)


def test_the_committed_page_is_up_to_date(case):
    """The committed page equals the new one, except for the line with the command."""
    committed = ROOT / "results" / "reference" / "costmodel" / "alexnet_96gpu.md"
    then, now = committed.read_text(encoding="utf-8").splitlines(), page(case).splitlines()
    assert COMMAND in now[2] and "Predicted, not measured" in then[2]
    assert then[:2] + then[3:] == now[:2] + now[3:]


def test_the_program(tmp_path, capsys):
    assert main(["--out", str(tmp_path / "new")]) == 0
    assert {file.name for file in (tmp_path / "new").iterdir()} >= {"alexnet_96gpu.md", "alexnet_96gpu.png"}
    assumptions, own = ASSUMPTIONS.read_text(encoding="utf-8"), tmp_path / "own.yaml"
    for text, code, said in (
        (assumptions.replace("workers: 96", "workers: 32"), 0, "## 32 GPUs"),
        ("samples: many", 2, "error: assumptions: KeyError('gpus')"),
        (
            assumptions.replace("workers: 96", "workers: 95"),
            2,
            "workers=95 is not a multiple of group_size=4",
        ),
    ):
        own.write_text(text, encoding="utf-8")
        assert main(["--assumptions", str(own)]) == code
        assert said in "".join(capsys.readouterr())


def test_impossible_cases_are_refused():
    with pytest.raises(ValueError, match="scheme='pipeline': choose one of data, model, hybrid"):
        exchange_s(MODEL, Cluster(2, 2, LINK, LINK), free(8), "pipeline")
    with pytest.raises(ValueError, match="workers=6 is not a multiple of group_size=4"):
        Cluster(6, 4, LINK, LINK)
    with pytest.raises(CaseError):
        read_case("[")
