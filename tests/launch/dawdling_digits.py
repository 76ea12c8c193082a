"""Digits for runs that must last until something happens to them: `data._target_=dawdling_digits.DawdlingDigits`.

While the file `while_exists` is there, each batch takes `pause_s` longer and, with `hang_rank`, the rank of that number
stands still. What is learned is the same.
"""

import os
import time
from pathlib import Path

from cpdrun.data.images.digits import Digits


class DawdlingDigits(Digits):
    def __init__(self, test_fraction, while_exists, pause_s, hang_rank):
        super().__init__(test_fraction)
        self.file, self.pause_s, self.hang_rank = Path(while_exists), pause_s, hang_rank

    def augment(self, x, generator):
        if self.file.exists():
            time.sleep(self.pause_s)
        while self.hang_rank == int(os.environ.get("RANK", "0")) and self.file.exists():
            time.sleep(0.1)
        return x
