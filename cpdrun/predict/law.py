"""`cpdrun predict --law`: laws of loss and of workers, fitted to finished runs, and what they say elsewhere."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from cpdrun.errors import UserError
from cpdrun.predict import law_words
from cpdrun.predict.law_loss import LOSS, Asked, LossLaws, asked_of, fit_losses, pairs
from cpdrun.predict.law_read import Study, number, parameters, read
from cpdrun.predict.law_workers import WorkerLaw, fit_workers
from cpdrun.stats.robust_fit import DRAWS
from cpdrun.stats.scaling_law import NoLawError

CI = 95.0
WORKERS = (1024,)  # asked where nothing else is


@dataclass
class Said:
    """What was found, as sentences and as plain data."""

    sentences: list[str]
    facts: dict[str, Any]


def laws(words: Sequence[str], at: Sequence[str] = (), *, ci: float = CI, draws: int = DRAWS) -> Said:
    """Fit every law that the runs of `words` hold, and ask it `at`: `world_size=1024`, `parameters=1e9,data=2e10`.
    Raises UserError where the runs hold no law, and for an `at` that no law answers."""
    numbers = [number for text in at if (number := _workers_of(text)) is not None]
    losses, workers, why = _fit(read(words), ci, draws)
    if not losses and not workers:
        raise UserError(*why)
    with_asked = [(one, [size for text in at if (size := asked_of(text, one)) is not None]) for one in losses]
    with_numbers = [(one, numbers or list(WORKERS)) for one in workers]
    _answered(at, with_asked, with_numbers)
    sentences = [
        line
        for part in (
            *(law_words.of_losses(one, asked, ci) for one, asked in with_asked),
            *(law_words.of_workers(one, those, ci) for one, those in with_numbers),
            [f"note: {line}" for line in why],
        )
        for line in part
    ]
    return Said(sentences, law_words.as_json(with_asked, with_numbers, ci))


def _fit(
    studies: Sequence[Study], ci: float, draws: int
) -> tuple[list[LossLaws], list[WorkerLaw], list[str]]:
    """The laws that there are and, for a sweep that holds none, why."""
    losses, workers, why = [], [], []
    for study in studies:
        wanted = _wanted(study)
        for kind in wanted:
            try:
                if kind == "loss":
                    losses.append(fit_losses(study, draws=draws))
                else:
                    workers.append(fit_workers(study, ci, draws=draws))
            except NoLawError as error:
                why.append(f"{study.name}: {error}")
    return losses, workers, why


def _wanted(study: Study) -> list[str]:
    """`workers` where their number varies, `loss` where sizes do; both, to say why not, where neither does."""
    kinds = []
    if len({parameters(row) for row in study.rows}) > 1:
        kinds.append("loss")
    if len({number(row.get("world_size")) for row in study.rows}) > 1:
        kinds.append("workers")
    known = any(number(row.get(LOSS)) > 0 for row in study.rows)
    return kinds or (["loss"] if known else ["workers"])


def _workers_of(text: str) -> int | None:
    """What `--at` asks of workers, before anything is fitted. Raises UserError, for other keys that are not above 0
    too."""
    values = pairs(text)
    for key, value in values.items():
        if key == "world_size" and not (value >= 1 and value == int(value)):
            raise UserError(f"--at {text}: world_size is a whole number from 1")
        if not value > 0:
            raise UserError(f"--at {text}: {key} is above 0")
    return int(values["world_size"]) if "world_size" in values else None


def _answered(
    at: Sequence[str],
    losses: Sequence[tuple[LossLaws, list[Asked]]],
    workers: Sequence[tuple[WorkerLaw, list[int]]],
) -> None:
    """Raises UserError for a question that none of the laws answers."""
    for text in at:
        if "world_size" in pairs(text) and not workers:
            raise UserError(
                f"--at {text}: no law of workers here; fit one: cpdrun predict --law digits_workers"
            )
        if not losses and any(key != "world_size" for key in pairs(text)):
            raise UserError(
                f"--at {text}: no law of loss here, which answers sizes and data; cpdrun predict --law "
                "llama_scaling_small has one"
            )
