"""From effects to features, to a probability, to what is said; no run is trained."""

import io
import math

import numpy as np
import pytest
from made_up_effects import config, effects
from rich.console import Console

from cpdrun.predict.features import features, not_seen
from cpdrun.predict.forecast import Subject, foretell, line, ranked
from cpdrun.predict.model import Model, fit, fitted, logistic
from cpdrun.predict.words import Said, facts, sentences, table

STRICT = 2.3  # half a point
SAID = Said("1 point", "fp32", ("results/x/runs/y",))
LOSSES = ("cosine", "sum_error", "saturation", "update_lost")


def worse(**losses):
    return features(effects(**losses), STRICT)


@pytest.mark.parametrize(
    ("less", "more"),
    [
        ({"cosine": 0.99}, {"cosine": 0.5}),
        ({"layers": {"a": {"cosine": 0.9}}}, {"layers": {"a": {"cosine": 0.2}}}),
        ({"cosine": 0.5}, {"cosine": None}),  # nothing is left of the sum
        ({"saturation": 0.0}, {"saturation": 0.01}),
        ({"update_lost": 0.0}, {"update_lost": 0.3}),
        ({"weight": 40.0}, {"weight": 5.0}),
        ({"weight": 30.0, "output_gradient": 30.0}, {"weight": 30.0, "output_gradient": 3.0}),
        ({"bias": -0.01}, {"bias": -0.4}),
        ({"bias": 0.01}, {"bias": 0.4}),
    ],
)
def test_every_feature_is_a_loss_and_finite_and_more_of_it_is_never_more_likely_to_do(less, more):
    small, large = worse(**less), worse(**more)
    assert small.keys() == large.keys() >= set(fitted().features)
    assert all(math.isfinite(value) for value in (*small.values(), *large.values()))
    assert all(large[name] >= small[name] for name in small) and large != small
    assert fitted().score(large) >= fitted().score(small)


def test_losses_of_roles_add_and_what_is_read_forward_counts_beside_them():
    clean, back = worse(), worse(output_gradient=10.0)
    forward, both = worse(activation=10.0), worse(activation=10.0, output_gradient=10.0)
    d = 1 - (1 + 0.1) ** -0.5
    assert back["of layers"] == pytest.approx(math.log10(d / (1 - d))) == pytest.approx(forward["of layers"])
    twice = 1 - (1 - d) ** 2
    assert both["of layers"] == pytest.approx(math.log10(twice / (1 - twice)))
    assert back["forward"] == clean["forward"] < forward["forward"] == both["forward"]


def test_what_was_zero_before_is_not_lost():
    dead, lost = ({"cosine": None, "snr_db": snr} for snr in (None, 0.0))
    assert features(effects(layers={"a": dead}), STRICT) == worse()
    assert worse(layers={"a": lost})["of layers"] > 2.9


def test_numbers_that_effects_do_not_have_count_as_no_loss_and_are_named():
    nothing = {"role": {}}
    assert features(nothing, STRICT) == features(effects(), STRICT)
    assert list(not_seen(nothing, config("e4m3"))) == ["sums of gradients in e4m3"]
    assert list(not_seen(effects(cosine=None, sum_error=None), config("e3m0"))) == []
    assert list(not_seen(effects(), config())) == []
    of_products = config(rules=[{"role": ["input", "weight"], "format": "mxfp4"}])
    assert list(not_seen(effects(weight=20.0), of_products)) == ["rounding of products' activations"]
    assert "Choco" in next(not_seen(effects(), config(sync="cpdrun.comm.gossip.choco.Choco")))
    assert list(not_seen(nothing, config("e4m3", world_size=1))) == []


