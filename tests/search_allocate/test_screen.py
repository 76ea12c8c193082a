"""`cpdrun search --allocate`: factors, what its runs round, allocations, and the command on made-up results."""

import itertools
import json
import math
import shlex
from dataclasses import replace

import jsonschema
import numpy as np
import pytest
import yaml
from custom_fp.recipe.layers import layers_of
from custom_fp.recipe.parsing import read_rules
from custom_fp.recipe.rules import Rules

from cpdrun.cli import main
from cpdrun.comm.full_precision import FullPrecision
from cpdrun.commands import schema
from cpdrun.config.compose import Composer
from cpdrun.config.errors import ConfigError
from cpdrun.errors import UserError
from cpdrun.record import write_json
from cpdrun.report.allocation_text import describe_effects
from cpdrun.search.allocate import question as question_module
from cpdrun.search.allocate.allocation import Costs
from cpdrun.search.allocate.factors import Factor, Layer, LayerGroup, ask_layers, factors_of, groups_of
from cpdrun.search.allocate.question import ask
from cpdrun.search.allocate.results import read, write_rows
from cpdrun.search.settings import screen_settings
from cpdrun.stats.means import FIRST_SEED
from cpdrun.sweep import plan
from cpdrun.train.build import build_data, build_model
from cpdrun.train.layers import layers as layers_in_torch
from cpdrun.train.layers import main as layers_main

PRODUCTS = ("weight", "input", "output_gradient")
EXP = "exp=digits_screen_small"
NARROW, WIDE = {"format": "e2m1", "aps": True}, {"format": "e4m3"}
LEVELS = [f"screen.low.{role}={{format:e2m1,aps:true}}" for role in ("weight", "input")]
LEVELS += ["screen.low.output_gradient=e3m0", *(f"screen.high.{role}=e4m3" for role in PRODUCTS)]
TYPED = [EXP, "model.width=4", "results_dir=r", *LEVELS, "screen.uniform=[e4m3]", "screen.seeds=1"]
TYPED += ["search.metric=test_accuracy", "search.tolerance=1"]


@pytest.fixture(scope="module")
def config():
    return plan([*TYPED, "seed=0"]).runs[0].config


@pytest.fixture(scope="module")
def layers(config):
    return [Layer(**facts) for facts in layers_in_torch(config)]


