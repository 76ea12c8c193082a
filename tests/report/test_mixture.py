"""A report of runs of different code or data says so in its first sentence."""

import pytest

from cpdrun.report.answers_text import headline, notes
from cpdrun.study.reader import read_study


def environment(code: str = "aa", data: str | None = "dd", module: str = "mine") -> dict:
    return {
        "code": {module: {"file": "/x/mine.py", "sha256": code}},
        "code_sha256": code,
        "data_sha256": data,
    }


def first_sentence(sweep) -> str:
    return headline(read_study([sweep.dir]))[0][0]


@pytest.mark.parametrize(
    ("other", "named"),
    [({"code": "bb"}, "mine"), ({"data": "ee"}, "data"), ({"code": "bb", "data": "ee"}, "mine, data")],
)
def test_the_first_sentence_says_it(new_sweep, other, named):
    sweep = new_sweep()
    for seed in range(3):
        sweep.add("fp32", seed=seed, accuracy=0.98, env=environment())
        sweep.add("e4m3", seed=seed, accuracy=0.98, env=environment(**other) if seed else environment())
    assert first_sentence(sweep).startswith("Warning: the runs did not all use the same code and data (")
    assert f"({named} differ" in first_sentence(sweep)


def test_other_modules_other_data_and_older_records_are_no_mixture(new_sweep):
    sweep = new_sweep()
    for seed, env in enumerate([environment(), environment("bb", module="another"), {"python": "3.11"}, {}]):
        sweep.add("fp32", seed=seed, accuracy=0.98, env=env)
        sweep.add("e4m3", seed=seed, accuracy=0.98, env=env)
    sweep.add("fp32", seed=9, accuracy=0.98, env=environment(data="ee"), data={"_target_": "mine.Other"})
    assert "Warning" not in first_sentence(sweep)


def test_runs_of_several_processors_are_named(new_sweep):
    sweep = new_sweep()
    for seed, vector in enumerate(["avx2", "avx2", "avx2 avx512f"]):
        env = {"device": "Xeon", "cpu": "Xeon", "cpu_vector": vector}
        sweep.add("fp32", seed=seed, accuracy=0.98, env=env)
        sweep.add("e4m3", seed=seed, accuracy=0.98, env=env)
    (line,) = [line for line in notes(read_study([sweep.dir]), [sweep.dir]) if "processor" in line]
    assert "different processors (4 on Xeon (avx2); 2 on Xeon (avx2 avx512f))" in line


def test_a_report_with_e4m3_says_once_that_hardware_has_another(new_sweep):
    said = "e4m3 is IEEE-style (maximum 240); hardware FP8 is e4m3fn (448)"
    for fmt, count in (("e4m3", 1), ("e4m3fn", 0)):
        sweep = new_sweep(fmt)
        for seed in range(2):
            sweep.add("fp32", seed=seed, accuracy=0.98)
            sweep.add(fmt, seed=seed, accuracy=0.98)
        assert notes(read_study([sweep.dir]), [sweep.dir]).count(said) == count
