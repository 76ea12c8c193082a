"""`cpdrun predict` as it is typed: one run of the baseline, observed, and what it says of every candidate."""

import json

import jsonschema
import pytest
import yaml

from cpdrun.cli import main
from cpdrun.commands import schema
from cpdrun.record import SweepDir
from cpdrun.search.question import ask
from cpdrun.whatif.baseline_runs import find_baseline_runs, with_observation
from cpdrun.whatif.effects import NoEffectsError, compute_effects

TYPED = [
    "model.width=4",
    "world_size=4",
    "batch_size=32",
    "epochs=1",
    "format=fp32,e5m2,e4m3,e3m0",
    "aps=false,true",
    "name=small",
]


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    """A folder in which the baseline was trained by `cpdrun predict`, and what that said."""
    folder = tmp_path_factory.mktemp("predict")
    code, said = _typed("predict", *TYPED, f"results_dir={folder}", "--json", "--jobs", "1")
    assert code == 0
    document = json.loads(said)
    jsonschema.validate(document, schema("predict"), cls=jsonschema.Draft202012Validator)
    return folder, document


def _typed(*words):
    import contextlib
    import io

    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        code = main(list(words))
    return code, out.getvalue()


def test_it_trains_the_baseline_once_and_a_sweep_finds_it_done(here):
    folder, said = here
    [run] = SweepDir(folder / "small").runs()
    assert run.observed.is_file() and said["observed"] == [str(run.path)]
    assert yaml.safe_load(run.config.read_text())["observe"] == 16
    code, planned = _typed("sweep", *TYPED, "seed=0", f"results_dir={folder}", "--dry-run", "--json")
    plan = json.loads(planned)
    assert code == 0 and plan["done"] == 1 and plan["to_run"] == 7
    assert [each["name"] for each in plan["runs"] if each["state"] == "done"] == [run.name]


def test_every_candidate_has_its_effects_and_a_chance_and_they_are_ranked(here):
    _, said = here
    plain, scaled = said["chains"]
    assert (plain["chain"], scaled["chain"]) == ("without APS", "with APS")
    chances = {c["candidate"]: c for chain in said["chains"] for c in chain["candidates"]}
    assert len(chances) == 6 and said["ranking"] == sorted(
        chances, key=lambda name: said["ranking"].index(name)
    )
    assert chances["e3m0 without APS"]["underflow"] > 0.99 > chances["e3m0 with APS"]["underflow"]
    assert chances["e4m3 with APS"]["cosine"] > 0.99
    for each in chances.values():
        assert 0 <= each["low"] <= each["probability"] <= each["high"] <= 1
    first, last = said["ranking"][0], said["ranking"][-1]
    assert last == "e3m0 without APS" and chances[first]["probability"] < 0.5 < chances[last]["probability"]
    assert scaled["smallest_bits"] <= 8 and scaled["from_bits"] <= (scaled["to_bits"] or 32)
    assert said["says"][0].startswith(f"Ranking, least likely to fail first: {first}")
    assert any("no candidate of this one was trained" in line for line in said["says"])


def test_a_trained_candidate_sets_the_level(here, tmp_path):
    import shutil

    shutil.copytree(here[0], tmp_path, dirs_exist_ok=True)
    one = [word.replace("fp32,e5m2,e4m3,e3m0", "e4m3").replace("false,true", "true") for word in TYPED]
    assert _typed("sweep", *one, "seed=0", f"results_dir={tmp_path}", "--jobs", "1")[0] == 0
    before = {c["candidate"]: c for chain in here[1]["chains"] for c in chain["candidates"]}
    [baseline] = SweepDir(here[0] / "small").runs()
    found = [run.path for run in SweepDir(tmp_path / "small").runs() if run.path.name == baseline.path.name]
    of_run = ["predict", str(found[0]), "format=e5m2,e4m3,e3m0", "aps=false,true", "--json"]
    for words in (["predict", *TYPED, f"results_dir={tmp_path}", "--json"], of_run):
        code, out = _typed(*words)
        said = json.loads(out)
        assert code == 0
        jsonschema.validate(said, schema("predict"), cls=jsonschema.Draft202012Validator)
        after = {c["candidate"]: c for chain in said["chains"] for c in chain["candidates"]}
        trained = {name: c["trained"] for name, c in after.items() if c["trained"]}
        assert trained.keys() == {"e4m3 with APS"} and trained["e4m3 with APS"]["pairs"] == 1
        failed = trained["e4m3 with APS"]["failure_chance"]
        is_higher = [after[name]["probability"] > before[name]["probability"] for name in before]
        assert all(is_higher) if failed > 0.5 else not any(is_higher)
        assert any("a trained candidate sets the level" in line for line in said["says"])


def test_typed_again_it_trains_nothing_and_says_the_same_from_what_is_kept(here, monkeypatch):
    folder, said = here
    monkeypatch.setattr("cpdrun.whatif.effects._compute", lambda *_: pytest.fail("asked again"))
    code, again = _typed("predict", *TYPED, f"results_dir={folder}", "--json")
    assert code == 0 and json.loads(again) == said


