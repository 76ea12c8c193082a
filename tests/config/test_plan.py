import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
import yaml

from cpdrun.config.errors import ConfigError
from cpdrun.sweep import listed, plan, write_manifest, write_question


def test_the_grid_of_an_experiment():
    digits = plan(["exp=digits_bits"])
    assert digits.describe() == "format(7) x aps(2) x seed(3) = 42, less 3 (fp32 with APS) -> 39 runs"
    assert len({run.name for run in digits.runs}) == 39
    assert digits.directory.path.as_posix() == "results/digits_bits"
    assert not any(run.config["format"] == "fp32" and run.config["aps"] for run in digits.runs)
    assert (
        len(plan(["exp=digits_bits", "format=e8m23", "seed=0"]).runs) == 1
    )  # excluded by any name of the format


def test_typed_keys_replace_axes_and_add_them():
    one = plan(["exp=digits_bits", "format=e4m3", "aps=true", "seed=5"])
    assert [(r.config["format"], r.config["aps"], r.config["seed"]) for r in one.runs] == [("e4m3", True, 5)]
    assert one.describe() == "1 run"
    wider = plan(["exp=digits_bits", "seed=0", "aps=false", "world_size=2,4", "model=convnet,resnet_cifar"])
    assert list(wider.axes) == ["format", "world_size", "model"]
    assert len(wider.runs) == 7 * 2 * 2
    assert {run.config["model"]["_target_"].rsplit(".")[-1] for run in wider.runs} == {
        "ConvNet",
        "ResNetCifar",
    }


def test_a_sweep_without_an_experiment_plans_runs_of_the_same_config_once():
    sweep = plan(["format=fp32,e8m23,e4m3", "nproc=1,2", "results_dir=/tmp/x"])
    assert len(sweep.runs) == 2 and sweep.duplicates == 4
    assert sweep.directory.path.as_posix() == "/tmp/x/adhoc"


def test_the_overrides_of_a_run_reproduce_the_run():
    run = plan(["exp=digits_bits", "model.width=8", "seed=1,2"]).runs[-1]
    (again,) = plan(run.overrides).runs
    assert again.name == run.name and again.config == run.config


def test_an_axis_in_a_user_yaml_may_be_a_dotted_key(experiment):
    folder = experiment("sweep:\n  model.width: [4, 8]\n  seed: [0, 1]\n")
    assert {r.config["model"]["width"] for r in plan(["exp=mine"], folder).runs} == {4, 8}


@pytest.mark.parametrize(
    ("block", "message"),
    [
        ("sweep:\n  seeed: [0]\n", "sweep: unknown key 'seeed' \\(did you mean 'seed'"),
        ("sweep:\n  seed: 3\n", "sweep.seed must be a list"),
        ("sweep:\n  seed: []\n", "sweep.seed must be a list of at least one"),
        ("sweep: 3\n", "must be a mapping with axes"),
        ("sweep:\n  seed: [0]\n  exclude: {seed: 0}\n", "sweep.exclude must be a list of mappings"),
        ("sweep:\n  seed: [0]\n  exclude:\n    - {seed: 0}\n", "leave no run"),
        ("sweep:\n  seed: [0]\n  exclude:\n    - {sed: 0}\n", "sweep.exclude: unknown key 'sed'"),
        ("epoch: 3\n", "unknown key 'epoch' \\(did you mean 'epochs'"),
    ],
)
def test_mistakes_in_an_experiment_are_reported(experiment, block, message):
    with pytest.raises(ConfigError, match=message):
        plan(["exp=mine"], experiment(block))


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        ("frmat=e4m3", r"unknown key 'frmat' \(did you mean 'format'\?\)"),
        ("width=3", r"unknown key 'width' \(did you mean 'model.width'\?\)"),
        ("model.foo=3", "type \\+model.foo=3"),
        ("format=e9m2", "format=e9m2: .*allowed: 1 to 8"),
        ("format=banana", "format=banana: .*allowed"),
        ("world_size=0", "world_size=0: must be a whole number, at least 1"),
        ("world_size=2.5", "world_size=2.5"),
        ("nproc=3", "nproc=3 does not divide world_size=8.*1, 2, 4, 8"),
        ("device=gpu", "auto, cpu, cuda"),
        ("aps=yes", "true or false"),
        ("exp=a,b", "a sweep has only one experiment"),
        ("seed=range(0,0)", "An axis needs at least one value"),
        ("model=custom", "model._target_ must be given"),
        ("~epochs", "epochs is missing"),
        ("~format", "key .format. not found"),
        ("~aps", "key .aps. not found"),
        ("case=[1,2]", "unknown case '\\[1,2\\]': the experiment names no cases"),
    ],
)
def test_mistakes_on_the_command_line_are_reported(typed, message):
    overrides = [typed] if typed.startswith("exp") else ["exp=digits_bits", typed]
    with pytest.raises(ConfigError, match=message):
        plan(overrides)


