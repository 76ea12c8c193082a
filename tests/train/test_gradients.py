"""The gradients of emulated workers: exact, batched and chunked."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from cpdrun.comm.workers import Workers
from cpdrun.data.images.digits import Digits
from cpdrun.errors import UserError
from cpdrun.models.convnet import ConvNet
from cpdrun.record import read_json
from cpdrun.tasks.classification import Classification
from cpdrun.train.batches import Batches
from cpdrun.train.learners.emulated_workers import SeparateModels, SharedModel
from cpdrun.train.learners.gradients import (
    CHUNK,
    BatchedGradients,
    CannotBatchError,
    ChunkedGradients,
    ExactGradients,
    Objective,
)

CPU = torch.device("cpu")
TASK = Classification(num_classes=10)
W, B = 8, 4


@pytest.fixture(scope="module")
def digits():
    return Digits(test_fraction=0.2)


def convnet():
    torch.manual_seed(0)
    return ConvNet(in_channels=1, num_classes=10, width=4, dropout=0.0)


def objective(model, data, workers=Workers(W)):  # noqa: B008 (frozen)
    return Objective(SharedModel(model, workers), Batches(data, 0, CPU, loaders=0, channels_last=False), TASK)


def test_batched_gradients_and_buffers_equal_exact_ones_but_for_rounding(digits):
    index_WxB = torch.arange(W * B).view(W, B)
    exact, batched = convnet(), convnet()
    losses, gradients = ExactGradients(objective(exact, digits))(index_WxB, 0)
    losses_b, gradients_b = BatchedGradients(objective(batched, digits))(index_WxB, 0)
    # float32 sums of at most a few hundred terms in another order: a few hundred rounding errors of 6e-8
    torch.testing.assert_close(losses_b, losses, rtol=2e-5, atol=0)
    for g_W, g_Wb in zip(gradients, gradients_b, strict=True):
        torch.testing.assert_close(g_Wb, g_W, rtol=2e-5, atol=2e-5 * g_W.abs().max().item())
    for (name, buffer), (_, other) in zip(exact.named_buffers(), batched.named_buffers(), strict=True):
        torch.testing.assert_close(other, buffer, msg=name)


@pytest.mark.parametrize("augment", [False, True])
def test_fetch_stacked_stacks_the_batches_of_workers(digits, augment):
    data = SimpleNamespace(train=digits.train, test=digits.test)
    if augment:
        data.augment = lambda x, generator: x + torch.rand(x.shape, generator=generator)
    batches = Batches(data, 0, CPU, loaders=0, channels_last=False)
    index_NxB = torch.arange(W * B).view(W, B).flip(0)
    stacked = batches.fetch_stacked(index_NxB, 3, range(2, 5))
    single = [batches.fetch(index_NxB[worker], 3, worker) for worker in range(2, 5)]
    for together, parts in zip(stacked, zip(*single, strict=True), strict=True):
        assert torch.equal(together, torch.stack(parts))


def test_chunked_gradients_of_one_chunk_are_batched_ones(digits):
    index_WxB = torch.arange(W * B).view(W, B)
    losses, gradients = BatchedGradients(objective(convnet(), digits))(index_WxB, 0)
    losses_c, gradients_c = ChunkedGradients(objective(convnet(), digits))(index_WxB, 0)
    assert torch.equal(losses_c, losses) and all(map(torch.equal, gradients_c, gradients))


class Normed(nn.Sequential):
    """A pass draws one dropout mask for all its workers, and a BatchNorm kernel of 3 channels gives a worker different
    last bits at a different place of the pass."""

    def __init__(self):
        super().__init__(
            nn.Conv2d(1, 3, 3),
            nn.BatchNorm2d(3),
            nn.GELU(),
            nn.Dropout(0.3),
            nn.Flatten(),
            nn.Linear(108, 16),
            nn.LayerNorm(16),
            nn.Linear(16, 10),
        )


@pytest.mark.parametrize("N", [CHUNK // 2, CHUNK, CHUNK + 4])
def test_chunked_gradients_are_the_same_for_any_split(digits, N):
    """This includes ranks that hold only a part of a chunk, and a last chunk that is shorter than the others."""
    torch.manual_seed(1)
    model, index_NxB = Normed(), torch.randint(1000, (N, B))
    losses, gradients = ChunkedGradients(objective(model, digits, Workers(N)))(index_NxB, 7)
    for ranks in (n for n in range(2, N + 1) if N % n == 0):
        for rank in range(ranks):
            of_rank = objective(model, digits, workers := Workers(N, rank, ranks))
            of_rank.emulated.end_step = lambda: None  # it would wait for the other ranks
            mine = slice(workers.local.start, workers.local.stop)
            losses_W, gradients_W = ChunkedGradients(of_rank)(index_NxB, 7)
            assert torch.equal(losses_W, losses[mine])
            assert all(torch.equal(g, of_all[mine]) for g, of_all in zip(gradients_W, gradients, strict=True))


def test_a_split_chunk_of_workers_with_separate_weights_is_an_error(digits):
    batches = Batches(digits, 0, CPU, loaders=0, channels_last=False)
    two = Objective(SeparateModels(convnet(), Workers(2 * CHUNK, 0, 2)), batches, TASK)
    assert ChunkedGradients(two).fetched_workers == range(CHUNK)
    split = Objective(SeparateModels(convnet(), Workers(2 * CHUNK, 0, 4)), batches, TASK)
    with pytest.raises(UserError, match=r"emulation=chunked: .* nproc=4 it has 8. Set a smaller nproc"):
        ChunkedGradients(split)


def test_gradients_of_all_workers_sum_to_the_gradient_of_the_global_batch(digits):
    """Without BatchNorm the mean of the workers' gradients is the gradient of the whole batch's mean loss."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    _, gradients = ExactGradients(objective(model, digits))(torch.arange(W * B).view(W, B), 0)
    x, y = digits.train.fetch_batch(torch.arange(W * B))
    whole = torch.autograd.grad(nn.functional.cross_entropy(model(x), y), list(model.parameters()))
    for g, g_W in zip(whole, gradients, strict=True):
        torch.testing.assert_close(g_W.sum(0), g, rtol=1e-4, atol=1e-6)


