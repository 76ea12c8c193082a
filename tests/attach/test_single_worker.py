"""One process that is one worker: gradients have the bits of the built-in sums, however the script trains."""

import copy
import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from bits import same_bits
from intercepted_script import VARIANTS, batch, config, train, train_intercepted
from linear_script import E3M0, assert_rounded, gradients, linear, loss_of, step_of
from torch import Tensor, nn
from torch.optim import SGD

from cpdrun.attach.intercept.interceptor import Interceptor
from cpdrun.attach.run import Outside
from cpdrun.attach.runner import print_nonfinite
from cpdrun.comm import AllReduceSync, emulate_all_reduce
from cpdrun.comm.sums.scaling import APS
from cpdrun.errors import UserError


def test_a_step_uses_the_rounded_gradient(intercept) -> None:
    interceptor = intercept(*E3M0)
    model = linear()
    optimizer = SGD(model.parameters(), lr=0.1)
    for step in range(3):
        optimizer.zero_grad()
        loss = loss_of(model, 0, step)
        own = gradients(model, loss)
        loss.backward()
        optimizer.step()
        assert_rounded(model, own)
    interceptor.check()
    facts = interceptor.facts()["gradients"]
    assert facts["exchange"] == ["rounded before the optimizer's step"]
    assert facts["parameters"] == 4 and facts["values"] == sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize(
    ("format", "aps", "advice"),
    [
        ("e4m3fn", "false", ": without APS, a gradient beyond 448 is not finite in e4m3fn. Try aps=true"),
        ("e4m3fn", "true", ""),
        ("bf16", "false", ""),
        ("fp32", "false", ""),
    ],
)
def test_weights_that_are_not_finite_are_reported_with_advice(intercept, capsys, format, aps, advice) -> None:
    interceptor = intercept(f"format={format}", f"aps={aps}")
    model = nn.Linear(3, 1, bias=False)
    optimizer = SGD(model.parameters(), lr=0.1)
    print_nonfinite(interceptor)
    assert "weights were not finite" not in capsys.readouterr().err
    model(torch.full((1, 3), math.inf)).sum().backward()
    optimizer.step()
    print_nonfinite(interceptor)
    assert f"cpdrun: weights were not finite (3 of 3){advice}\n" in capsys.readouterr().err


def test_stochastic_rounding_and_error_feedback_equal_the_built_in_loop(intercept) -> None:
    """The keys are parameter names and step numbers. Some layers are in fp32."""
    knobs = {"rounding": "stochastic", "error_feedback": True}
    typed = [f"sync.{key}={str(value).lower()}" for key, value in knobs.items()]
    interceptor = intercept("format=e3m1", "aps=true", "seed=3", "full_precision.layers=['2.*']", *typed)
    model = linear()
    names = [name for name, _ in model.named_parameters()]
    sync = AllReduceSync(
        format="e3m1", world_size=1, parameter_names=names, scaling=APS(), seed=3,
        full_precision={"layers": ["2.*"]}, order="hierarchical", **knobs,
    )  # fmt: skip
    optimizer = SGD(model.parameters(), lr=0.1)
    for step in range(3):
        optimizer.zero_grad()
        loss = loss_of(model, 0, step)
        own = gradients(model, loss)
        loss.backward()
        optimizer.step()
        expected = sync.reduce_stacked([g[None] for g in own], step=step, epoch=0)
        assert all(same_bits(p.grad, e) for p, e in zip(model.parameters(), expected, strict=True))
    assert interceptor.facts()["gradients"]["in_fp32"] == ["2.bias", "2.weight"]
    (note,) = interceptor.facts()["notes"]
    assert note.startswith(
        "the run keeps the residual of error_feedback and the step that keys stochastic rounding between steps"
    )


def clip_in_two_calls(model: nn.Module) -> None:
    norm = torch.nn.utils.get_total_norm([p.grad for p in model.parameters()])
    torch.nn.utils.clip_grads_with_norm_(model.parameters(), 0.01, norm)


CLIPS = {
    "norm": lambda model: torch.nn.utils.clip_grad_norm_(model.parameters(), 0.01),
    "value": lambda model: torch.nn.utils.clip_grad_value_(model.parameters(), 1e-4),
    "two calls": clip_in_two_calls,
}


