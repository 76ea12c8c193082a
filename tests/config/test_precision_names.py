"""Names of formats and accumulators in `precision`, which are looked at before anything starts."""

import pytest

from cpdrun.cli import main
from cpdrun.config.errors import ConfigError
from cpdrun.config.schema import validate
from cpdrun.sweep import plan

RULE = "{modules: '*', role: %s, format: %s}"


@pytest.mark.parametrize(
    ("typed", "says"),
    [
        ("precision.accumulator=bogus", "precision.accumulator=bogus: unknown format 'bogus'"),
        ("precision.accumulator=h100_fp9", "did you mean 'h100_fp8'"),
        ("precision.accumulator=fp16-fusd", "did you mean 'fused'"),
        ("precision.accumulator=mxfp8_e4m3", "must be a format without scales"),
        ("precision.weights=e9m2", "exponent_bits is 9"),
        (
            f"precision.rules=[{RULE % ('[input, accumulator]', 'fp16-fusd')}]",
            "precision.rules[0].format=fp16-fusd",
        ),
        (f"precision.rules=[{RULE % ('weight', 'h100_fp8')}]", "unknown format 'h100_fp8'"),
    ],
)
def test_a_wrong_name_is_reported_before_anything_starts(typed, says, capsys):
    assert main(["sweep", "exp=digits_bits", typed, "--dry-run"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: ") and says in said and said.count("\n") == 1


def test_names_in_a_recipe_are_checked(capsys):
    assert main(["sweep", "exp=digits_bits", "recipe=pure_fp16", "recipe.accumulator=nope", "--dry-run"]) == 2
    assert "precision.accumulator=nope" in capsys.readouterr().err


def test_user_formats_are_not_checked_without_imports():
    config = plan(["exp=digits_bits", "format=fp32", "aps=false", "seed=0"]).runs[0].config
    config["precision"]["weights"] = "nowhere.at.all"
    validate(config, imports=False)
    with pytest.raises(ConfigError, match=r"precision\.weights=nowhere\.at\.all"):
        validate(config)
    validate(config | {"precision": config["precision"] | {"_target_": "mine.Precision"}})