class Twice(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Parameter(torch.zeros(10)), nn.Parameter(torch.zeros(10))

    def forward(self, x):
        return x.flatten(1)[:, :10] + (self.a + self.b)


def test_gradients_of_separate_models_share_no_memory(digits):
    """Autograd returns one tensor for both, and momentum added to each in place was once added twice to both."""
    own = SeparateModels(Twice(), Workers(1))
    batches = Batches(digits, 0, CPU, loaders=0, channels_last=False)
    _, (of_a, of_b) = ExactGradients(Objective(own, batches, TASK))(torch.arange(B).view(1, B), 0)
    assert torch.equal(of_a, of_b) and of_a.data_ptr() != of_b.data_ptr()


class Reads(nn.Module):
    def forward(self, x):
        return x if x.sum().item() > 0 else -x


def test_a_layer_that_cannot_be_batched_is_named(digits):
    model = nn.Sequential(nn.Flatten(), nn.Sequential(nn.Linear(64, 10), Reads()))
    with pytest.raises(CannotBatchError, match=r"layer '1\.1' \(Reads\) cannot be batched .*emulation=exact"):
        BatchedGradients(objective(model, digits))(torch.arange(W * B).view(W, B), 0)
    assert not any(module._forward_pre_hooks for module in model.modules())


class Huge(nn.Module):
    def forward(self, x):
        return x.new_empty(1 << 50)


def test_running_out_of_memory_is_not_reported_as_a_layer_that_cannot_be_batched(digits):
    model = nn.Sequential(nn.Flatten(), Huge())
    with pytest.raises(
        MemoryError, match=r"layer '1' \(Huge\): .*can't allocate memory.*emulation=exact computes one"
    ):
        BatchedGradients(objective(model, digits))(torch.arange(W * B).view(W, B), 0)


def test_a_batched_run_learns_as_an_exact_run_and_equals_a_chunked_one(make_run, train_here):
    """A chunk that contains all workers is the pass of a batched process, to the last bit."""
    runs = [
        make_run("model.dropout=0.1", "epochs=3", f"emulation={e}") for e in ("exact", "batched", "chunked")
    ]
    assert [train_here(run) for run in runs] == [0, 0, 0]
    exact, batched, chunked = (read_json(run.done) for run in runs)
    accuracy = exact["metrics"]["test_accuracy"]
    assert accuracy > 0.8 and abs(accuracy - batched["metrics"]["test_accuracy"]) < 0.1
    assert (chunked["weights_sha256"], chunked["metrics"]) == (batched["weights_sha256"], batched["metrics"])
