"""Workers with weights of their own in the training loop: the record, resuming, splits over ranks, own parts."""

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
from cpdrun.train.rank import EXIT_PREEMPTED

HERE = Path(__file__).parent
PLAIN = ("format=fp32", "aps=false", "world_size=4", "batch_size=16")
EVERYTHING = (
    *PLAIN,
    "sync=gossip_choco",
    "sync.quasi_global_momentum=0.9",
    "optim.momentum=0",
    "optim.lr=0.05",
    "sync.eta=0.5",
    "compressor=qsgd",
    "partition=skewed",
    "precision=int8",
    "precision.activation_rounding=stochastic",
    "precision.activation_range=samples",
    "data=custom",
    "data._target_=own_digits.AugmentedDigits",
    "+data.test_fraction=0.2",
    "model.dropout=0.2",
)
PUSHED = (
    *PLAIN,
    "sync=gossip_push_sum",
    "topology=arrows",
    "topology.arrows=[[0,1],[1,2],[2,3],[3,0],[0,2]]",
    "compressor=random_k",
    "compressor.keep=0.5",
    "sync.quasi_global_momentum=0.9",
    "sync.nesterov=true",
    "sync.closing_rounds=3",
    "optim.momentum=0",
)


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
    assert done["topology"] == {
        "neighbours": 2,
        "spectral_gap": pytest.approx(2 / 3),
    }
    values = done["memory"]["gossip_bytes"] // 4
    assert values == 0, "D-PSGD remembers nothing"
    assert "longest_chain" not in done


def test_complete_gossip_without_momentum_learns_as_all_reduce(make_run, train_here):
    """With everyone's weights averaged after each step of SGD, it is SGD on the mean gradient: equal but for rounding,
    until rounding has grown. BatchNorm's statistics are each worker's own, so the loss of training is compared."""
    typed = (*PLAIN, "optim.momentum=0", "epochs=2")
    gossip = make_run(*typed, "sync=gossip_dpsgd", "topology=complete")
    reduce = make_run(*typed)
    train_here(gossip)
    train_here(reduce)
    ours, theirs = (read_json(run.done)["metrics"]["train_loss"] for run in (gossip, reduce))
    assert ours == pytest.approx(theirs, rel=1e-4)
    assert read_json(gossip.done)["metrics"]["consensus_distance"] < 1e-5