def manifest_of(sweep):
    return yaml.safe_load(sweep.directory.manifest.read_text())


def test_the_manifest_records_the_request(tmp_path):
    sweep = plan(["exp=digits_bits", "seed=0", f"results_dir={tmp_path}"])
    write_manifest(sweep)
    manifest = manifest_of(sweep)
    assert manifest["axes"] == {"format": sweep.axes["format"], "aps": [False, True]}
    assert len(manifest["runs"]) == 13 and manifest["record"] == 1
    assert manifest["versions"]["cpdrun"] and "git_commit" in manifest


def test_the_manifest_of_a_newer_version_is_not_replaced(tmp_path):
    sweep = plan(["exp=digits_bits", f"results_dir={tmp_path}"])
    write_manifest(sweep)
    text = sweep.directory.manifest.read_text()
    sweep.directory.manifest.write_text(text.replace("record: 1", "record: 2"))
    with pytest.raises(ConfigError, match=r"sweep.yaml is of record version '2'.*: update cpdrun"):
        write_manifest(sweep)


def test_the_question_of_a_search_stays_in_the_manifest(tmp_path):
    words = ["format=fp32,e4m3", "name=asked", f"results_dir={tmp_path}"]
    sweep = plan(words)
    write_question(sweep.directory, {"tolerance": 1})
    assert not sweep.directory.manifest.exists()
    write_manifest(sweep, {"tolerance": 1})
    write_manifest(plan([*words, "seed=0,1"]))
    assert manifest_of(sweep)["search"] == {"tolerance": 1}
    searched = {"tolerance": 2, "baseline": {"format": "fp32"}}
    write_question(sweep.directory, searched)
    assert manifest_of(sweep)["search"] == searched and len(listed(sweep.directory)) == 4
    write_manifest(plan([*words, "search.confidence=90", "search.baseline={format: bf16}"]))
    assert manifest_of(sweep)["search"] == searched | {"confidence": 90} and len(listed(sweep.directory)) == 4


def test_the_manifest_records_search_settings_of_a_sweep(tmp_path):
    def asked(*words):
        sweep = plan(["format=fp32,e4m3", *words, f"results_dir={tmp_path}"])
        write_manifest(sweep)
        return manifest_of(sweep).get("search")

    assert asked("name=typed", "search.tolerance=.2") == {"tolerance": 0.2}
    assert asked("name=typed") == {"tolerance": 0.2}
    assert asked("name=nothing") is None
    of_file = asked("exp=transformer_bits_small", "name=of_file")
    assert of_file == {"metric": "test_bits_per_byte", "tolerance": 0.05}


def test_the_manifest_keeps_runs_of_other_commands(tmp_path):
    def listed(*words):
        sweep = plan(["exp=digits_bits", f"results_dir={tmp_path}", "seed=0", *words])
        write_manifest(sweep)
        names = [run.name for run in sweep.runs]
        return names, manifest_of(sweep)["runs"]

    whole, _ = listed()
    (narrower,), kept = listed("format=fp32", "aps=false")
    assert kept == whole and narrower in whole
    (tmp_path / "digits_bits" / "runs" / narrower).mkdir(parents=True)
    others, now = listed("world_size=4")
    assert now == [narrower, *others]


