"""Run the command lines that README.md, docs/ and the other pages show, page by page and in their order.

SHORTER lists what is appended to lines that would take minutes, and PLANNED lists lines that only plan here. NOT_RUN
lists lines that cannot run here; only their options are checked. Every other line runs as it is. A line that several
pages show and that changes nothing runs once.
"""

import re
import shlex
import shutil
from functools import cache
from pathlib import Path

import pytest
from documented_lines import PAGES, REFERENCES, REPOSITORY, blocks, commands, commands_in_text
from typed_line import type_line

from cpdrun.cli import COMMANDS, parser_of, read
from cpdrun.record import write_run

STARTER = REPOSITORY / "cpdrun" / "starter" / "project"
# A user's script. It takes the arguments of the pages' commands, and prints what their patterns match.
SCRIPT = """
import argparse
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=0.1)
parser.add_argument("--seed", type=int, default=0)
args = parser.parse_args()
dist.init_process_group("gloo")
torch.manual_seed(args.seed)
x = torch.randn(64, 16)
y = x @ torch.randn(16, 16)
model = DistributedDataParallel(torch.nn.Linear(16, 16))
optimizer = torch.optim.SGD(model.parameters(), lr=args.lr)
for epoch in range(2):
    for _ in range(5):
        optimizer.zero_grad()
        loss = (model(x) - y).square().mean()
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch + 1}: val loss {loss.item():.4f}", flush=True)
dist.destroy_process_group()
"""
FORMATS = "import custom_fp\n\nFLAT4 = custom_fp.Codebook('flat4', tuple(i / 7 - 1 for i in range(15)))\n"

TINY = "epochs=1 model.width=4"  # such a run takes a second
# Maps a line, or "PAGE: line" for one page, to what is appended.


