"""The result of a run depends on its config alone: neither the number of ranks nor a stop changes a bit of it."""

import pytest
import torch

from cpdrun.record import read_json, read_json_lines
from cpdrun.train.rank import EXIT_PREEMPTED

# Four workers, two epochs of five steps, and everything that draws random numbers: augmentation, dropout, shuffling.
SHORT = ("world_size=4", "batch_size=8", "epochs=2")
AUGMENTED = (
    "data=custom",
    "data._target_=own_digits.AugmentedDigits",
    "+data.test_fraction=0.9",
    "model.dropout=0.2",
)
FP32 = ("format=fp32", "aps=false")
CHOCO = (
    *(
        "sync=gossip_choco",
        "sync.quasi_global_momentum=0.9",
        "optim.momentum=0",
        "optim.lr=0.05",
        "sync.eta=0.5",
    ),
    *("compressor=qsgd", "partition=skewed", "precision=int8", "precision.activation_rounding=stochastic"),
    "precision.activation_range=samples",
)
PUSH_SUM = (
    *("sync=gossip_push_sum", "topology=arrows", "topology.arrows=[[0,1],[1,2],[2,3],[3,0],[0,2]]"),
    *("compressor=random_k", "compressor.keep=0.5", "sync.quasi_global_momentum=0.9", "sync.nesterov=true"),
    *("sync.closing_rounds=3", "optim.momentum=0"),
)
LOCAL = ("sync=local", "sync.inner_steps=4", "optim=adamw", "partition=skewed")
SHARDED = (
    *(
        "sync=sharded",
        "checkpoint.every_epochs=1",
        "format=e3m0",
        "optim=adamw",
        "clip_norm=0.5",
        "sync.gather=e2m1",
    ),
    *("sync.differences=true", "sync.error_feedback=true", "full_precision.layers=['*bias']"),
)
PURE_FP16 = (
    *("precision=pure_fp16", "precision.update_rounding=stochastic", "precision.kahan_weights=true"),
    # An emulated accumulator would take most of the time.
    *("precision.accumulator=fp32", "format=fp16", "aps=false"),
)
RULES = (
    "precision.rules=[{modules:'*',role:input,format:e4m3,steps:[0,3]},{modules:Conv2d,role:weight,format:e3m2},"
    "{modules:'*',role:output_gradient,product:weight_gradient,format:e5m2,aps:true}]"
)
TEXT = (
    *(
        "data=pydoc_text",
        "data.text_bytes=12000",
        "data.context=32",
        "data.bpe_vocab=300",
        "data.cache_dir=cache",
    ),
    *("model=llama", "model.layers=2", "model.heads=2", "model.width=32", "optim=muon", "schedule=cosine"),
    *("batch_size=2", "epochs=1", "clip_norm=1.0", "emulation=chunked"),
)
STREAM = ("data=custom", "data._target_=own_digits.DigitsOneByOne", "epochs=3", "max_steps=8")
# Some settings have no case of their own, because another case includes them: "rules" includes gradients in e4m3 with
# APS, and the recipes include gradients in fp32.
CASES = {
    "CHOCO": (*FP32, *AUGMENTED, *CHOCO),
    "push-sum": (*FP32, *AUGMENTED, *PUSH_SUM),
    "local steps": (*AUGMENTED, *LOCAL),
    "local steps, compressed": (*FP32, *AUGMENTED, *LOCAL, "compressor=top_k", "statistics.every_steps=3"),
    "sharded": (*AUGMENTED, *SHARDED),
    "early stopping": ("format=e2m0", "aps=false", *AUGMENTED, "epochs=5", "give_up_after=0.4"),
    "chunked": (*AUGMENTED, "emulation=chunked"),
    "nvfp4": (*FP32, *AUGMENTED, "recipe=nvfp4"),
    "delayed scales": (*FP32, *AUGMENTED, "recipe=fp8_delayed"),
    "rules": (*AUGMENTED, RULES),
    "mixed_fp16": (*AUGMENTED, "precision=mixed_fp16"),
    "pure_fp16": (*AUGMENTED, *PURE_FP16),
    "text": TEXT,
    "stream": STREAM,
}


RESNET = (
    *("data=custom", "data._target_=own_digits.RandomImages", "model=resnet18_cifar", "model.width=16"),
    *("format=e4m3", "aps=true"),
)


@pytest.mark.parametrize("case", CASES)
def test_splits_and_stops_change_no_bit(make_run, in_ranks, train_here, monkeypatch, tmp_path, case):
    """Compare a run in one rank with a run that is stopped on two ranks, again on one, and finished on four ranks."""
    monkeypatch.chdir(tmp_path)
    compare(make_run, in_ranks, train_here, CASES[case])


@pytest.mark.parametrize("case", [pytest.param(case, marks=pytest.mark.gpu) for case in [*CASES, "ResNet18"]])
def test_ranks_that_share_a_gpu_change_no_bit(make_run, in_ranks, train_here, monkeypatch, tmp_path, case):
    """Like the previous test, but all ranks share one GPU. The test also detects nondeterministic GPU kernels."""
    monkeypatch.chdir(tmp_path)
    compare(make_run, in_ranks, train_here, (*(CASES | {"ResNet18": RESNET})[case], "device=cuda"))


def compare(make_run, in_ranks, train_here, case):
    """Compare a run in one rank with a run that is stopped on two ranks, again on one, and finished on four ranks."""
    if "data=pydoc_text" in case:
        pytest.importorskip("tokenizers")
    typed = (*SHORT, *case)
    straight, stopped = make_run(*typed), make_run(*typed)
    assert train_here(straight) == 0
    stopped.preempt.touch()
    assert in_ranks(stopped, 2).returncode == EXIT_PREEMPTED
    assert torch.load(stopped.checkpoint, weights_only=True)["progress"]["step"] == 2, (
        "agreed on in the second step"
    )
    assert train_here(stopped) == EXIT_PREEMPTED
    assert not stopped.done.exists() and not stopped.example_outcomes.exists()
    stopped.preempt.unlink()
    ended = in_ranks(stopped, 4)
    assert ended.returncode == 0, ended.stderr

    one, other = (read_json(run.done) for run in (straight, stopped))
    for key in ("status", "ended_after", "weights_sha256", "metrics", "best"):
        assert one.get(key) == other.get(key), key
    rows = [
        [{**row, "train_seconds": 0} for row in read_json_lines(run.metrics)] for run in (straight, stopped)
    ]
    assert rows[0] == rows[1]
    assert one["wire"]["bytes_per_step_real_worker"] == other["wire"]["bytes_per_step_real_worker"]
    assert one["wire"]["bytes_per_step_sent"] == 0 < other["wire"]["bytes_per_step_sent"]
    outcomes = [
        run.example_outcomes.read_bytes() if run.example_outcomes.exists() else None
        for run in (straight, stopped)
    ]
    assert outcomes[0] == outcomes[1]
    states = [torch.load(run.checkpoint, weights_only=True) for run in (straight, stopped)]
    assert states[0].keys() == states[1].keys()
    for key in states[0].keys() - {"progress"}:
        assert equal(states[0][key], states[1][key]), key


def equal(one, other) -> bool:
    """Return whether the contents of two checkpoints have the same bits."""
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(equal(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(equal, one, other))
    return torch.equal(one.cpu(), other.cpu()) if isinstance(one, torch.Tensor) else one == other
