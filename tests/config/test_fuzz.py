"""Random command lines and random yaml: whatever is typed, the answer is a plan or one line, never a traceback.

CPDRUN_FUZZ=10000 tries so many of each, from another seed each time; here a few, always the same.
"""

import contextlib
import os
import random
import time

import pytest
import yaml

from cpdrun.config.compose import Composer
from cpdrun.config.errors import ConfigError
from cpdrun.config.overrides import flatten
from cpdrun.sweep import plan

COUNT = int(os.environ.get("CPDRUN_FUZZ", "12"))
SEED = time.time_ns() if "CPDRUN_FUZZ" in os.environ else 0
GIVEN = """
1 0 -1 1e9 1.5 null true no [] {} [1,2] {a:1} '' 'x' a,b 1,2 range(0,2) choice(1,2) glob(*) ${seed} ${nope}
${oc.env:HOME} ${data} e4m3 fp32,e4m3 abc a/b .. é 'é' [[1]] {a:{b:1}} nan inf 1_000 0x10 ** %s a=b x.y.z
cpdrun.models.ConvNet [a,b],[c] sort(1,2) float(1) int(a) ??? !!python/object:os.system << &a ~ -- \\ $ ${ ( a(
range(0) range(1,0) range(0,5,0) interval(1,2)
"""
ODD_KEYS = "sweep sweep.seed case hydra hydra.verbose a.b.c _target_ defaults exp 1 a-b _ model/x model@a.b"
VALUES = [
    None,
    True,
    0,
    -1,
    1.5,
    float("nan"),
    "",
    "e4m3",
    "${seed}",
    "${nope}",
    "???",
    [],
    {},
    [1],
    {"a": 1},
    {1: 2},
]


def draw(seed):
    return random.Random(SEED + seed)


@pytest.fixture(scope="module")
def known():
    with Composer() as composer:
        return [key for key, _ in flatten(composer.compose({}))], composer.groups()


def words(known, draws):
    keys, groups = known
    yield draws.choice([f"exp={draws.choice(groups['exp'])}", "seed=0"])
    for _ in range(draws.randint(1, 3)):
        key = draws.choice(
            draws.choice([keys, keys, list(groups), ODD_KEYS.split(), [f"{draws.choice(keys)}.a"]])
        )
        given = (
            draws.choice(groups[key])
            if key in groups and draws.random() < 0.5
            else draws.choice(GIVEN.split())
        )
        word = f"{draws.choice(['', '', '', '+', '++', '~'])}{key}={given}"
        if draws.random() < 0.1:
            at = draws.randrange(len(word))
            word = word[:at] + draws.choice("=,[]{}()$'\"\\ ~+.:!@#%&*|<>?\0") + word[at + 1 :]
        yield word


def test_any_command_line_is_a_plan_or_one_line(known):
    for seed in range(COUNT):
        typed = list(words(known, draw(seed)))
        try:
            plan(typed, imports=False)
        except ConfigError as error:
            assert "\n" not in str(error), typed
        except Exception as error:
            pytest.fail(f"{typed}: {type(error).__name__}: {error}")


def value(draws, depth=0):
    kind = draws.random()
    if depth < 3 and kind < 0.2:
        return {draws.choice(["a", "seed", "format", "_target_", "model"]): value(draws, depth + 1)}
    if depth < 3 and kind < 0.4:
        return [value(draws, depth + 1) for _ in range(draws.randint(0, 2))]
    return draws.choice(VALUES)


WITH_A_RECIPE = "defaults: [{override /recipe: nvfp4}]\n"


@pytest.mark.parametrize(
    "text",
    [
        "sync.compat: {_target_: [e4m3]}",
        "model: {_target_: [e4m3]}",
        "defaults: [{1: 2}]",
        "ingredients: .nan",
        f"{WITH_A_RECIPE}ingredients: abc",
        f"{WITH_A_RECIPE}ingredients: null",
    ],
)
def test_values_of_a_wrong_type_are_a_plan_or_one_line(text, tmp_path):
    (tmp_path / "exp").mkdir()
    (tmp_path / "exp" / "mine.yaml").write_text(text)
    with contextlib.suppress(ConfigError):
        plan(["exp=mine"], tmp_path, imports=False)


def test_any_yaml_is_a_plan_or_one_line(known, tmp_path):
    keys, groups = known
    (tmp_path / "exp").mkdir()
    for seed in range(COUNT):
        draws = draw(seed)
        sections = [*groups, *keys, "sweep", "defaults", "hydra", "exp"]
        block = {draws.choice(sections): value(draws) for _ in range(draws.randint(1, 3))}
        axes = {draws.choice([*keys, "exclude", "cases"]): value(draws) for _ in range(draws.randint(0, 2))}
        text = yaml.safe_dump({"sweep": axes, **block})
        (tmp_path / "exp" / "mine.yaml").write_text(text)
        try:
            plan(["exp=mine"], tmp_path, imports=False)
        except ConfigError as error:
            assert "\n" not in str(error), text
        except Exception as error:
            pytest.fail(f"{text}: {type(error).__name__}: {error}")
