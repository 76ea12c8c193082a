"""Observing changes no bit of a run, and the observations agree with its values."""

import json
import math
from unittest.mock import Mock

import custom_fp
import numpy as np
import pytest
import torch
import yaml
from custom_fp import Format
from torch import nn

from cpdrun.comm import emulate_all_reduce
from cpdrun.comm.workers import Workers
from cpdrun.config.errors import ConfigError
from cpdrun.config.identity import run_name
from cpdrun.record import RunDir, read_json
from cpdrun.sweep import plan
from cpdrun.whatif.collect import observer as samples
from cpdrun.whatif.collect.modules import OperandRecorder, describe_layers
from cpdrun.whatif.collect.observation import ROLES, Observation
from cpdrun.whatif.collect.observer import OWN_WEIGHTS, Observer, observed_steps
from cpdrun.whatif.simulate.effects import effects, main
from cpdrun.whatif.simulate.rounding_error import rounding_error_of, rounding_error_of_values

ATTENTION = torch.nn.functional.scaled_dot_product_attention
WHOLE = "features.0.0.weight"  # a layer whose sample contains all values


@pytest.fixture(scope="module")
def observed(tmp_path_factory) -> RunDir:
    """A run of two epochs, 44 steps, of which 4 are observed."""
    from cpdrun.train.rank import run_rank

    folder, threads = tmp_path_factory.mktemp("observed"), torch.get_num_threads()
    config = config_of("observe=4")
    run = RunDir(folder / "run")
    run.path.mkdir()
    run.config.write_text(yaml.safe_dump(config))
    with pytest.MonkeyPatch.context() as patch:
        for name in ("RANK", "WORLD_SIZE", "CPDRUN_ATTEMPT_DIR"):
            patch.delenv(name, raising=False)
        assert run_rank(str(run.path)) == 0
    torch.set_num_threads(threads)
    return run


@pytest.fixture
def observation(observed) -> Observation:
    return Observation.load(observed.observed)


def config_of(*typed: str) -> dict:
    small = (
        "exp=digits_bits",
        "format=e4m3",
        "aps=true",
        "seed=0",
        "epochs=2",
        "model.width=4",
        "device=cpu",
    )
    named = {text.partition("=")[0] for text in typed}
    (planned,) = plan([*(t for t in small if t.partition("=")[0] not in named), *typed]).runs
    return planned.config


def test_observing_changes_neither_the_name_of_a_run_nor_a_bit(observed, make_run, train_here):
    plain = make_run()
    assert run_name(config_of("observe=4")) == run_name(config_of()) == plain.name
    assert train_here(plain) == 0
    assert not plain.observed.exists()
    assert read_json(plain.done)["weights_sha256"] == read_json(observed.done)["weights_sha256"]
    assert read_json(plain.done)["metrics"] == read_json(observed.done)["metrics"]


def test_observations_do_not_depend_on_splits_and_stops(observed, make_run, in_ranks, train_here):
    run = make_run("observe=4", "emulation=exact")
    run.preempt.touch()
    in_ranks(run, 2)
    assert Observation.load(run.observed).steps == [0]
    run.preempt.unlink()
    assert train_here(run) == 0
    one, other = Observation.load(observed.observed), Observation.load(run.observed)
    assert one.steps == other.steps == [0, 14, 29, 43]
    assert one.about == other.about
    for step in one.steps:
        assert list(one.by_step[step]) == list(other.by_step[step]) == list(ROLES)
        for role, layers in one.by_step[step].items():
            for name, seen in layers.items():
                again = other.by_step[step][role][name]
                assert np.array_equal(seen.binades, again.binades) and seen.numel == again.numel
                assert np.array_equal(seen.column("count"), again.column("count"))
                np.testing.assert_allclose(seen.rows, again.rows, rtol=1e-11, atol=1e-300)
                for fact in ("zeros", "nonfinite", "largest"):
                    assert getattr(seen, fact) == getattr(again, fact)
                for what, values in seen.samples.items():
                    assert np.array_equal(values, again.samples[what]), (role, name, what)


