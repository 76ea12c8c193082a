"""A script that counts, saves where it is when it is told to stop, and goes on from there. --ask: it asks whether it
should stop; else it saves at SIGTERM."""

import signal
import sys
import time

from cpdrun.attach.recorder import Recorder

recorder = Recorder.from_environment()
saved = recorder.checkpoint_dir / "step"
step = int(saved.read_text()) if saved.exists() else 0


def save(*_: object) -> None:
    saved.write_text(str(step))
    sys.exit()


if "--ask" not in sys.argv:
    signal.signal(signal.SIGTERM, save)
while step < 1000:
    step += 1
    recorder.log({"step": step, "val_loss": 1 / step})
    if "--ask" in sys.argv and recorder.should_stop():
        save()
    if not saved.exists():
        time.sleep(0.02)
