"""How long a run is, and training sets that are streams."""

from types import SimpleNamespace

import pytest
import torch
from torch.utils.data import IterableDataset

from cpdrun.data.base import DataError
from cpdrun.data.images.digits import Digits
from cpdrun.data.partition import InOrder
from cpdrun.data.stream import Stream
from cpdrun.record import read_json, read_json_lines
from cpdrun.sweep import plan
from cpdrun.train.batches import Batches
from cpdrun.train.duration import Duration
from cpdrun.train.preflight.check import check
from cpdrun.train.rank import EXIT_PREEMPTED

HERE = __name__


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


class DigitsOneByOne:
    """A stream that does not say how long it is; the pass says which digit comes first."""

    num_classes, in_channels = 10, 1

    def __init__(self, held_out: int = 40):
        digits = Digits(test_fraction=0.9)
        self.train, self.test = OneByOne(digits.train), OneByOne(digits.test, held_out)


class OneByOne(IterableDataset):
    def __init__(self, whole, samples: int = 100):
        self.whole, self.samples, self.first = whole, samples, 0

    def set_epoch(self, number: int) -> None:
        self.first = number

    def __iter__(self):
        return (self.whole[(self.first + i) % self.samples] for i in range(self.samples))


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
    assert (duration.steps_per_epoch, duration.steps, duration.epochs, duration.length) == (
        S,
        steps,
        epochs,
        length,
    )
    assert last is None or duration.steps_in(epochs - 1) == last


@pytest.mark.parametrize("source", [Counting, Sized])
def test_a_stream_is_numbered_pass_after_pass(source):
    stream = Stream(source(5), 20)
    in_order = stream.fetch_batch(torch.arange(12))
    assert in_order[0].tolist() == [0, 1, 2, 3, 4, 4, 3, 2, 1, 0, 0, 1]
    assert in_order[1].tolist() == [0] * 5 + [1] * 5 + [2] * 2
    other = Stream(source(5), 20)  # who asks for some alone, or goes back, gets the same
    for asked in ([3, 6, 11], [7, 8]):
        assert torch.equal(other.fetch_batch(torch.tensor(asked))[0], in_order[0][asked])
    assert len(stream) == 20


def test_a_stream_goes_back_to_the_pass_that_it_needs_where_lengths_are_known():
    stream = Stream(Sized(5), 20)
    stream[12], stream[11]
    assert stream.source.begun == 2, "the third pass, twice"


@pytest.mark.parametrize(
    ("source", "said"), [(Sized(4), "says that it has 5 samples and gave 4"), (Counting(0), "gave no sample")]
)
def test_a_stream_that_is_shorter_than_it_says_is_told(source, said):
    with pytest.raises(DataError, match=said):
        Stream(source, 20)[4]


def test_a_stream_is_trained_on_resumed_with_the_same_bits(make_run, train_here):
    typed = ("data=custom", f"data._target_={HERE}.DigitsOneByOne", "epochs=3", "max_steps=11")
    typed = (*typed, "world_size=4", "batch_size=4", "eval_batch=16")
    straight, stopped = make_run(*typed), make_run(*typed)
    assert train_here(straight) == 0
    stopped.preempt.touch()
    assert train_here(stopped) == train_here(stopped) == EXIT_PREEMPTED
    stopped.preempt.unlink()
    assert train_here(stopped) == 0
    done = read_json(straight.done)
    assert read_json(stopped.done)["weights_sha256"] == done["weights_sha256"]
    assert [row["step"] for row in read_json_lines(straight.metrics)] == [4, 8, 11]
    assert read_json(straight.status)["epochs"] == 3 and done["test_samples"] == 40


def test_a_stream_that_ends_too_soon_ends_the_run_with_a_line(make_run, train_here, capfd):
    """Nobody can know before: it is read as the run goes on."""
    typed = ("data=custom", f"data._target_={HERE}.SaysMore", "epochs=1", "world_size=4", "batch_size=8")
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
    """By two processes, were it no stream: each would have to read all of it."""
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
        ((), "data: train does not report its length; type max_steps=N"),
        (("max_steps=9", "partition=skewed"), "partition: workers take the samples of a stream in order"),
    ],
)
def test_what_a_stream_cannot_do_is_told(typed, said):
    (run,) = plan(["data=custom", f"data._target_={HERE}.DigitsOneByOne", *typed]).runs
    (problem,) = check([run.config])["problems"]
    assert said in problem


def test_max_steps_is_part_of_a_runs_name_where_it_is_given():
    names = {
        plan(["exp=digits_bits", "format=fp32", "aps=false", "seed=0", *typed]).runs[0].name
        for typed in ((), ("max_steps=null",), ("max_steps=30",))
    }
    assert len(names) == 2