def test_observations_before_a_checkpoint_survive_a_kill(observed, tmp_path):
    """The run is killed twice. Steps after a checkpoint are observed again, those before it are kept."""
    whole, run = Observation.load(observed.observed), RunDir(tmp_path)

    def observer(step):
        found = Observer({}, Mock(duration=Mock(steps=44)), Workers(8), run)
        found.due, found.found.about = frozenset(whole.steps), whole.about
        found.resume(step)
        return found

    def see(one, *steps):
        for step in steps:
            one.found.by_step[step] = whole.by_step[step]
            one.unsaved.append(step)
        one.save_part()

    first = observer(0)
    see(first, 0)
    see(first, 14, 29)
    assert len(list(run.observed_parts.iterdir())) == 2 and not run.observed.exists()
    second = observer(20)
    assert sorted(second.found.by_step) == [0, 14]
    see(second, 29)
    third = observer(40)
    see(third, 43)
    third.save()
    assert Observation.load(run.observed).steps == whole.steps and not run.observed_parts.exists()
    assert run.observed.read_bytes() == observed.observed.read_bytes()


@pytest.mark.parametrize("role", ROLES)
def test_tables_agree_with_samples_of_entire_layers(observed, role):
    compared, fmt = 0, Format.parse("e4m3")
    for layers in Observation.load(observed.observed).of(role).values():
        for seen in layers.values():
            values = seen.samples["values"]
            if values.shape[-1] < seen.numel:
                continue
            scaled = values.astype(np.float64) * 2.0**6
            rounded = custom_fp.quantize(torch.from_numpy(scaled), fmt).double().numpy() * 2.0**-6
            by_value = rounding_error_of_values(values, rounded, fmt.max * 2.0**-6)
            by_table = rounding_error_of(seen, fmt, 6)
            assert (by_table.count, by_table.to_zero) == (by_value.count, by_value.to_zero)
            assert math.isclose(by_table.squared_error, by_value.squared_error, rel_tol=1e-10, abs_tol=1e-300)
            assert seen.zeros == int((values == 0).sum())
            assert seen.largest == np.abs(values).max()
            compared += 1
    assert compared >= 4


@pytest.mark.parametrize(
    ("fmt", "aps", "knobs"),
    [
        ("e4m3", True, {"order": "rank"}),
        ("e3m0", True, {"order": "hierarchical", "group_size": 2}),
        ("e3m0", True, {"order": "tree", "kahan": True}),
        ("e5m2", False, {"order": "ring", "overflow": "saturate"}),
        ("e4m3", False, {"order": "rank", "rounding": "toward_zero"}),
        ("e4m3", False, {"order": "rank", "compat": "cpd"}),
        ("mxfp8_e4m3", False, {"requantise": "once"}),
    ],
)
def test_the_simulated_sum_is_that_of_a_run(observation, fmt, aps, knobs):
    typed = [f"format={fmt}", f"aps={str(aps).lower()}", *(f"sync.{k}={v}" for k, v in knobs.items())]
    found = effects(observation, config_of(*typed)).roles["gradient"]["layers"][WHOLE]
    squares, errors = 0.0, 0.0
    for layers in observation.of("gradient").values():
        values = layers[WHOLE].samples["values"]
        total = emulate_all_reduce(list(torch.from_numpy(values.copy())), fmt, aps=aps, **knobs)
        total = total.double().numpy()
        exact = values.astype(np.float64).sum(0)
        squares, errors = squares + float(exact @ exact), errors + float(((total - exact) ** 2).sum())
    assert math.isclose(found["sum_error"], math.sqrt(errors / squares), rel_tol=1e-9)
    assert found["growth"] > 0 and found["cosine"] <= 1 + 1e-12


def test_the_shift_depends_on_the_entire_layer(observation):
    one = effects(observation, config_of()).roles["gradient"]["layers"][WHOLE]
    for layers in observation.by_step.values():
        seen = layers["gradient"][WHOLE]
        seen.samples["maxima"][3] *= 64  # one element of worker 3, outside the sample
    other = effects(observation, config_of()).roles["gradient"]["layers"][WHOLE]
    assert one["shift"] - 6 <= other["shift"] <= one["shift"] - 3
    assert other["underflow"] > one["underflow"]


def test_recipes_and_rules_apply_to_their_layers(observation):
    rule = "precision.rules=[{modules: classifier, role: weight, format: e2m1}]"
    roles = effects(observation, config_of(rule)).roles
    formats = {name: of["format"] for name, of in roles["weight"]["layers"].items()}
    assert formats.pop("classifier.weight") == "e2m1"
    assert formats.pop("classifier.bias") == "e2m1"
    assert set(formats.values()) == {"fp32"}
    kept = effects(observation, config_of("precision.weights=e4m3", "precision.master_weights=false")).roles
    assert kept["update"]["all"]["update_lost"] > 0.5
    assert kept["weight"]["exact"] and kept["weight"]["all"]["snr_db"] < 40
    kahan = ("precision.weights=e4m3", "precision.master_weights=false", "precision.kahan_weights=true")
    less = effects(observation, config_of(*kahan)).roles["update"]["all"]["update_lost"]
    assert less < kept["update"]["all"]["update_lost"]
    nvfp4 = effects(observation, config_of("recipe=nvfp4")).roles["activation"]
    assert not nvfp4["exact"] and 10 < nvfp4["all"]["snr_db"] < 40


