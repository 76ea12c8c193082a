import inspect
import re
from importlib import import_module
from pathlib import Path

import pytest

from cpdrun.config.compose import Composer, resolve
from cpdrun.config.errors import ConfigError
from cpdrun.config.overrides import flatten
from cpdrun.config.schema import ScriptRun, TrainingRun, setting_types, validate
from cpdrun.config.short_forms import expand_aps
from cpdrun.sweep import plan

# What the training loop hands to a class beside the keys of its yaml.
GIVEN_BY_THE_CODE = {
    "model": {"in_channels", "num_classes", "mlp"},
    "task": {"num_classes", "bytes_per_token", "label_smoothing"},
    "norm": {"channels"},
    "optim": {"params"},
    "sync": {"format", "scaling", "world_size", "seed", "epochs", "parameter_names", "full_precision", "group"},
    "launcher": {"sweep", "options", "warm"},
}  # fmt: skip


@pytest.fixture
def composer():
    with Composer() as composer:
        yield composer


def test_the_keys_of_every_yaml_are_the_arguments_of_its_class(composer):
    """A setting and its default are written once, in yaml: no argument is missing there, and none is unknown."""
    choices = [(g, c) for g, of in composer.groups().items() for c in of if g != "exp" and c != "custom"]
    for group, choice in choices:
        if group == "recipe":  # its keys are arguments of a class of another group
            spec = composer.compose({group: choice})[group]
            assert spec and set(spec) <= set(composer.file("precision", "fp32")), choice
            continue
        spec = composer.file(group, choice)
        if "defaults" in spec or "_target_" not in spec:  # composing is slow
            spec = composer.compose({group: choice})[group]
        spec.pop("_partial_", None)  # Hydra's own
        module, _, name = spec.pop("_target_").rpartition(".")
        target = getattr(import_module(module), name)
        parameters = inspect.signature(target).parameters.values()
        names = {p.name for p in parameters if p.kind is not p.VAR_KEYWORD} - GIVEN_BY_THE_CODE.get(
            group, set()
        )
        assert set(spec) <= names or any(p.kind is p.VAR_KEYWORD for p in parameters), (group, choice)
        if target.__module__.startswith("cpdrun."):
            assert names <= set(spec), f"{group}/{choice}.yaml lacks an argument of its class"
    assert len(choices) > 60


def test_the_defaults_with_a_name_are_a_valid_run(composer):
    config = composer.compose({})
    for block in ("search", "screen"):  # questions are not part of a run
        config.pop(block)
    expand_aps(config, composer, {})
    validate({**config, "name": "x", "exp": None})


@pytest.mark.parametrize(("root", "model"), [("config", TrainingRun), ("script", ScriptRun)])
def test_the_model_and_the_defaults_name_the_same_keys(root, model):
    with Composer() as composer:
        composer.use(root)
        defaults = composer.compose({})
    keys = {key for key, _ in flatten(defaults)}
    types = setting_types(model)
    sections = {key.split(".")[0] for key in types if key.endswith("._target_")}
    questions = ("search", "screen", "sweep")  # these are not in the config of a run
    own = {key for key in keys if key.split(".")[0] not in (*sections, *questions)}
    assert own | {"exp"} == {key for key in types if key.split(".")[0] not in sections}


def test_every_experiment_file_begins_with_its_command():
    for path in Path("conf/exp").glob("*.yaml"):
        assert re.match(rf"# cpdrun (sweep|search|search --allocate) exp={path.stem}\n", path.read_text())


def test_unknown_choices_are_reported_with_the_most_similar(composer):
    with pytest.raises(
        ConfigError, match=r"unknown experiment 'digit_bits' \(did you mean 'digits_bits'\?\)"
    ):
        composer.compose({"exp": "digit_bits"})
    with pytest.raises(
        ConfigError,
        match=r"unknown choice of model 'resent'; there are .*, such as .*resnet.*. model=list lists all",
    ):
        composer.compose({"model": "resent"})


def test_a_user_folder_adds_choices_and_its_broken_yaml_is_reported(experiment):
    experiment("epochs: 2\nsweep: [1,\nx: 3\n", "broken")
    with Composer(experiment("epochs: 2\nsweep:\n  seed: [7]\n")) as composer:
        assert composer.compose({"exp": "mine"})["epochs"] == 2
        with pytest.raises(ConfigError, match=r"broken\.yaml, line 2: expected"):
            composer.compose({"exp": "broken"})


def test_interpolations_are_resolved_or_reported():
    assert resolve({"a": 3, "b": "${a}"}) == {"a": 3, "b": 3}
    config = {"a": {"x": "${b}", "y": ["${c.d}"]}, "b": 3, "c": {"d": None}, "e": "${a}", "f": "<${b}>"}
    without_text = {key: value for key, value in config.items() if key != "f"}
    a = {"x": 3, "y": [None]}
    assert resolve(without_text) == {"a": a, "b": 3, "c": {"d": None}, "e": a}
    assert resolve(config) == {**resolve(without_text), "f": "<3>"}  # this one OmegaConf resolves
    with pytest.raises(ConfigError, match=r"(?i)recurs"):
        resolve({"a": "${b}", "b": "${a}"})
    with pytest.raises(ConfigError, match="nowhere"):
        resolve({"b": "${nowhere}"})


def test_hydras_own_settings_cannot_be_removed(experiment):
    with pytest.raises(ConfigError, match="contains Hydra's own settings"):
        plan(["exp=mine"], experiment("hydra: null\n"))
