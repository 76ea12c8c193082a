"""A report on runs of different code or data says so in its first sentence, and names other differences in notes."""

import pytest

from cpdrun.report.answers_text import headline, notes
from cpdrun.study.reader import read_study


def environment(code="aa", data: str | None = "dd", module="mine") -> dict:
    files = {module: {"file": "/x/mine.py", "sha256": code}}
    return {"code": files, "code_sha256": code, "data_sha256": data}


def first_sentence(sweep) -> str:
    return headline(read_study([sweep.dir]))[0][0]


@pytest.mark.parametrize(
    ("other", "named"),
    [({"code": "bb"}, "mine"), ({"data": "ee"}, "data"), ({"code": "bb", "data": "ee"}, "mine, data")],
)
def test_different_code_or_data_is_named_first(new_sweep, other, named):
    sweep = new_sweep()
    for seed in range(3):
        sweep.add("fp32", seed=seed, accuracy=0.98, env=environment())
        sweep.add("e4m3", seed=seed, accuracy=0.98, env=environment(**other) if seed else environment())
    assert first_sentence(sweep).startswith("Warning: the runs did not all use the same code and data (")
    assert f"({named} differ" in first_sentence(sweep)


def test_other_modules_other_data_sets_and_older_records_are_no_mixture(new_sweep):
    sweep = new_sweep()
    for seed, env in enumerate([environment(), environment("bb", module="another"), {"python": "3.11"}, {}]):
        sweep.add("fp32", seed=seed, accuracy=0.98, env=env)
        sweep.add("e4m3", seed=seed, accuracy=0.98, env=env)
    sweep.add("fp32", seed=9, accuracy=0.98, env=environment(data="ee"), data={"_target_": "mine.Other"})
    assert "Warning" not in first_sentence(sweep)


def test_equal_versions_and_hosts_are_not_mentioned(new_sweep):
    sweep = new_sweep()
    for seed in range(2):
        env = {"packages": {"torch": "2.9.0"}, "hostname": f"node{seed}"}
        sweep.add("e4m3fn", seed=seed, env=env)
    told = " ".join(notes(read_study([sweep.dir]), [sweep.dir]))
    assert not any(word in told for word in ("different versions", "node0", "hardware FP8"))
