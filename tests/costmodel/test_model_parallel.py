"""Test model parallelism: examples by hand, laws that always hold, and the case of 96 GPUs."""

import math
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from cpdrun.costmodel import Codec, Network, ring_s

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "scripts" / "research" / "speedup"))
try:
    from alexnet_96gpu import ASSUMPTIONS, COMMAND, WORKERS, CaseError, main, page, read_case
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


def test_fully_connected_layers_have_these_parameters():
    assert MODEL.connected_values == 1001 * 500 + 501 * 10


def test_split_layers_by_hand():
    """N = 4, one group, 8 bits: 3 alpha + 3/4 of N B w bytes to gather each of 3 widths and to scatter two."""
    batch = 4 * 8
    gathered, scattered = batch * (1000 + 500 + 10), batch * (1000 + 500)
    expected = 5 * 3 * 1e-3 + 0.75 * (gathered + scattered) / 1e8
    assert split_layers_s(MODEL, Cluster(4, 4, LINK, LINK), free(8)) == pytest.approx(expected)


def test_groups_of_one_are_a_flat_ring():
    cluster = Cluster(6, 1, FAST, LINK)
    values = MODEL.convolution_values + MODEL.connected_values
    assert exchange_s(MODEL, cluster, free(16), "data") == pytest.approx(ring_s(values, 6, free(16), LINK))


def test_hybrid_over_one_group_is_model_parallel_and_over_groups_of_one_data_parallel():
    whole = Cluster(4, 4, FAST, LINK)
    assert exchange_s(MODEL, whole, free(8), "hybrid") == exchange_s(MODEL, whole, free(8), "model")
    alone = Cluster(4, 1, FAST, LINK)
    parts = ring_s(MODEL.convolution_values, 4, free(8), LINK) + ring_s(
        MODEL.connected_values, 4, free(8), LINK
    )
    assert exchange_s(MODEL, alone, free(8), "hybrid") == pytest.approx(parts)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_laws(scheme):
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


def test_a_quarter_of_the_bytes_is_a_quarter_of_the_time_where_latency_is_nothing():
    cluster = Cluster(8, 4, FAST, replace(LINK, latency_s=0.0))
    for scheme in SCHEMES:
        whole, quarter = (exchange_s(MODEL, cluster, free(bits), scheme) for bits in (32, 8))
        assert whole == pytest.approx(4 * quarter)


def test_the_abstract_s_numbers_agree_with_each_other():
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


def test_the_committed_page_is_today_s(case):
    """The committed page equals the new one, except for the line with the command."""
    committed = ROOT / "results" / "reference" / "costmodel" / "alexnet_96gpu.md"
    then, now = committed.read_text(encoding="utf-8").splitlines(), page(case).splitlines()
    assert COMMAND in now[2] and "Predicted, not measured" in then[2]
    assert then[:2] + then[3:] == now[:2] + now[3:]


def test_the_program(tmp_path, capsys):
    assert main(["--out", str(tmp_path / "new")]) == 0
    assert (tmp_path / "new" / "alexnet_96gpu.md").exists() and (
        tmp_path / "new" / "alexnet_96gpu.png"
    ).exists()
    own = tmp_path / "own.yaml"
    own.write_text(
        ASSUMPTIONS.read_text(encoding="utf-8").replace("workers: 96", "workers: 32"), encoding="utf-8"
    )
    assert main(["--assumptions", str(own)]) == 0
    assert "## 32 GPUs" in capsys.readouterr().out
    own.write_text("samples: many", encoding="utf-8")
    assert main(["--assumptions", str(own)]) == 2
    assert "error: assumptions: KeyError('gpus')" in capsys.readouterr().err
    own.write_text(
        ASSUMPTIONS.read_text(encoding="utf-8").replace("workers: 96", "workers: 95"), encoding="utf-8"
    )
    assert main(["--assumptions", str(own)]) == 2
    assert "workers=95 is not a multiple of group_size=4" in capsys.readouterr().err
    assert WORKERS[-1] == 1024


def test_errors():
    with pytest.raises(ValueError, match="scheme='pipeline': choose one of data, model, hybrid"):
        exchange_s(MODEL, Cluster(2, 2, LINK, LINK), free(8), "pipeline")
    with pytest.raises(ValueError, match="workers=6 is not a multiple of group_size=4"):
        Cluster(6, 4, LINK, LINK)
    with pytest.raises(CaseError):
        read_case("[")
