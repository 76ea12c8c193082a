"""Weights from a file, and evaluation without training."""

import json
import struct
from types import SimpleNamespace

import pytest
import torch
from torchvision.models import resnet50

from cpdrun.config.errors import ConfigError
from cpdrun.models.convnet import ConvNet
from cpdrun.record import read_json, read_json_lines
from cpdrun.sweep import plan
from cpdrun.train.build import BuildError, build, build_model, load_initial_weights
from cpdrun.train.state.checkpoint import weights_sha256

CPU = torch.device("cpu")
SMALL = ("exp=digits_bits", "format=fp32", "aps=false", "seed=0", "model.width=4")


def convnet(seed=3):
    torch.manual_seed(seed)
    return ConvNet(in_channels=1, num_classes=10, width=4, dropout=0.0)


def saved(content, path):
    torch.save(content, path)
    return path


def config_of(path, *typed):
    (run,) = plan([*SMALL, f"init_from={path}", *typed]).runs
    return run.config


@pytest.mark.parametrize(
    "form",
    [
        lambda state: state,
        lambda state: {"state_dict": state, "epoch": 90},
        lambda state: {"model": {f"module.{name}": value for name, value in state.items()}},
        lambda state: {f"_orig_mod.{name}": value.clone() for name, value in state.items()},
        lambda state: {name: value for name, value in state.items() if "num_batches" not in name},
        lambda state: {name: value.double() for name, value in state.items()},
    ],
)
def test_usual_forms_of_a_state_dict_are_read(form, tmp_path):
    state = convnet().state_dict()
    model = build(config_of(saved(form(state), tmp_path / "w.pth")), CPU).model
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())


def test_safetensors_are_read(tmp_path):
    state, header, data = convnet().state_dict(), {"__metadata__": {"format": "pt"}}, b""
    names = {torch.float32: "F32", torch.int64: "I64"}
    for name, value in state.items():
        raw = value.contiguous().view(-1).view(torch.uint8).numpy().tobytes()
        place = [len(data), len(data) + len(raw)]
        header[name] = {"dtype": names[value.dtype], "shape": list(value.shape), "data_offsets": place}
        data += raw
    text = json.dumps(header).encode()
    (tmp_path / "w.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)
    model = build(config_of(tmp_path / "w.safetensors"), CPU).model
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())


def test_torchvisions_resnet50_loads_entirely_and_as_a_backbone(tmp_path):
    with torch.device("meta"):  # names and shapes, without a second of drawing weights
        shapes = resnet50(weights=None).state_dict()
    theirs = {name: torch.full(v.shape, 0.5, dtype=v.dtype) for name, v in shapes.items()}
    path = saved(theirs, tmp_path / "resnet50.pth")
    for into, exp, classes, typed in (
        ("net", "resnet50_bits", 1000, ()),
        ("net.backbone", "fcn_bits", 19, ("init_into=net.backbone", "init_skip=['fc.*']")),
    ):
        words = [f"exp={exp}", f"init_from={path}", "format=fp32", "aps=false", "seed=0", *typed]
        config = plan(words).runs[0].config
        with torch.device("meta"):
            model = build_model(config, SimpleNamespace(num_classes=classes))
        model.to_empty(device="cpu")
        load_initial_weights(config, model)
        taken = model.get_submodule(into).state_dict()
        assert all((value == 0.5).all() for value in taken.values() if value.is_floating_point())


def test_mismatches_are_one_line_with_the_names(tmp_path):
    state = convnet().state_dict()
    state["head.weight"] = state.pop("classifier.weight")
    state["classifier.bias"] = torch.zeros(7)
    path = saved(state, tmp_path / "w.pth")
    with pytest.raises(BuildError) as told:
        build(config_of(path), CPU)
    assert str(told.value) == (
        f"init_from: {path} does not match the model: 1 name is missing (classifier.weight), 1 name is unexpected "
        "(head.weight), 1 name is of another shape (classifier.bias is 7, in the model 10); init_skip=['fc.*'] skips "
        "names"
    )
    model = build(config_of(path, "init_skip=['classifier.*','head.*']"), CPU).model
    assert torch.equal(model.features[0][0].weight, state["features.0.0.weight"])
    with pytest.raises(BuildError, match=r"init_skip: 'hed\.\*' matches no name"):
        build(config_of(path, "init_skip=['hed.*']"), CPU)
    with pytest.raises(
        BuildError, match=r"init_into=body is not a part of the model\. Its parts: features, feat"
    ):
        build(config_of(path, "init_into=body"), CPU)


