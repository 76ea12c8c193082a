"""Run directories written by others, or damaged: nothing that they name is executed, and other runs are reported."""

import random
import sys

import pytest

from cpdrun.record import write_json
from cpdrun.report import ReportError
from cpdrun.study import collect, formats
from cpdrun.study.completeness import completeness

EVIL = "open('ran', 'w').close()\nraise SystemExit(3)\n"
BOMB = "format: fp32\na0: &a0 [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 10)
)


def add_pairs(sweep, format="e4m3"):
    for seed in range(2):
        sweep.add(seed=seed, accuracy=0.98 + 0.001 * seed)
        sweep.add(format, seed=seed, accuracy=0.98)
    return sweep


def test_nothing_that_a_record_names_is_imported(new_sweep, report, tmp_path, monkeypatch):
    (tmp_path / "evil.py").write_text(EVIL, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    before = list(sys.path)
    made = report(add_pairs(new_sweep(), "evil.F"))
    assert not (tmp_path / "ran").exists() and "evil" not in sys.modules and sys.path == before
    row = made.table.set_index("format").loc["evil.F"]
    assert row["n"] == 2 and row.isna()["bits"]
    assert "evil.F (unknown format)" in made.sentences[0]


def test_the_bits_of_a_users_format_come_from_the_record(new_sweep, report):
    sweep = add_pairs(new_sweep(), "mine.SEVEN")
    for run in sweep.dir.runs():
        if "mine" in run.config.read_text(encoding="utf-8"):
            write_json(run.format_facts, {"name": "mine.SEVEN", "bits": 7, "exponent_bits": None})
    made = report(sweep)
    assert made.table.set_index("format").loc["mine.SEVEN", "bits"] == 7
    assert "mine.SEVEN (7 bits)" in made.sentences[0]
    impossible = (
        {"name": "other.NAME", "bits": 7},
        {"name": "mine.F", "bits": "7"},
        {"name": "mine.F", "bits": -1},
    )
    for facts in (*impossible, None):
        assert formats.bits(formats.Recorded.of("mine.F", facts)) is None
    single = {"name": "mine.F", "bits": 32, "exponent_bits": 8}
    assert formats.is_baseline(formats.Recorded.of("mine.F", single))
    assert not formats.is_baseline(formats.Recorded.of("mine.F", single | {"bits": 31}))


def replace_by_folder(path):
    path.unlink(missing_ok=True)
    path.mkdir()


DAMAGE = {
    "a folder for done.json": lambda run: replace_by_folder(run.done),
    "a folder for config.yaml": lambda run: replace_by_folder(run.config),
    "no config.yaml": lambda run: run.config.unlink(),
    "half of done.json": lambda run: run.done.write_text('{"status": "fin'),
    "metrics alone": lambda run: run.done.write_text('{"metrics": {}}'),
    "an alias of itself": lambda run: run.config.write_text("format: fp32\na: &a\n  b: *a\n"),
    "aliases of aliases": lambda run: run.config.write_text(BOMB),
    "deep yaml": lambda run: run.config.write_text("format: " + "[" * 200_000),
    "deep dashes": lambda run: run.config.write_text("format:\n" + "- " * 100_000 + "x\n"),
    "deep JSON": lambda run: run.done.write_text('{"status": "finished", "metrics": ' + "[" * 100_000),
    "a config of 2 MB": lambda run: run.config.write_text("format: fp32\nx: " + "y" * 2_000_000),
    "no text at all": lambda run: run.config.write_bytes(b"\xff\xfe\x00\xd8"),
}


def test_damaged_runs_are_named_and_the_others_reported(new_sweep, report, monkeypatch):
    sweep = add_pairs(new_sweep())
    for what, damage in DAMAGE.items():
        damage(sweep.add(seed=7, name=what.replace(" ", "-")))
    sweep.add(seed=7, name="not-mine")

    def refuse(run, real=collect.state_of):
        if run.name == "not-mine":
            raise PermissionError(13, "Permission denied", str(run.done))
        return real(run)

    monkeypatch.setattr("cpdrun.study.collect.state_of", refuse)
    made = report(sweep, formats=["csv", "html"])
    assert set(made.table["n"]) == {2}
    assert "its record cannot be read: " in made.printed
    found = dict(completeness(made.study, [sweep.dir]).unreadable)
    assert found.keys() == {"not-mine", *(what.replace(" ", "-") for what in DAMAGE)}
    assert found["not-mine"].startswith("done.json: [Errno 13] Permission denied")


def test_damaged_minor_files_do_not_matter(new_sweep, report):
    sweep = add_pairs(new_sweep())
    for run, name in zip(sweep.dir.runs(), ("metrics", "env", "format_facts"), strict=False):
        replace_by_folder(getattr(run, name))
    assert set(report(sweep, formats=["csv", "html"]).table["n"]) == {2}


def test_a_config_that_was_edited_is_noted(new_sweep, report):
    from cpdrun.config.identity import identity_hash
    from cpdrun.record import read_config

    sweep = add_pairs(new_sweep())
    first, second, *_ = sweep.dir.runs()
    for run, name in ((first, None), (second, "convnet-e4m3-0123456789")):
        run.path.rename(run.path.with_name(name or f"convnet-fp32-{identity_hash(read_config(run))}"))
    printed = report(sweep).printed
    assert "so it may have been edited: convnet-e4m3-0123456789" in printed and "convnet-fp32" not in printed


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
CUT = ["[]", "3", "{}", '{"metrics": []}', '{"sta']
CUT += ['{"metrics": {"test_accuracy": "x"}, "wire": 3, "memory": [1]}']


def fill_at_random(sweep, draw: random.Random) -> None:
    for _ in range(draw.randrange(1, 12)):
        keys = ("world_size", "seed", "model", "optim", "aps", "extra", "case", "sync", "full_precision")
        config = {key: draw.choice(ODD) for key in keys if draw.random() < 0.25}
        if draw.random() < 0.3:
            config["sync"] = {"order": draw.choice(["tree", "rank", *ODD])}
        about = ("test_samples", "num_classes", "longest_chain")
        rows = [
            {"epoch": i, "test_accuracy": draw.choice([0.1, *ODD]), "layers": draw.choice(LAYERS)}
            for i in range(draw.randrange(4))
        ]
        run = sweep.add(
            draw.choice(["fp32", "e4m3", "e3m0", *ODD]),
            accuracy=draw.choice([0.9, 0.91, 0.1, *ODD]),
            wire_bytes=draw.choice([None, 0, 10, 100, -4]),
            status=draw.choice(["finished", "diverged", None]),
            rows=rows,
            env=draw.choice([None, {"a": draw.choice(ODD)}, {"packages": {"torch": draw.choice(ODD)}}]),
            done={key: draw.choice([10, 360, *ODD]) for key in about if draw.random() < 0.5},
            **config,
        )
        if draw.random() < 0.1:
            run.done.write_text(draw.choice(CUT), encoding="utf-8")
        if draw.random() < 0.05:
            run.config.write_text(draw.choice(["", "[]", "format: fp32", "a: [1"]), encoding="utf-8")


@pytest.mark.filterwarnings("error::UserWarning")
@pytest.mark.parametrize("seed", range(4))
def test_random_records_give_a_report_or_one_line(new_sweep, report, pictures, seed):
    sweep = new_sweep()
    fill_at_random(sweep, random.Random(seed))
    try:
        made = report(sweep, formats=["md", "csv", "tex", "html", "svg"], rows=["format"])
    except ReportError as error:
        assert "\n" not in str(error)
    else:
        assert (made.folder / "table.csv").exists() and made.sentences
