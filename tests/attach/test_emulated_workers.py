"""One process that emulates several workers: their sum is that of real workers, and ambiguous scripts are errors."""

import contextlib
import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from bits import same_bits
from intercepted_script import STEPS, Net
from linear_script import E3M0, assert_rounded, gradients, linear, loss_of, step_of
from torch import Tensor, nn
from torch.optim import SGD
from torch.optim import optimizer as optim

from cpdrun.attach.intercept.interceptor import Interceptor
from cpdrun.attach.run import Outside
from cpdrun.comm import emulate_all_reduce
from cpdrun.errors import UserError


def test_emulated_workers_are_summed_as_machines_would(intercept) -> None:
    """The losses are not divided by N, N is not a power of two, and the buffers are those of worker 0."""
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
        assert_rounded(model, *([g / 3 for g in of_worker] for of_worker in own))
    assert all(torch.equal(a, b) for a, b in zip(model.buffers(), alone.buffers(), strict=True))


@pytest.mark.parametrize("said", [True, False], ids=["run.worker", "counted"])
def test_divided_losses_are_summed_without_another_division(intercept, said: bool) -> None:
    """`.grad` is complete when the last backward pass has ended."""
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
        assert_rounded(model, *own)
        optimizer.step()
    interceptor.check()


def test_workers_without_a_pass_in_the_last_step_send_zeros(intercept) -> None:
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
    assert_rounded(model, *own, zeros, zeros)
    assert "fewer backward passes than workers" in interceptor.facts()["notes"][0]


def test_zeroed_gradients_are_not_counted(intercept) -> None:
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
    assert_rounded(model, *own)


def test_a_pass_that_reaches_no_parameter_is_not_counted(intercept) -> None:
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


def test_fp32_with_divided_micro_batches_equals_the_scripts_own_sum(intercept) -> None:
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


def test_fp32_of_undivided_workers_equals_the_built_in_sum(intercept) -> None:
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
def test_fp32_counts_the_backward_passes_of_the_first_step(intercept, passes: int) -> None:
    intercept("world_size=3")
    model = linear()
    optimizer = SGD(model.parameters(), lr=0.1)
    said = pytest.raises(UserError, match=f"has {passes} backward passes. Accumulate the gradients of 3")
    with contextlib.nullcontext() if passes == 3 else said:
        step_of(model, optimizer, passes=passes)


def test_fp32_removes_its_hooks_before_the_second_step(intercept) -> None:
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


# ---- errors of one line that say what to do


def steps(passes: int) -> Callable[[Interceptor], None]:
    return lambda interceptor: step_of(model := linear(), SGD(model.parameters(), lr=0.1), passes=passes)


def two_optimizers(interceptor: Interceptor) -> None:
    model = linear()
    step_of(model, SGD(model[1].parameters(), lr=0.1), SGD(model[2].parameters(), lr=0.1), passes=2)


def by_workers(*workers: int | None, step: bool = False) -> Callable[[Interceptor], None]:
    """Return a script with a backward pass of each worker. The pass of worker None is outside of run.worker."""

    def script(interceptor: Interceptor) -> None:
        model = linear()
        optimizer = SGD(model.parameters(), lr=0.1)
        for w in workers:
            with contextlib.nullcontext() if w is None else interceptor.worker(w):
                loss_of(model, 0, 0).backward()
        if step:
            optimizer.step()

    return script


def without_optimizer(interceptor: Interceptor) -> None:
    with interceptor.worker(0):
        loss_of(linear(), 0, 0).backward()


def nested(interceptor: Interceptor) -> None:
    _kept = SGD(linear().parameters(), lr=0.1)
    with interceptor.worker(0), interceptor.worker(1):
        pass


ERRORS = {
    "too few": (steps(1), "the first step has 1 backward passes.*run.worker.*world_size=1"),
    "too many": (steps(3), "more than 2 backward passes"),
    "two optimizers": (two_optimizers, "2 optimizers, .*which backward pass belongs to which worker"),
    "one missing": (by_workers(1, step=True), "step comes before the gradients of workers 0"),
    "one twice": (by_workers(0, 0), r"run.worker\(0\) was used twice in a step, before workers 1"),
    "outside": (by_workers(0, None), "a backward pass is outside of run.worker"),
    "no optimizer": (without_optimizer, "create an optimizer of torch.optim before"),
    "nested": (nested, r"run.worker\(1\) is nested in another run.worker"),
    "not in this process": (
        by_workers(2),
        r"run.worker\(2\): this process emulates only the workers \[0, 1\]",
    ),
}


@pytest.mark.parametrize(("script", "message"), ERRORS.values(), ids=ERRORS)
def test_workers_that_cannot_be_distinguished_are_an_error(intercept, script: Callable, message: str) -> None:
    with pytest.raises(UserError, match=message) as raised:
        script(intercept(*E3M0, "world_size=2"))
    assert "\n" not in str(raised.value)