@pytest.mark.parametrize("content", [b"", b"not a file of torch's", "a module", [1, 2], {"epoch": 3}])
def test_a_file_without_a_state_dict_is_a_short_error(content, tmp_path):
    path = tmp_path / "w.pth"
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        torch.save(convnet() if content == "a module" else content, path)
    with pytest.raises(
        BuildError, match=r"init_from: .*w\.pth is not a state dict written by torch\.save"
    ) as told:
        build(config_of(path), CPU)
    assert "\n" not in str(told.value) and len(str(told.value)) < 400


def test_the_name_of_a_run_depends_on_the_contents_of_the_file(tmp_path):
    def name(path, *typed):
        return plan([*SMALL, f"init_from={path}", *typed]).runs[0].name

    one, same = (saved(convnet(1).state_dict(), tmp_path / f"{n}.pth") for n in "ab")
    same.write_bytes(one.read_bytes())
    other = saved(convnet(2).state_dict(), tmp_path / "c.pth")
    assert name(one) == name(same) != name(other)
    assert name(one) != plan([*SMALL]).runs[0].name != name(one, "init_skip=['classifier.*']")
    with pytest.raises(ConfigError, match=r"init_from: /.*nowhere\.pth cannot be read: No such file or"):
        name("nowhere.pth")
    with pytest.raises(
        ConfigError, match=r"init_sha256=0{64} does not match: .* has the digest [0-9a-f]{64}"
    ):
        name(one, f"init_sha256={'0' * 64}")
    with pytest.raises(ConfigError, match=r"init_into=net has no effect without init_from=PATH"):
        plan([*SMALL, "init_into=net"])


def test_a_file_that_has_changed_is_an_error(tmp_path):
    path = saved(convnet(1).state_dict(), tmp_path / "w.pth")
    config = config_of(path)
    saved(convnet(2).state_dict(), path)
    with pytest.raises(BuildError, match="it has changed since the run was planned"):
        build(config, CPU)
    assert config_of(path)["init_sha256"] != config["init_sha256"]
    path.unlink()
    with pytest.raises(BuildError, match=r"init_from: .*w\.pth cannot be read: No such file"):
        build(config, CPU)


@pytest.mark.parametrize("typed", [(), ("sync=gossip_dpsgd",), ("precision=pure_fp16",)])
def test_epochs_0_evaluates_a_checkpoint_to_the_metrics_of_its_run(make_run, train_here, typed):
    """Gossip has no single set of weights to load, so its initial weights are evaluated."""
    typed = ("format=fp32", "aps=false", "data.test_fraction=0.9", *typed)
    start, known = [], {}
    if "sync=gossip_dpsgd" not in typed:
        trained = make_run("epochs=1", *typed)
        assert train_here(trained) == 0
        start, known = [f"init_from={trained.checkpoint}"], read_json(trained.done)
    evaluated = make_run("epochs=0", *start, *typed)
    assert train_here(evaluated) == 0
    done = read_json(evaluated.done)
    assert done["status"] == "finished" and "train_loss" not in done["metrics"]
    assert [row["epoch"] for row in read_json_lines(evaluated.metrics)] == [0]
    if known:
        assert done["weights_sha256"] == known["weights_sha256"]
        assert done["metrics"].items() <= known["metrics"].items()


def test_epochs_0_with_several_formats_is_an_error():
    with pytest.raises(ConfigError, match=r"epochs=0 trains nothing, .* Type format=fp32 aps=false"):
        plan(["exp=digits_bits", "epochs=0"])
    formats = [r.config["format"] for r in plan(["exp=mlp_model_parallel_bits", "epochs=0", "seed=0"]).runs]
    assert len(set(formats)) > 3, "activations within the model have the run's format"


def test_initial_weights_do_not_depend_on_the_seed(tmp_path):
    path = saved(convnet(5).state_dict(), tmp_path / "w.pth")
    runs = plan([*SMALL[:-2], "seed=0,1", "model.width=4", f"init_from={path}"]).runs
    digests = {weights_sha256(build(run.config, CPU).model) for run in runs}
    assert digests == {weights_sha256(convnet(5))}