@pytest.fixture(scope="module")
def question(layers):
    """The question, planned once. Its folder is relative to that of each test."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(question_module, "ask_layers", lambda _: layers)
        return ask(TYPED)


@pytest.fixture
def here(monkeypatch, layers, tmp_path):
    """Find the layers in this process, and write results into the folder of the test."""
    monkeypatch.setattr(question_module, "ask_layers", lambda _: layers)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("os.fsync", lambda fd: None)
    return tmp_path


def test_layers_of_a_conv_net_counted_by_hand(layers, config):
    """Images have 8x8 places, and a quarter of them after each stride of 2."""
    multiply = {layer.name: layer for layer in layers if layer.multiplies}
    macs = {"features.0.0": 64 * 9 * 4, "features.1.0": 16 * 9 * 4 * 8, "features.2.0": 4 * 9 * 8 * 16}
    assert {name: layer.macs for name, layer in multiply.items()} == macs | {"classifier": 160}
    assert [layer.input_gradient for layer in multiply.values()] == [False, True, True, True]
    parameters = dict(build_model(config, build_data(config)).named_parameters())
    found = {name: n for layer in layers for name, n in layer.parameters.items()}
    assert found == {name: p.numel() for name, p in parameters.items()}


def test_the_layers_are_found_by_a_process_with_torch(layers, config, tmp_path, monkeypatch):
    given, out = tmp_path / "config.json", tmp_path / "layers.json"
    write_json(given, config)
    monkeypatch.setattr("sys.argv", ["layers", str(given), str(out)])
    layers_main()
    assert [Layer(**facts) for facts in json.loads(out.read_text())] == layers
    with pytest.raises(UserError, match=r"the layers of the model cannot be found: .*nowhere"):
        ask_layers(config | {"model": {"_target_": "nowhere.Model"}})


def of(*names, embedding=0, norms=()):
    """Return embeddings, then Linear layers, each followed by the norms that begin with its letter."""
    found = []
    for i, name in enumerate(names):
        kind = "Embedding" if i < embedding else "Linear"
        found.append(Layer(name, kind, {f"{name}.weight": 6}, i >= embedding, 6, i >= embedding))
        found += [Layer(norm, "Norm", {norm: 1}, False, 0, False) for norm in norms if norm[0] == name[0]]
    return found


def asked(**given):
    with Composer() as composer:
        config = composer.compose({})
    return screen_settings({**config["screen"], **given}, config["search"])


def test_groups_are_the_first_layer_the_stages_and_the_last_layer():
    blocks = [f"blocks.{i}.{part}" for i in range(4) for part in ("qkv", "up", "down")]
    names = [[x.name for x in group.layers] for group in groups_of(of(*blocks), asked(roles=["weight"]))]
    assert names == [blocks[:1], blocks[1:3], blocks[3:6], blocks[6:9], blocks[9:11], blocks[11:]]
    few = asked(roles=list(PRODUCTS), most_factors=12)
    merged = groups_of(of(*blocks), few)
    assert len(merged) == 4 and [n.name for g in merged for n in g.layers] == blocks
    assert len(merged[0].layers) == len(merged[-1].layers) == 1 and len(factors_of(merged, few)) == 12


def test_norms_are_grouped_with_the_layer_before_them():
    layers = of("e", "a.0", "b.0", "c", embedding=1, norms=("ax", "cx"))
    groups = groups_of(layers, asked(roles=["gradient"]))
    assert [[n.name for n in g.layers] for g in groups] == [["e"], ["a.0", "ax"], ["b.0"], ["c", "cx"]]
    of_products = groups_of(layers, asked(roles=["input"]))
    assert [[n.name for n in g.products] for g in of_products] == [["a.0"], ["b.0"], ["c"]]


def test_typed_groups_take_their_layers_in_turn():
    few = asked(roles=["gradient"], groups={"head": "c", "rest": ["*.0"]})
    groups = groups_of(of("a.0", "b.0", "c", "d"), few)
    assert [(g.name, len(g.layers)) for g in groups] == [("head", 1), ("rest", 2)]
    unmatched = r"screen.groups.x: \['z'\] matches no layer that is left. Layers are a.0"
    with pytest.raises(ConfigError, match=unmatched):
        groups_of(of("a.0"), asked(groups={"x": ["z"]}))
    with pytest.raises(ConfigError, match=r"2 factors, more than screen.most_factors=1"):
        factors_of(groups, replace(few, most_factors=1))


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"roles": ["wieght"]}, r"screen.roles=\[wieght\]: .*did you mean 'weight'"),
        ({"roles": []}, "screen.roles="),
        ({"low": {"gradient": "e9m9"}}, "screen.low.gradient=e9m9"),
        ({"low": {"gradient": {"format": "e3m0", "aps": True}}}, "not aps"),
        ({"low": {}}, "screen.low.gradient is missing"),
        ({"high": {"gradient": "bf16"}}, "always in fp32: leave this key out"),
        ({"roles": ["gradient", "input"]}, "choose the cost to minimize: wire"),
        ({"cost": "operations"}, "no role changes this cost"),
        ({"roles": ["input"], "cost": "wire"}, "gradient is not among"),
        ({"seeds": 0}, "screen.seeds=0: must be a whole number, 1 to"),
        ({"most_factors": 300}, "1 to 256"),
        ({"foldover": 1}, "true or false"),
        ({"confidence": 20}, "from 50"),
        ({"tolerance": -1}, "above 0"),
        ({"groups": {"a": []}}, "screen.groups.a="),
        ({"uniform": ["e1"]}, r"screen.uniform\[0\]=e1"),
        ({"sedes": 2}, "unknown key 'screen.sedes' .*seeds"),
    ],
)
def test_invalid_settings_are_refused(given, told):
    with pytest.raises(ConfigError, match=told):
        asked(**given)


@pytest.mark.parametrize(
    ("typed", "told"),
    [
        (["model=convnet"], "name an experiment to screen"),
        ([EXP, "seed=1"], "chooses its seeds itself"),
        ([EXP, "format=e4m3"], "screen.low.gradient=FORMAT"),
        ([EXP, "precision.rules=[]"], "screen sets precision.rules itself"),
        ([EXP, "batch_size=8,16"], "2 values of batch_size.*type batch_size=8"),
        ([EXP, "recipe=bf16"], "type recipe=null"),
        ([EXP, "screen.seeds=1,2"], "must have one value"),
        (["exp=llama_fp4"], "has cases"),
    ],
)
def test_invalid_experiments_are_refused(here, typed, told):
    with pytest.raises(ConfigError, match=told):
        ask(typed)
    assert not list(here.iterdir())


def test_every_row_rounds_each_layer_to_its_level(question, config):
    model_layers = [layer for layer in layers_of(build_model(config, build_data(config))) if layer.multiplies]
    assert [f.name for f in question.factors][:2] == ["features.0.0 weight", "features.0.0 input"]
    for row in range(0, 24, 5):
        typed = question.rows[row][0].config["precision"]["rules"]
        rules = Rules(read_rules("precision.rules", typed), model_layers)
        rules.check()
        low = {question.factors[i].name for i in question.low(row)}
        for layer, role in itertools.product(model_layers, PRODUCTS):
            if not layer.must_be_named:
                level = question.settings.level(role, f"{layer.names[0]} {role}" in low)
                expected = level["format"]
                assert rules.rounding_for(layer, role).format == expected
    every, none = (question.cases.of(dict.fromkeys(range(12), 1)), question.cases.of({}))
    of_gradients = {"modules": "*", "role": ["output_gradient"], "format": "e3m0"}
    of_others = {"modules": "*", "role": ["weight", "input"], **NARROW}
    assert every["precision.rules"] == [of_others, of_gradients]
    assert none["precision.rules"] == [{"modules": "*", "role": list(PRODUCTS), **WIDE}]
    assert question.cases.baseline() == {"format": "fp32"}


def test_gradients_at_the_high_level_are_exchanged_in_fp32(here, layers):
    question = ask(["exp=digits_bits", "full_precision.first_epochs=1"])
    names = tuple(name for layer in layers for name in layer.parameters)
    assert len(question.factors) == 4 and question.design.runs == 8
    for row in question.rows:
        low = question.low(question.rows.index(row))
        config = row[0].config
        assert (config["format"], config["aps"]) == (("e3m0", True) if low else ("fp32", False))
        of_low = {p for i in low for layer in question.groups[i].layers for p in layer.parameters}
        if low:
            assert FullPrecision(names, config["full_precision"]["layers"]).always == set(names) - of_low
        assert config["full_precision"]["first_epochs"] == 1
    assert {run.config["seed"] for run in question.runs} == {1000, 1001}  # those of a search are below


def test_settings_of_a_screen_are_no_part_of_a_runs_name():
    names = [plan(["exp=digits_bits", *more]).runs[0].name for more in ([], ["screen.seeds=7"])]
    assert names[0] == names[1]


def four_or_eight_bits(roles):
    high = {role: "e4m3" for role in roles if role in PRODUCTS}
    return asked(roles=list(roles), low=dict.fromkeys(roles, "e2m1"), high=high)


def test_prices_by_hand():
    """Two layers; the first forms no gradient of its input: two products in place of three."""
    layers = [
        Layer("a", "Linear", {"a": 10}, True, 10, False),
        Layer("b", "Linear", {"b": 20}, True, 30, True),
    ]
    group = [LayerGroup("a", (layers[0],))]
    costs = Costs(four_or_eight_bits(PRODUCTS), group, [Factor(0, "weight", "a weight")], layers)
    price = costs.price({0: 1})
    assert price.cost == 10 * (8 * 4 + 8 * 8) + 30 * 3 * 64
    assert price.mean_bits == (10 * (12 + 16) + 30 * 48) / (10 * 4 + 30 * 6)
    assert costs.price({}).cost == costs.uniform(8).cost == (20 + 90) * 64
    on_wire = Costs(asked(), group, [Factor(0, "gradient", "a gradient")], layers)
    assert on_wire.price({0: 1}).cost == 10 * 4 + 20 * 32 and on_wire.uniform(4).mean_bits == 4


def train(question, costs, diverging=()):
    """done.json of every run: each low factor takes its cost off the accuracy, in points."""
    for row, runs in enumerate(question.rows):
        low = question.low(row)
        lost = sum(costs.get(question.factors[i].name, 0.0) for i in low)
        bad = any(question.factors[i].name in diverging for i in low)
        for run in runs:
            seed = run.config["seed"]
            noise = np.random.default_rng([row, seed]).normal(0, 0.05) + seed - FIRST_SEED
            metrics = {} if bad else {"test_accuracy": 0.95 - (lost + noise) / 100, "test_loss": 0.1}
            done = {"status": "diverged" if bad else "finished", "metrics": metrics, "num_classes": 10}
            write_json(question.directory.run(run.name).done, done)


COSTS = {"features.1.0 output_gradient": 2.0, "classifier weight": 0.7, "features.2.0 input": -0.2}


def test_the_command_finds_the_sensitive_factors_and_prints_a_search(here, question, capsys):
    assert main(["search", "--allocate", *TYPED, "--dry-run"]) == 0 and not list(here.iterdir())
    said = capsys.readouterr().out
    assert "12 factors" in said and "24 rows with 1 seed" in said and "0 done, 24 to run" in said
    for run in question.runs:
        question.directory.run(run.name).path.mkdir(parents=True)
    train(question, COSTS)
    assert main(["search", "--allocate", *TYPED, "--json"]) == 0
    told, aside = capsys.readouterr()
    facts = json.loads(told)
    jsonschema.validate(facts, schema("screen"), cls=jsonschema.Draft202012Validator)
    assert "24 done, 0 to run" in aside and "2 of 12 factors are sensitive" in aside
    first, second = facts["effects"][:2]
    assert (first["factor"], second["factor"]) == ("features.1.0 output_gradient", "classifier weight")
    assert first["cost"] == pytest.approx(0.02, abs=3e-4) and first["low"] < 0.02 < first["high"]
    chosen = facts["allocation"]
    assert chosen["high"] == ["features.1.0 output_gradient"], "it alone costs more than the margin"
    assert chosen["bound"] <= 0.01 and chosen["cost"] < chosen["all_high"]
    _, *typed = shlex.split(facts["certify"])
    assert main([*typed, "--dry-run"]) == 0
    said = capsys.readouterr().out
    assert "at most 1 point worse than fp32" in said
    assert "3 candidates: e4m3 everywhere; allocated; all low" in said
    kept = yaml.safe_load(question.directory.allocation.read_text())
    assert kept["command"] == facts["certify"] and kept["allocation"]["case"]["precision.rules"]


def test_a_row_is_the_same_run_in_a_sweep(here, question):
    write_rows(question)
    run = question.rows[7][0]
    again = plan(run.overrides, question.directory.screen).runs
    assert [one.name for one in again] == [run.name] and run.config["case"] == "row 08"


def test_diverged_runs_are_worst_and_missing_runs_give_no_result(here, question):
    for run in question.runs:
        question.directory.run(run.name).path.mkdir(parents=True)
    train(question, COSTS, diverging=["classifier input"])
    found = read(question)
    assert len(found.diverged) == 12 and found.worst == 0.0
    assert "12 runs diverged and count as 0.0%" in describe_effects(question, found)[1]
    assert found.blamed(question) == ["classifier input"]
    effect = found.effects.factors[[f.name for f in question.factors].index("classifier input")]
    assert effect.mean == pytest.approx(0.93, abs=0.05) and math.isfinite(found.effects.error)
    question.directory.run(question.rows[3][0].name).done.unlink()
    assert read(question) is None
