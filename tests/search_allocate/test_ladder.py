"""`cpdrun search --allocate` with a ladder of levels: its rounds, what its runs round, and the command."""

import itertools
import json
from pathlib import Path

import numpy as np
import pytest
import yaml
from custom_fp.recipe.layers import layers_of
from custom_fp.recipe.parsing import read_rules
from custom_fp.recipe.rules import Rules

from cpdrun.cli import main
from cpdrun.config.compose import Composer
from cpdrun.config.errors import ConfigError
from cpdrun.launch import Session
from cpdrun.record import SweepDir, write_json
from cpdrun.search.allocate import question as question_module
from cpdrun.search.allocate.allocation import Costs, Step, allocate
from cpdrun.search.allocate.factors import Factor, Layer, LayerGroup
from cpdrun.search.allocate.question import ask
from cpdrun.search.allocate.results import Round, costs_of, read, write_rows
from cpdrun.search.settings import screen_settings
from cpdrun.stats.screening import Effect, Effects, Sensitivity, joint_margin
from cpdrun.sweep import plan
from cpdrun.train.build import build_data, build_model
from cpdrun.train.layers import layers as layers_in_torch

WEIGHTS, INPUTS = ["e4m3", "e3m1", "e2m1fn"], ["e4m3", "e2m2"]  # of 8, 5 and 4 bits; of 8 and 5 bits
TYPED = ["exp=digits_screen_small", "model.width=4", "screen.roles=[weight,input]"]
TYPED += ["screen.low.weight=[e4m3,e3m1,e2m1fn]", "screen.low.input=[e4m3,e2m2]", "screen.uniform=[e4m3]"]
TYPED += ["screen.high.weight=bf16", "screen.high.input=bf16", "screen.seeds=1"]
TYPED += ["search.metric=test_accuracy", "search.tolerance=1"]
TYPED += ["screen.groups={front: ['features*'], head: [classifier]}"]
COSTS = {("front input", 2): 3.0, ("head weight", 3): 4.0}


@pytest.fixture(scope="module")
def config():
    return plan([*TYPED, "seed=0"]).runs[0].config


