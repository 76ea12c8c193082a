"""Workers with weights of their own in the training loop: the record, the mathematics, and parts written by a user."""

import re
import time
from pathlib import Path

import forked_ranks
import pytest
import torch
import yaml

from cpdrun.comm.workers import Workers
from cpdrun.record import RunDir, read_json, read_json_lines, write_text
from cpdrun.sweep import plan
from cpdrun.train.build import build
from cpdrun.train.learners.separate_weights import GossipWeights
from cpdrun.train.preflight.check import check

PLAIN = ("format=fp32", "aps=false", "world_size=4", "batch_size=16")
SHORT = (*PLAIN, "data.test_fraction=0.9", "epochs=2")
STEPS = 2 * (180 // 64)  # of SHORT


def learner_of(*typed: str) -> GossipWeights:
    (planned,) = plan(["exp=digits_bits", *PLAIN, "seed=0", "sync=gossip_dpsgd", *typed]).runs
    cpu = torch.device("cpu")
    return GossipWeights(planned.config, build(planned.config, cpu), Workers(4), cpu)


@pytest.fixture
def metrics_of(make_run, train_here):
    """metrics_of(*typed) -> the metrics of a run that ended well."""

    def train(*typed):
        run = make_run(*typed)
        assert train_here(run) == 0
        return read_json(run.done)["metrics"]

    return train


def test_gossip_leaves_the_metrics_of_all_workers(make_run, train_here):
    run = make_run(*PLAIN, "sync=gossip_dpsgd", "epochs=4", "compressor=min_max")
    assert train_here(run) == 0
    done = read_json(run.done)
    metrics = done["metrics"]
    assert metrics["test_accuracy_worst"] <= metrics["test_accuracy"] <= 1
    assert metrics["test_loss_worst"] >= metrics["test_loss"]
    assert metrics["test_accuracy_averaged_model"] > 0.8
    assert 0 < metrics["consensus_distance"] < 1
    steps = 4 * (1437 // 64)
    assert metrics["bytes_sent_per_worker"] == steps * done["wire"]["bytes_per_step_real_worker"]
    assert {key: list(read_json_lines(run.metrics))[-1][key] for key in metrics} == metrics
    assert done["topology"] == {"neighbours": 2, "spectral_gap": pytest.approx(2 / 3)}
    assert done["memory"]["gossip_bytes"] == 0, "D-PSGD remembers nothing"
    assert "longest_chain" not in done


def test_complete_gossip_without_momentum_learns_as_all_reduce(metrics_of):
    """Averaging all weights after each step of SGD equals SGD on the mean gradient, except for rounding. BatchNorm's
    statistics are each worker's own, so the training loss is compared."""
    typed = (*SHORT, "optim.momentum=0")
    gossip, reduce = metrics_of(*typed, "sync=gossip_dpsgd", "topology=complete"), metrics_of(*typed)
    assert gossip["train_loss"] == pytest.approx(reduce["train_loss"], rel=1e-4)
    assert gossip["consensus_distance"] < 1e-5


def test_closing_rounds_come_after_the_last_step_and_before_the_evaluation(make_run, train_here):
    """30 rounds on a ring of four, each bringing workers nearer by 2/3; rounding leaves 1e-7 of weights near 1."""
    runs = [make_run(*SHORT, "sync=gossip_dpsgd", f"sync.closing_rounds={n}") for n in (0, 30)]
    assert [train_here(run) for run in runs] == [0, 0]
    rows = [list(read_json_lines(run.metrics)) for run in runs]
    assert rows[0][0]["consensus_distance"] == rows[1][0]["consensus_distance"], "an earlier epoch"
    plain, closed = (read_json(run.done)["metrics"] for run in runs)
    assert closed["consensus_distance"] < 1e-5 < 1e-3 < plain["consensus_distance"]
    assert closed["bytes_sent_per_worker"] * STEPS == plain["bytes_sent_per_worker"] * (STEPS + 30)


def test_nesterov_looks_ahead_with_weight_decay():
    """With zero momentum at first, QG-DSGDm-N's first step is 1 + beta times that of SGD, including weight decay."""
    moved = []
    for momentum in ("null", "0.9"):
        typed = [f"sync.quasi_global_momentum={momentum}", f"sync.nesterov={momentum != 'null'}".lower()]
        learner = learner_of(*typed, "optim.momentum=0", "optim.weight_decay=0.5", "optim.lr=1e-3")
        before = learner.models.x_WxD.clone()
        learner.step(torch.arange(64).view(4, 16), step=0, epoch=0, lr_factor=1.0, look=False)
        moved.append(learner.models.x_WxD - before)
    torch.testing.assert_close(moved[1], 1.9 * moved[0], rtol=1e-3, atol=1e-6)


def test_batched_learns_as_exact(metrics_of):
    exact, batched = (
        metrics_of(*SHORT, "sync=gossip_choco", f"emulation={emulation}")
        for emulation in ("exact", "batched")
    )
    assert batched["train_loss"] == pytest.approx(exact["train_loss"], rel=1e-3)
    assert batched["bytes_sent_per_worker"] == exact["bytes_sent_per_worker"]


def test_the_death_of_a_rank_ends_the_others_and_is_named(make_run):
    """Two processes without a launcher that would end the other one; the second is killed while they gossip."""
    run = make_run(*PLAIN, "sync=gossip_choco", "epochs=500", "nproc=2")
    ranks, logs = forked_ranks.start(run, 2)
    try:
        deadline = time.monotonic() + 120
        while not run.metrics.exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        assert run.metrics.exists(), "no epoch within two minutes"
        ranks[1].kill()
        ranks[0].join(120)
        assert ranks[0].exitcode not in (0, None)
        assert "rank 1 ended in the middle of a step; rank 0 stops" in logs[0].read_text()
        assert not run.done.exists()
    finally:
        for rank in ranks:
            rank.kill()
            rank.join()


def test_a_user_adds_a_topology_a_compressor_and_a_rule(tmp_path, train_here, monkeypatch):
    """One Python file, and a yaml each next to conf/; nothing in the package is edited."""
    monkeypatch.syspath_prepend(Path(__file__).parent)
    mine = {
        "topology/star.yaml": "_target_: own_gossip.Star\nmixing: metropolis\n",
        "compressor/sign.yaml": "_target_: own_gossip.Sign\n",
        "sync/gossip_lazy.yaml": "_target_: own_gossip.Lazy\ntopology: ${topology}\ncompressor: ${compressor}\n"
        "quasi_global_momentum: null\nnesterov: false\nclosing_rounds: 0\nworker_test_samples: null\nevery: 2\n",
    }
    for name, text in mine.items():
        path = tmp_path / "mine" / name
        path.parent.mkdir(parents=True)
        write_text(path, text)
    choices = (
        "topology=star",
        "compressor=sign",
        "exp=digits_bits",
        "epochs=3",
        "model.width=4",
        "device=cpu",
    )
    accuracies = []
    for typed in (("sync=gossip_lazy", "compressor=rounded"), ("sync=gossip_choco", "sync.eta=0.3")):
        (planned,) = plan([*choices, *PLAIN, "seed=0", *typed], tmp_path / "mine").runs
        run = RunDir(tmp_path / planned.name)
        run.path.mkdir()
        write_text(run.config, yaml.safe_dump(planned.config))
        assert train_here(run) == 0
        accuracies.append(read_json(run.done)["metrics"]["test_accuracy_averaged_model"])
    assert min(accuracies) > 0.6


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        (
            ("sync.quasi_global_momentum=0.9", "sync.nesterov=true", "optim=adamw"),
            "looks ahead by one SGD step. Type optim=sgd",
        ),
        (("sync.quasi_global_momentum=0.9",), "replaces optim.momentum. Type optim.momentum=0"),
        (("precision.weights=bf16",), "workers that gossip keep float32 weights"),
        (("topology=directed_ring", "topology.mixing=metropolis"), "sync: .*links go both ways"),
        (("compressor=qsgd", "format=e4m3", "aps=true"), "sync: aps=true: QSGD has its own scale"),
        (("compressor=top_k", "compressor.keep=2"), "sync: compressor.keep must be above 0"),
        (("sync.worker_test_samples=0",), "sync.worker_test_samples=0"),
        (("partition=skewed", "partition.skew=-1"), "partition: partition.skew must lie between 0 and 1"),
        (
            ("model=normed_convnet", "norm=evonorm_s0", "norm.groups=3"),
            "model: norm.groups=3 does not divide 16",
        ),
        (
            ("precision=int8", "precision.activation_range=all"),
            "activation_range must be one of tensor, samples",
        ),
        (("precision=int8", "precision.error_bits=40"), "precision: precision.error_bits must be between"),
    ],
)
def test_invalid_settings_are_named_before_the_run(typed, message):
    runs = plan(["exp=digits_bits", *PLAIN, "seed=0", "sync=gossip_choco", *typed]).runs
    (problem,) = check([run.config for run in runs])["problems"]
    assert re.search(message, problem), problem


def test_a_worker_is_emulated_without_copies():
    learner = learner_of()
    learner.models.begin_worker(2)
    with torch.no_grad():
        for p in learner.parts.model.parameters():
            p.fill_(7.0)
    assert all((p == 7).all() for p in learner.models.parameters[2])
    assert not any((p == 7).all() for p in learner.models.parameters[1])


def test_momentum_that_diverges_on_its_graph_is_noted_before_the_run():
    settings = ["exp=digits_bits", *PLAIN, "seed=0", "sync=gossip_dpsgd", "world_size=8"]
    settings += ["optim.momentum=0", "sync.quasi_global_momentum=0.9"]
    runs = plan([*settings, "topology=ring,directed_ring"]).runs
    notes = [check([run.config])["notes"] for run in runs]
    assert notes[0] == [] and "grow by 0.6% per step" in notes[1][0]
