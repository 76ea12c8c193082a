"""One knob of how gradients are scaled, and its short form."""

from pathlib import Path

import pytest
import yaml

import cpdrun.conf
from cpdrun.config.plan import plan

RULES = {"NoScaling": "none", "APS": "aps", "DelayedAPS": "aps_delayed", "Own": "own"}


def found(*typed: str) -> list[str]:
    """The rule of each run, and that `aps` says whether there is one."""
    rules = []
    for run in plan(
        ["name=x", *typed] if "exp=digits_bits" in typed else ["name=x", "format=e4m3", *typed]
    ).runs:
        rule = RULES[run.config["scaling"]["_target_"].rsplit(".", 1)[-1]]
        assert run.config["aps"] is (rule != "none")
        assert ("-aps-" in run.name) is (rule != "none")
        rules.append(rule)
    return rules


@pytest.mark.parametrize(
    ("typed", "rules"),
    [
        ([], ["none"]),
        (["aps=true"], ["aps"]),
        (["aps=false"], ["none"]),
        (["aps=false,true"], ["none", "aps"]),
        (["scaling=none"], ["none"]),
        (["scaling=aps_delayed"], ["aps_delayed"]),
        (["scaling=none,aps,aps_delayed"], ["none", "aps", "aps_delayed"]),
        (["scaling=aps_delayed", "aps=true,false"], ["aps_delayed", "none"]),
        (["scaling=aps_delayed", "aps=false"], ["none"]),
        (["scaling=none", "aps=true,false"], ["none"]),
        (["scaling=none,aps_delayed", "aps=true,false"], ["none", "aps_delayed"]),
        (["scaling._target_=my.Own"], ["own"]),
        (["scaling.margin=2"], ["none"]),
        (["scaling.margin=2", "aps=true"], ["aps"]),
        (["exp=digits_bits", "format=e4m3", "seed=0"], ["none", "aps"]),
        (["exp=digits_bits", "format=e4m3", "seed=0", "scaling=aps_delayed"], ["none", "aps_delayed"]),
        (["exp=digits_bits", "format=e4m3", "seed=0", "scaling=none,aps_delayed"], ["none", "aps_delayed"]),
        (
            ["exp=digits_bits", "format=fp32,e4m3", "seed=0", "aps=true"],
            ["none", "aps"],
        ),  # fp32: the baseline
    ],
)
def test_aps_and_scaling_resolve_to_the_same_settings(typed: list[str], rules: list[str]) -> None:
    assert found(*typed) == rules


def test_the_short_form_and_the_rule_are_one_run() -> None:
    short, long = (plan(["name=x", "format=e4m3", typed]).runs[0] for typed in ("aps=true", "scaling=aps"))
    assert short.name == long.name and short.config == long.config


def test_in_conf_only_an_experiment_chooses_the_scaling_rule() -> None:
    conf = Path(cpdrun.conf.__file__).parent
    others = [path for path in conf.rglob("*.yaml") if path.parent.name not in ("exp", "scaling")]
    saying = {path.stem: yaml.safe_load(path.read_text()) for path in others}
    assert {name for name, body in saying.items() if "scaling" in str((body or {}).get("defaults"))} == {
        "any_run"
    }
    assert {name for name, body in saying.items() if "scaling" in (body or {})} == set()