def test_closing_rounds_come_after_the_last_step_and_before_the_accuracy(make_run, train_here):
    """30 rounds on a ring of four, each bringing workers nearer by 2/3; rounding leaves 1e-7 of weights near 1."""
    runs = [make_run(*PLAIN, "sync=gossip_dpsgd", f"sync.closing_rounds={n}") for n in (0, 30)]
    rows = []
    for run in runs:
        assert train_here(run) == 0
        rows.append(list(read_json_lines(run.metrics)))
    assert rows[0][0]["consensus_distance"] == rows[1][0]["consensus_distance"], "an earlier epoch"
    plain, closed = (read_json(run.done)["metrics"] for run in runs)
    assert closed["consensus_distance"] < 1e-5 < 1e-3 < plain["consensus_distance"]
    steps = 2 * (1437 // 64)
    assert closed["bytes_sent_per_worker"] * steps == plain["bytes_sent_per_worker"] * (steps + 30)


def test_nesterov_looks_ahead_with_the_weight_decay_in():
    """With momentum 0 at first, QG-DSGDm-N's first step is 1 + beta times that of SGD, weight decay and all."""
    moved = []
    for momentum in ("null", "0.9"):
        typed = [f"sync.quasi_global_momentum={momentum}", f"sync.nesterov={momentum != 'null'}".lower()]
        typed += ["optim.momentum=0", "optim.weight_decay=0.5", "optim.lr=1e-3", "sync=gossip_dpsgd"]
        (planned,) = plan(["exp=digits_bits", *PLAIN, "seed=0", *typed]).runs
        learner = GossipWeights(
            planned.config, build(planned.config, torch.device("cpu")), Workers(4), torch.device("cpu")
        )
        before = learner.models.x_WxD.clone()
        learner.step(torch.arange(64).view(4, 16), step=0, epoch=0, lr_factor=1.0, look=False)
        moved.append(learner.models.x_WxD - before)
    torch.testing.assert_close(moved[1], 1.9 * moved[0], rtol=1e-3, atol=1e-6)


def test_batched_learns_as_exact(make_run, train_here):
    runs = [make_run(*PLAIN, "sync=gossip_choco", "epochs=1", f"emulation={e}") for e in ("exact", "batched")]
    for run in runs:
        train_here(run)
    exact, batched = (read_json(run.done)["metrics"] for run in runs)
    assert batched["train_loss"] == pytest.approx(exact["train_loss"], rel=1e-3)
    assert batched["bytes_sent_per_worker"] == exact["bytes_sent_per_worker"]


@pytest.mark.parametrize("typed", [EVERYTHING, PUSHED], ids=["choco", "push-sum"])
def test_all_of_it_stopped_and_resumed_ends_with_the_same_bits(make_run, train_here, monkeypatch, typed):
    monkeypatch.syspath_prepend(HERE)
    straight, stopped = make_run(*typed), make_run(*typed)
    train_here(straight)
    stopped.preempt.touch()
    for _ in range(2):
        assert train_here(stopped) == EXIT_PREEMPTED
    stopped.preempt.unlink()
    assert train_here(stopped) == 0
    one, other = read_json(straight.done), read_json(stopped.done)
    assert one["weights_sha256"] == other["weights_sha256"]
    assert one["metrics"] == other["metrics"] and one["wire"] == other["wire"]


def test_every_split_of_four_workers_ends_with_the_same_bits(make_run, in_ranks):
    """1 rank x 4 workers, 2 x 2 and 4 x 1: CHOCO with QSGD on skewed data, 8-bit training,
    quasi-global momentum, BatchNorm, dropout and augmentation."""
    done, rows = [], []
    for nproc in (1, 2, 4):
        run = make_run(*EVERYTHING, "epochs=1", f"nproc={nproc}")
        result = in_ranks(run, nproc)
        assert result.returncode == 0, result.stderr
        done.append(read_json(run.done))
        rows.append([{**row, "train_seconds": 0} for row in read_json_lines(run.metrics)])
    assert len({d["weights_sha256"] for d in done}) == 1
    assert rows[0] == rows[1] == rows[2]
    assert [d["wire"]["bytes_per_step_sent"] > 0 for d in done] == [False, True, True]


def test_a_checkpoint_of_two_ranks_goes_on_with_one(make_run, in_ranks, train_here, monkeypatch):
    monkeypatch.syspath_prepend(HERE)
    straight, stopped = make_run(*EVERYTHING, "epochs=1"), make_run(*EVERYTHING, "epochs=1")
    train_here(straight)
    stopped.preempt.touch()
    assert in_ranks(stopped, 2).returncode == EXIT_PREEMPTED
    assert torch.load(stopped.checkpoint, weights_only=True)["progress"]["step"] == 2
    stopped.preempt.unlink()
    assert train_here(stopped) == 0
    one, other = read_json(straight.done), read_json(stopped.done)
    assert one["weights_sha256"] == other["weights_sha256"] and one["metrics"] == other["metrics"]


def test_a_worker_s_death_ends_the_others_and_is_named(make_run):
    """Two processes without a launcher that would end the other one; the second is killed while they gossip."""
    run = make_run(*PLAIN, "sync=gossip_choco", "epochs=500", "nproc=2")
    ranks, logs = forked_ranks.start(run, 2)
    try:
        deadline = time.monotonic() + 60
        while not run.metrics.exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        assert run.metrics.exists(), "no epoch within a minute"
        ranks[1].kill()
        ranks[0].join(60)
        assert ranks[0].exitcode not in (0, None)
        assert "rank 1 ended in the middle of a step; rank 0 stops" in logs[0].read_text()
        assert not run.done.exists()
    finally:
        for rank in ranks:
            rank.kill()
            rank.join()


def test_a_topology_a_compressor_and_a_rule_of_one_s_own(tmp_path, train_here, monkeypatch):
    """One file, and a yaml each beside conf/; nothing of the package is edited."""
    monkeypatch.syspath_prepend(HERE)
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
    chosen = [("sync=gossip_lazy", "compressor=rounded"), ("sync=gossip_choco", "sync.eta=0.3")]
    accuracies = []
    for typed in chosen:
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
            "looks ahead by one SGD step; type optim=sgd",
        ),
        (("sync.quasi_global_momentum=0.9",), "replaces optim.momentum; type optim.momentum=0"),
        (("precision.weights=bf16",), "workers that gossip keep float32 weights"),
    ],
)
def test_what_makes_no_sense_with_weights_of_one_s_own_is_named(make_run, train_here, capfd, typed, message):
    assert train_here(make_run(*PLAIN, "sync=gossip_choco", *typed)) == 2
    assert message in capfd.readouterr().err


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        (("topology=directed_ring", "topology.mixing=metropolis"), "sync: .*links go both ways"),
        (("compressor=qsgd", "format=e4m3", "aps=true"), "sync: aps=true: QSGD has its own scale"),
        (("compressor=top_k", "compressor.keep=2"), "sync: compressor.keep must be above 0"),
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
def test_bad_settings_are_named_before_the_run(typed, message):
    runs = plan(["exp=digits_bits", *PLAIN, "seed=0", "sync=gossip_choco", *typed]).runs
    (problem,) = check([run.config for run in runs])["problems"]
    assert re.search(message, problem), problem


def test_a_worker_is_played_without_copies():
    (planned,) = plan(["exp=digits_bits", *PLAIN, "seed=0", "sync=gossip_dpsgd"]).runs
    parts = build(planned.config, torch.device("cpu"))
    learner = GossipWeights(planned.config, parts, Workers(4), torch.device("cpu"))
    learner.models.begin_worker(2)
    with torch.no_grad():
        for p in parts.model.parameters():
            p.fill_(7.0)
    assert all((p == 7).all() for p in learner.models.parameters[2])
    assert not any((p == 7).all() for p in learner.models.parameters[1])