def test_of_a_run_it_says_the_same_as_of_its_experiment(here):
    folder, said = here
    [run] = SweepDir(folder / "small").runs()
    code, out = _typed("predict", str(run.path), "format=e4m3,e3m0", "aps=false,true", "--json")
    assert code == 0
    of_run = {
        c["candidate"]: c["probability"] for chain in json.loads(out)["chains"] for c in chain["candidates"]
    }
    asked = {c["candidate"]: c["probability"] for chain in said["chains"] for c in chain["candidates"]}
    assert of_run == {name: asked[name] for name in of_run} and len(of_run) == 4


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ((), "name an experiment or a run"),
        (("RUN", "batch_size=3,4"), "batch_size cannot vary, because it changes the gradients"),
        (("RUN", "format=e4m33"), "format=e4m33"),
        (("RUN", "scaling=apps"), "scaling=apps: must be one of"),
        (("RUN", "aps=7"), "aps=7: must be true or false"),
        (("RUN", "sync.ordr=rank"), "unknown key 'sync.ordr'"),
        (("RUN", "--dry-run"), "need an experiment"),
        (("--law", "SWEEP", "--at", "world_size=1024"), "--law and --at were removed"),
        (("no-such-run",), "no run 'no-such-run'"),
    ],
)
def test_a_mistake_is_told_in_a_line(here, capsys, words, problem):
    folder, _ = here
    [run] = SweepDir(folder / "small").runs()
    assert main(["predict", *(str(run.path) if word == "RUN" else word for word in words)]) == 2
    assert problem in capsys.readouterr().err


def test_a_run_that_was_not_observed_is_refused_or_trained_once_more_beside_the_sweep(here, capsys):
    folder, _ = here
    question = ask([*TYPED, f"results_dir={folder}"])
    [run] = SweepDir(folder / "small").runs()
    hidden = run.observed.with_suffix(".away")
    run.observed.rename(hidden)
    try:
        [planned] = find_baseline_runs(question.directory, question.baseline_runs)
        assert planned.sweep == question.directory.prediction and not planned.is_there
        assert "trained unobserved" in planned.note and planned.run.name == run.name
        assert main(["predict", *TYPED, f"results_dir={folder}", "--dry-run"]) == 0
        assert f"{planned.folder.path} would be trained and observed" in capsys.readouterr().out
        assert main(["predict", str(run.path)]) == 2
        assert "was not observed" in capsys.readouterr().err
        with pytest.raises(NoEffectsError, match="cannot be computed"):
            run.observed.write_bytes(b"no observation")
            compute_effects(run, {"x": planned.run.config})
    finally:
        hidden.rename(run.observed)


def test_a_baseline_that_diverged_is_nothing_to_compare_with(here, capsys):
    folder, _ = here
    [run] = SweepDir(folder / "small").runs()
    kept = run.done.read_text()
    done = json.loads(kept)
    try:
        nothing = dict.fromkeys(done["metrics"])
        run.done.write_text(json.dumps(done | {"status": "diverged", "metrics": nothing}))
        for words in ([*TYPED, f"results_dir={folder}"], [str(run.path), "format=e3m0"]):
            assert main(["predict", *words, "--json"]) == 1
            said = capsys.readouterr()
            assert json.loads(said.out)["schema"] == "cpdrun.error/1"
            assert "diverged, so no format can be compared with it" in said.err
    finally:
        run.done.write_text(kept)


def test_a_config_that_cannot_be_built_leaves_the_others_their_effects(here):
    """APS of layers needs master weights. A config without them once hid the effects of all others."""
    folder, _ = here
    [run] = SweepDir(folder / "small").runs()
    good = yaml.safe_load(run.config.read_text()) | {"format": "e5m2"}
    own = {"weights": "e5m2", "aps": True, "master_weights": False}
    found = compute_effects(run, {"good": good, "bad": good | {"precision": good["precision"] | own}})
    assert found["good"]["role"]["gradient"]["all"]["cosine"] > 0.9
    assert found["bad"]["role"] == {} and "master_weights" in found["bad"]["uncovered"][0]


def test_baselines_that_differ_in_their_sums_alone_share_one_observation(tmp_path):
    typed = [
        "sync.order=rank,tree",
        "world_size=2,4",
        "format=fp32,e3m0",
        f"results_dir={tmp_path}",
        "name=x",
    ]
    question = ask(typed)
    found = find_baseline_runs(question.directory, question.baseline_runs)
    assert [len(each.serves) for each in found] == [2, 2]
    assert {each.run.config["world_size"] for each in found} == {2, 4}
    short = find_baseline_runs(question.directory, question.baseline_runs, steps=5)
    assert all(each.run.config["max_steps"] == 5 for each in short)
    assert all(each.sweep == question.directory.prediction for each in short)
    run = question.cells[found[0].serves[0]][0]
    assert with_observation(run).name == run.name and with_observation(run).config["observe"] == 16
