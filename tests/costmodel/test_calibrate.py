"""Calibration on this machine, and the agreement of the model with the exchange that it describes."""

import itertools
import math
import sys

import pytest
import torch
import torch.distributed as dist

from cpdrun.comm.sums import exchange as comm_exchange
from cpdrun.comm.wire.message_layout import Layout
from cpdrun.costmodel import (
    Codec,
    Network,
    Setup,
    collectives,
    measure,
    read_calibration,
    speedup,
    step,
    step_cost,
)
from cpdrun.costmodel.measure import measure_codec
from cpdrun.launch.base import LaunchError
from cpdrun.launch.machine import calibration
from cpdrun.launch.machine.calibration import calibrate
from cpdrun.record import write_json
from cpdrun.sweep import plan


def test_the_model_has_the_segments_and_buckets_of_the_exchange():
    assert collectives.SEGMENT_VALUES == comm_exchange.SEGMENT_VALUES
    assert collectives.LAG == comm_exchange.LAG
    assert dist._DEFAULT_FIRST_BUCKET_BYTES == step.DDP_FIRST_BUCKET_BYTES


def test_the_model_sends_the_bytes_that_the_exchange_sends():
    """The wire sends one byte per second, and nothing else takes time."""
    numels, wire = (5_000_000, 64, 10), Network(0.0, 1.0)
    for workers, bits in itertools.product((2, 3, 8), (3, 4, 8, 32)):
        sent = Layout(numels, bits, workers, comm_exchange.SEGMENT_VALUES).sent_bytes()
        model_s = collectives.direct_s(sum(numels), workers, Codec(bits, 0.0, 0.0, 0.0, 0.0), wire)
        assert model_s == pytest.approx(sent, rel=1e-4)  # the layout fills up blocks of 8 values


def plan_config(*typed):
    return plan(["name=x", "format=fp32", "device=cpu", "model.width=4", *typed]).runs[0].config


@pytest.fixture
def config():
    return plan_config()


@pytest.fixture
def method_configs():
    chosen = {"top-k": "compressor=top_k", "sign": "compressor=sign"}
    found = {key: plan_config("world_size=4", "sync=compressed", word) for key, word in chosen.items()}
    return found | {"factors": plan_config("world_size=4", "sync=power_sgd")}


def test_two_ranks_calibrate_the_model(config, method_configs, tmp_path):
    path = tmp_path / "sweep" / "calibration.json"
    methods = {"sign": method_configs["sign"]}
    calibrate(config, path, nproc=2, formats=["fp32", "e4m3"], methods=methods, repeats=2)
    found = read_calibration(path)
    assert found.about["ranks"] == 2 and found.about["model"] == config["model"]
    assert found.workload.values == sum(found.workload.numels) > 1000 and found.workload.compute_s > 0
    assert {name: codec.bits for name, codec in found.codecs.items()} == {"fp32": 32, "e4m3": 8}
    for codec in found.codecs.values():
        assert 1e-12 < codec.pack_s < 1e-6 and 1e-12 < codec.unpack_s < 1e-6 and codec.largest_s > 0
    assert found.compressors["sign"].pack_s > 0
    assert found.network.latency_s >= 0 and found.network.message_s > 0
    assert 1e6 < found.network.bandwidth_bytes_per_s < 1e12
    setup = Setup(16, found.workload, found.codecs["e4m3"], found.network, aps=True)
    assert math.isfinite(step_cost(setup).total_s) and 0 < speedup(setup) <= 16


def test_compressors_and_scaled_formats_are_measured(method_configs):
    found = {
        key: Codec(**values) for key, values in measure.measure_compressors(method_configs, repeats=1).items()
    }
    assert list(found) == list(method_configs) and all(codec.pack_s > 0 for codec in found.values())
    assert found["top-k"].unpack_s > 0 and found["factors"].unpack_s == 0
    assert 1 <= found["sign"].bits < 2  # and a magnitude a layer
    scaled = Codec(**measure_codec("int2_affine_b128", torch.device("cpu"), repeats=1))
    assert scaled.bits == 2.3125 and min(scaled.pack_s, scaled.add_s, scaled.unpack_s) > 0


def test_a_failed_rank_is_one_line(config, tmp_path):
    config["model"] = {"_target_": "cpdrun.models.convnet.Missing"}
    with pytest.raises(LaunchError, match=r"rank 0 failed: .*Missing"):
        calibrate(config, tmp_path / "calibration.json", formats=["fp32"], repeats=1)
    assert not (tmp_path / "calibration.json").exists()


def test_a_rank_that_does_not_end_is_stopped(monkeypatch, tmp_path):
    monkeypatch.setattr(calibration, "LIMIT_S", 0.5)
    sleep = [sys.executable, "-c", "import os, time; time.sleep(3600 * int(os.environ['RANK']))"]
    with pytest.raises(LaunchError, match=r"rank 1 did not end within 0.5 s"):
        calibration._run_ranks(sleep, 2, 1, tmp_path)


def test_a_rank_whose_peer_does_not_join_is_an_error(config, tmp_path):
    given, out = tmp_path / "config.json", tmp_path / "out.json"
    write_json(given, config | {"patience_s": 2})
    rank_0_alone = (
        "import os, sys, time; time.sleep(3600) if os.environ['RANK'] == '1' else None; "
        "from cpdrun.costmodel.measure import main; sys.exit(main(sys.argv[1:]))"
    )
    with pytest.raises(LaunchError, match=r"rank 0 failed: .*1/2 clients joined"):
        calibration._run_ranks([sys.executable, "-c", rank_0_alone, str(given), str(out)], 2, 1, tmp_path)


def test_an_unknown_format_starts_nothing(config, tmp_path):
    with pytest.raises(LaunchError, match="e9m1"):
        calibrate(config, tmp_path / "calibration.json", formats=["e9m1"])