SHORTER = {
    "cpdrun sweep exp=digits_bits": f"{TINY} seed=0 format=fp32,e3m0 aps=true",
    "cpdrun predict exp=digits_bits": TINY,
    "cpdrun search exp=digits_search --report": f"{TINY} format=fp32,e3m0 aps=true --budget 1",
    "cpdrun sweep script=train.py script.args.lr=3e-4,1e-3 format=fp32,e3m0 aps=true seed=0,1": (
        "script.args.lr=3e-4 seed=0"
    ),
    "cpdrun sweep --config-dir conf exp=mine": "epochs=1 seed=0 format=fp32,e3m0",
    "cpdrun sweep exp=digits_bits format=fp32,mypackage.formats.FLAT4 aps=false": f"{TINY} seed=0",
    "cpdrun formats --vectors posit16-exact --count 10000 --seed 1": "--count 100",
    "cpdrun formats --vectors e5m2 --rounding nearest_even,toward_zero,stochastic_8 --overflow infinity,saturate "
    "--seed 7 --out e5m2.jsonl": "--rounding nearest_even --overflow infinity --count 10",
    "cpdrun sweep exp=digits_recipes recipe=mxfp8 ingredients.format=mxfp8_e4m3 ingredients.head=null "
    "+recipe.accumulator=b200_mxfp8": "--dry-run",  # tests/train
    "cpdrun search --allocate --config-dir conf exp=mine 'screen.roles=[weight,input]' screen.low.weight=nvfp4 "
    "screen.low.input=nvfp4": "--dry-run",  # 32 runs
    "docs/scripts.md: cpdrun report": "--format md",
    "docs/tutorial.md: cpdrun report digits_search": "--format md",
    "docs/commands.md: cpdrun report": "--format md",
    "docs/commands.md: cpdrun report --networks 1gbit,100gbit": "--format md",
    "docs/commands.md: cpdrun report --cost area,bitops": "--format md",
}
# Lines, or "PAGE: line" for one page, that get --dry-run, and what runs them or why nothing does.
PLANNED = """
cpdrun sweep exp=resnet50_bits nproc=8 --launcher slurm launcher.time=24:00:00 data.data_dir=/data/imagenet  # no data
cpdrun sweep exp=resnet50_bits nproc=8 format=fp32 max_steps=20 name=resnet50_timing  # no data
docs/commands.md: cpdrun search exp=digits_search --report  # docs/tutorial.md
cpdrun search exp=digits_search search.start=widest  # tests/search
cpdrun search exp=digits_search search.tune.optim.lr=.05,.1,.2  # tests/search
cpdrun search exp=digits_recipes recipe=bf16,mxfp8,nvfp4  # tests/search
cpdrun search exp=digits_recipes recipe=nvfp4 ingredients.rounding=stochastic,nearest_even search.baseline.recipe=bf16
cpdrun search train.py --lr 3e-4 -- format=fp32,e4m3fn,e3m0 aps=true search.tolerance=0.01  # docs/scripts.md
cpdrun search train.py --lr 3e-4 -- recipe=bf16,mxfp8,nvfp4 search.tolerance=0.01  # tests/attach
cpdrun search exp=digits_bits sync=sharded sync.gather=fp32,bf16,e4m3fn format=fp32 aps=true  # tests/comm
cpdrun search train.py --lr 0.1 -- format=fp32,e4m3fn,e2m0 aps=true search.tolerance=0.02 --budget 24 --json
cpdrun sweep script=train.py format=fp32,e3m0 aps=true,false  # docs/scripts.md
cpdrun search script=train.py script.args.gather=fp32,bf16,e4m3fn nproc=2  # tests/attach
cpdrun sweep script=train.py recipe=bf16,nvfp4  # docs/scripts.md
cpdrun search --allocate exp=digits_screen_small  # tests/search_allocate
cpdrun search --allocate exp=gpt_plain_screen_small screen.low.weight='[e4m0,e2m1b6fn]'  # runs of minutes
cpdrun sweep exp=digits_recipes  # 36 runs
cpdrun sweep exp=digits_recipes recipe=nvfp4 ingredients.rounding=stochastic,nearest_even ingredients.hadamard=16,null
cpdrun sweep exp=digits_bits format=fp32 precision.accumulator=fp16,h100_fp8,deepseek_v3  # tests/train
cpdrun sweep exp=digits_recipes recipe=mxfp8 recipe.operations=true  # kernels/tests/test_operations.py
cpdrun sweep --config-dir conf exp=digits_recipes recipe=bf16,mine  # 8 runs
cpdrun sweep exp=digits_bits --launcher slurm --max-parallel 8  # tests/launch/test_slurm.py
cpdrun sweep exp=digits_bits --launcher pull --no-wait  # tests/launch/test_work.py
"""
SHORTER |= dict.fromkeys((line.partition("  #")[0] for line in PLANNED.strip().splitlines()), "--dry-run")
PLACEHOLDERS = {"RUN": "convnet-e3m0-aps-w8-s0"}
# The name of the sweep whose records the commands of a page need.
AFTER_A_SWEEP = {"docs/json.md": "digits_bits", "docs/reading_the_report.md": "digits_bits"}
# The beginnings of lines, or "PAGE: line" for one page, that do not run, and what tests them instead, or why not.
NOT_RUN_LINES = """
git clone | the network
cpdrun search exp=finetune | tests/train/test_finetuning.py
docs/own_model.md: cpdrun report | it follows this search
cpdrun sweep exp=digits_recipes recipe=bf16,mxfp8,nvfp4 epochs=0 init_from= | tests/train/test_init_from.py
pip  | tests/test_wheel.py
apt-get  | the network
source  | the reader's shell
make demo | tests/search/test_search_loop.py
make test | these tests
make lint | run next to the tests
make docs | tests/test_docs.py
make notebooks | tests/test_notebooks.py
chrt -r 5 taskset -c 0 python scripts/ | minutes on an idle machine
chrt -r 5 python scripts/ | minutes on an idle machine
make area | tests/research/test_area.py
PYTHONPATH=scripts python -m research.area | tests/research/test_area.py
python scripts/benchmarks/testing_study.py | kernels/tests/test_testing.py
python scripts/benchmarks/commands.py | tests/test_benchmarks.py
python scripts/benchmarks/kernel_table.py | tests/test_benchmarks.py
python scripts/benchmarks/recipe_steps.py | tests/test_benchmarks.py
python scripts/research/simulations/simulate_search.py | tests/stats/test_simulation.py
python scripts/research/prediction/fit_predict.py fit | tests/whatif/test_fit_predict.py
python scripts/research/simulations/simulate_judge.py | tests/stats/test_online.py
python scripts/checks/soak_elastic.py | tests/launch/test_elastic.py
PYTHONPATH=qtorch | kernels/tests/test_outside_oracles.py
cpdrun judge docs/examples/judge/ | tests/commands/test_judge.py::test_the_answers_on_the_page_are_those_of_the_command
cpdrun search --config-dir results/digits_screen_small/screen | tests/search_allocate/test_screen.py
cpdrun doctor --calibrate  | tests/costmodel/test_calibrate.py
cpdrun formats --vectors fp16 --operands e4m3fn,e5m2 | tests/commands/test_dot_vectors.py
cpdrun formats --vectors e4m3fnuz --rounding to_odd | tests/commands/test_vectors_command.py
cpdrun sweep exp=digits_recipes recipe=bf16 seed=100 epochs=5 | tests/attach/test_fork_searches.py
docs/loss_spike.md: cpdrun report RUN | docs/commands.md
cpdrun search exp=digits_recipes recipe=bf16,mxfp8,nvfp4 name=fork | tests/attach/test_fork_searches.py
cpdrun search train.py --resume | tests/attach/test_fork_searches.py
docs/slurm.md: cpdrun status --watch | docs/commands.md
cpdrun sweep --join  | tests/launch/test_work.py
docs/tutorial.md: cpdrun sweep --config-dir conf exp=mine | tests/examples/test_own_project.py
docs/tutorial.md: cpdrun report | tests/examples/test_own_project.py
cpdrun/starter/project/README.md: cpdrun sweep --config-dir conf exp=mine | tests/examples/test_own_project.py
cpdrun/starter/project/README.md: cpdrun report | tests/examples/test_own_project.py
docs/tutorial.md: cpdrun doctor | docs/commands.md
docs/commands.md: cpdrun search --allocate exp=digits_screen_small | docs/screen.md
cpdrun report --serve | tests/report/test_serve.py
cpdrun report A B --rows format,aps --cols model | tests/report/test_formats.py
cpdrun report resnet50_bits alexnet_bits --rows format,aps --cols sweep | tests/report/test_formats.py
"""
NOT_RUN = dict(line.split(" | ") for line in NOT_RUN_LINES.strip().splitlines())


