"""From what a script logged to its result."""

import math

import pytest

from cpdrun.record import Best, Ending, LoggedRow
from cpdrun.script_metrics.metric_files import GrowingFile, csv_parser, json_parser, row_of
from cpdrun.script_metrics.result import NoResultError, Tally, result


def script(**more):
    return {"metrics": {}, "metric": None, "direction": {}, "value": "last"} | more


def result_of(rows, **more):
    tally = Tally()
    for row in rows:
        tally.add(row)
    return result(tally, {"script": script(**more)}, 1.0, {})


LOSSES = [LoggedRow(epoch, metrics={"val_loss": loss}) for epoch, loss in ((1, 0.5), (2, 0.3), (3, 0.4))]


def test_the_last_value_counts_and_the_best_is_recorded():
    ended = result_of(LOSSES)
    assert ended.metrics == {"val_loss": 0.4} and ended.judged_by == "val_loss"
    assert ended.best == Best("val_loss", 0.3, 2) and ended.status is Ending.FINISHED
    assert not ended.measures["val_loss"].higher_is_better


def test_the_best_counts_on_request():
    assert result_of(LOSSES, value="best").metrics == {"val_loss": 0.3}


def test_a_run_whose_last_value_is_not_finite_has_diverged():
    ended = result_of([*LOSSES, LoggedRow(4, metrics={"val_loss": math.nan})], value="best")
    assert ended.status is Ending.DIVERGED and ended.metrics == {"val_loss": None}


def test_the_default_judge_is_the_first_test_metric():
    rows = [LoggedRow(metrics={"train_loss": 1.0, "lr": 0.1}), LoggedRow(metrics={"eval_accuracy": 0.5})]
    ended = result_of(rows)
    assert ended.judged_by == "eval_accuracy" and set(ended.measures) == {"train_loss", "eval_accuracy"}


def test_a_share_is_shown_in_percent():
    ended = result_of([LoggedRow(metrics={"hits": 0.5})], metric="hits", direction={"hits": "share"})
    assert ended.measures["hits"].shown == "percent" and ended.measures["hits"].higher_is_better


def test_a_missing_metric_is_an_error_with_the_logged_ones():
    with pytest.raises(NoResultError, match=r"never logged val_loss.*matches 'loss=.*It logged lr"):
        result_of([LoggedRow(metrics={"lr": 0.1})], metrics={"val_loss": "loss=(.*)"})
    with pytest.raises(NoResultError, match="logged no metric"):
        result_of([])


def test_rows_are_read_from_a_file_that_grows_and_is_rewritten(tmp_path):
    path = tmp_path / "log.jsonl"
    path.write_text('{"step": 1, "loss": 9.0}\n')
    lines = GrowingFile(path, json_parser)
    assert list(lines.rows()) == []
    with path.open("a") as file:
        file.write('{"step": 2, "loss": NaN}\nnonsense\n{"step": 3, "los')
    assert list(lines.rows()) == [LoggedRow(None, 2, {"loss": None})]
    path.write_text('{"loss": 1}')
    assert list(lines.last()) == [LoggedRow(metrics={"loss": 1})]


def test_nulls_and_words_are_not_values():
    assert row_of({"step": 1, "val_loss": None, "name": "x", "ok": True}) is None
    assert row_of({"global_step": 7, "epoch": 0.5, "loss": 2}) == LoggedRow(0.5, 7, {"loss": 2})


def test_a_csv_file_is_read_below_its_header(tmp_path):
    path = tmp_path / "metrics.csv"
    path.write_text("epoch,val_loss,note\n1,9.5,old\n")
    rows = GrowingFile(path, csv_parser)
    assert list(rows.rows()) == []
    with path.open("a") as file:
        file.write("2,0.5,\n3,nan,x\n4,0.")
    assert list(rows.rows()) == [
        LoggedRow(2, metrics={"val_loss": 0.5}),
        LoggedRow(3, metrics={"val_loss": None}),
    ]
    with path.open("a") as file:
        file.write("25")
    assert list(rows.last()) == [LoggedRow(4, metrics={"val_loss": 0.25})]
    assert len(list(GrowingFile(path, csv_parser, from_start=True).last())) == 4
