"""The committed data and fit: what is predicted of experiments that the model has not seen."""

import math
from pathlib import Path

import pytest

from cpdrun.predict.model import fitted

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def script():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "scripts")
        import fit_predict

        yield fit_predict


@pytest.fixture(scope="module")
def rows(script):
    return script.read_rows(ROOT / script.DATA)


def test_the_committed_model_is_that_of_the_committed_data(script, rows):
    model = script.fitted_on(rows)
    assert model.features == fitted().features and model.experiments == fitted().experiments
    assert fitted().weights == pytest.approx(model.weights, abs=2e-3)
    assert len(fitted().draws) == 200 and min(min(draw[1:]) for draw in fitted().draws) >= 0
    assert model.probability(script._features(rows[0])).value == pytest.approx(
        fitted().probability(script._features(rows[0])).value, abs=1e-3
    )


@pytest.fixture(scope="module")
def held(script, rows):
    return script.left_out(rows)


def test_experiments_left_out_are_told_apart_and_ranked(script, held):
    settled = [each for each in held if each.is_settled]
    assert script.auc(settled) > script.GOAL_AUC and script.rank(settled) > script.GOAL_RANK
    assert script.auc(settled, apart=True) > 0.94
    assert script.auc(held) > 0.92 and script.rank(held) > 0.74


def test_gradients_and_products_are_each_told_apart(script, held):
    of_kind = {kind: [h for h in held if h.kind == kind] for kind in (script.GRADIENTS, script.PRODUCTS)}
    assert {each.row["experiment"] for each in of_kind[script.PRODUCTS]} == set(script.OF_RECIPES)
    assert script.auc(of_kind[script.GRADIENTS]) > 0.94 and script.auc(of_kind[script.PRODUCTS]) > 0.87
    assert script.rank(of_kind[script.GRADIENTS]) > 0.68 and script.rank(of_kind[script.PRODUCTS]) > 0.77


def test_recipes_of_four_bits_are_told_from_those_of_eight_by_a_fit_without_them(script, held):
    chances = {h.row["candidate"]: h.chance for h in held if h.row["experiment"] == "llama_fp4"}
    assert max(chances[name] for name in ("mxint8", "mxfp8", "fp8")) < 0.3
    assert min(chances[name] for name in ("mxfp4", "nvfp4", "nvint4", "ue5m3")) > 0.5


def test_a_perfect_prediction_ranks_as_well_as_the_seeds_allow(script, held):
    exact = [each for each in held if each.row["experiment"] == "grid_convnet"]
    noisy = [each for each in held if each.row["experiment"] == "codebook_bits"]
    assert script.rank(held) < script.reachable(held) < 1
    assert script.reachable(noisy) < script.reachable(exact)
    assert script.reachable(exact[:1]) != script.reachable(exact[:1])  # NaN: one has no order


def test_e3m0_of_64_workers_is_foretold_without_any_run_of_more_than_16(script, rows):
    """In one chain it reaches 6 %, in groups of 8 it is a point below fp32, in a tree as good."""
    model = script.fitted_on([row for row in rows if row["experiment"] != "digits_workers"])

    def chance(order):
        [row] = [
            row
            for row in rows
            if row["candidate"].startswith(
                f"e3m0 with APS, workers 64, sync.order {order}, sync.rounding nearest"
            )
            and row["candidate"].endswith("kahan no")
        ]
        return float(row["gap"]), model.probability(script._features(row)).value

    (chain, p_chain), (groups, p_groups), (tree, p_tree) = map(chance, ("rank", "hierarchical", "tree"))
    assert chain < -90 < -2 < groups < tree
    assert p_chain > 0.99 and 0.5 < p_groups < 0.8 and p_tree < p_groups < p_chain


def test_a_looser_tolerance_is_missed_less_likely(script, rows):
    [row] = [
        row for row in rows if row["experiment"] == "digits_bits" and row["candidate"] == "e3m0 with APS"
    ]
    chances = [fitted().probability(script._features(row, times)).value for times in (0.5, 1, 2, 4)]
    assert chances == sorted(chances, reverse=True) and chances[0] - chances[-1] > 0.3


def test_a_gap_has_the_unit_of_its_tolerance(script, rows):
    """llama_fp4's search is in nats: .02 of them, which are .029 bits a byte."""
    import predict_rows

    recorded = predict_rows.RECORDED["llama_fp4"]
    judged = predict_rows.judged_of(predict_rows._question(recorded), recorded)
    losses = {}
    for run in script.read_rows(ROOT / "results/reference" / recorded.values):
        losses.setdefault(run["case"], {})[run["seed"]] = float(run["metric:test_loss"])
    here = [row for row in rows if row["experiment"] == "llama_fp4"]
    assert {row["candidate"] for row in here} == set(judged) == set(losses) - {"bf16"}
    for row in here:
        ours = losses[row["candidate"]]
        gap = sum(losses["bf16"][seed] - loss for seed, loss in ours.items()) / len(ours)
        assert float(row["gap"]) == pytest.approx(gap, rel=1e-4) and row["tolerance"] == "0.02"
        assert {key: row[key] for key in judged[row["candidate"]]} == {
            key: str(value) for key, value in judged[row["candidate"]].items()
        }
        assert float(row["strictness"]) == pytest.approx(math.log10(math.log(256) / 0.02), rel=1e-4)


def test_a_tolerance_of_another_metric_is_refused(script):
    import predict_rows

    typed = predict_rows.Recorded("", ("exp=llama_fp4", "search.metric=test_bits_per_byte"), "Llama")
    with pytest.raises(ValueError, match="tolerance is of its own metric"):
        predict_rows._question(typed)