@pytest.fixture(scope="module", autouse=True)
def here(config, tmp_path_factory):
    """Use one folder for all results, and find the layers in this process."""
    layers = [Layer(**facts) for facts in layers_in_torch(config)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(question_module, "ask_layers", lambda _: layers)
        patch.setattr("os.fsync", lambda fd: None)
        patch.chdir(tmp_path_factory.mktemp("ladder"))
        yield


@pytest.fixture(scope="module")
def question(here):
    return ask(TYPED)


def train(question):
    """Write done.json of every run of a round, in which each level costs COSTS points, and return its result."""
    for row, runs in enumerate(question.rows):
        low = question.low(row)
        levels = {**question.base, **{i: question.base.get(i, 0) + 1 for i in low}}
        steps = {(question.factors[i].name, n) for i, level in levels.items() for n in range(1, level + 1)}
        lost = sum(points for step, points in COSTS.items() if step in steps)
        for run in runs:
            noise = np.random.default_rng([question.number, row]).normal(0, 0.02)
            done = {"status": "finished", "metrics": {"test_accuracy": 0.95 - (lost + noise) / 100}}
            write_json(question.directory.run(run.name).done, done | {"num_classes": 10})
    return Round(question, read(question))


@pytest.fixture(scope="module")
def descent(question):
    """Return all rounds, run as the command runs them, and the levels that are allocated after each round."""
    rounds, levels = [], []
    while question is not None:
        for run in question.runs:
            question.directory.run(run.name).path.mkdir(parents=True, exist_ok=True)
        rounds.append(train(question))
        steps = [each.step for each in rounds]
        chosen = allocate(costs_of(question), steps, rounds[-1].found.tolerance, 95)
        levels.append({question.factors[i].name: level for i, level in chosen.levels.items()})
        question = question.next_round(chosen.levels)
    return rounds, levels


def test_each_round_varies_the_factors_that_the_last_one_lowered(descent):
    rounds, levels = descent
    names = [[r.question.factors[i].name for i in r.question.varied] for r in rounds]
    every = ["front weight", "front input", "head weight", "head input"]
    assert names == [every, every, ["front weight", "head weight"]], "inputs have no third level"
    second = {"front weight": 2, "front input": 1, "head weight": 2, "head input": 2}
    assert levels == [dict.fromkeys(every, 1), second, second | {"front weight": 3}]
    shared = {run.name for run in rounds[0].question.runs} & {run.name for run in rounds[1].question.runs}
    assert len(shared) == 1, "where all have the first low level"
    listed = {run.name for run in rounds[2].question.plan.runs}
    assert listed == {run.name for each in rounds for run in each.question.runs} and len(listed) == 19


def test_the_command_continues_after_the_last_round(descent, capsys):
    rounds, _ = descent
    question = rounds[0].question
    assert main(["search", "--allocate", *TYPED, "--json"]) == 0
    told, aside = capsys.readouterr()
    facts = json.loads(told)
    assert "at most 20 runs in 3 rounds" in aside and aside.count(" 0 to run") == 3
    assert "Round 3: 2 of 4 factors go one level further down" in aside
    assert [facts["round"], facts["runs"], facts["most_runs"]] == [3, 19, 19]
    assert [sum(e["round"] == n for e in facts["effects"]) for n in (1, 2, 3)] == [4, 4, 2]
    formats = {"front weight": "e2m1fn", "front input": "e4m3", "head weight": "e3m1", "head input": "e2m2"}
    assert facts["allocation"]["levels"] == formats and facts["allocation"]["bound"] <= 0.01
    kept = yaml.safe_load(question.directory.allocation.read_text())
    assert kept["allocation"]["levels"] == formats and len(kept["effects"]) == 10
    write_rows(rounds[-1].question)
    run = rounds[1].question.rows[3][0]
    assert run.config["case"].startswith("round 2 row 0")
    assert [one.name for one in plan(run.overrides, question.directory.screen).runs] == [run.name]


def test_rules_of_mixed_levels_round_each_layer_to_its_level(question, config):
    model_layers = [layer for layer in layers_of(build_model(config, build_data(config))) if layer.multiplies]
    rng = np.random.default_rng(0)
    for _ in range(20):
        most = [len(question.settings.low[f.role]) for f in question.factors]
        levels = {i: int(rng.integers(0, n + 1)) for i, n in enumerate(most)}
        typed = question.cases.of(levels)["precision.rules"]
        rules = Rules(read_rules("precision.rules", typed), model_layers)
        rules.check()  # a rule that reaches nothing would be an error
        for i, factor in enumerate(question.factors):
            for layer in question.groups[factor.group].products:
                own = next(x for x in model_layers if layer.name in x.names)
                wanted = ["bf16", *(WEIGHTS if factor.role == "weight" else INPUTS)][levels[i]]
                assert rules.rounding_for(own, factor.role).format == wanted


def asked(**given):
    with Composer() as composer:
        config = composer.compose({})
    return screen_settings({**config["screen"], **given}, config["search"])


def test_allocations_over_levels_are_the_cheapest_of_all_combinations():
    """Three rounds with their own errors, in which some factors stop: compare with every combination."""
    low = {"weight": ["e4m3", "e2m2", "e2m1"], "input": ["e4m3", "e2m1"]}
    of = asked(roles=["weight", "input"], low=low, high={"weight": "bf16", "input": "bf16"})
    rng = np.random.default_rng(7)
    for _ in range(3):
        sizes = rng.integers(1, 99, 3).tolist()
        layers = [Layer(str(i), "Linear", {str(i): 4}, True, macs, i > 0) for i, macs in enumerate(sizes)]
        factors = [Factor(i, role, f"{i} {role}") for i in range(3) for role in ("weight", "input")]
        costs = Costs(of, [LayerGroup(x.name, (x,)) for x in layers], factors, layers)
        steps = []
        for measured, error in (((0, 1, 2, 3, 4, 5), 0.1), ((0, 1, 3, 4), 0.05), ((0, 4), 0.2)):
            means = rng.normal(0.2, 0.3, len(measured)).tolist()
            effects = tuple(Effect(m, m, m, 1, 1, Sensitivity.OPEN) for m in means)
            steps.append(Step(measured, Effects(effects, error, 9 + len(measured), "")))
        depths = [range(1 + sum(i in step.factors for step in steps)) for i in range(6)]
        allowed = []
        for levels in itertools.product(*depths):
            taken = [(i, step) for i, level in enumerate(levels) for step in steps[:level]]
            lost = sum(max(0.0, step.of(i).mean) for i, step in taken)
            counts = [sum(level > n for level in levels) for n in range(len(steps))]
            effects = [(step.effects, n) for step, n in zip(steps, counts, strict=True)]
            if taken and lost + joint_margin(effects, 95) <= 1.0:
                allowed.append(costs.price(dict(enumerate(levels))).cost)
        found = allocate(costs, steps, 1.0, 95)
        assert found.price.cost == pytest.approx(min(allowed), rel=1e-12) and found.bound <= 1.0
        assert found.price.cost == costs.price(found.levels).cost
        assert allocate(costs, steps, 1e-9, 95) is None


@pytest.mark.parametrize(
    ("low", "told"),
    [
        (
            {"weight": ["e4m3", "e3m4"], "gradient": "e3m0"},
            r"screen.low.weight=.*fewer bits than the one before",
        ),
        ({"weight": [], "gradient": "e3m0"}, r"screen.low.weight=\[\]"),
        ({"weight": ["e4m3", "e2"], "gradient": "e3m0"}, r"screen.low.weight\[1\]=e2"),
        ({"weight": "e4m3", "gradient": ["e4m3", "e3m0"]}, "screen.low.gradient=.*in one format: name one"),
        ("e4m3", "screen.low=e4m3: must name a format for each role"),
    ],
)
def test_invalid_ladders_are_refused(low, told):
    with pytest.raises(ConfigError, match=told):
        asked(roles=["weight", "gradient"], cost="wire", low=low)


def test_levels_of_later_rounds_are_checked_before_any_run_starts(monkeypatch, capsys):
    checked = []

    def preflight(self, configs, _):
        checked.extend(configs)
        return ["no"], []

    monkeypatch.setattr(Session, "warm_up", lambda self: None)
    monkeypatch.setattr(Session, "preflight", preflight)
    assert main(["search", "--allocate", *TYPED, "name=later"]) == 2
    assert capsys.readouterr().err.endswith("error: no. Nothing was started.\n")
    assert not SweepDir(Path("results/later")).path.exists()
    found = [{rule["format"] for rule in config["precision"]["rules"]} for config in checked]
    assert found[-2:] == [{"e3m1", "e2m2"}, {"e2m1fn", "e2m2"}] and len(found) == 8 + 2
