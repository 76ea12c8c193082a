"""Settings that have no effect are reported, wherever they were made."""

from contextlib import nullcontext

import pytest

from cpdrun.cli import main
from cpdrun.config.compose import Composer
from cpdrun.config.ignored_settings import RULES, ignored_settings
from cpdrun.sweep import plan

# settings in addition to format=e4m3, and how each reported line begins
CASES = [
    (["compressor=qsgd"], ["compressor has no effect: AllReduceSync does not use it, unlike sync=compressed, goss"]),
    (["topology.mixing=metropolis"], ["topology.mixing has no effect: AllReduceSync does not use it"]),
    (["compressor=top_k", "compressor.keep=0.1"], ["compressor and compressor.keep have no effect"]),
    (["norm=evonorm_s0"], ["norm has no effect: ConvNet has no norm layers, unlike model=normed_convnet"]),
    (["norm=evonorm_s0", "model=convnet,normed_convnet"], []),
    (["compressor=top_k", "compressor.keep=0.1", "topology=torus", "sync=gossip_dpsgd"], []),
    (["compressor=top_k", "sync=gossip_dpsgd,all_reduce"], []),
    (["compressor=top_k", "format=fp32", "sync=compressed", "sync.error_feedback=true"], []),
    (["format=fp32", "sync=power_sgd", "sync.error_feedback=false", "full_precision.layers=[fc.*]"], []),
    (["scaling=aps", "aps=false"], ["scaling has no effect: it selects how aps=true scales"]),
    (["scaling=aps"], []),
    (["scaling.margin=1,2"], ["scaling.margin has no effect"]),
    (["scaling=aps", "aps=true,false"], []),
    (["format=fp32", "aps=true", "sync.rounding=stochastic"], ["aps has no effect: format=fp32 has nothing"]),
    (["format=fp32,e4m3", "aps=true"], []),
    (["format=fp32", "full_precision.layers=[fc.*]"], ["full_precision.layers has no effect: with format=fp32"]),
    (["full_precision.layers=[fc.*]"], []),
    (["full_precision.layers=['*']"], ["format has no effect: with full_precision.layers=['*']"]),
    (["full_precision.layers=['*']", "model=mlp_parallel", "model.errors=${format}"], []),
    (["format=fp32", "sync.error_feedback=true"], ["sync.error_feedback has no effect: format=fp32 does not"]),
    (["format=fp32", "sync=requantised", "sync.requantise=hop"], ["sync.requantise has no effect"]),
    (["sync.order=rank,tree", "sync.group_size=auto"], ["sync.group_size has no effect: only sync.order=hier"]),
    (["sync.group_size=2,4"], []),
    (["sync=local", "sync.nesterov=false", "sync.order=tree", "sync.rounding=stochastic"], []),
    (["sync=local", "compressor=top_k", "format=fp32", "sync.error_feedback=false"], []),
    (["sync=local", "format=fp32", "sync.error_feedback=false"], ["sync.error_feedback has no effect: format=fp32"]),
    (["sync=local", "compressor=top_k", "sync.order=rank"], ["sync.order has no effect: LocalSync adds the messages"]),
    (["sync=local", "compressor=top_k,rounded", "sync.order=rank", "compressor.rounding=stochastic"], []),
    (["sync=local", "compressor.rounding=stochastic"], ["compressor.rounding has no effect: LocalSync with"]),
    (["sync=local", "sync.outer_momentum=0", "sync.nesterov=true"], ["sync.nesterov has no effect: with sync.outer_"]),
    (["world_size=1", "sync.order=tree", "sync.kahan=true"], ["sync.order and sync.kahan have no effect"]),
    (["precision.kahan=true"], ["precision.kahan has no effect: precision.accumulator=fp32 has no rounding"]),
    (["precision.accumulator=fp32,fp16", "precision.kahan=true"], []),
    (["precision.update_order=rate_first"], ["precision.update_order has no effect: precision.update=fp32"]),
    (["precision.master_weights=false"], ["precision.master_weights has no effect: precision.weights=fp32"]),
    (["precision=pure_fp16", "precision.master_weights=true", "precision.update_order=rate_first"], []),
    (["precision.fp32_norms=true"], ["precision.fp32_norms has no effect: precision keeps all"]),
    (["precision=int8", "precision.activation_bits=null", "precision.activation_range=samples"], [
        "precision.activation_range has no effect: precision.activation_bits=null"
    ]),
    (["precision=int8", "precision.error_bits=null", "precision.error_rounding=nearest_even"], [
        "precision.error_rounding has no effect: precision.error_bits=null"
    ]),
    (["precision=int8", "precision.error_rounding=nearest_even"], []),
    (["format=fp32", "epochs=0", "optim.lr=1,2", "schedule=step"], ["optim.lr and schedule have no effect"]),
    (["epochs=1", "optim.lr=1"], []),
    (["device=cpu", "launcher.jobs_per_gpu=2"], ["launcher.jobs_per_gpu has no effect: device=cpu uses no GPU"]),
    (["launcher.jobs_per_gpu=2"], []),
]  # fmt: skip


def reported(words, config_dir=None):
    sweep = plan(words, config_dir, imports=False)
    return list(ignored_settings(sweep.given, [run.config for run in sweep.runs]))


def test_settings_without_effect_are_reported(monkeypatch):
    with Composer() as composer:  # opening it takes most of the time
        monkeypatch.setattr("cpdrun.config.plan.Composer", lambda _: nullcontext(composer))
        for given, lines in CASES:
            format = [] if any(word.startswith("format") for word in given) else ["format=e4m3"]
            found = reported([*format, *given])
            assert len(found) == len(lines), (given, found)
            for line, beginning in zip(found, lines, strict=True):
                assert line.startswith(beginning), given


def test_every_rule_is_tested():
    lines = [line for _, lines in CASES for line in lines]
    for rule in RULES:
        assert any(rule.covers(line.split()[0]) for line in lines), rule.keys


@pytest.mark.parametrize(
    "body",
    [
        "defaults: [{override /compressor: qsgd}]\n",
        "compressor: {rounding: stochastic}\n",
        "sweep: {compressor.rounding: [stochastic, nearest_even]}\n",
        "sweep: {cases: {fp32: {compressor: qsgd}, other: {compressor.rounding: stochastic}}}\n",
    ],
)
def test_settings_without_effect_in_an_experiment_file_are_reported(experiment, body):
    (line,) = reported(["exp=mine"], experiment(body))
    assert line.startswith("compressor") and "AllReduceSync does not use it" in line


def test_ignored_settings_are_reported_before_anything_starts(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("cpdrun.launch.local.gpus", list)
    words = ["sweep", "exp=digits_bits", "compressor=qsgd", f"results_dir={tmp_path}", "--dry-run"]
    assert main([*words, "--jobs-per-gpu=2", "--max-parallel=3"]) == 0
    said = capsys.readouterr().err
    assert "note: compressor has no effect" in said
    assert "note: --max-parallel has no effect" in said
    assert "note: --jobs-per-gpu has no effect: this machine has no GPU" in said
    assert not list(tmp_path.iterdir())
