"""Test the fit of `cpdrun predict`: its likelihood, its committed coefficients, and networks that were not fitted."""

import math
from pathlib import Path
from statistics import fmean

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import norm

from cpdrun.whatif.forecast import fitted_model

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def script():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "scripts" / "research" / "prediction")
        import fit_predict

        yield fit_predict


@pytest.fixture(scope="module")
def rows(script):
    return script.read_rows(ROOT / script.DATA)


@pytest.fixture(scope="module")
def left_out(script, rows):
    return script.leave_out(rows, "family")


def simulate(rng, experiments, candidates, intercept, slope, deviation):
    groups = np.repeat(np.arange(experiments), candidates)
    scores = rng.normal(-1, 2, len(groups))
    logits = intercept + slope * scores + deviation * rng.normal(size=experiments)[groups]
    return scores, (rng.random(len(groups)) < 1 / (1 + np.exp(-logits))).astype(float), groups


@pytest.mark.parametrize("parameters", [(0.5, 1.0, 0.5), (0.0, 2.0, 4.0)])
def test_the_quadrature_equals_a_numerical_integral(script, parameters):
    scores, fails, groups = simulate(np.random.default_rng(0), 5, 8, 1.0, 1.5, 2.0)
    intercept, slope, deviation = parameters

    def likelihood(group):
        x, y = scores[groups == group], fails[groups == group]

        def integrand(level):
            p = 1 / (1 + np.exp(-(intercept + slope * x + deviation * level)))
            return norm.pdf(level) * np.prod(np.where(y == 1, p, 1 - p))

        return quad(integrand, -9, 9, epsabs=0, epsrel=1e-8, limit=500)[0]

    exact = sum(math.log(likelihood(group)) for group in range(5))
    # the fit moves by a standard error when the log-likelihood changes by .5
    assert script.log_likelihood(scores, fails, groups, parameters) == pytest.approx(exact, abs=1e-3)


def test_the_fit_recovers_the_parameters_of_simulated_data(script):
    truth = (2.0, 1.5, 2.0)
    intercept, slope, deviation = script.fit(*simulate(np.random.default_rng(1), 200, 10, *truth))
    # standard errors: the intercept's is about 2 / sqrt(200) = .14, the others' are smaller
    assert intercept == pytest.approx(2.0, abs=0.35)
    assert slope == pytest.approx(1.5, abs=0.15) and deviation == pytest.approx(2.0, abs=0.25)


def test_the_committed_model_is_the_fit_of_the_committed_data(script, rows):
    model = script.fit_rows(rows)
    assert (model.candidates, model.experiments) == (len(rows), 18)
    assert fitted_model().strictness == pytest.approx(model.strictness)
    for name in ("intercept", "slope", "level_deviation"):
        assert getattr(fitted_model(), name) == pytest.approx(getattr(model, name), rel=1e-3)


def test_candidates_of_networks_left_out_are_ranked(script, rows, left_out):
    found = script._every(left_out)
    damages = [script.damage_of(row).total for row in rows]
    assert script.roc_auc_score([row["fails"] == "1" for row in rows], damages) > 0.93
    assert script.auc(found) > 0.92 and script.auc(found, within=True) > 0.95
    assert script.brier(found) < 0.11


def test_the_80_percent_ranges_cover_networks_left_out(left_out):
    """14.4 of 18 experiments are expected. The probability of fewer than 11 is 2%."""
    assert sum(each.is_in_range for each in left_out) >= 11
    assert sum(each.is_in_range_after_one for each in left_out) >= 11


def test_four_bits_are_ranked_after_eight_in_a_network_left_out(left_out):
    [llama] = [each for each in left_out if each.name == "llama_fp4"]
    chances = {each.row["candidate"]: each.chance.mean for each in llama.candidates}
    eight = max(chances[name] for name in ("mxint8", "mxfp8", "fp8"))
    assert eight < 0.4 < min(chances[name] for name in ("mxfp4", "nvfp4", "nvint4", "ue5m3"))


def test_e3m0_of_64_workers_is_ranked_by_its_order_of_summation(left_out):
    """One chain reaches 6%, groups of 8 are a point below fp32, and a tree equals fp32."""
    [workers] = [each for each in left_out if each.name == "digits_workers"]

    def find(order):
        start = f"e3m0 with APS, workers 64, sync.order {order}, sync.rounding nearest"
        by_name = {each.row["candidate"]: each for each in workers.candidates}
        [found] = [
            one for name, one in by_name.items() if name.startswith(start) and name.endswith("kahan no")
        ]
        return float(found.row["gap"]), found.logit

    ladder, groups, tree = map(find, ("rank", "hierarchical", "tree"))
    assert ladder[0] < groups[0] < tree[0] and ladder[1] > groups[1] > tree[1]


def test_a_gap_has_the_unit_of_its_tolerance(script, rows):
    """The margin of llama_fp4 is in nats: 0.02 nats are 0.029 bits per byte."""
    import predict_rows

    recorded = predict_rows.RECORDED["llama_fp4"]
    judged = predict_rows.judged_of(predict_rows._question(recorded), recorded)
    losses = {}
    for run in script.read_rows(ROOT / "results/reference" / recorded.values):
        losses.setdefault(run["case"], {})[run["seed"]] = float(run["metric:test_loss"])
    here = [row for row in rows if row["experiment"] == "llama_fp4"]
    assert {row["candidate"] for row in here} == set(judged) == set(losses) - {"bf16"}
    for row in here:
        ours, baseline = losses[row["candidate"]], losses["bf16"]
        gap = fmean(baseline[seed] - ours[seed] for seed in ours.keys() & baseline.keys())
        assert float(row["gap"]) == pytest.approx(gap, rel=1e-4) and row["tolerance"] == "0.02"
        assert {key: row[key] for key in judged[row["candidate"]]} == {
            key: str(value) for key, value in judged[row["candidate"]].items()
        }
        assert float(row["strictness"]) == pytest.approx(math.log10(math.log(256) / 0.02), rel=1e-4)


def test_a_tolerance_of_another_metric_is_refused(script):
    import predict_rows

    typed = predict_rows.Recorded("", ("exp=llama_fp4", "search.metric=test_bits_per_byte"), "Llama")
    with pytest.raises(ValueError, match="tolerance is for its own metric"):
        predict_rows._question(typed)