@pytest.fixture(scope="module")
def world():
    """A thousand formats of ten experiments: the chance of failing is that of a logistic model of the first feature of
    two; the second never matters, a third would help a format if weights could be negative."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(1000, 3))
    chance = 1 / (1 + np.exp(-(2 * x[:, 0] - 1 - 0.5 * x[:, 2])))
    rows = [dict(zip("abc", row, strict=True)) for row in x.tolist()]
    return rows, (rng.random(1000) < chance).astype(float), [f"x{i % 10}" for i in range(1000)]


def test_the_fit_finds_the_model_behind_the_data_and_no_weight_is_negative(world):
    rows, fails, names = world
    model = fit(rows, fails, names, ["a", "b", "c"], ridge=0.1, refits=20)
    intercept, *weights = model.weights
    assert intercept == pytest.approx(-1, abs=0.2) and weights[0] == pytest.approx(2, abs=0.25)
    assert weights[1] < 0.2 and weights[2] == 0 and min(min(d[1:]) for d in model.draws) >= 0
    found = model.probability({"a": 0.5, "b": 0.0, "c": 0.0})
    assert found.low <= found.value <= found.high and found.high - found.low < 0.2
    assert found.value == pytest.approx(logistic(model.score({"a": 0.5, "b": 0.0, "c": 0.0})))
    assert Model.read(model.as_json()) == model


def test_each_experiment_has_the_same_weight_however_many_formats_it_tried():
    rows = [{"a": 0.0}] * 100
    fails = [1.0] * 90 + [0.0] * 10
    by_size = fit(rows, fails, ["large"] * 90 + ["small"] * 10, ["a"], refits=0)
    assert logistic(by_size.weights[0]) == pytest.approx(0.5, abs=0.01)


def test_nothing_is_fitted_on_nothing():
    with pytest.raises(ValueError, match="nothing"):
        fit([], [], [], ["a"])


def test_a_feature_outside_the_range_of_the_fit_is_named_with_it(world):
    rows, fails, names = world
    model = fit(rows, fails, names, ["a", "b", "c"], refits=0)
    assert model.outside({"a": 0, "b": 0, "c": 0}) == {}
    value, low, high = model.outside({"a": 9.0, "b": 0, "c": 0})["a"]
    assert value == 9.0 and -5 < low < high < 5


# a model of one feature, so that a test can say what a format's chance is
ONE = Model(
    ("of layers",),
    (0.0,),
    (1.0,),
    (0.0, 1.0),
    ((0.0, 1.0), (0.5, 1.0)),
    {"of layers": (-6.0, 6.0)},
    ("x",),
)


def told(name, bits, chance, **more):
    """A forecast of a candidate that misses the tolerance with `chance`."""
    found = foretell(Subject(name, f"{name} with APS", bits, config(name, **more)), effects(), STRICT, ONE)
    shift = math.log(chance / (1 - chance))
    object.__setattr__(found, "score", shift)
    object.__setattr__(found, "probability", type(found.probability)(chance, chance / 2, min(1, 2 * chance)))
    return found


def test_the_smallest_is_the_last_of_which_all_wider_ones_are_likely_enough():
    formats = [("e4m3", 8, 0.01), ("e3m2", 6, 0.04), ("e2m3", 6, 0.7), ("e3m0", 4, 0.2), ("e2m0", 3, 0.9)]
    found = line("with APS", [told(*each) for each in formats])
    assert [[f.subject.name for f in width] for width in found.widths] == [
        ["e4m3"],
        ["e3m2", "e2m3"],
        ["e3m0"],
        ["e2m0"],
    ]
    assert found.smallest().subject.name == "e3m0"
    assert found.smallest(0.05).subject.name == "e3m2" and found.smallest(0.95).subject.name == "e2m0"
    broken = line("with APS", [told("e4m3", 8, 0.6), told("e3m0", 4, 0.1)])
    assert broken.smallest() is None and broken.smallest(0.95).subject.name == "e3m0"
    assert [f.subject.name for f in ranked([found, broken])][:2] == ["e4m3", "e3m2"]


def test_it_says_the_smallest_with_its_interval_and_that_nothing_is_certified():
    found = line(
        "with APS", [told("e4m3", 8, 0.01), told("e3m2", 6, 0.04), told("e3m0", 4, 0.2), told("e2m0", 3, 0.9)]
    )
    said = sentences([found], SAID)
    assert said[0] == (
        "With APS: the smallest that is within 1 point of fp32 is likely e3m0 with APS (4 bits), which misses it with "
        "20 % [10, 40]; with nine tenths, between e2m0 with APS (3 bits) and e3m2 with APS (6 bits)."
    )
    assert said[-1].endswith("cpdrun search certifies.")
    none = sentences([line("without APS", [told("e4m3", 8, 0.97)])], SAID)
    assert none[0].startswith("Without APS: none is likely to be within 1 point of fp32; e4m3")
    console = Console(file=io.StringIO(), width=200)
    console.print(table([found]))
    rows = console.file.getvalue().splitlines()
    assert (
        rows[1].startswith("e4m3 with APS")
        and rows[4].startswith("e2m0 with APS")
        and "90 [45, 100]" in rows[4]
    )


def test_what_lies_outside_comes_first_and_what_was_not_seen_is_named():
    strange = foretell(
        Subject("e9", "e9", 4, config(sync="cpdrun.comm.gossip.choco.Choco")),
        effects(cosine=None),
        STRICT,
        Model(("of layers",), (0.0,), (1.0,), (0.0, 1.0), (), {"of layers": (-4.0, -3.0)}, ("x",)),
    )
    said = sentences([line("with APS", [strange])], SAID)
    assert (
        said[0].startswith("Outside what the model has seen")
        and "of layers of e9 (3; it was fitted on -4 to -3)" in said[0]
    )
    assert any(text.startswith("Not seen, and counted as no loss: what sync Choco does") for text in said)
    told_to_programs = facts([line("with APS", [strange])], SAID)
    [chain] = told_to_programs["chains"]
    assert chain["candidates"][0]["outside"] == {"of layers": [pytest.approx(3, abs=0.01), -4.0, -3.0]}
    assert told_to_programs["ranking"] == ["e9"] and told_to_programs["says"] == said
