"""Execute every block of Python that the pages show, on two ranks.

A fragment is executed after GIVEN, which is what its reader has by then.
"""

import ast
import multiprocessing
import os
import sys
from pathlib import Path

import pytest
from documented_lines import PAGES, snippets

RANKS = 2
PAGES_WITH_SNIPPETS = [page for page in PAGES if snippets(page)]
ELSEWHERE = {"docs/api.md"}  # by tests/api/test_calls.py
ALTERNATIVES = {"README.md", "docs/ddp_hook.md", "docs/recipes.md"}  # each statement has its own model
MODEL = """
import torch, cpdrun, custom_fp
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 64))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
"""
SHARDED = """
from torch.distributed.fsdp import fully_shard
sharded_model = fully_shard(torch.nn.Linear(64, 64))
"""
GIVEN = {
    "README.md": f"""{MODEL}
ddp_model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64))
from cpdrun.comm import ddp_hook
x = torch.randn(64, 64)
""",
    "docs/ddp_hook.md": f"""{MODEL}
import cpdrun.comm
ddp_model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64))
from cpdrun.comm import ddp_hook
{SHARDED}""",
    "kernels/README.md": """
import torch, custom_fp
x = torch.randn(128, 128)
my_gemm = lambda a, b: custom_fp.matmul(a, b, accumulator="h100_bf16").bfloat16()
my_cast = lambda x: custom_fp.quantize(x, "e4m3fn", overflow="saturate")
""",
    "docs/accumulators.md": f"{MODEL}\na, b = torch.randn(2, 64, 64).unbind()\n",
    "docs/recipes.md": f"{MODEL}\ninputs = torch.randn(4, 64)\n",
    "docs/record.md": """
from pathlib import Path
Path("theirs.csv").write_text("fmt,bits,seed,acc,loss\\naf4,4.5,0,.9,.3\\nfp32,32,0,.95,.2\\n")
""",
    "docs/script_reference.md": f"""{MODEL}
epoch, loss = 1, 0.5
batch_of = lambda w: torch.randn(4, 64)
compute_loss = lambda model, batch: model(batch).square().mean()
""",
    "docs/sharded.md": f"""{MODEL}
import argparse, cpdrun.comm
args = argparse.Namespace(gather="e4m3fn")
{SHARDED}""",
}
# Executed after a fragment, to see that it has the intended effect.
BEHIND = """
if "ddp_model" in globals():
    ddp_model(torch.randn(4, 64)).square().mean().backward()
    assert all(p.grad.isfinite().all() for p in ddp_model.parameters())
"""
_context = multiprocessing.get_context("forkserver")


@pytest.mark.parametrize("page", [page for page in PAGES_WITH_SNIPPETS if page not in ELSEWHERE])
def test_the_python_of_a_page_runs(page, tmp_path):
    said = [tmp_path / f"rank{rank}.log" for rank in range(RANKS)]
    processes = [
        _context.Process(target=_execute, args=(page, tmp_path, rank, said[rank])) for rank in range(RANKS)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(600)
        if process.is_alive():
            process.kill()
    assert [process.exitcode for process in processes] == [0] * RANKS, "\n".join(
        path.read_text()[-2000:] for path in said
    )


def _execute(page: str, folder: Path, rank: int, said: Path) -> None:
    import torch.distributed as dist

    (folder / str(rank)).mkdir()
    os.chdir(folder / str(rank))
    os.environ |= {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    with said.open("w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    store = dist.FileStore(str(folder / "store"), RANKS)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=RANKS)
    for number, code in enumerate(snippets(page)):
        statements = ast.parse(code).body
        parts = [[each] for each in statements] if page in ALTERNATIVES else [statements]
        names = {"__name__": "snippet"}
        for part in parts:
            exec(compile(GIVEN[page], "given", "exec"), names)
            exec(compile(ast.Module(part, []), f"{page}, block {number}", "exec"), names)
            exec(compile(BEHIND, "behind", "exec"), names)
    sys.stdout.flush()
    os._exit(0)  # DDP's hooks outlive an ordinary end


def test_every_page_with_python_is_executed():
    assert sorted(PAGES_WITH_SNIPPETS) == sorted({*GIVEN, *ELSEWHERE})
