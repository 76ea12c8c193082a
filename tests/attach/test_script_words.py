"""`script=` and related settings: how a plan interprets them, and which it refuses. No script is started."""

import pytest

from cpdrun.config.errors import ConfigError
from cpdrun.config.identity import run_name
from cpdrun.config.script import direction_of, words
from cpdrun.sweep import plan

LOSS = "script.metrics.val_loss=val loss ([0-9.]+)"


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("print('val loss 1.0')\n")
    (tmp_path / "pack").mkdir()
    (tmp_path / "pack" / "__init__.py").write_text("raise SystemExit('nothing may import this')\n")
    (tmp_path / "pack" / "fit.py").write_text("print(1)\n")
    return tmp_path


def only(*texts):
    (run,) = plan([*texts]).runs
    return run


def test_the_short_forms(here):
    run = only("script=train.py", "script_args=--lr 3e-4 --sizes 1,2 {seed}", LOSS, "seed=3")
    assert run.name.startswith("train-fp32-w1-s3-") and run.config["name"] == "train"
    assert words(run.config, here) == ["--lr", "3e-4", "--sizes", "1,2", "3"]
    assert run.config["script"]["metrics"] == {"val_loss": "val loss ([0-9.]+)"}
    assert plan(run.overrides).runs[0].name == run.name


def test_a_module_is_found_without_importing_its_package(here):
    assert only("script=-m pack.fit").name.startswith("fit-fp32-w1-s0-")


def test_arguments_as_flags_and_as_hydra_reads_them(here):
    texts = ["script=train.py", "script.args.lr=0.1", "script.args.deep.x=a b", "script.args.big=true"]
    texts += ["script.args.slow=false", "script.args.sizes=[1,2]"]
    flags = ["--lr", "0.1", "--deep.x", "a b", "--big", "--sizes", "1", "2"]
    assert words(only(*texts).config, here) == flags
    hydra = ["lr=0.1", "deep.x=a b", "big=true", "slow=false", "sizes=[1,2]"]
    assert words(only(*texts, "script.args_style=hydra").config, here) == hydra


def test_names_of_metrics_may_contain_slashes(here):
    texts = ["script.metric=acc/vals", "script.direction.acc/vals=max", "script.metrics.acc/vals=a ([0-9]+)"]
    script = only("script=train.py", *texts).config["script"]
    assert script["direction"] == {"acc/vals": "max"} and script["metrics"] == {"acc/vals": "a ([0-9]+)"}


def test_scaling_changes_nothing_in_fp32(here):
    sweep = plan(["script=train.py", "format=fp32,e4m3fn", "aps=true,false"])
    cells = [(run.config["format"], run.config["aps"]) for run in sweep.runs]
    assert cells == [("fp32", False), ("e4m3fn", True), ("e4m3fn", False)]
    assert sweep.describe() == "format(2) x aps(2) = 4, less 1 (fp32 with APS) -> 3 runs"


def test_an_axis_over_an_argument(here):
    runs = plan(["script=train.py", "script.args.lr=0.1,0.2", "format=fp32,e4m3"]).runs
    assert len({run.name for run in runs}) == 4


def test_only_the_config_and_the_code_of_a_script_change_the_name_of_a_run(here, monkeypatch):
    run = only("script=train.py")
    assert run_name(run.config) == run.name
    assert only("script=train.py", LOSS, "metric=val_loss", "script.csv={run_dir}/m.csv").name == run.name
    assert only("script=train.py", "script.grace_s=5", "patience_s=9", "limit_s=5").name == run.name
    assert only("script=train.py", "nproc=2").name != run.name
    assert only("script=train.py", "recipe=bf16").name.startswith("train-bf16-w1-s0-")
    (here / "other").mkdir()
    monkeypatch.chdir(here / "other")
    names = []
    for code in (
        (here / "train.py").read_text(),
        'x = """\n# text\n\n"""\nprint(x)  # why\n',
        '# A headline.\n\nx = """\n# text\n\n"""\nprint(x)\n',
        'x = """\n# other text\n\n"""\nprint(x)\n',
    ):
        (here / "other" / "train.py").write_text(code)
        names.append(only("script=train.py").name)
    assert names[0] == run.name and names[1] == names[2] and len(set(names)) == 3, "comments do not count"