@pytest.fixture
def cases(experiment):
    return experiment(
        "sweep:\n  cases:\n    fp32: {format: fp32}\n    small, mixed: {precision: mixed_fp16, format: e4m3}\n"
        "    same: {format: fp32, precision: fp32}\n  seed: [0, 1]\n  exclude:\n    - {case: fp32, seed: 1}\n",
    )


def test_an_inherited_case_or_axis_is_removed_by_null(experiment):
    experiment(
        "epochs: 2\nsweep:\n  cases:\n    fp32: {format: fp32}\n    small: {format: e4m3}\n  aps: [false, true]\n"
        "  exclude:\n    - {aps: true}\n",
        "base",
    )
    folder = experiment(
        "defaults: [base, _self_]\nsweep:\n  cases:\n    fp32: null\n    large: {format: e5m2}\n"
        "  aps: null\n  exclude: null\n"
    )
    sweep = plan(["exp=mine"], folder)
    assert sweep.axes == {"case": ["small", "large"]}
    assert [(run.config["case"], run.config["epochs"]) for run in sweep.runs] == [("small", 2), ("large", 2)]


def test_named_cases_are_one_axis(cases):
    sweep = plan(["exp=mine"], cases)
    assert sweep.describe() == (
        "case(3) x seed(2) = 6, less 1 (case=fp32 seed=1), less 1 of the same content -> 4 runs"
    )
    small = [run for run in sweep.runs if run.config["case"] == "small, mixed"]
    assert [(r.config["format"], r.config["precision"]["weights"]) for r in small] == [("e4m3", "fp16")] * 2
    assert small[0].overrides[-2:] == ["case='small, mixed'", "seed=0"]
    (again,) = plan(["exp=mine", *small[0].overrides[-2:]], cases).runs
    assert again.name == small[0].name


def test_the_command_line_overrides_cases_and_selects_them(cases, experiment):
    typed = plan(["exp=mine", "precision.loss_scale=8", "format=e5m2", "case=same"], cases)
    assert {(r.config["format"], r.config["precision"]["loss_scale"]) for r in typed.runs} == {("e5m2", 8)}
    assert len(typed.runs) == 2
    with pytest.raises(ConfigError, match=r"unknown case 'sane' \(did you mean 'same'\?\); there are: fp32"):
        plan(["exp=mine", "case=sane"], cases)
    with pytest.raises(ConfigError, match="the experiment names no cases"):
        plan(["exp=digits_bits", "case=same"])
    experiment("sweep:\n  cases:\n    a: {frmat: fp32}\n", "bad")
    with pytest.raises(ConfigError, match=r"sweep\.cases\.a: unknown key 'frmat' \(did you mean 'format'"):
        plan(["exp=bad"], cases)


def test_a_plan_without_imports_executes_no_user_module(tmp_path, monkeypatch):
    (tmp_path / "evil.py").write_text("raise SystemExit('ran')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", before := list(sys.path))
    typed = ["exp=digits_bits", "format=fp32,evil.F", "aps=true,false", "seed=0"]
    names = [run.name for run in plan(typed, imports=False).runs]
    assert len(names) == 3 and sum("evil.F" in name for name in names) == 2
    assert sys.path == before
    with pytest.raises(ConfigError, match=r"format=evil.F: .*importing its module raised SystemExit: ran"):
        plan(typed)


def test_a_data_folder_cannot_be_an_axis():
    with pytest.raises(ConfigError, match=r"data.data_dir cannot be an axis, .* name=NAME data.data_dir=A"):
        plan(["data=fashion_mnist", "data.data_dir=A,B"])


@pytest.mark.parametrize("typed", [["aps=true"], ["aps=true", "format=fp32,e4m3"]])
def test_a_baseline_that_is_excluded_is_run_without_aps(typed):
    sweep = plan(["exp=digits_bits", "seed=0,1", *typed])
    baselines = [run for run in sweep.runs if run.config["format"] == "fp32"]
    assert [(run.config["aps"], run.config["seed"]) for run in baselines] == [(False, 0), (False, 1)]
    assert all(run.config["aps"] for run in sweep.runs if run not in baselines)
    assert "less 2 (fp32 with APS), plus 2 (fp32 without APS, the baseline) ->" in sweep.describe()
    assert len(sweep.runs) == sum(1 for _ in sweep.runs) and sweep.duplicates == 0
    (again,) = plan(baselines[1].overrides).runs
    assert again.name == baselines[1].name


