"""Random command lines and experiment files: the answer is a plan or a readable message, never a traceback.

Hypothesis makes odd words, and replaces a few values, keys, lines or bytes of our own experiments, so that most of a
file is correct. CPDRUN_FUZZ=10000 tries as many of each (scripts/checks/soak.py --fuzz 10000); otherwise the same few.
"""

import os
import re
from pathlib import Path

import hypothesis.strategies as st
import pytest
import yaml
from hypothesis import HealthCheck, example, given, settings

from cpdrun.config.errors import ConfigError
from cpdrun.sweep import plan

TRIES = int(os.environ.get("CPDRUN_FUZZ", "0"))
CONF = Path(__file__).parents[2] / "conf"
EXPERIMENTS = sorted(CONF.glob("exp/*_bits.yaml"))
LONGEST_MESSAGE = 1000
MOST_LINES = 3


def at_length(in_the_suite: int) -> settings:
    """The suite tries the same examples each time; the nightly run tries others."""
    return settings(
        max_examples=TRIES or in_the_suite,
        deadline=None,
        derandomize=not TRIES,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
    )


KEYS = re.findall(
    r"\S+",
    """exp name results_dir case format aps full_precision full_precision.layers world_size batch_size epochs clip_norm
    seed nproc threads emulation device loaders model model.width model._target_ data data.augment optim optim.lr
    schedule sync sync.order sync.kahan sync.rounding scaling precision precision.weights partition topology compressor
    launcher launcher.jobs statistics.every_steps checkpoint sweep sweep.seed sweep.exclude defaults hydra
    hydra.job.name _target_ frmat a.b.c""",
)
VALUES = re.findall(
    r"\S+",
    """fp32 e4m3 e5m2 e0m0 e9m9 e99999m1 mxfp4 dynamic_tree E4M3 bf16 null ~ true false on 0 1 8 -1 1e400 nan .inf 0x10
    1_000 [] {} [fp32,e4m3] [1,[2]] {a:1} '' "" ${format} ${nothing} ${oc.env:HOME} ${ ??? glob(*) glob(e*) range(0,3)
    range(3) range(a) choice(a,b) sort(3,1) shuffle(1,2) interval(0,1) tag(x,1) cast(1) int(a) extend_list(1) convnet
    digits sgd digits_bits os.system a.b.C ../x /etc/passwd sync.yaml
    range(0) range(0,5,0) [a,b],[c] 'é' \\ ( a( << &a !!python/object:os.system""",
)

short = st.text(max_size=12)
values = st.sampled_from(VALUES) | st.integers(-9, 99).map(str) | short
axes = st.lists(values, min_size=1, max_size=3).map(",".join)
signs = st.sampled_from(["", "", "", "", "+", "++", "~", "-", " "])
overrides = st.one_of(
    st.builds("{}{}={}".format, signs, st.sampled_from(KEYS), axes),
    st.builds("{}{}".format, signs, st.sampled_from(KEYS)),
    st.builds("{}={}".format, short, axes),
    st.text(max_size=30),
)


def no_traceback(words: list[str], config_dir: Path | None = None) -> None:
    """Plan, or accept a refusal whose message a user can read."""
    try:
        plan(words, config_dir)
    except ConfigError as error:
        message = str(error)
        assert message.strip()
        assert len(message) <= LONGEST_MESSAGE + sum(map(len, words)), message
        assert message.count("\n") < MOST_LINES, message


@at_length(20)
@given(st.lists(overrides, max_size=4))
@example(["format=[e4m3,e5m2]"])
@example(["format=e4m3,"])
@example(["name=" + "x" * 300])
@example(["sweep.exclude=3"])
@example(["seed=\0"])
def test_any_words(words):
    no_traceback(["exp=digits_bits", "format=e4m3", "aps=false", "seed=0", *words])


scalars = st.none() | st.booleans() | st.integers(-9, 99) | st.floats() | st.sampled_from(VALUES) | short
nodes = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS) | short, inner, max_size=3)
    ),
)


@st.composite
def experiments(draw) -> bytes:
    """Return one of our experiments with replaced values, keys or lines; or text; or bytes."""
    kind = draw(st.integers(0, 9))
    if kind == 0:
        return draw(st.binary(max_size=60))
    if kind == 1:
        return draw(st.text(max_size=80)).encode()
    text = draw(st.sampled_from(EXPERIMENTS)).read_text()
    if kind < 5:
        lines = text.splitlines()
        for _ in range(draw(st.integers(1, 3))):
            at = draw(st.integers(0, len(lines) - 1))
            lines[at] = draw(
                st.sampled_from(["", lines[at][1:], lines[at] + ":", f"  {lines[at]}", "- x"]) | short
            )
        return "\n".join(lines).encode()
    content = yaml.safe_load(text)
    for _ in range(draw(st.integers(1, 3))):
        where = content
        while True:
            key = draw(st.sampled_from(sorted(where)) | st.sampled_from(KEYS))
            if not isinstance(where.get(key), dict) or not where[key] or draw(st.booleans()):
                break
            where = where[key]
        where[key] = draw(nodes)
    return yaml.safe_dump(content).encode()


@pytest.fixture(scope="module")
def config_dir(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("conf")
    (folder / "exp").mkdir()
    return folder


@at_length(8)
@given(experiments())
@example(b"\xff\xfe")
@example(b"sweep: {format: [e4m3], exclude: 3}")
@example(b"a: &a [*a]")
@example(b"only a word")
@example(b"sync.compat: {_target_: [e4m3]}")
@example(b"model: {_target_: [e4m3]}")
@example(b"defaults: [{1: 2}]")
@example(b"ingredients: .nan")
@example(b"defaults: [{override /recipe: nvfp4}]\ningredients: abc")
@example(b"defaults: [{override /recipe: nvfp4}]\ningredients: null")
@example(b"model:\n  depth:\n  - ['${']\n")
def test_any_experiment(config_dir, content):
    (config_dir / "exp" / "fuzz.yaml").write_bytes(content)
    no_traceback(["exp=fuzz"], config_dir)
