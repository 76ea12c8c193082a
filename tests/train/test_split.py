"""The result depends on the config alone: how the workers are dealt to processes changes no bit of it."""

from pathlib import Path

import pytest
import torch

from cpdrun.record import read_json, read_json_lines
from cpdrun.train.rank import EXIT_PREEMPTED

EVERYTHING_RANDOM = ("data=custom", "data._target_=own_digits.AugmentedDigits", "+data.test_fraction=0.2")


@pytest.mark.parametrize(
    ("typed", "splits"),
    [(("format=e4m3", "aps=true"), (1, 2, 8)), (("format=fp32", "aps=false"), (1, 4))],
    ids=["e4m3 with APS", "fp32"],
)
def test_every_split_of_eight_workers_gives_the_same_weights(make_run, torchrun, in_ranks, typed, splits):
    """1 rank x 8 workers, 2 x 4 by real torchrun, 4 x 2 and 8 x 1, with APS, BatchNorm, dropout and augmentation."""
    runs = {}
    for nproc in splits:
        runs[nproc] = make_run(*EVERYTHING_RANDOM, "model.dropout=0.2", f"nproc={nproc}", *typed)
        by_hand = {"PYTHONPATH": str(Path(__file__).parent)}
        result = torchrun(runs[nproc], 2, **by_hand) if nproc == 2 else in_ranks(runs[nproc], nproc)
        assert result.returncode == 0, result.stderr
    weights = {n: torch.load(run.checkpoint, weights_only=True)["model"] for n, run in runs.items()}
    for nproc in splits[1:]:
        for name, tensor in weights[1].items():
            assert torch.equal(tensor, weights[nproc][name]), f"{name} differs between 1 and {nproc} ranks"
    done = [read_json(run.done) for run in runs.values()]
    assert len({d["weights_sha256"] for d in done}) == 1
    assert len({tuple(d["metrics"].items()) for d in done}) == 1
    rows = [[{**row, "train_seconds": 0} for row in read_json_lines(run.metrics)] for run in runs.values()]
    assert all(of_split == rows[0] for of_split in rows)


def test_a_run_stopped_on_two_ranks_goes_on_on_one_with_the_same_weights(make_run, in_ranks, train_here):
    straight, stopped = make_run("format=e4m3"), make_run("format=e4m3")
    train_here(straight)
    stopped.preempt.touch()
    assert in_ranks(stopped, 2).returncode == EXIT_PREEMPTED
    progress = torch.load(stopped.checkpoint, weights_only=True)["progress"]
    assert (progress["epoch"], progress["step"]) == (0, 2), "asked at the first step, agreed at the second"
    assert not stopped.done.exists()
    stopped.preempt.unlink()
    train_here(stopped)
    one, other = read_json(straight.done), read_json(stopped.done)
    assert one["weights_sha256"] == other["weights_sha256"]
    assert one["metrics"] == other["metrics"]
