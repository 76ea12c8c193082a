"""How long a run is, and training sets that are streams."""

from types import SimpleNamespace

import pytest
import torch
from own_digits import DigitsOneByOne, OneByOne
from torch.utils.data import IterableDataset

from cpdrun.data.base import DataError
from cpdrun.data.partition import InOrder
from cpdrun.data.stream import Stream
from cpdrun.record import read_json, read_json_lines
from cpdrun.sweep import plan
from cpdrun.train.batches import Batches
from cpdrun.train.duration import Duration
from cpdrun.train.preflight.check import check


class Counting(IterableDataset):
    """0, 1, 2 ... `given` - 1, in the first pass; backwards in the next, and so on."""

    def __init__(self, given: int):
        self.given, self.passes, self.begun = given, 0, 0

    def set_epoch(self, number: int) -> None:
        self.passes = number

    def __iter__(self):
        self.begun += 1
        numbers = range(self.given) if self.passes % 2 == 0 else reversed(range(self.given))
        return iter((torch.tensor(number), self.passes) for number in numbers)


class Sized(Counting):
    says = 5

    def __len__(self) -> int:
        return self.says


@pytest.mark.parametrize(
    ("asked", "S", "steps", "epochs", "length", "last"),
    [
        ((100, 8, 3, None), 12, 36, 3, 3.0, 12),
        ((100, 8, 3, 30), 12, 30, 3, 2.5, 6),
        ((100, 8, 1, 100), 12, 100, 9, 100 / 12, 4),
        ((None, 8, 3, 10), 4, 10, 3, 2.5, 2),
        ((7, 8, 0, None), 1, 0, 0, 0.0, None),
    ],
)
def test_a_run_is_as_long_as_its_epochs_or_its_steps(asked, S, steps, epochs, length, last):
    duration = Duration.from_settings(*asked)
    found = duration.steps_per_epoch, duration.steps, duration.epochs, duration.length
    assert found == (S, steps, epochs, length)
    assert last is None or duration.steps_in(epochs - 1) == last


@pytest.mark.parametrize("source", [Counting, Sized])
def test_samples_of_a_stream_are_numbered_across_passes(source):
    stream = Stream(source(5), 20)
    in_order = stream.fetch_batch(torch.arange(12))
    assert in_order[0].tolist() == [0, 1, 2, 3, 4, 4, 3, 2, 1, 0, 0, 1]
    assert in_order[1].tolist() == [0] * 5 + [1] * 5 + [2] * 2
    other = Stream(source(5), 20)  # the same samples, in another order
    for asked in ([3, 6, 11], [7, 8]):
        assert torch.equal(other.fetch_batch(torch.tensor(asked))[0], in_order[0][asked])
    assert len(stream) == 20


def test_a_stream_of_known_length_starts_with_the_pass_that_is_needed():
    stream = Stream(Sized(5), 20)
    stream[12], stream[11]
    assert stream.source.begun == 2, "the third pass, twice"


@pytest.mark.parametrize(
    ("source", "said"), [(Sized(4), "says that it has 5 samples and gave 4"), (Counting(0), "gave no sample")]
)
def test_a_stream_shorter_than_its_reported_length_is_an_error(source, said):
    with pytest.raises(DataError, match=said):
        Stream(source, 20)[4]


def test_a_run_counts_the_steps_and_samples_of_streams(make_run, train_here):
    typed = ("data=custom", "data._target_=own_digits.DigitsOneByOne", "epochs=3", "max_steps=11")
    run = make_run(*typed, "world_size=4", "batch_size=4", "eval_batch=16")
    assert train_here(run) == 0
    assert [row["step"] for row in read_json_lines(run.metrics)] == [4, 8, 11]
    assert read_json(run.status)["epochs"] == 3 and read_json(run.done)["test_samples"] == 40


def test_a_stream_that_ends_too_soon_ends_the_run_with_one_line(make_run, train_here, capfd):
    typed = ("data=custom", f"data._target_={__name__}.SaysMore", "epochs=1", "world_size=4", "batch_size=8")
    assert train_here(make_run(*typed, "eval_batch=16")) == 2
    assert "error: TooShort says that it has 128 samples and gave 100" in capfd.readouterr().err


class TooShort(OneByOne):
    def __len__(self) -> int:
        return 128


class SaysMore(DigitsOneByOne):
    def __init__(self):
        super().__init__()
        self.train = TooShort(self.train.whole)


def test_a_stream_read_ahead_gives_the_same_batches():
    index_SxNxB = InOrder().deal(Stream(Counting(5), 24), 4, 2, seed=0, epoch=0, draws=None)
    found = []
    for loaders in (0, 2):
        data = SimpleNamespace(train=Stream(Counting(5), 24))
        batches = Batches(data, 0, torch.device("cpu"), loaders, channels_last=False)
        batches.plan(index_SxNxB, range(2, 4), 0)
        found.append([batches.fetch(index_SxNxB[s, w], s, w)[0].tolist() for s in range(3) for w in (2, 3)])
    assert found[0] == found[1] and found[0][:2] == [[4, 4], [3, 2]]


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        (("+data.held_out=0", "max_steps=9"), "data: test of DigitsOneByOne is empty"),
        ((), "data: train does not report its length. Type max_steps=N"),
        (
            ("max_steps=9", "partition=skewed"),
            "partition: the samples of a stream are distributed to workers in order",
        ),
    ],
)
def test_unsupported_settings_of_streams_are_named(typed, said):
    (run,) = plan(["data=custom", "data._target_=own_digits.DigitsOneByOne", *typed]).runs
    (problem,) = check([run.config])["problems"]
    assert said in problem


def test_max_steps_changes_the_name_of_a_run_only_if_it_is_given():
    names = {
        plan(["exp=digits_bits", "format=fp32", "aps=false", "seed=0", *typed]).runs[0].name
        for typed in ((), ("max_steps=null",), ("max_steps=30",))
    }
    assert len(names) == 2
