"""One process that plays several workers: their sum is that of as many machines, and what cannot be told apart is
refused."""

import contextlib
import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from bits import same_bits
from intercepted_script import STEPS, Net
from linear_script import E3M0, gradients, linear, loss_of, step_of
from torch import Tensor, nn
from torch.optim import SGD
from torch.optim import optimizer as optim

from cpdrun.attach.intercept.interceptor import Interceptor
from cpdrun.attach.run import Outside
from cpdrun.comm import emulate_all_reduce
from cpdrun.errors import UserError


def test_played_workers_are_summed_as_machines_would(intercept) -> None:
    """Their losses undivided, for N that is no power of two; buffers follow worker 0."""
    interceptor = intercept(*E3M0, "world_size=3")
    torch.manual_seed(0)
    model = Net()
    alone = copy.deepcopy(model)
    optimizer = SGD(model.parameters(), lr=0.0)
    for step in range(2):
        optimizer.zero_grad()
        own = []
        for w in interceptor.workers:
            with interceptor.worker(w):
                loss_of(model, w, step).backward()
                own.append([p.grad.clone() for p in model.parameters()])
        loss_of(alone, 0, step)
        optimizer.step()
        for p, *of_workers in zip(model.parameters(), *own, strict=True):
            expected = emulate_all_reduce([g / 3 for g in of_workers], "e3m0", aps=True)
            assert same_bits(p.grad, expected)
    assert all(torch.equal(a, b) for a, b in zip(model.buffers(), alone.buffers(), strict=True))


@pytest.mark.parametrize("said", [True, False])
def test_divided_losses_are_summed_as_they_are(intercept, said: bool) -> None:
    """Said by run.worker, or counted; `.grad` is complete once the last backward pass has ended."""
    interceptor = intercept(*E3M0, "world_size=4")
    model = linear()
    optimizer = SGD(model.parameters(), lr=0.1)
    for step in range(3):
        optimizer.zero_grad()
        own = []
        for w in range(4):
            loss = loss_of(model, w, step) / 4
            own.append(gradients(model, loss))
            if said:
                # around the backward pass alone
                with interceptor.worker(w, divided=True):
                    loss.backward()
            else:
                loss.backward()
        expected = [emulate_all_reduce(list(of), "e3m0", aps=True) for of in zip(*own, strict=True)]
        assert all(same_bits(p.grad, e) for p, e in zip(model.parameters(), expected, strict=True))
        optimizer.step()
    interceptor.check()


def test_a_last_smaller_batch_has_workers_that_send_zeros(intercept) -> None:
    interceptor = intercept(*E3M0, "world_size=4")
    model = linear()
    optimizer = SGD(model.parameters(), lr=0.1)
    for passes in (4, 2):
        optimizer.zero_grad()
        own = []
        for w in range(passes):
            loss = loss_of(model, w, 0) / 4
            own.append(gradients(model, loss))
            loss.backward()
        optimizer.step()
    zeros = [torch.zeros_like(p) for p in model.parameters()]
    for p, *of in zip(model.parameters(), *own, zeros, zeros, strict=True):
        assert same_bits(p.grad, emulate_all_reduce(of, "e3m0", aps=True))
    assert "fewer backward passes than workers" in interceptor.facts()["notes"][0]


def test_zeroed_gradients_count_no_more(intercept) -> None:
    """A script that throws half a round away."""
    intercept(*E3M0, "world_size=2")
    model = linear()
    optimizer = SGD(model.parameters(), lr=0.1)
    loss_of(model, 5, 0).backward()
    optimizer.zero_grad(set_to_none=False)
    own = []
    for w in range(2):
        loss = loss_of(model, w, 0)
        own.append(gradients(model, loss))
        loss.backward()
    optimizer.step()
    for p, *of in zip(model.parameters(), *own, strict=True):
        assert same_bits(p.grad, emulate_all_reduce(of, "e3m0", aps=True))


def test_a_pass_that_reaches_no_parameter_is_no_workers(intercept) -> None:
    """As one through inputs alone."""
    interceptor = intercept(*E3M0, "world_size=2")
    model = linear()
    optimizer = SGD(model.parameters(), lr=0.1)
    x = torch.ones(3, requires_grad=True)
    for w in range(2):
        x.square().sum().backward()
        loss_of(model, w, 0).backward()
    x.square().sum().backward()
    optimizer.step()
    assert interceptor.facts()["gradients"]["exchange"] == ["a backward pass counts as a worker"]
    assert x.grad is not None and interceptor.facts()["notes"] == []


def test_a_worker_that_fails_leaves_the_gradients_as_they_were(intercept) -> None:
    interceptor = intercept(*E3M0, "world_size=2")
    model = linear()
    optimizer = SGD(model.parameters(), lr=0.1)
    with pytest.raises(KeyError), interceptor.worker(0):
        loss_of(model, 0, 0).backward()
        raise KeyError("of the script's own")
    assert all(p.grad is None for p in model.parameters())
    for w in interceptor.workers:
        with interceptor.worker(w):
            loss_of(model, w, 0).backward()
    assert all(p.grad is not None for p in model.parameters())
    optimizer.step()


# ---- fp32