@pytest.mark.parametrize(
    ("words", "described"),
    [
        (["exp=mine"], "format(7) x aps(1) x seed(1) = 7, less 1 (fp32 with APS), plus 1 {} -> 7 runs"),
        (
            ["exp=digits_bits", "format=fp32", "aps=true", "seed=0"],
            "1 run, less 1 (fp32 with APS), plus 1 {} -> 1 run",
        ),
    ],
)
def test_a_baseline_is_kept_in_a_derived_experiment_and_alone(experiment, words, described):
    folder = experiment("defaults: [digits_bits]\nsweep: {aps: [true], seed: [0]}\n")
    sweep = plan(words, folder)
    assert [run.config["aps"] for run in sweep.runs if run.config["format"] == "fp32"] == [False]
    assert sweep.describe() == described.format("(fp32 without APS, the baseline)")


@pytest.mark.parametrize("text", ["runs: 3\n", "- a\n", "sweep: {seed: [0]}\n", "a: [", "\tx\n", "&a [*a]"])
def test_a_foreign_sweep_yaml_is_not_overwritten(tmp_path, text):
    sweep = plan(["exp=digits_bits", "seed=0", f"results_dir={tmp_path}"])
    sweep.directory.path.mkdir()
    sweep.directory.manifest.write_text(text)
    with pytest.raises(
        ConfigError, match=r"sweep\.yaml was not written by cpdrun: move it away, or choose another folder"
    ):
        write_manifest(sweep)
    assert sweep.directory.manifest.read_text() == text


def test_simultaneous_commands_keep_each_others_runs(tmp_path):
    """Without the lock, a command that reads sweep.yaml before another one writes it would drop the other's runs."""
    sweeps = [
        plan(["exp=digits_bits", f"seed={i}", "aps=false", f"results_dir={tmp_path}"]) for i in range(5)
    ]
    for sweep in sweeps:
        for run in sweep.runs:
            sweep.directory.run(run.name).path.mkdir(parents=True)
    with ThreadPoolExecutor(5) as pool:
        list(pool.map(write_manifest, sweeps))
    assert sorted(manifest_of(sweeps[0])["runs"]) == sorted(
        run.name for sweep in sweeps for run in sweep.runs
    )


@pytest.fixture
def skewed(experiment):
    body = "defaults: [{override /partition: skewed}]\npartition: {skew: 0.5}\noptim: {lr: 0.2}\n"
    experiment(f"{body}sweep:\n  seed: [0]\n")
    return experiment("partition: {skew: 0.5}\nsweep:\n  partition: [iid, skewed]\n", "both")


def partitions(sweep):
    return [{k: v for k, v in run.config["partition"].items() if k != "_target_"} for run in sweep.runs]


@pytest.mark.parametrize(
    ("typed", "found", "left_out"),
    [
        (["exp=mine", "partition=skewed"], [{"skew": 0.5}], []),
        (["exp=mine", "partition=dirichlet,iid,skewed"], [{"alpha": 0.5}, {}, {"skew": 0.5}], ["dirichlet", "iid"]),
        (["exp=both"], [{}, {"skew": 0.5}], ["iid"]),
    ],
)  # fmt: skip
def test_settings_of_one_choice_are_left_out_with_another_choice(skewed, typed, found, left_out):
    sweep = plan(typed, skewed)
    assert partitions(sweep) == found
    assert sweep.left_out == [
        f"the experiment's partition.skew=0.5 is left out with partition={choice}, which has no such key"
        for choice in left_out
    ]


def test_settings_that_both_choices_have_are_kept(skewed):
    (run,) = plan(["exp=mine", "optim=adamw"], skewed).runs
    assert run.config["optim"]["lr"] == 0.2
    with pytest.raises(ConfigError, match=r"unknown key 'partition\.skew'"):
        plan(["exp=mine", "partition=iid", "partition.skew=0.1"], skewed)
