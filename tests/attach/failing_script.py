"""A softmax regression that stops at a NaN loss: with any format but fp32, some seeds have one in epoch 3.

`--stop` says how it stops: `error` ends with exit code 1, `quietly` with 0. `wait` has no NaN; it waits in epoch 3
of seed 1 for a file named `go`, so that a test can kill it there.
"""

import argparse
import math
import os
import sys
import time
from pathlib import Path

import torch

BAD_SEEDS = (1, 2, 4, 6, 7, 9, 11)

parser = argparse.ArgumentParser()
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--stop", default="error")
given = parser.parse_args()

torch.manual_seed(given.seed)
is_baseline = "fp32" in Path(os.environ["CPDRUN_RUN_DIR"]).name
inputs = torch.randn(64, 8)
labels = (inputs @ torch.randn(8, 3, generator=torch.Generator().manual_seed(0))).argmax(1)
model = torch.nn.Linear(8, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
for epoch in range(1, 6):
    loss = torch.nn.functional.cross_entropy(model(inputs), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    value = loss.item()
    if epoch == 3 and not is_baseline:
        if given.stop == "wait" and given.seed == 1:
            Path("waiting").write_text(str(os.getpid()))
            while not Path("go").exists():
                time.sleep(0.05)
        elif given.stop != "wait" and given.seed in BAD_SEEDS:
            value = math.nan
    if not math.isfinite(value):
        print(f"Loss is {value}, stopping training")
        sys.exit(given.stop == "error")
    print(f"epoch {epoch}: val loss {value}", flush=True)
