"""How long a run is: by epochs, or by steps (`max_steps`)."""

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Course:
    """S: steps an epoch; steps: in all. The last epoch may be shorter than the others."""

    S: int
    steps: int

    @classmethod
    def of(cls, samples: int | None, per_step: int, epochs: int, max_steps: int | None) -> "Course":
        """Of a training set of so many samples (None: it does not say), `per_step` of them a step.

        Without a length an epoch is that share of max_steps. Raises ValueError where a step has too many samples, or
        nothing says how long the run is.
        """
        if epochs == 0:
            return cls(1, 0)
        if samples is None and max_steps is None:
            raise ValueError("data: train does not say how long it is: type max_steps=N, the steps in all")
        S = samples // per_step if samples is not None else math.ceil(max_steps / epochs)
        if S < 1:
            raise ValueError(
                f"world_size * batch_size = {per_step} samples a step, but the training set has {samples}: lower one "
                "of the two"
            )
        return cls(S, epochs * S if max_steps is None else max_steps)

    @property
    def epochs(self) -> int:
        """Those begun."""
        return math.ceil(self.length)

    @property
    def length(self) -> float:
        """In epochs, as a schedule counts them."""
        return self.steps / self.S

    def steps_of(self, epoch: int) -> int:
        return min(self.S, self.steps - epoch * self.S)
