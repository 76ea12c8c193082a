"""Run directories of strangers, and odd ones of our own: nothing they name is run, one odd run takes no other down."""

import sys

import pytest

from cpdrun.record import write_json
from cpdrun.study import collect, formats

pytestmark = pytest.mark.usefixtures("no_pictures")

EVIL = "open('ran', 'w').close()\nraise SystemExit(3)\n"
BOMB = "format: fp32\na0: &a0 [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 10)
)


def pair(sweep, format="e4m3", **options):
    for seed in range(2):
        sweep.add(seed=seed, accuracy=0.98 + 0.001 * seed)
        sweep.add(format, seed=seed, accuracy=0.98, **options)


def test_nothing_that_a_record_names_is_imported(new_sweep, report, tmp_path, monkeypatch):
    (tmp_path / "evil.py").write_text(EVIL, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    before = list(sys.path)
    sweep = new_sweep()
    pair(sweep, "evil.F")
    made = report(sweep)
    assert not (tmp_path / "ran").exists() and "evil" not in sys.modules and sys.path == before
    row = made.table.set_index("format").loc["evil.F"]
    assert row["n"] == 2 and row.isna()["bits"]
    assert "evil.F (unknown format)" in made.sentences[0]


def test_bits_of_a_format_of_ones_own_come_from_the_record(new_sweep, report):
    sweep = new_sweep()
    pair(sweep, "mine.SEVEN")
    for run in sweep.dir.runs():
        if "mine" in run.config.read_text(encoding="utf-8"):
            write_json(run.format_facts, {"name": "mine.SEVEN", "bits": 7, "exponent_bits": None})
    made = report(sweep)
    assert made.table.set_index("format").loc["mine.SEVEN", "bits"] == 7
    assert "mine.SEVEN (7 bits)" in made.sentences[0]


@pytest.mark.parametrize(
    "facts",
    [
        {"name": "other.NAME", "bits": 7},
        {"name": "mine.F", "bits": "7"},
        {"name": "mine.F", "bits": -1},
        None,
    ],
)
def test_facts_that_cannot_be_are_passed_over(facts):
    assert formats.bits(formats.Recorded.of("mine.F", facts)) is None


def test_a_format_of_ones_own_can_be_fp32():
    facts = {"name": "mine.SINGLE", "bits": 32, "exponent_bits": 8}
    assert formats.is_baseline(formats.Recorded.of("mine.SINGLE", facts))
    assert not formats.is_baseline(formats.Recorded.of("mine.F", {**facts, "name": "mine.F", "bits": 31}))


def folder_in_its_place(path):
    path.unlink(missing_ok=True)
    path.mkdir()


SPOILT = {
    "a folder for done.json": lambda run: folder_in_its_place(run.done),
    "a folder for config.yaml": lambda run: folder_in_its_place(run.config),
    "metrics alone": lambda run: run.done.write_text('{"metrics": {}}'),
    "an alias of itself": lambda run: run.config.write_text("format: fp32\na: &a\n  b: *a\n"),
    "aliases of aliases": lambda run: run.config.write_text(BOMB),
    "deep yaml": lambda run: run.config.write_text("format: " + "[" * 200_000),
    "deep dashes": lambda run: run.config.write_text("format:\n" + "- " * 100_000 + "x\n"),
    "deep JSON": lambda run: run.done.write_text('{"status": "finished", "metrics": ' + "[" * 100_000),
    "a config of 2 MB": lambda run: run.config.write_text("format: fp32\nx: " + "y" * 2_000_000),
    "no text at all": lambda run: run.config.write_bytes(b"\xff\xfe\x00\xd8"),
}


@pytest.mark.parametrize("what", SPOILT)
def test_an_odd_run_gets_its_line_and_the_others_their_table(new_sweep, report, what):
    sweep = new_sweep()
    pair(sweep)
    SPOILT[what](sweep.add(seed=7, name="odd-one"))
    made = report(sweep, formats=["csv", "html"])
    assert made.printed.count("its record cannot be read: odd-one") == 1
    assert set(made.table["n"]) == {2}


def test_a_run_without_the_right_to_read_gets_its_line(new_sweep, report, monkeypatch):
    sweep = new_sweep()
    pair(sweep)
    sweep.add(seed=7, name="not-mine")

    def refuse(run, real=collect.state_of):
        if run.name == "not-mine":
            raise PermissionError(13, "Permission denied", str(run.done))
        return real(run)

    monkeypatch.setattr("cpdrun.study.collect.state_of", refuse)
    made = report(sweep)
    assert "cannot be read: not-mine (done.json: [Errno 13] Permission denied" in made.printed
    assert "4 of 5 runs are finished (1 unreadable)" in made.printed


@pytest.mark.parametrize("spoil", ["metrics", "env", "format_facts"])
def test_a_folder_in_place_of_a_lesser_file_costs_nothing_else(new_sweep, report, spoil):
    sweep = new_sweep()
    pair(sweep)
    for run in sweep.dir.runs():
        folder_in_its_place(getattr(run, spoil))
    assert set(report(sweep, formats=["csv", "html"]).table["n"]) == {2}


def test_a_config_edited_by_hand_is_told(new_sweep, report):
    from cpdrun.config.identity import identity_hash
    from cpdrun.record import read_config

    sweep = new_sweep()
    pair(sweep)
    first, second, *_ = sweep.dir.runs()
    for run, name in ((first, None), (second, "convnet-e4m3-0123456789")):
        run.path.rename(run.path.with_name(name or f"convnet-fp32-{identity_hash(read_config(run))}"))
    printed = report(sweep).printed
    assert "so it may have been edited: convnet-e4m3-0123456789" in printed and "convnet-fp32" not in printed
