"""When a run ends early because it did not learn: `give_up_after`, a rule that is fixed before the run.

Once, after the epoch in which the stated share of the run is reached, unless that is the last: the run ends if the
mean training loss of that epoch is less than LEFT_BEHIND of the way from a guess's down to that of always being right.
All workers' losses make that mean, in an order that does not depend on the ranks: every split decides alike, and a run
that was stopped and goes on decides as one that was not.

Its result is what it measured after that epoch, and a comparison takes it at that. With more epochs it might have
learnt: so the rule is part of what is compared, as the number of epochs is, and of the run's name.
"""

import math
from dataclasses import dataclass

from cpdrun.train.course import Course

LEFT_BEHIND = 0.05  # the same as a report asks of a loss that counts as learnt


@dataclass(frozen=True)
class GivingUp:
    """after: epochs; None: never."""

    after: int | None = None

    @classmethod
    def of(cls, share: float | None, course: Course) -> "GivingUp":
        if share is None:
            return cls()
        after = max(1, math.ceil(round(share * course.length, 9)))  # .07 * 100 is 7, for all that floats say
        return cls(after if after < course.epochs else None)

    def is_due(self, epochs: int, train_loss: float, loss_range: tuple[float, float] | None) -> bool:
        """After so many epochs, the last with this mean training loss. `loss_range`: as the task says."""
        if epochs != self.after or loss_range is None:
            return False
        right, guess = loss_range
        return train_loss > guess - LEFT_BEHIND * (guess - right)