@pytest.mark.parametrize("clip", CLIPS.values(), ids=CLIPS)
def test_rounded_gradients_are_clipped(intercept, clip: Callable[[nn.Module], None]) -> None:
    intercept(*E3M0)
    model = linear()
    optimizer = SGD(model.parameters(), lr=0.1)
    loss = loss_of(model, 0, 0)
    expected = copy.deepcopy(model)
    for p, g in zip(expected.parameters(), gradients(model, loss), strict=True):
        p.grad = emulate_all_reduce([g], "e3m0", aps=True)
    loss.backward()
    clip(model)
    optimizer.step()
    clip(expected)
    assert all(
        same_bits(p.grad, e.grad) for p, e in zip(model.parameters(), expected.parameters(), strict=True)
    )


def test_clipping_by_hand_precedes_the_rounding_and_is_noted(intercept, capfd) -> None:
    interceptor = intercept(*E3M0)
    model = linear()
    optimizer = SGD(model.parameters(), lr=0.1)
    loss_of(model, 0, 0).backward()
    for p in model.parameters():
        p.grad.mul_(0.5)
    optimizer.step()
    (note,) = interceptor.facts()["notes"]
    assert (
        "changes gradients between the backward pass and the step" in note and note in capfd.readouterr().err
    )


def test_accumulated_gradients_are_rounded_once(intercept) -> None:
    intercept(*E3M0)
    model = linear()
    optimizer = SGD(model.parameters(), lr=0.1)
    piled = [torch.zeros_like(p) for p in model.parameters()]
    for i in range(3):
        loss = loss_of(model, i, 0)
        torch._foreach_add_(piled, gradients(model, loss))
        loss.backward()
    optimizer.step()
    assert_rounded(model, piled)


def test_gradients_zeroed_before_a_step_are_noted(intercept) -> None:
    """This happens in the first step of SAM, or if a batch is skipped."""
    interceptor = intercept(*E3M0)
    model = linear()
    optimizer = SGD(model.parameters(), lr=0.1)
    step_of(model, optimizer)
    optimizer.zero_grad()
    assert interceptor.facts()["notes"] == []
    loss_of(model, 0, 0).backward()
    model.zero_grad()
    assert "zeroes gradients that no optimizer step has used" in interceptor.facts()["notes"][0]


def test_gradients_are_rounded_after_each_call_of_a_closure(intercept) -> None:
    """LBFGS calls it several times in a step."""
    intercept(*E3M0)
    model = linear()
    seen = []

    class Looks(SGD):
        def step(self, closure: Callable[[], Tensor]) -> None:
            for _ in range(3):
                with torch.enable_grad():
                    closure()
                seen.append([p.grad.clone() for p in model.parameters()])
                super().step()

    optimizer = Looks(model.parameters(), lr=0.1)
    own = []

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = loss_of(model, 0, 0)
        own.append(gradients(model, loss))
        loss.backward()
        return loss

    optimizer.step(closure)
    for found, expected in zip(seen, own, strict=True):
        for f, e in zip(found, expected, strict=True):
            assert same_bits(f, emulate_all_reduce([e], "e3m0", aps=True))


def test_lbfgs_runs(intercept) -> None:
    (weights,) = train_intercepted(["LBFGS"], *E3M0)[0].values()
    (plain,) = train_intercepted(["LBFGS"])[0].values()
    assert all(torch.isfinite(w).all() for w in weights)
    assert not all(map(torch.equal, weights, plain))


def test_a_compiled_step_uses_the_rounded_gradient(intercept) -> None:
    intercept(*E3M0)
    model = linear()
    optimizer = SGD(model.parameters(), lr=0.1)
    step = torch.compile(lambda: optimizer.step(), backend="eager")
    loss = loss_of(model, 0, 0)
    own = gradients(model, loss)
    loss.backward()
    step()
    assert_rounded(model, own)


def test_later_gradients_are_rounded_after_a_scaler_skips_a_step(intercept) -> None:
    """Gradients are rounded scaled, as under DDP: with a power of two and APS the same bits."""
    intercept(*E3M0)
    model = linear()
    optimizer = SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    for step, factor in enumerate((1.0, float("inf"), 1.0)):
        optimizer.zero_grad()
        loss = loss_of(model, 0, step) * factor
        own = gradients(model, loss)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        if factor == 1:
            assert_rounded(model, own)
        scaler.update()


