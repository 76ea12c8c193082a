"""From effects to damage, to a chance of failing, to the printed ranking. No run is trained."""

import io
import math

import pytest
from made_up_effects import config, effects
from rich.console import Console
from scipy.integrate import quad
from scipy.stats import norm

from cpdrun.report.prediction import Context, make_table, predict_document, summarize
from cpdrun.shell.document import to_plain
from cpdrun.whatif.damage import damage, uncovered_parts
from cpdrun.whatif.forecast import (
    Chance,
    LadderForecast,
    Outcome,
    Subject,
    expit,
    failure_chance,
    fitted_model,
    forecast_all,
    outcome,
    ranked,
)

STRICT = 2.3  # half a point
CONTEXT = Context("1 point", "fp32", ("results/x/runs/y",))


@pytest.mark.parametrize(
    ("less", "more"),
    [
        ({"cosine": 0.99}, {"cosine": 0.5}),
        ({"layers": {"a": {"cosine": 0.9}}}, {"layers": {"a": {"cosine": 0.2}}}),
        ({"cosine": 0.5}, {"cosine": None}),  # nothing is left of the sum
        ({"weight": 40.0}, {"weight": 5.0}),
        ({"weight": 30.0, "output_gradient": 30.0}, {"weight": 30.0, "output_gradient": 3.0}),
    ],
)
def test_more_loss_is_more_damage(less, more):
    small, large = damage(effects(**less)), damage(effects(**more))
    assert -8 <= small.total < large.total <= 6


def test_damage_of_roles_combines_and_the_forward_pass_counts_twice():
    clean, back = damage(effects()), damage(effects(output_gradient=10.0))
    forward, both = damage(effects(activation=10.0)), damage(effects(activation=10.0, output_gradient=10.0))
    d = 1 - (1 + 0.1) ** -0.5
    assert back.layers == pytest.approx(math.log10(d / (1 - d))) == pytest.approx(forward.layers)
    twice = 1 - (1 - d) ** 2
    assert both.layers == pytest.approx(math.log10(twice / (1 - twice)))
    assert back.forward == clean.forward < forward.forward == both.forward
    assert forward.total > back.total


def test_a_tensor_that_was_zero_before_has_no_damage():
    dead, lost = ({"cosine": None, "snr_db": snr} for snr in (None, 0.0))
    assert damage(effects(layers={"a": dead})) == damage(effects())
    assert damage(effects(layers={"a": lost})).layers > 2.9


def test_missing_figures_count_as_no_damage_and_are_named():
    nothing = {"role": {}}
    assert damage(nothing) == damage(effects())
    assert list(uncovered_parts(nothing, config("e4m3"))) == ["sums of gradients in e4m3"]
    assert list(uncovered_parts(effects(cosine=None, sum_error=None), config("e3m0"))) == []
    assert list(uncovered_parts(effects(), config())) == []
    of_products = config(rules=[{"role": ["input", "weight"], "format": "mxfp4"}])
    assert list(uncovered_parts(effects(weight=20.0), of_products)) == [
        "rounding of the activations of matrix products"
    ]
    assert "Choco" in next(uncovered_parts(effects(), config(sync="cpdrun.comm.gossip.algorithms.Choco")))
    assert list(uncovered_parts(nothing, config("e4m3", world_size=1))) == []


def test_the_chance_integrates_over_the_level():
    model = fitted_model()
    weights = model.level_weights()
    for logit in (-6.0, -1.0, 0.0, 2.5):
        found = model.chance(logit, weights)
        exact, _ = quad(lambda z, x=logit: norm.pdf(z) * expit(x + model.level_deviation * z), -9, 9)
        assert found.mean == pytest.approx(exact, abs=1e-6)
        shift = model.level_deviation * norm.ppf(0.9)
        assert (found.low, found.high) == pytest.approx(
            (expit(logit - shift), expit(logit + shift)), abs=1e-3
        )


def test_the_posterior_of_the_level_is_that_of_a_numerical_integral():
    model = fitted_model()
    trained = [(1.0, 0.1), (3.0, 0.8)]

    def posterior(z):
        ps = [(expit(logit + model.level_deviation * z), c) for logit, c in trained]
        return norm.pdf(z) * math.prod(c * p + (1 - c) * (1 - p) for p, c in ps)

    total, _ = quad(posterior, -9, 9)
    exact, _ = quad(lambda z: posterior(z) * expit(2.0 + model.level_deviation * z) / total, -9, 9)
    assert model.chance(2.0, model.level_weights(trained)).mean == pytest.approx(exact, abs=1e-6)
    assert model.level_weights([(1.0, 0.5)]) == pytest.approx(model.level_weights())


