"""Records that no version of ours writes: a report on what can be read, or one clear line, never a traceback."""

import random

import pytest

from cpdrun.report import ReportError

ODD = [
    None,
    True,
    0,
    -3,
    2.5,
    float("nan"),
    float("inf"),
    "",
    "e4m3",
    "x" * 300,
    [1, 2],
    {"a": 1},
    {},
    "\x00x",
    "\u202e",
]
LAYERS = [None, {}, {"a": None}, {"a": {}}, {"a": {"exponent_min": -3, "exponent_max": 2, "underflow": 0.1}}]
CUT = [
    "[]",
    "3",
    "{}",
    '{"metrics": []}',
    '{"metrics": {"test_accuracy": "x"}, "wire": 3, "memory": [1]}',
    '{"sta',
]


def fill(sweep, draw: random.Random) -> None:
    for _ in range(draw.randrange(1, 12)):
        keys = ("world_size", "seed", "model", "optim", "aps", "extra", "case", "sync", "full_precision")
        config = {key: draw.choice(ODD) for key in keys if draw.random() < 0.25}
        if draw.random() < 0.3:
            config["sync"] = {"order": draw.choice(["tree", "rank", *ODD])}
        about = ("test_samples", "num_classes", "longest_chain")
        done = {key: draw.choice([10, 360, *ODD]) for key in about if draw.random() < 0.5}
        epochs = range(draw.randrange(4))
        run = sweep.add(
            draw.choice(["fp32", "e4m3", "e3m0", *ODD]),
            accuracy=draw.choice([0.9, 0.91, 0.1, *ODD]),
            wire_bytes=draw.choice([None, 0, 10, 100, -4]),
            status=draw.choice(["finished", "diverged", None]),
            rows=[
                {"epoch": i, "test_accuracy": draw.choice([0.1, *ODD]), "layers": draw.choice(LAYERS)}
                for i in epochs
            ],
            env=draw.choice([None, {"a": draw.choice(ODD)}, {"packages": {"torch": draw.choice(ODD)}}]),
            done=done,
            **config,
        )
        if draw.random() < 0.1:
            run.done.write_text(draw.choice(CUT), encoding="utf-8")
        if draw.random() < 0.05:
            run.config.write_text(draw.choice(["", "[]", "format: fp32", "a: [1"]), encoding="utf-8")


@pytest.mark.filterwarnings("error::UserWarning")
@pytest.mark.parametrize("seed", range(8))
def test_garbage(new_sweep, report, seed):
    sweep = new_sweep()
    fill(sweep, random.Random(seed))
    try:
        made = report(sweep, formats=["md", "csv", "tex", "html", "svg"], rows=["format"])
    except ReportError as error:
        assert "\n" not in str(error)
    else:
        assert (made.folder / "table.csv").exists() and made.sentences