def test_full_precision_and_loss_scales_are_simulated(observation):
    def gradient(*typed):
        return effects(observation, config_of(*typed)).roles["gradient"]

    hybrid = gradient("full_precision.layers=['classifier.*']", "full_precision.first_epochs=1")
    assert hybrid["layers"]["classifier.weight"]["snr_db"] == 200
    assert hybrid["steps"]["0"]["snr_db"] == 200 > hybrid["steps"]["43"]["snr_db"]
    plain, scaled = gradient("aps=false"), gradient("aps=false", "precision.loss_scale=1024")
    assert scaled["all"]["underflow"] < plain["all"]["underflow"]


def test_quantities_that_are_not_observed_are_listed(observation, make_run, train_here):
    said = effects(observation, config_of("sync=local", "format=fp32", "aps=false")).uncovered
    assert any("does not send a sum of gradients" in line for line in said)
    run = make_run(
        "sync=local", "observe=2", "epochs=1", "format=fp32", "aps=false", "data.test_fraction=0.9"
    )
    assert train_here(run) == 0
    own = Observation.load(run.observed)
    assert own.unobserved == [OWN_WEIGHTS]
    assert set(own.by_step[0]) == {"activation", "output_gradient"}


def test_rounding_that_was_not_observed_is_listed(observation):
    def said(*words):
        return effects(observation, config_of("format=fp32", "aps=false", *words)).uncovered

    assert said() == said("recipe=nvfp4") == []
    assert said("recipe=fp8_delayed") == ["delayed scales, which are simulated as scales of the same step"]
    assert said("precision=mixed_fp16") == [
        "rounding in BatchNorm2d, Dropout, ReLU",
        "output_gradient: changes of the dynamic loss scale, which is simulated at its first value, 2^16",
    ]
    assert said("precision.rules=[{modules: '*scores', role: input, format: e4m3}]") == []
    observation.about["attends"] = True
    assert said("recipe=nvfp4") == ["rounding in attention"]
    observation.about["attends"] = False
    observation.about["modules"] += describe_layers(nn.Sequential(nn.Embedding(4, 4), nn.Linear(4, 4)))
    everywhere = "precision.rules=[{modules: '*', role: input, format: e4m3}]"
    assert said(everywhere) == ["rounding in Linear"]


def test_attention_is_detected_without_changing_its_bits():
    block = nn.TransformerEncoderLayer(8, 2, dim_feedforward=8, dropout=0.0, batch_first=True)
    x, watched = torch.randn(2, 3, 8, generator=torch.manual_seed(0)), OperandRecorder(block, here=True)
    watched.open()
    seen = block(x)
    assert watched.close()["activation"] and watched.attends
    assert torch.equal(seen, block(x)) and torch.nn.functional.scaled_dot_product_attention is ATTENTION


def test_the_command_simulates_configs_and_reports_invalid_ones(observed, tmp_path, capsys):
    asked, out = tmp_path / "configs.json", tmp_path / "out.json"
    asked.write_text(json.dumps({"good": config_of(), "bad": config_of() | {"format": "e9m9"}}))
    assert main([str(observed.path), str(asked), str(out)]) == 0
    found = json.loads(out.read_text())
    assert set(found["good"]["role"]) == set(ROLES)
    assert "e9m9" in found["bad"]["error"]
    assert main([str(tmp_path), str(asked), str(out)]) == 2
    refused = capsys.readouterr().err
    assert refused.count("\n") == 1 and "observe=" in refused


def test_steps_and_samples_are_spread_evenly():
    assert observed_steps(16, 330)[::15] == [0, 329] and len(observed_steps(16, 330)) == 16
    assert observed_steps(5, 3) == [0, 1, 2] and observed_steps(0, 9) == [] and observed_steps(1, 9) == [0]
    at = samples.sample_places(100_000, samples.sample_size(100_000, 10, 8), torch.device("cpu"))
    assert len(at) == 1024 == len(at.unique()) and at[0] == 0 and at[-1] > 95_000
    assert (at.view(-1, 32)[:, 0] % 32 == 0).all()
    assert samples.sample_size(10**9, 400, 1024) == 32
    with pytest.raises(ConfigError, match="observe"):
        config_of("observe=-1")
