"""`cpdrun predict`: one observed run of the baseline gives the chance that each candidate fails."""

import contextlib
import io
import json
import shutil

import jsonschema
import pytest
import yaml

from cpdrun.cli import main
from cpdrun.commands import schema
from cpdrun.record import SweepDir
from cpdrun.search.question import ask
from cpdrun.whatif.baseline_runs import find_baseline_runs, with_observation
from cpdrun.whatif.effects import compute_effects

TYPED = ["model.width=4", "world_size=4", "batch_size=32", "epochs=1", "name=small"]
TYPED += ["format=fp32,e5m2,e4m3,e3m0", "aps=false,true"]


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    """The folder in which `cpdrun predict` trained the baseline, its document, and the run."""
    folder = tmp_path_factory.mktemp("predict")
    document = predict(*TYPED, f"results_dir={folder}", "--jobs", "1")
    [run] = SweepDir(folder / "small").runs()
    return folder, document, run


def run_command(*words):
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        code = main(list(words))
    assert code == 0
    return out.getvalue()


def predict(*words):
    document = json.loads(run_command("predict", *words, "--json"))
    jsonschema.validate(document, schema("predict"), cls=jsonschema.Draft202012Validator)
    return document


def candidates(document):
    return {c["candidate"]: c for chain in document["chains"] for c in chain["candidates"]}


def test_the_baseline_is_trained_once_and_is_done_for_a_sweep(here, monkeypatch):
    folder, said, run = here
    assert run.observed.is_file() and said["observed"] == [str(run.path)]
    assert yaml.safe_load(run.config.read_text())["observe"] == 16
    words = ["sweep", *TYPED, "seed=0", f"results_dir={folder}", "--dry-run", "--json"]
    plan = json.loads(run_command(*words))
    assert plan["done"] == 1 and plan["to_run"] == 7
    assert [each["name"] for each in plan["runs"] if each["state"] == "done"] == [run.name]
    monkeypatch.setattr("cpdrun.whatif.effects._compute", lambda *_: pytest.fail("computed again"))
    assert predict(*TYPED, f"results_dir={folder}") == said
    of_run = candidates(predict(str(run.path), "format=e4m3,e3m0", "aps=false,true"))
    asked = candidates(said)
    assert len(of_run) == 4
    assert all(of_run[name]["probability"] == asked[name]["probability"] for name in of_run)


def test_candidates_have_effects_and_chances_and_are_ranked(here):
    _, said, _ = here
    plain, scaled = said["chains"]
    assert (plain["chain"], scaled["chain"]) == ("without APS", "with APS")
    chances = candidates(said)
    assert len(chances) == 6 and set(said["ranking"]) == set(chances)
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
    folder, first, baseline = here
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    one = [*TYPED[:5], "format=e4m3", "aps=true", "seed=0", f"results_dir={tmp_path}", "--jobs", "1"]
    run_command("sweep", *one)
    before, copy = candidates(first), str(tmp_path / "small" / "runs" / baseline.name)
    for words in ([*TYPED, f"results_dir={tmp_path}"], [copy, "format=e5m2,e4m3,e3m0", "aps=false,true"]):
        said = predict(*words)
        after = candidates(said)
        trained = {name: c["trained"] for name, c in after.items() if c["trained"]}
        assert trained.keys() == {"e4m3 with APS"} and trained["e4m3 with APS"]["pairs"] == 1
        failed = trained["e4m3 with APS"]["failure_chance"]
        is_higher = [after[name]["probability"] > before[name]["probability"] for name in before]
        assert all(is_higher) if failed > 0.5 else not any(is_higher)
        assert any("a trained candidate sets the level" in line for line in said["says"])


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
def test_a_mistake_is_one_line(here, capsys, words, problem):
    _, _, run = here
    assert main(["predict", *(str(run.path) if word == "RUN" else word for word in words)]) == 2
    assert problem in capsys.readouterr().err


def test_an_unobserved_run_is_refused_or_trained_again_next_to_the_sweep(here, capsys):
    folder, _, run = here
    question = ask([*TYPED, f"results_dir={folder}"])
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
    finally:
        hidden.rename(run.observed)


def test_a_diverged_baseline_is_an_error(here, capsys):
    folder, _, run = here
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


def test_a_config_that_cannot_be_built_does_not_hide_the_effects_of_others(here):
    """APS of layers needs master weights. A config without them once hid the effects of all others."""
    _, _, run = here
    good = yaml.safe_load(run.config.read_text()) | {"format": "e5m2"}
    own = {"weights": "e5m2", "aps": True, "master_weights": False}
    found = compute_effects(run, {"good": good, "bad": good | {"precision": good["precision"] | own}})
    assert found["good"]["role"]["gradient"]["all"]["cosine"] > 0.9
    assert found["bad"]["role"] == {} and "master_weights" in found["bad"]["uncovered"][0]


def test_baselines_that_differ_only_in_their_sums_share_one_observation(tmp_path):
    words = ["sync.order=rank,tree", "world_size=2,4", "format=fp32,e3m0", "name=x"]
    question = ask([*words, f"results_dir={tmp_path}"])
    found = find_baseline_runs(question.directory, question.baseline_runs)
    assert [len(each.serves) for each in found] == [2, 2]
    assert {each.run.config["world_size"] for each in found} == {2, 4}
    short = find_baseline_runs(question.directory, question.baseline_runs, steps=5)
    assert all(each.run.config["max_steps"] == 5 for each in short)
    assert all(each.sweep == question.directory.prediction for each in short)
    run = question.cells[found[0].serves[0]][0]
    assert with_observation(run).name == run.name and with_observation(run).config["observe"] == 16
