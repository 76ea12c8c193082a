"""A made-up sweep with methods as cases. Their bytes follow from their configs. Losses are made up."""

import random
from typing import Any

from made_up import Sweep

from cpdrun.record import write_json
from cpdrun.study.group import method_of

PARAMETERS, WORKERS = 360_000, 4
SHARE = 2 * (WORKERS - 1) / WORKERS  # values that a worker sends in an all-reduce, per value of the model
ALL_REDUCE = {"_target_": "cpdrun.comm.AllReduceSync", "order": "hierarchical"}


def compressed(**compressor):
    return {"_target_": "cpdrun.comm.sync.compressed_sync.CompressedSync", "compressor": compressor}


TOP_K = {"_target_": "cpdrun.comm.compressors.top_k.TopK", "keep": 0.01, "format": "fp32", "aps": False}
Q_SGD = {"_target_": "cpdrun.comm.compressors.qsgd.QSGD", "levels": 7, "contract": False}
CASES: dict[str, tuple[float, float, dict[str, Any]]] = {  # name: bits per parameter and step, loss, settings
    "fp32": (32, 2.0, {"sync": ALL_REDUCE}),
    "bf16": (16, 2.001, {"sync": ALL_REDUCE, "format": "bf16"}),
    "e4m3": (8, 2.004, {"sync": ALL_REDUCE, "format": "e4m3"}),
    "e3m0 with APS": (4, 2.012, {"sync": ALL_REDUCE, "format": "e3m0", "aps": True}),
    "top-k 1%": (0.01 * 64 * WORKERS / 2, 2.03, {"sync": compressed(**TOP_K)}),
    "QSGD of 4 bits": (4 * WORKERS / 2, 2.015, {"sync": compressed(**Q_SGD)}),
    "H=16": (
        2,
        2.02,
        {"sync": {"_target_": "cpdrun.comm.local.LocalSteps", "inner_steps": 16, "order": "hierarchical"}},
    ),
    "sharded": (
        (8 + 16) / 2,
        2.005,
        {
            "sync": {"_target_": "cpdrun.comm.sharded.Sharded", "gather": "bf16", "order": "rank"},
            "format": "e4m3",
        },
    ),
}


def fill_methods(sweep: Sweep, seeds: int = 8, parameters: int | None = PARAMETERS) -> Sweep:
    scatter = random.Random(0)
    for case, (bits, loss, settings) in CASES.items():
        for seed in range(seeds):
            end = loss + scatter.gauss(0, 0.001)
            rows = [
                {"epoch": e, "step": 100 * e, "test_loss": end + 0.3 * (4 - e), "train_loss": end}
                for e in (1, 2, 3, 4)
            ]
            sweep.add(
                seed=seed,
                case=case,
                world_size=WORKERS,
                rows=rows,
                metrics={"test_loss": end, "train_loss": end},
                wire_bytes=round(bits / 8 * PARAMETERS * SHARE),
                done={"judged_by": "test_loss"} | ({"parameters": parameters} if parameters else {}),
                **{"format": "fp32", "aps": False} | settings,
            )
    return sweep


def calibrate(sweep: Sweep, *, values: int = PARAMETERS, codec_s: float = 1e-9) -> None:
    """Write a calibration: 10 ms of computing, and `codec_s` seconds per value for each codec operation."""
    codec = {"pack_s": codec_s, "add_s": codec_s, "sum_s": codec_s, "unpack_s": codec_s, "largest_s": codec_s}
    bits = {"fp32": 32, "bf16": 16, "e4m3": 8, "e3m0": 4}
    messages = [
        method_of({f"sync.compressor.{k}": v for k, v in one.items()} | {"sync._target_": "x"}).compressor
        for one in (TOP_K, Q_SGD)
    ]
    work = {"forward_s": 0.004, "backward_s": 0.005, "update_s": 0.001, "check_s": 0.0}
    found = {
        "about": {"device": "cpu", "threads": 1},
        "workload": {"numels": [values - 1000, 1000], **work},
        "codecs": {name: {"bits": n} | codec for name, n in bits.items()},
        "compressors": {key: {"bits": 4} | codec for key in messages},
        "network": None,
    }
    write_json(sweep.dir.calibration, found)