@cache
def documented() -> list[tuple[str, str]]:
    return [(page, line) for page in PAGES for block in commands(page) for line in block]


def is_run(page: str, line: str) -> bool:
    if page.startswith(REFERENCES) and re.fullmatch(r"cpdrun sweep exp=\w+|cpdrun (report|judge) .*", line):
        return False  # tests/exp checks these experiments, and a test below runs judge
    return not any(line.startswith(start) or start == f"{page}: {line}" for start in NOT_RUN)


def shortened(page: str, line: str) -> str:
    if page.startswith(REFERENCES):
        return f"{line} --dry-run"
    more = SHORTER.get(f"{page}: {line}") or SHORTER.get(line, "")
    for word, meant in PLACEHOLDERS.items():
        line = re.sub(rf"\b{word}\b", meant, line)
    return f"{line} {more}".rstrip()


@cache
def first_page(typed: str) -> str:
    """Return the first page that shows this command line. Its test runs the line if it changes nothing."""
    return next(page for page, line in documented() if is_run(page, line) and shortened(page, line) == typed)


@pytest.fixture
def folder(tmp_path) -> Path:
    """A user's folder: the project that `cpdrun init` writes, with a script, a recipe and a format."""
    folder = tmp_path / "reader"
    shutil.copytree(REPOSITORY / "docs" / "examples", folder / "docs" / "examples")
    shutil.copytree(STARTER, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "train.py").write_text(SCRIPT)
    (folder / "conf" / "recipe").mkdir()
    shutil.copy(
        REPOSITORY / "kernels/custom_fp/conf/recipe/mxfp8.yaml", folder / "conf" / "recipe" / "mine.yaml"
    )
    (folder / "mypackage").mkdir()
    (folder / "mypackage" / "formats.py").write_text(FORMATS)
    return folder


@pytest.mark.timeout(1500)
@pytest.mark.parametrize(
    "page", [page for page in PAGES if any(is_run(page, line) for block in commands(page) for line in block)]
)
def test_commands_of_a_page_run(page, folder):
    if page in AFTER_A_SWEEP:
        for fmt, bits, seed in (("fp32", 32, 0), ("fp32", 32, 1), ("e3m0", 4, 0), ("e3m0", 4, 1)):
            metrics = {"test_accuracy": 0.9 + seed / 100 - 1 / (10 * bits)}
            sweep = folder / "results" / AFTER_A_SWEEP[page]
            write_run(sweep, format=fmt, bits=bits, seed=seed, metrics=metrics)
    typed_before = set[str]()
    for block in commands(page):
        here = folder
        for line in block:
            if not is_run(page, line):
                continue
            if line.startswith("cd "):
                here = here / line.removeprefix("cd ")
                assert here.is_dir(), f"{line}: there is no such folder"
                continue
            typed = shortened(page, line)
            changes_nothing = "--dry-run" in typed or typed.startswith("cpdrun formats")
            if changes_nothing and (typed in typed_before or first_page(typed) != page):
                continue
            ended = type_line(typed, here)
            told = f"{typed}\n{ended.said[-1500:]}\n{ended.complained[-1500:]}"
            assert ended.code == 0 and "Traceback" not in ended.complained, told
            if file := re.search(r"--out (\S+)", typed):
                assert (here / file[1]).stat().st_size > 1000, told
            else:
                assert ended.said.strip(), told
            if typed in typed_before and "cpdrun sweep " in typed:
                assert "Nothing to do" in ended.said, told
            typed_before.add(typed)


