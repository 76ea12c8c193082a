"""Reports and searches of scripts' runs: any metric in its direction, and settings that changed nothing are said."""

import pytest

from cpdrun.config.errors import ConfigError
from cpdrun.launch import Job
from cpdrun.launch.session import write_configs
from cpdrun.record import Best, Ending, LoggedRow, Result, SweepDir, read_json, write_json
from cpdrun.record.measure import MEASURES
from cpdrun.report.search_text import describe_results
from cpdrun.report.study_text import ignored_texts
from cpdrun.search.question import ask
from cpdrun.search.results import Results, baseline_problem, ladder_problem
from cpdrun.study import ReportUsageError
from cpdrun.study.collect import collect, ignored
from cpdrun.study.reader import read_study
from cpdrun.study.records import rows_of, unit_of
from cpdrun.sweep import plan


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("")
    return tmp_path


def made(texts, loss_of):
    """The sweep of these words, every run of it done with the loss that `loss_of` gives for its config."""
    sweep = plan(["script=train.py", *texts])
    for planned in sweep.runs:
        run = sweep.directory.run(planned.name)
        write_configs([Job(run, planned.config, planned.overrides)])
        write_done(run, loss_of(planned.config))
    return sweep.directory


def write_done(run, loss):
    for step in (10, 20):
        run.append_row(LoggedRow(step=step, metrics={"val_loss": loss + 1 / step}))
    metrics = {"val_loss": loss, "reward": 1 - loss}
    measures = {"val_loss": MEASURES["min"]}
    best = Best("val_loss", loss, 20)
    write_json(run.done, Result(Ending.FINISHED, metrics, measures, "val_loss", best).as_json())


def by_format(config):
    return {"fp32": 0.5, "e4m3": 0.51, "e3m0": 0.9}[config["format"]] + config["seed"] / 1000


def test_less_is_better_and_the_curve_is_over_steps(here):
    sweep = made(["format=fp32,e4m3,e3m0", "seed=0,1,2"], by_format)
    study = read_study([sweep])
    assert study.metric.name == "val_loss" and not study.metric.higher_is_better
    gaps = {str(group.format): study.against_baseline(group) for group in study.groups}
    assert gaps["e3m0"].mean == pytest.approx(-0.4) and gaps["e4m3"].mean == pytest.approx(-0.01)
    assert unit_of(study.groups[0].runs) == "step"
    assert {row.epoch for run in study.groups[0].runs for row in rows_of(run)} == {10, 20}


def test_a_metric_of_unknown_direction_is_an_error(here):
    sweep = made(["format=fp32,e4m3"], by_format)
    with pytest.raises(
        ReportUsageError, match="--metric reward:min if smaller ones are, or --metric reward:max"
    ):
        read_study([sweep], metric="reward")
    assert read_study([sweep], metric="reward:max").metric.higher_is_better
    assert not read_study([sweep], metric="reward:min").metric.higher_is_better


def test_an_argument_that_changed_nothing_is_reported(here):
    sweep = made(["script.args.lr=0.1,0.2", "format=fp32,e4m3", "seed=0,1"], by_format)
    (line,) = ignored_texts(ignored(collect([sweep])))
    assert line.startswith("Runs with lr = 0.1, 0.2 measured exactly the same") and "read --lr?" in line


def test_a_seed_that_changed_nothing_is_reported(here):
    sweep = made(["script.args.lr=0.1,0.2", "seed=0,1,2"], lambda config: config["script"]["args"]["lr"])
    (line,) = ignored_texts(ignored(collect([sweep])))
    assert line.startswith("Runs of the seeds 0, 1, 2 measured exactly the same")


def test_an_argument_that_changed_some_runs_is_not_reported(here):
    sweep = made(["script.args.lr=0.1,0.2", "seed=0,1"], lambda c: c["seed"] * c["script"]["args"]["lr"])
    assert ignored(collect([sweep])) == []


def test_seeds_that_change_nothing_are_not_evidence(here):
    words = ["script=train.py", "format=fp32,e4m3", "search.most_seeds=3"]
    sweep = made(["format=fp32,e4m3", "seed=0,1,2"], lambda config: 0.5 + (config["format"] == "e4m3") / 100)
    results = Results(ask(words))
    assert results.runs == 6
    (state,) = results.states()
    baseline = state.ladder.widths[0][0].baseline
    problem = baseline_problem(results, baseline)
    assert "the script seems to set its own seed" in problem and f"Delete {sweep.path} first" in problem
    for number, run in enumerate(SweepDir(sweep.path).runs()):
        write_done(run, 0.5 + number / 100)
    assert baseline_problem(Results(ask(words)), baseline) is None


def test_a_search_for_a_metric_of_unknown_direction_is_an_error(here):
    with pytest.raises(ConfigError, match=r"script.direction.reward=min"):
        ask(["script=train.py", "format=fp32,e4m3", "search.metric=reward"])
    ask(["script=train.py", "format=fp32,e4m3", "search.metric=reward", "script.direction.reward=max"])


def rounded(share):
    """Return the record of the products of a script that rounds the given share of its multiply-accumulates."""
    formats = {"bf16": share, "fp32": 1 - share}
    by_format = [
        {"a": name, "b": name, "accumulator": "fp32", "macs": 1e6 * part} for name, part in formats.items()
    ]
    return {"macs_per_step": 1e6, "by_format": by_format}


def varied(config):
    return 0.5 + (config["seed"] * (3 if config["recipe"] == "bf16" else 1) % 5) / 1000


@pytest.mark.parametrize(
    ("products", "typed", "problem"),
    [
        (rounded(0.8), (), None),
        (
            rounded(0.175),
            (),
            "bf16 rounds only 17% of the multiply-accumulates, so a certificate would say little",
        ),
        (rounded(0.175), ("search.min_coverage=0.17",), None),
        (
            {"problem": "the model is compiled"},
            (),
            "the coverage of bf16 was not counted (the model is compiled)",
        ),
        ({"problem": "the model is compiled"}, ("search.min_coverage=0",), None),
        (None, (), None),  # earlier versions recorded no products
    ],
)
def test_a_search_does_not_certify_a_recipe_with_a_small_coverage(here, products, typed, problem):
    words = ["script=train.py", "recipe=fp32,bf16", "search.tolerance=0.02", *typed]
    sweep = made(["recipe=fp32,bf16", "seed=0,1,2,3,4,5"], varied)
    for run in sweep.runs():
        if products and "-bf16-" in run.name:
            write_json(run.done, read_json(run.done) | {"products": products})
    results = Results(ask(words))
    (state,) = results.states()
    found = ladder_problem(results, state.ladder)
    (answer, *_) = describe_results(results)
    if problem is None:
        assert found is None and answer.startswith("CERTIFIED: bf16 (16 bits planned)")
        return
    assert found.startswith(problem) and answer.startswith("NO ANSWER") and not results.answerable_states()
    least = found.rsplit("search.min_coverage=", 1)[1]
    results = Results(ask([*words, f"search.min_coverage={least}"]))
    assert ladder_problem(results, state.ladder) is None


def test_candidates_with_the_recipe_of_their_baseline_need_no_coverage(here):
    """The candidates differ only in gradient formats, so they round the same products as the baseline."""
    sweep = made(["format=fp32,e4m3", "recipe=bf16", "seed=0,1,2"], by_format)
    for run in sweep.runs():
        write_json(run.done, read_json(run.done) | {"products": rounded(0.1)})
    results = Results(ask(["script=train.py", "format=fp32,e4m3", "recipe=bf16", "search.tolerance=0.02"]))
    assert [ladder_problem(results, state.ladder) for state in results.states()] == [None]