def test_trained_candidates_move_and_narrow_the_range():
    model = fitted_model()
    before, failed, passed = (
        model.chance(0.0, model.level_weights(trained)) for trained in ([], [(0.0, 1.0)], [(0.0, 0.0)])
    )
    assert passed.mean < before.mean < failed.mean
    assert max(each.high - each.low for each in (passed, failed)) < before.high - before.low
    many = model.chance(0.0, model.level_weights([(-1.0, 0.0)] * 400 + [(1.0, 1.0)] * 400))
    assert many.high - many.low < 0.5 * (before.high - before.low)


def test_a_wider_margin_lowers_the_chance_of_failing():
    chances = [forecast("e3m0", 4, strictness=s, cosine=0.9).chance.mean for s in (2.6, 2.3, 2.0, 1.7)]
    assert chances == sorted(chances, reverse=True) and chances[0] - chances[-1] > 0.1


def test_the_failure_chance_of_an_outcome_pools_its_spread():
    assert failure_chance(-1.0, 0.3, 3, 0.5, 1.0) == pytest.approx(0.5)
    assert failure_chance(-2.0, 0.3, 3, 0.5, 1.0) > 0.95 > 0.05 > failure_chance(0.0, 0.3, 3, 0.5, 1.0)
    assert failure_chance(-2.0, 0.0, 3, 0.0, 1.0) == 1.0
    one, three = outcome([-2.0], 1.0, 1.0), outcome([-2.0, -2.2, -1.8], 1.0, 1.0)
    assert (one.pairs, three.pairs, three.gap) == (1, 3, pytest.approx(-2.0))
    assert 0.5 < one.failure_chance < three.failure_chance


def forecast(name, bits, *, strictness=STRICT, outcomes=None, configured=None, **given):
    """Return the forecast of one candidate with these effects."""
    subject = Subject(name, f"{name} with APS", bits, configured or config(name))
    return forecast_all([subject], {name: effects(**given)}, strictness, outcomes)[name]


def with_chance(name, bits, low, mean, high):
    """Return a forecast with the given chance."""
    found = forecast(name, bits)
    object.__setattr__(found, "logit", math.log(mean / (1 - mean)))
    object.__setattr__(found, "chance", Chance(mean, low, high))
    return found


FORMATS = (
    ("e4m3", 8, 0.0, 0.01, 0.02),
    ("e3m2", 6, 0.0, 0.04, 0.2),
    ("e2m3", 6, 0.2, 0.7, 0.9),
    ("e3m0", 4, 0.01, 0.2, 0.6),
    ("e2m0", 3, 0.4, 0.9, 0.99),
)


def test_the_narrowest_format_is_below_widths_that_are_all_good_enough():
    found = LadderForecast.of("with APS", [with_chance(*each) for each in FORMATS])
    names = [[each.subject.name for each in width] for width in found.widths]
    assert names == [["e4m3"], ["e3m2", "e2m3"], ["e3m0"], ["e2m0"]]
    narrowest = [found.narrowest(at).subject.name for at in ("mean", "low", "high")]
    assert narrowest == ["e3m0", "e2m0", "e3m2"]
    broken = LadderForecast.of(
        "with APS", [with_chance("e4m3", 8, 0.4, 0.6, 0.8), with_chance("e3m0", 4, 0, 0.1, 0.2)]
    )
    assert broken.narrowest() is None and broken.narrowest("low").subject.name == "e3m0"
    assert [each.subject.name for each in ranked([found, broken])][:2] == ["e4m3", "e3m2"]


def test_the_printed_forecast(snapshot):
    ladder = LadderForecast.of("with APS", [with_chance(*each) for each in FORMATS])
    hopeless = LadderForecast.of("without APS", [with_chance("e4m3", 8, 0.9, 0.97, 0.99)])
    trained = forecast("e3m0", 4, cosine=0.9, outcomes={"e3m0": Outcome(-0.42, 2, 0.3)})
    gossip = forecast("e9", 4, strictness=0.5, configured=config(sync="cpdrun.comm.gossip.algorithms.Choco"))
    parts = []
    for title, ladders in (
        ("candidates without runs", [ladder]),
        ("no good candidate", [hopeless]),
        ("a trained candidate", [LadderForecast.of("with APS", [trained])]),
        ("a wide margin and effects that are not covered", [LadderForecast.of("with APS", [gossip])]),
    ):
        console = Console(file=io.StringIO(), width=120)
        console.print(make_table(ladders))
        table = [line.rstrip() for line in console.file.getvalue().splitlines()]
        parts += [f"## {title}", *summarize(ladders, CONTEXT), *table, ""]
    snapshot("forecast", "\n".join(parts))
    [candidate] = to_plain(predict_document([LadderForecast.of("with APS", [trained])], CONTEXT, []))[
        "chains"
    ][0]["candidates"]
    assert candidate["trained"] == {"gap": -0.42, "pairs": 2, "failure_chance": 0.3}
