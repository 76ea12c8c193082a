"""The length of a run, given in epochs or in steps (`max_steps`), and the rule that ends it early (`give_up_after`).

The early-stopping rule is fixed before the run. It applies once, after the epoch in which the given share of the run is
reached, unless that is the last epoch. The run ends if the mean training loss of that epoch has covered less than
MIN_PROGRESS of the way from the loss of a guess to the loss of a perfect model. The mean includes all workers in an
order that does not depend on the ranks, so the decision is the same for any split of the workers, and in a resumed run.

The result of a run that ends early consists of the metrics after that epoch. The run might have learned in more epochs.
Therefore, the rule is part of the run's identity, like the number of epochs.
"""

import math
from dataclasses import dataclass

# The share of the possible decrease of the loss that a run must reach. Reports use the same share to decide whether a
# run has learned.
MIN_PROGRESS = 0.05


@dataclass(frozen=True)
class Duration:
    """The length of a run. The last epoch may be shorter than the others.

    Attributes:
        steps_per_epoch: Steps of a whole epoch.
        steps: Steps of the whole run.
    """

    steps_per_epoch: int
    steps: int

    @classmethod
    def from_settings(
        cls, samples: int | None, samples_per_step: int, epochs: int, max_steps: int | None
    ) -> "Duration":
        """Compute the length of a run from its settings.

        Args:
            samples: The size of the training set, or None if the dataset does not report it. In that case, an
                epoch has `max_steps / epochs` steps, rounded up.
            samples_per_step: The number of samples that all workers together use in one step.
            epochs: The setting `epochs`.
            max_steps: The setting `max_steps`.

        Raises:
            ValueError: A step needs more samples than the training set has, or `samples` and `max_steps` are
                both None.
        """
        if epochs == 0:
            return cls(1, 0)
        if samples is not None:
            steps_per_epoch = samples // samples_per_step
        elif max_steps is not None:
            steps_per_epoch = math.ceil(max_steps / epochs)
        else:
            raise ValueError(
                "data: train does not report its length. Type max_steps=N, the total number of steps"
            )
        if steps_per_epoch < 1:
            raise ValueError(
                f"world_size * batch_size = {samples_per_step} samples per step, but the training set has {samples}; "
                "decrease one of the two"
            )
        return cls(steps_per_epoch, epochs * steps_per_epoch if max_steps is None else max_steps)

    @property
    def epochs(self) -> int:
        """The number of epochs, counting the last one even if it is shorter."""
        return math.ceil(self.length)

    @property
    def length(self) -> float:
        """The length in epochs, which may be fractional. Learning-rate schedules use this number."""
        return self.steps / self.steps_per_epoch

    def steps_in(self, epoch: int) -> int:
        """Return the number of steps in the given epoch, counted from 0."""
        return min(self.steps_per_epoch, self.steps - epoch * self.steps_per_epoch)


@dataclass(frozen=True)
class EarlyStopping:
    """The rule that ends a run that does not learn.

    Attributes:
        after: The epoch after which the rule applies, counted from 1, or None to disable the rule.
    """

    after: int | None = None

    @classmethod
    def from_share(cls, share: float | None, duration: Duration) -> "EarlyStopping":
        """Return the rule that applies after the given share of the run."""
        if share is None:
            return cls()
        after = max(
            1, math.ceil(round(share * duration.length, 9))
        )  # rounded because, for example, 0.07 * 100 is above 7 in floating point
        return cls(after if after < duration.epochs else None)

    def is_due(self, epochs: int, train_loss: float, loss_range: tuple[float, float] | None) -> bool:
        """Return whether the run should end now.

        Args:
            epochs: The number of completed epochs.
            train_loss: The mean training loss of the last epoch.
            loss_range: The losses of a perfect model and of a guess, as the task reports them.
        """
        if epochs != self.after or loss_range is None:
            return False
        perfect, guess = loss_range
        return train_loss > guess - MIN_PROGRESS * (guess - perfect)