@pytest.mark.parametrize(
    "page", sorted({page for page, line in documented() if page.startswith(REFERENCES) and " judge " in line})
)
def test_judge_commands_of_a_reference_give_verdicts(page, tmp_path):
    shutil.copy((REPOSITORY / page).with_name("values.csv"), tmp_path)
    for _, lines in blocks((REPOSITORY / page).read_text(encoding="utf-8")):
        if any("cpdrun judge " in line for line in lines):
            ended = type_line("\n".join(lines) + " | cat", tmp_path)  # a shell runs lines with a pipe
            assert re.search(": (certified|refuted|open)", ended.said), ended.complained


def has_option(script: Path, option: str) -> bool:
    """Return whether the code of a script, or a module of its folder that it imports, names an option."""
    source = script.read_text()
    modules = re.findall(r"^(?:from|import) (\w+)", source, re.MULTILINE)
    files = [script, *(path for name in modules if (path := script.with_name(f"{name}.py")).is_file())]
    return any(f'"{option}"' in path.read_text() for path in files)


def makes(target: str) -> bool:
    return bool(re.search(rf"^{target}:", (REPOSITORY / "Makefile").read_text(), re.MULTILINE))


@pytest.mark.parametrize("line", sorted({line for page, line in documented() if not is_run(page, line)}))
def test_lines_that_do_not_run_name_existing_options_and_files(line):
    words = shlex.split(line.partition(" > ")[0])
    if words[0] == "cpdrun":
        read(words[1:])
        experiments = [word.removeprefix("exp=") for word in words if word.startswith("exp=")]
        for name in experiments if "--config-dir" not in words else ():
            assert (REPOSITORY / "conf" / "exp" / f"{name}.yaml").is_file()
    assert words[0] != "make" or makes(words[1])
    if scripts := [word for word in words if word.startswith("scripts/")]:
        options = [word for word in words if word.startswith("--")]
        assert [option for option in options if not has_option(REPOSITORY / scripts[0], option)] == []


@pytest.mark.parametrize("page", PAGES)
def test_commands_in_the_text_have_the_named_options(page):
    for command in commands_in_text(page):
        program, *words = command.split()
        options = [word for word in words if word.startswith("--")]
        if program == "cpdrun" and words and words[0] != "--version":
            assert words[0] in COMMANDS, command
            mode = next((f"{words[0]} {o}" for o in options if f"{words[0]} {o}" in COMMANDS), words[0])
            shown = parser_of(words[0]).format_help() + parser_of(mode).format_help()
            assert [o for o in options if not re.search(rf"{o}\b", shown)] == [], command
        if script := re.search(r"\bscripts/[\w/]+\.\w+", command):
            path = REPOSITORY / script[0]
            assert [option for option in options if not has_option(path, option)] == [], command
        assert program != "make" or not words or makes(words[0]), command


def test_exceptions_name_existing_lines_and_tests():
    pairs = documented()
    lines = [line for _, line in pairs]
    assert len(lines) > 100 and len({page for page, _ in pairs}) > 20
    known = {*lines, *(f"{page}: {line}" for page, line in pairs)}
    assert [start for start in NOT_RUN if not any(line.startswith(start) for line in known)] == []
    assert [line for line in SHORTER if line not in known] == []
    assert not {page for page in AFTER_A_SWEEP if page not in PAGES}
    assert [word for word in PLACEHOLDERS if not any(re.search(rf"\b{word}\b", line) for line in lines)] == []
    for test in NOT_RUN.values():
        path, _, name = test.partition("::")
        assert "/" not in path or (REPOSITORY / path).is_file(), test
        assert not name or f"def {name}(" in (REPOSITORY / path).read_text(), test
    others = [line for page, line in pairs if is_run(page, line) and not line.startswith(("cpdrun ", "cd "))]
    assert others == [], "only cpdrun is typed: NOT_RUN must say what tests the others"
