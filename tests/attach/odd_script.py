"""A script that ends in the way that --do says."""

import argparse
import os
import signal
import sys
import time

import torch

parser = argparse.ArgumentParser()
parser.add_argument("--do", default="fine")
parser.add_argument("--unused", type=float)
parser.add_argument("--events")
given = parser.parse_args()
do = given.do


def say(loss: float) -> None:
    print(f"epoch 1: val loss {loss}", flush=True)


if do != "silent":
    say(torch.rand(1).item())
if do == "nan":
    say(float("nan"))
elif do == "raises":
    raise ValueError("boom")
elif do == "overflows":
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.full((1, 1), float("inf"))).sum().backward()
    optimizer.step()
    raise ValueError("the output is NaN")
elif do == "leaves":
    os._exit(0)
elif do == "code":
    sys.exit(3)
elif do == "words":
    sys.exit("no more data")
elif do == "killed":
    os.kill(os.getpid(), signal.SIGKILL)
elif do == "again":
    # EX_TEMPFAIL, though nobody asked it to stop
    sys.exit(75)
elif do == "chatters":
    for i in range(70):
        print(f"line {i} " + "." * (1 << 20))
    say(0.25)
elif do == "hangs":
    time.sleep(600)
elif do == "events" and os.environ["RANK"] == "0":
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(given.events) as writer:
        for step in (10, 20):
            writer.add_scalar("loss/val", 1 / step, step)
elif do == "orphan" and os.fork() == 0:
    signal.pause()