def test_a_layer_that_is_unfrozen_later_is_rounded(intercept) -> None:
    interceptor = intercept(*E3M0)
    model = linear()
    model[1].requires_grad_(False)
    optimizer = SGD(model.parameters(), lr=0.1)
    for step in range(3):
        optimizer.zero_grad()
        if step == 1:
            model[1].requires_grad_(True)
        loss = loss_of(model, 0, step)
        loss.backward()
        own = [None if p.grad is None else p.grad.clone() for p in model.parameters()]
        optimizer.step()
        for p, g in zip(model.parameters(), own, strict=True):
            assert g is None or same_bits(p.grad, emulate_all_reduce([g], "e3m0", aps=True))
    assert interceptor.facts()["gradients"]["parameters"] == 4


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_other_dtypes_are_rounded_in_float32(intercept, dtype: torch.dtype) -> None:
    intercept(*E3M0)
    model = linear().to(dtype)
    optimizer = SGD(model.parameters(), lr=0.1)
    x, y = batch(0, 0)
    F.cross_entropy(model(x.to(dtype)).float(), y).backward()
    own = [p.grad.clone() for p in model.parameters()]
    optimizer.step()
    for p, g in zip(model.parameters(), own, strict=True):
        assert torch.equal(p.grad, emulate_all_reduce([g.float()], "e3m0", aps=True).to(dtype))


# ---- fp32


def test_fp32_changes_no_bit_of_the_script(intercept) -> None:
    names = list(VARIANTS)
    plain = {name: train(name, Outside(), ddp=False) for name in names}
    found, facts = train_intercepted(names)
    for name in names:
        assert all(same_bits(a, b) for a, b in zip(found[name], plain[name], strict=True)), name
    assert facts["gradients"]["exchange"] == ["left alone"]


# ---- errors of one line that say what to do


def test_sparse_gradients_are_an_error_with_the_name(intercept) -> None:
    intercept(*E3M0)
    model = nn.Sequential(nn.Embedding(10, 4, sparse=True), nn.Linear(4, 2))
    optimizer = SGD(model.parameters(), lr=0.1)
    model(torch.tensor([1, 2])).sum().backward()
    with pytest.raises(UserError, match=r"the gradient of 0\.weight is sparse.*sparse=False"):
        optimizer.step()


def test_a_format_that_reaches_no_gradient_is_an_error(intercept) -> None:
    interceptor = intercept(*E3M0)
    model = linear()
    optimizer = SGD(model.parameters(), lr=0.1)
    loss_of(model, 0, 0).backward()
    with torch.no_grad():
        for p in model.parameters():
            p -= 0.1 * p.grad
    with pytest.raises(UserError, match=r"format=e3m0 with APS had no effect on any gradient.*0 steps"):
        interceptor.check()
    assert not optimizer.state
    intercept().check()


def test_a_pattern_that_matches_no_layer_is_an_error_after_two_steps(intercept) -> None:
    intercept(*E3M0, "full_precision.layers=['head.*']")
    model = linear()
    optimizer = SGD(model.parameters(), lr=0.1)
    step_of(model, optimizer)
    with pytest.raises(UserError, match=r"full_precision.layers: 'head\.\*' matches no parameter"):
        step_of(model, optimizer)


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        (("sync=gossip_dpsgd",), "sync=DPSGD is not available in scripts"),
        (("sync=compressed",), "Use sync=all_reduce or sync=requantised"),
        (("full_precision.first_epochs=1",), "full_precision.first_epochs is not available in scripts"),
        (
            ("precision.weights=e4m3",),
            r"precision.weights=e4m3 is not available in scripts, .* precision.rules=\[{modules",
        ),
        (("precision.loss_scale=8",), "precision.loss_scale=8: a script must scale its loss itself"),
        (("precision.update=e5m2",), "precision.update=e5m2 .* Remove precision.update"),
    ],
)
def test_unsupported_settings_are_errors_before_the_script_starts(typed: tuple, said: str) -> None:
    with pytest.raises(UserError, match=said):
        Interceptor(config("format=e4m3", *typed))