def test_a_script_that_takes_a_seed_is_given_that_of_the_run(here):
    (here / "train.py").write_text(
        "import argparse\nargparse.ArgumentParser().add_argument('--seed', type=int)\n"
    )
    assert words(only("script=train.py", "seed=4").config, here) == ["--seed", "4"]
    assert words(only("script=train.py", "script_args=--seed 5").config, here) == ["--seed", "5"]
    assert words(only("script=train.py", "script.args.seed=6").config, here) == ["--seed", "6"]


def test_double_braces_are_literal(here):
    assert words(only("script=train.py", "script_args={{epoch}}-{seed}").config, here) == ["{epoch}-0"]


def test_an_experiment_of_a_script(here):
    (here / "conf" / "exp").mkdir(parents=True)
    yaml = "script: {path: train.py, metrics: {val_loss: 'loss (.*)'}}\nsweep: {format: [fp32, e4m3]}\n"
    (here / "conf" / "exp" / "mine.yaml").write_text(yaml)
    found = plan(["exp=mine"], here / "conf")
    assert [run.config["format"] for run in found.runs] == ["fp32", "e4m3"]
    assert found.directory.name == "mine"


@pytest.mark.parametrize(
    ("texts", "told"),
    [
        (["script=tarin.py"], "no such file .did you mean 'train.py'"),
        (["script=pack"], "is a folder. To run a package, type script='-m pack'"),
        (["script=-m pack.fti"], "no module 'pack.fti'"),
        (["script=-m pack"], "contains __main__.py"),
        (["script=pack.fit"], "To run a module, type script='-m pack.fit'"),
        (["script=broken.py"], "broken.py, line 1: "),
        (["script_args=--lr 1"], "script.path must be given"),
        (["script=train.py", "model=convnet"], "a script has its own model"),
        (["script=train.py", "epochs=3"], "a script has its own epochs"),
        (
            ["script=train.py", "elastic=true"],
            "must be false for a script. With --retries R, a script resumes",
        ),
        (["script=train.py", "exp=digits_bits"], "is for cpdrun's own training loop"),
        (["script=train.py", "script.metrc=x"], "did you mean 'script.metric'"),
        (["script=train.py", "script.metrics.loss=loss .*"], "must have exactly one group"),
        (["script=train.py", "script.metrics.loss=loss (.*"], "is not a valid regular expression"),
        (["script=train.py", "script.metrics.score=score (.*)"], "script.direction.score=min"),
        (["script=train.py", "script.direction.loss=up"], "must be one of min, max, share"),
        (["script=train.py", "script_args=--name 'x"], "No closing quotation"),
        (["script=train.py", "script.jsonl=log.jsonl"], "write to the same place"),
        (["script=train.py", "nproc=2", "world_size=3"], "does not divide"),
        (
            ["exp=digits_bits", "metric=test_loss"],
            "there is no script. For an experiment, type search.metric=NAME",
        ),
        (["script=train.py", "script_args=--seed {sed}"], "unknown placeholder {sed}.*did you mean 'seed'"),
        (["script=train.py", "lr=0.1,0.2"], "type script.args.lr=0.1,0.2"),
        (["script=train.py", "metric=accuracy", LOSS], "script.metric=accuracy is not among script.metrics"),
    ],
)
def test_mistakes_are_errors(here, texts, told):
    (here / "broken.py").write_text("print(\n")
    with pytest.raises(ConfigError, match=told):
        plan(texts)


DIRECTIONS = {
    **dict.fromkeys(("val_loss", "loss/val", "bits_per_byte"), "min"),
    **dict.fromkeys(("test_accuracy", "top5"), "max"),
    **dict.fromkeys(("reward", "score")),
}


@pytest.mark.parametrize(("name", "way"), DIRECTIONS.items())
def test_directions_of_common_metrics(name, way):
    assert direction_of(name, {}) == way
    assert direction_of(name, {name: "max"}) == "max"
