"""A script of two ranks that leaves processes behind, or of which a rank does not end: --do says which."""

import argparse
import os
import signal
import time
from pathlib import Path

parser = argparse.ArgumentParser()
parser.add_argument("--do", required=True)
do = parser.parse_args().do
rank = int(os.environ["RANK"])

print("val_loss=0.5", flush=True)
if do == "daemon" and rank == 0 and os.fork() == 0:
    os.setsid()
    (Path(os.environ["CPDRUN_RUN_DIR"]) / "left").write_text(str(os.getpid()))
    time.sleep(600)
if do == "command" and rank == 0:
    left = Path(os.environ["CPDRUN_RUN_DIR"]) / "left"
    os.system(f"setsid sh -c 'echo $$ > \"{left}\"; exec sleep 600' &")
    while not left.exists() or not left.read_text():
        time.sleep(0.05)
if do == "stopped" and rank == 1:
    os.kill(os.getpid(), signal.SIGSTOP)
if do == "stopped" or (do == "waits" and rank == 1):
    time.sleep(600)
