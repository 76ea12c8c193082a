"""A run of the Llama on tokens of several bytes, by Muon: what a run promises holds for these parts too."""

import math

import pytest

from cpdrun.record import read_json
from cpdrun.train.rank import EXIT_PREEMPTED

TYPED = (
    *("data=pydoc_text", "data.text_bytes=12000", "data.context=32", "data.bpe_vocab=300"),
    *("model=llama", "model.layers=2", "model.heads=2", "model.width=32", "optim=muon", "schedule=cosine"),
    *("world_size=4", "batch_size=2", "epochs=1", "format=e4m3", "aps=true", "clip_norm=1.0"),
)


def test_stopped_on_two_ranks_and_gone_on_with_on_one_it_has_the_same_bits(
    make_run, in_ranks, train_here, tmp_path
):
    pytest.importorskip("tokenizers")
    typed = (*TYPED, f"data.cache_dir={tmp_path / 'cache'}", "emulation=chunked")
    straight, stopped = make_run(*typed), make_run(*typed)
    train_here(straight)
    stopped.preempt.touch()
    assert in_ranks(stopped, 2).returncode == EXIT_PREEMPTED
    assert not stopped.done.exists()
    stopped.preempt.unlink()
    train_here(stopped)
    one, other = read_json(straight.done), read_json(stopped.done)
    assert one["weights_sha256"] == other["weights_sha256"] and one["metrics"] == other["metrics"]
    assert one["judged_by"] == "test_bits_per_byte" and one["num_classes"] == 300
    assert one["measures"]["test_loss"] == {"higher_is_better": False, "shown": "nats", "of_samples": False}
    nats, bits = (one["metrics"][f"test_{name}"] for name in ("loss", "bits_per_byte"))
    assert 1 < nats / math.log(2) / bits < 3  # bytes a token
    assert nats < math.log(300)
