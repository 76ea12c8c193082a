from pathlib import Path

import pytest

from cpdrun.config.compose import Composer
from cpdrun.config.errors import ConfigError
from cpdrun.config.overrides import parse, typed_form


@pytest.fixture
def loader():
    with Composer() as composer:
        yield composer.loader


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("format=e4m3", ("e4m3",)),
        ("format=e4m3,fp32", ("e4m3", "fp32")),
        ("aps=true,false", (True, False)),
        ("seed=range(0,4)", (0, 1, 2, 3)),
        ("optim.lr=1e-3", (0.001,)),
        ("full_precision.layers=[a,b]", (["a", "b"],)),
        ("name='a, b'", ("a, b",)),
        ("model=glob(resnet_c*)", ("resnet_cifar",)),
        ("~model.width", ()),
    ],
)
def test_values_are_parsed_by_the_grammar_of_hydra(loader, text, values):
    (typed,) = parse([text], loader)
    assert typed.values == values
    assert typed.is_axis == (len(values) > 1 or "glob" in text)


def test_a_tilde_is_the_home_folder(loader):
    texts = ["a=~/x", "a=~/x,~/y", "a=[~/x]", "a='b ~/c'"]
    home = str(Path.home())
    expected = [(f"{home}/x",), (f"{home}/x", f"{home}/y"), ([f"{home}/x"],), ("b ~/c",)]
    assert [typed.values for typed in parse(texts, loader)] == expected


@pytest.mark.parametrize("text", ["format", "a=[1,2", "=3", "exp@x=3"])
def test_overrides_that_cannot_be_parsed_are_reported(loader, text):
    with pytest.raises(ConfigError, match="cannot read"):
        parse([text], loader)


@pytest.mark.parametrize(
    "value", [None, True, 3, -0.5, 1e-30, "e4m3", "a, b", "it's", "null", "12", [1, "x y"], {"a": [True]}, ""]
)
def test_typed_form_round_trips(loader, value):
    (typed,) = parse([f"k={typed_form(value)}"], loader)
    assert typed.values == (value,)
