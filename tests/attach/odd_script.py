"""A script that ends in the way that --do says."""

import argparse
import os
import signal
import sys

import torch

parser = argparse.ArgumentParser()
parser.add_argument("--do", default="fine")
parser.add_argument("--unused", type=float)
do = parser.parse_args().do


def say(loss: float) -> None:
    print(f"epoch 1: val loss {loss}", flush=True)


if do != "silent":
    say(torch.rand(1).item())
if do == "nan":
    say(float("nan"))
elif do == "raises":
    raise ValueError("boom")
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
elif do == "orphan" and os.fork() == 0:
    signal.pause()
