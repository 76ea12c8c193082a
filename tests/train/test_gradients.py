import pytest
import torch
from torch import nn

from cpdrun.comm.workers import Workers
from cpdrun.data.images.digits import Digits
from cpdrun.models.convnet import ConvNet
from cpdrun.record import read_json
from cpdrun.tasks.classification import Classification
from cpdrun.train.batches import Batches
from cpdrun.train.learners.gradients import BatchedGradients, CannotBatchError, ExactGradients, Objective
from cpdrun.train.learners.played import OwnModels, SharedModel

CPU = torch.device("cpu")
TASK = Classification(num_classes=10)
W, B = 8, 4


@pytest.fixture(scope="module")
def digits():
    return Digits(test_fraction=0.2)


def convnet():
    torch.manual_seed(0)
    return ConvNet(in_channels=1, num_classes=10, width=4, dropout=0.0)


def objective(model, data):
    return Objective(
        SharedModel(model, Workers(W)), Batches(data, 0, CPU, loaders=0, channels_last=False), TASK
    )


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


def test_gradients_of_all_workers_sum_to_that_of_the_global_batch(digits):
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


def test_gradients_that_a_worker_of_its_own_changes_in_place_share_no_memory(digits):
    """Autograd gives one tensor for both; momentum added to each in place was added twice to both."""
    own = OwnModels(Twice(), Workers(1))
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


def test_want_of_memory_is_not_called_a_layer_that_cannot_be_batched(digits):
    model = nn.Sequential(nn.Flatten(), Huge())
    with pytest.raises(
        MemoryError, match=r"layer '1' \(Huge\): .*can't allocate memory.*emulation=exact takes one"
    ):
        BatchedGradients(objective(model, digits))(torch.arange(W * B).view(W, B), 0)


def test_a_batched_run_learns_as_an_exact_one(make_run, train_here):
    exact, batched = (
        make_run("model.dropout=0.1", f"emulation={e}", "epochs=5") for e in ("exact", "batched")
    )
    train_here(exact)
    train_here(batched)
    one, other = (read_json(run.done)["metrics"]["test_accuracy"] for run in (exact, batched))
    assert one > 0.9 and abs(one - other) < 0.05