def test_fp32_with_divided_micro_batches_is_the_scripts_own_sum(intercept) -> None:
    def weights(around: Any) -> list[Tensor]:
        model = linear()
        optimizer = SGD(model.parameters(), lr=0.1)
        for step in range(STEPS):
            optimizer.zero_grad()
            for w in range(3):
                with around(w, divided=True):
                    (loss_of(model, w, step) / 3).backward()
            optimizer.step()
        return [p.detach() for p in model.parameters()]

    alone = weights(Outside().worker)
    assert all(map(same_bits, weights(intercept("world_size=3").worker), alone))


def test_fp32_of_undivided_workers_is_the_built_in_sum(intercept) -> None:
    interceptor = intercept("world_size=3")
    model = linear()
    optimizer = SGD(model.parameters(), lr=0.1)
    own = []
    for w in interceptor.workers:
        with interceptor.worker(w):
            loss = loss_of(model, w, 0)
            own.append(gradients(model, loss))
            loss.backward()
    optimizer.step()
    for p, *of in zip(model.parameters(), *own, strict=True):
        assert same_bits(p.grad, emulate_all_reduce([g / 3 for g in of], "fp32"))


@pytest.mark.parametrize("passes", [1, 2, 3, 4])
def test_fp32_is_not_called_a_run_of_workers_that_the_script_does_not_play(intercept, passes: int) -> None:
    """The backward passes of the first step are counted."""
    intercept("world_size=3")
    model = linear()
    optimizer = SGD(model.parameters(), lr=0.1)
    said = pytest.raises(UserError, match=f"has {passes} backward passes. Accumulate the gradients of 3")
    with contextlib.nullcontext() if passes == 3 else said:
        step_of(model, optimizer, passes=passes)


def test_fp32_leaves_nothing_in_the_way_of_the_second_step(intercept) -> None:
    def in_the_way() -> list[Any]:
        hooks = optim._global_optimizer_pre_hooks, optim._global_optimizer_post_hooks
        zero_grads = optim.Optimizer.zero_grad, nn.Module.zero_grad
        return [torch.autograd.backward, *zero_grads, *map(len, hooks)]

    before = in_the_way()
    intercept("world_size=3")
    optimizer = SGD((model := linear()).parameters(), lr=0.1)
    step_of(model, optimizer, passes=3)
    assert not any(now is then for now, then in zip(in_the_way(), before, strict=True))
    optimizer.zero_grad()
    assert in_the_way() == before


# ---- what is refused, in one line that says what to do


def too_few(interceptor: Interceptor) -> None:
    step_of(model := linear(), SGD(model.parameters(), lr=0.1), passes=1)


def too_many(interceptor: Interceptor) -> None:
    step_of(model := linear(), SGD(model.parameters(), lr=0.1), passes=3)


def two_optimizers(interceptor: Interceptor) -> None:
    model = linear()
    step_of(model, SGD(model[1].parameters(), lr=0.1), SGD(model[2].parameters(), lr=0.1), passes=2)


def half_a_round(interceptor: Interceptor) -> None:
    model = linear()
    optimizer = SGD(model.parameters(), lr=0.1)
    with interceptor.worker(1):
        loss_of(model, 1, 0).backward()
    optimizer.step()


def one_twice(interceptor: Interceptor) -> None:
    model = linear()
    _kept = SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        with interceptor.worker(0):
            loss_of(model, 0, 0).backward()


def outside_of_a_worker(interceptor: Interceptor) -> None:
    model = linear()
    _kept = SGD(model.parameters(), lr=0.1)
    with interceptor.worker(0):
        loss_of(model, 0, 0).backward()
    loss_of(model, 0, 0).backward()


def no_optimizer_yet(interceptor: Interceptor) -> None:
    with interceptor.worker(0):
        loss_of(linear(), 0, 0).backward()


def one_in_another(interceptor: Interceptor) -> None:
    model = linear()
    _kept = SGD(model.parameters(), lr=0.1)
    with interceptor.worker(0), interceptor.worker(1):
        pass


def not_this_process(interceptor: Interceptor) -> None:
    with interceptor.worker(2):
        pass


REFUSED = [
    (too_few, "the first step has 1 backward passes.*run.worker.*world_size=1"),
    (too_many, "more than 2 backward passes. Please put `with run.worker"),
    (
        two_optimizers,
        "2 optimizers, so cpdrun cannot tell which backward pass belongs to which worker. Please put `with run.worker",
    ),
    (half_a_round, "the optimizer's step comes before the gradients of workers 0. Please put"),
    (one_twice, r"run.worker\(0\) was used twice in a step, before workers 1"),
    (outside_of_a_worker, "a backward pass is outside of run.worker, .* Please put"),
    (no_optimizer_yet, "create an optimizer of torch.optim before"),
    (one_in_another, r"run.worker\(1\) is nested in another run.worker"),
    (not_this_process, r"run.worker\(2\): this process emulates only the workers \[0, 1\]"),
]


@pytest.mark.parametrize(("wrong", "said"), REFUSED)
def test_workers_that_cannot_be_told_apart_stop_the_script(intercept, wrong: Callable, said: str) -> None:
    with pytest.raises(UserError, match=said) as told:
        wrong(intercept(*E3M0, "world_size=2"))
    assert "\n" not in str(told.value)
