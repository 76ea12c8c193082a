import importlib

import pytest

from cpdrun.config.class_names import FIRST_NAME, FORMER_NAME, PRESENT_NAME, with_present_names
from cpdrun.config.identity import cell_name, identity_hash, run_name
from cpdrun.sweep import plan


def config(*typed):
    (run,) = plan(["exp=digits_bits", "format=e4m3", "aps=true", "seed=0", *typed]).runs
    return run.config


def test_a_run_name_describes_the_run():
    assert run_name(config()).startswith("convnet-e4m3-aps-w8-s0-")
    products = config("format=fp32", "aps=false", "recipe=nvfp4", "world_size=1", "seed=3")
    assert run_name(products).startswith("convnet-nvfp4-w1-s3-")
    assert run_name(config("recipe=nvfp4")).startswith("convnet-e4m3-aps-nvfp4-w8-s0-")
    assert run_name(config("sync.order=ring", "sync.kahan=true")).startswith(
        "convnet-e4m3-aps-ring-kahan-w8-s0-"
    )
    assert run_name({**config(), "case": "Pure, 3%"}).startswith("convnet-e4m3-aps-pure_3-w8-s0-")


def test_cell_names_match_those_in_stored_ledgers():
    products = config("format=fp32", "aps=false", "recipe=nvfp4", "world_size=1", "seed=3")
    assert cell_name(products) == f"convnet-fp32-w1-s0-{identity_hash({**products, 'seed': 0})}"
    assert cell_name(config("seed=5")) == run_name(config())


@pytest.mark.parametrize(
    "typed", ["results_dir=x", "name=x", "nproc=2", "launcher.jobs=1", "+data.cache_dir=x"]
)
def test_settings_without_effect_on_the_result_do_not_change_the_name(typed):
    assert identity_hash(config(typed)) == identity_hash(config())


@pytest.mark.parametrize("typed", ["optim.lr=0.2", "threads=2", "model.width=8", "sync.kahan=true", "seed=1"])
def test_settings_with_effect_on_the_result_change_the_name(typed):
    assert identity_hash(config(typed)) != identity_hash(config())


def test_the_scaling_rule_is_in_the_identity_only_if_it_is_used():
    with_aps = identity_hash(config("+scaling.other=1")) != identity_hash(config())
    without = identity_hash(config("aps=false", "+scaling.other=1")) == identity_hash(config("aps=false"))
    assert with_aps and without


def test_one_format_has_one_name():
    formats = {config("aps=false", f"format={name}")["format"] for name in ("e8m23", "fp32")}
    assert formats == {"fp32"}


def test_new_settings_with_their_defaults_do_not_rename_runs():
    """Older runs keep their names, so that finished runs are found. Other values are part of the identity."""
    typed = ("precision=int8", "sync=gossip_choco", "sync.quasi_global_momentum=0.9", "optim.momentum=0")
    now = config(*typed)
    before = {**now, "sync": dict(now["sync"]), "precision": dict(now["precision"])}
    del before["sync"]["nesterov"], before["sync"]["closing_rounds"]
    del before["precision"]["activation_rounding"], before["precision"]["activation_range"]
    assert identity_hash(before) == identity_hash(now)
    on = ("sync.nesterov=true", "sync.closing_rounds=5", "precision.activation_range=samples")
    assert len({identity_hash(now), *(identity_hash(config(*typed, one)) for one in on)}) == 4


def test_a_moved_class_is_importable_and_its_runs_keep_their_names():
    for now in FIRST_NAME.keys() - FORMER_NAME.keys():
        module, _, name = now.rpartition(".")
        assert hasattr(importlib.import_module(module), name), now
    assert not FIRST_NAME.keys() & set(FIRST_NAME.values())


@pytest.mark.parametrize("former", sorted(PRESENT_NAME))
def test_a_run_with_a_former_class_name_has_the_same_identity_and_builds_the_present_class(former):
    runs = [
        config() | {"sync": {"_target_": name, "topology": {"_target_": name}}}
        for name in (former, PRESENT_NAME[former])
    ]
    assert with_present_names(runs[0]["sync"]) == runs[1]["sync"]
    assert identity_hash(runs[0]) == identity_hash(runs[1])
