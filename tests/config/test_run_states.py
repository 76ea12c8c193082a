"""The states of runs in a sweep's folder, and notes on unreadable, edited and differently trained runs."""

import errno

import pytest

from cpdrun.config.identity import hash_in
from cpdrun.config.run_states import run_states
from cpdrun.launch import Job
from cpdrun.launch.session import write_configs
from cpdrun.record import State, cpu, processor, state_of, write_json
from cpdrun.record.cpu import described
from cpdrun.sweep import plan


@pytest.fixture
def sweep(tmp_path):
    """Four runs with their configs; the first three are done."""
    sweep = plan(["exp=digits_bits", "format=fp32,e4m3", "aps=false", "seed=0,1", f"results_dir={tmp_path}"])
    runs = [sweep.directory.run(run.name) for run in sweep.runs]
    write_configs([Job(run, planned.config, []) for run, planned in zip(runs, sweep.runs, strict=True)])
    for run in runs[:3]:
        write_json(run.done, {"status": "finished", "metrics": {}})
        name, vector = processor()
        write_json(run.env, {"device": name, "cpu": name, "cpu_vector": vector})
    return sweep


def run_of(sweep, index):
    return sweep.directory.run(sweep.runs[index].name)


def test_unchanged_runs_have_no_notes(sweep):
    found = run_states(sweep)
    assert list(found.states.values()) == [State.DONE] * 3 + [State.PENDING]
    assert found.odd == {} and found.edited == [] and found.notes(here=True) == []


def test_a_manually_changed_config_no_longer_matches_its_name(sweep):
    run = run_of(sweep, 0)
    run.config.write_text(run.config.read_text().replace("epochs: 15", "epochs: 16"))
    run_of(sweep, 1).config.write_text("- no config\n")
    (note,) = run_states(sweep).notes(here=True)
    assert note.startswith("2 runs whose config.yaml was changed by hand and no longer matches the hash")
    assert run.name in note


def test_unreadable_runs_do_not_hide_others(sweep):
    run_of(sweep, 0).done.unlink()
    run_of(sweep, 0).done.mkdir()
    run_of(sweep, 1).env.write_text("[" * 100_000)
    attempt = run_of(sweep, 3).new_attempt()
    write_json(attempt.where, {})
    attempt.exit.mkdir()
    found = run_states(sweep)
    assert found.states[sweep.runs[0].name] is State.DONE
    ((name, message),) = found.odd.items()
    assert (
        name == sweep.runs[0].name and f"{run_of(sweep, 0).done} does not contain a record. Remove" in message
    )
    assert found.states[sweep.runs[3].name] is State.PREEMPTED


def test_a_run_of_a_newer_version_is_done_with_a_note(sweep):
    run = run_of(sweep, 0)
    write_json(run.done, {"status": "finished", "metrics": {}, "record": 2})
    found = run_states(sweep)
    assert found.states[run.name] is State.DONE
    assert "is of record version '2'" in found.odd[run.name] and "remove it" not in found.odd[run.name]


def test_a_run_without_read_permission_is_reported(sweep, monkeypatch):
    """The folder of another user. PermissionError is simulated, because root can read everything."""
    closed = run_of(sweep, 0)

    def state(run):
        if run == closed:
            raise PermissionError(errno.EACCES, "Permission denied", str(run.done))
        return state_of(run)

    monkeypatch.setattr("cpdrun.config.run_states.state_of", state)
    found = run_states(sweep)
    assert found.odd == {closed.name: f"{closed.done}: Permission denied"} and len(found.states) == 3


def test_runs_on_different_processors_are_reported(sweep):
    name, vector = processor()
    other = f"{vector} other"  # this machine lacks one feature of the other processor
    write_json(run_of(sweep, 1).env, {"device": name, "cpu": name, "cpu_vector": other})
    (note,) = run_states(sweep).notes(here=True)
    assert f"2 on {described((name, vector))}" in note and f"1 on {name} ({other})" in note
    for index in range(3):
        write_json(run_of(sweep, index).env, {"device": "Cray-1", "cpu": "Cray-1", "cpu_vector": "v"})
    (note,) = run_states(sweep).notes(here=True)
    assert f"3 on Cray-1 (v). This machine has {described((name, vector))}" in note
    assert run_states(sweep).notes(here=False) == []  # trained elsewhere


def test_an_old_record_without_features_matches_its_processor(sweep):
    write_json(run_of(sweep, 1).env, {"device": processor()[0]})
    assert run_states(sweep).notes(here=True) == []


def test_the_processor_is_read_from_proc_cpuinfo(tmp_path, monkeypatch):
    info = tmp_path / "cpuinfo"
    info.write_text(
        "processor\t: 0\nmodel name\t: Test 9000\nflags\t\t: fpu sse4_2 avx512f avx2 avx\n\nprocessor\t: 1\n"
    )
    monkeypatch.setattr(cpu, "CPUINFO", info)
    assert processor.__wrapped__() == ("Test 9000", "sse4_2 avx avx2 avx512f")


@pytest.mark.parametrize("word", ["recipe=nvfp4", "sync=gossip_choco"])
def test_a_finished_run_under_a_former_name_is_found_by_its_hash(tmp_path, word):
    typed = ["exp=digits_bits", "format=fp32", word, "aps=false", "seed=0,1", f"results_dir={tmp_path}"]
    sweep = plan(typed)
    new = sweep.runs[0].name
    former = f"convnet-fp32-w8-s0-{hash_in(new)}"
    assert new != former and new.startswith("convnet-")
    run = sweep.directory.run(former)
    write_configs([Job(run, sweep.runs[0].config, [])])
    write_json(run.done, {"status": "finished", "metrics": {}})
    again = plan(typed)
    assert [run.name for run in again.runs] == [former, sweep.runs[1].name]
    found = run_states(again)
    assert list(found.states.values()) == [State.DONE, State.PENDING] and found.edited == []
    assert sweep.directory.find(new).name == former
