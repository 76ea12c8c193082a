"""The entries of a run's JSON files as dataclasses.

Files are written with the fields in the order of the dataclass. Old and damaged files can be read, too: a field that is
missing or has another type gets its default. If such a field has no default, the entry cannot be read, and the result
is None. Unknown keys are ignored.
"""

from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields
from enum import Enum, StrEnum
from functools import cache
from sys import float_info
from types import NoneType
from typing import Any, ClassVar, Self, get_args, get_origin, get_type_hints

from cpdrun.record import version
from cpdrun.record.measure import Measure, known_judge


class Ending(StrEnum):
    """The ways in which a run, or an attempt to train it, can end."""

    FINISHED = "finished"
    DIVERGED = "diverged"  # The loss was not finite. This is a result.
    DID_NOT_LEARN = (
        "did not learn"  # Ended early by `give_up_after`. This is a result, with the metrics of that epoch.
    )
    PREEMPTED = "preempted"  # Stopped on request. The run can continue from its checkpoint.
    KILLED = "killed"
    OUT_OF_MEMORY = "out of memory"
    FAILED = "failed"
    ELSEWHERE = "elsewhere"  # Another launcher executes the run. Agents report this, but never record it.

    @classmethod
    def _missing_(cls, value: object) -> "Ending | None":
        return cls.FAILED if isinstance(value, str) else None  # Another version may have more endings.

    @property
    def has_result(self) -> bool:
        return self in (Ending.FINISHED, Ending.DIVERGED, Ending.DID_NOT_LEARN)

    @property
    def is_failure(self) -> bool:
        return self in (Ending.KILLED, Ending.OUT_OF_MEMORY, Ending.FAILED)


@dataclass(frozen=True)
class Entry:
    """The base class of entries. An entry is the content of a file or of a line of a file."""

    LEFT_OUT: ClassVar[tuple[str, ...]] = ()  # the fields that are not written if they are None
    KEYS: ClassVar[Mapping[str, str]] = {}  # the keys in the file of fields that have a different name there

    @classmethod
    def read(cls, value: Any) -> Self | None:
        """Return the entry in a JSON value, or None if there is none."""
        if not isinstance(value, dict):
            return None
        taken = {}
        for name, kind, default in _fields(cls):  # type: ignore[arg-type]
            given = value.get(cls.KEYS.get(name, name), MISSING)
            if given is not MISSING and _is(kind, given):
                taken[name] = _as(kind, given)
            elif default is MISSING:
                return None
        return cls(**taken)

    def as_json(self) -> dict[str, Any]:
        return {
            self.KEYS.get(name, name): value
            for name, value in asdict(self).items()
            if value is not None or name not in self.LEFT_OUT
        }


@dataclass(frozen=True)
class Best(Entry):
    """The best value of the metric that judges a run.

    Keys:
        metric (required): The name of the metric.
        value (required): Its best value, in the unit of the metric.
        epoch (required): The epoch with this value, counted from 1.
    """

    metric: str
    value: float
    epoch: int


@dataclass(frozen=True)
class Result(Entry):
    """The result of a run that has ended, in done.json. Numbers that are not finite are null.

    Keys:
        status (required): `finished`, `diverged` (the loss was not finite; the run counts as no better than a guess),
            or `did not learn` (stopped early by `give_up_after`, with the metrics at that time).
        metrics: The value of each metric at the end of the run. Shares are between 0 and 1.
        measures: The direction and the unit of each metric, see `Measure`.
        judged_by: The metric that a report judges by.
        best: The epoch with the best value of that metric, see `Best`.
        test_samples: The size of the test set. The interval of an accuracy then includes its sampling error.
        num_classes: The number of classes. It distinguishes a model that learned from one that guesses.
        train_seconds: The training time of all attempts together.
        memory: The bytes that a worker keeps: `model_bytes`, `optimizer_bytes` and `activation_bytes`, with gossip
            `gossip_bytes` (the state of the gossip rule), and with local steps `outer_bytes` (the agreed weights and
            the outer momentum).
        wire: The bytes per step. `bytes_per_step_real_worker` is what a worker sends, and `bytes_per_step_sent` what a
            rank of this run sent.
        parameters: The number of trained values of one model. With the bytes and `world_size`, it gives the bits per
            parameter and step.
        topology: Properties of the gossip topology: `neighbours`, the largest number of neighbors of a worker, and
            `spectral_gap`.
        longest_chain: The largest number of rounded additions in series that one gradient passes through.
        weights_sha256: The digest of the final weights.
        products: The multiply-accumulates in a step of one worker (forward and backward pass). `macs_per_step` is
            their number, `mean_operand_bits` the mean bits of an operand over all of them, including shares of scales,
            and `bit_operations_per_step` the sum of the products of both operands' bits, without scales. `by_format` is
            a list of `a`, `b`, `accumulator` and their `macs`. `uncounted` lists operations that multiply but cannot be
            counted. If nothing was counted, the only key is `problem`, the reason. For a script, the first training
            step is counted.
        wall_seconds: The duration of the last attempt in seconds.
        ended_after: The epochs after which a run ended that did not learn.
        record: The version of the record. The default is 1.
    """

    LEFT_OUT: ClassVar[tuple[str, ...]] = (
        "train_seconds",
        "parameters",
        "longest_chain",
        "products",
        "wall_seconds",
        "ended_after",
    )

    status: Ending
    metrics: dict[str, float | None] = field(default_factory=dict)
    measures: dict[str, Measure] = field(default_factory=dict)
    judged_by: str | None = None
    best: Best | None = None
    test_samples: int | None = None
    num_classes: int | None = None
    train_seconds: float | None = None
    memory: dict[str, Any] = field(default_factory=dict)
    wire: dict[str, Any] = field(default_factory=dict)
    parameters: int | None = None
    topology: dict[str, float] | None = None
    longest_chain: int | None = None
    weights_sha256: str | None = None
    products: dict[str, Any] | None = None
    wall_seconds: float | None = None
    ended_after: int | None = None
    record: int = version.VERSION

    @classmethod
    def read(cls, value: Any) -> Self | None:
        if not isinstance(value, dict) or not isinstance(value.get("metrics", {}), dict):
            return None
        if version.newer(value):
            return None
        declared = value["measures"].items() if isinstance(value.get("measures"), dict) else ()
        measures = {key: measure for key, one in declared if (measure := Measure.from_json(one)) is not None}
        found = super().read(
            {version.KEY: 1, **value, "measures": measures, "best": Best.read(value.get("best"))}
        )
        return found if found is not None and found.status.has_result else None

    @property
    def judge(self) -> str | None:
        """The metric that judges the run, or None if no metric is known."""
        return self.judged_by if self.judged_by in self.metrics else known_judge(self.metrics)


@dataclass(frozen=True)
class Progress(Entry):
    """The progress of a run, in status.json.

    Keys:
        epoch: The number of finished epochs.
        step: The number of finished steps.
        test_accuracy: The latest test accuracy, between 0 and 1.
        epochs: The total number of epochs.
        updated: When the file was written, in seconds since 1970.
        judged_by: The name of the metric by which a user's script is judged.
        value: The latest value of that metric.
    """

    LEFT_OUT: ClassVar[tuple[str, ...]] = ("test_accuracy", "judged_by", "value")

    epoch: int = 0
    step: int = 0
    test_accuracy: float | None = None
    epochs: int | None = None
    updated: float | None = None
    judged_by: str | None = None
    value: float | None = None

    @property
    def fraction(self) -> float:
        return min(1.0, self.epoch / max(1, self.epochs or 1))


@dataclass(frozen=True)
class EpochRow(Entry):
    """A line of metrics.jsonl, which is a JSON object. Every further key with a number is a metric.

    Rows that a user's script logged may have only a step, or neither an epoch nor a step. The learning curve is then
    drawn over steps, or over rows.

    Keys:
        epoch (required): Counted from 1.
        step: The number of steps so far.
        nonfinite_gradients: The number of infinities and NaN in the gradients of this epoch.
        layers: The last statistics of each layer: `exponent_min` and `exponent_max` of its nonzero gradients, and the
            shares `underflow` and `overflow`.
        train_seconds: The training time so far.
        step_losses: The mean training loss of each step of the epoch. Only runs with `init_from` have it.
    """

    LEFT_OUT: ClassVar[tuple[str, ...]] = ("nonfinite_gradients", "layers", "step_losses")

    epoch: int
    step: int = 0
    metrics: dict[str, float | None] = field(default_factory=dict)
    nonfinite_gradients: int | None = None
    layers: dict[str, Any] | None = None
    train_seconds: float = 0.0
    step_losses: list[float | None] | None = None

    @classmethod
    def read(cls, value: Any) -> Self | None:
        return super().read(_metrics_apart(cls, value))

    def as_json(self) -> dict[str, Any]:
        return _metrics_among(super().as_json())


@dataclass(frozen=True)
class LoggedRow(Entry):
    """A line of metrics.jsonl that a user's script logged. It contains the epoch or step if the script logged one."""

    LEFT_OUT: ClassVar[tuple[str, ...]] = ("epoch", "step")

    epoch: float | None = None
    step: int | None = None
    metrics: dict[str, float | None] = field(default_factory=dict)  # None if not finite

    @classmethod
    def read(cls, value: Any) -> Self | None:
        return super().read(_metrics_apart(cls, value))

    def as_json(self) -> dict[str, Any]:
        # This method runs between training steps, so it does not use the slow function `asdict`.
        places = {}
        if self.epoch is not None:
            places["epoch"] = int(self.epoch) if float(self.epoch).is_integer() else self.epoch
        if self.step is not None:
            places["step"] = self.step
        return places | self.metrics


@dataclass(frozen=True)
class Where(Entry):
    """The machine and the start time of an attempt, stored in where.json. `cpdrun status` shows them in any shell.

    Keys:
        host: The name of the machine.
        pid: The process of the agent.
        slurm_job: The scheduler's name of the job (the attribute `scheduled`).
        started: When the attempt started, in seconds since 1970.
        from_epoch: The epoch from which the attempt resumed.
    """

    KEYS: ClassVar[Mapping[str, str]] = {"scheduled": "slurm_job"}

    host: str | None = None
    pid: int | None = None
    scheduled: str | None = None
    started: float | None = None
    from_epoch: int = 0


@dataclass(frozen=True)
class Lost(Entry):
    """The work that an elastic attempt lost because a rank was killed, in a line of lost.jsonl.

    Keys:
        rank (required): The rank that was killed last.
        signal (required): The signal that killed it.
        restarts (required): The number of restarts of all ranks until the lost steps were repeated. It is more than 1
            if a rank was killed again meanwhile.
        step (required): The number of steps that the run had completed.
        steps (required): The number of steps that were trained again.
        seconds (required): The time from the end of the last lost step until the step was repeated.
    """

    rank: int
    signal: int
    restarts: int
    step: int
    steps: int
    seconds: float

    @property
    def description(self) -> str:
        again = f"{self.steps} step{'' if self.steps == 1 else 's'} trained again"
        return f"{self.seconds:.1f} s of work lost, {again}, after rank {self.rank} was killed"


@dataclass(frozen=True)
class Outcome(Entry):
    """The outcome of an attempt, in exit.json.

    Keys:
        outcome (required): `finished`, `diverged`, `did not learn`, `preempted`, `killed`, `out of memory`, or `failed`
            (the attribute `status`).
        exit_code: The exit code of the process.
        rank: The first rank that failed.
        reason: One line of text, or "".
        attempt: The number of the attempt.
        started: When the attempt started, in seconds since 1970.
        ended: When the attempt ended, in seconds since 1970.
        restarts: How often the ranks were restarted after one of them was killed (`elastic=true`).
        lost_seconds: The seconds of work that were repeated in this attempt, or that the next attempt must repeat.
        left_running: Processes that the run started and that still run, such as "712 (wandb-core), 713 (...)".
    """

    KEYS: ClassVar[Mapping[str, str]] = {"status": "outcome"}
    LEFT_OUT: ClassVar[tuple[str, ...]] = (
        "attempt",
        "started",
        "ended",
        "restarts",
        "lost_seconds",
        "left_running",
    )

    status: Ending
    exit_code: int | None = None
    rank: int | None = None
    reason: str = ""
    attempt: int | None = None
    started: float | None = None
    ended: float | None = None
    restarts: int | None = None
    lost_seconds: float | None = None
    left_running: str | None = None


def _metrics_apart(cls: type[Entry], value: Any) -> Any:
    """Return a line with its metrics moved into a mapping `metrics`."""
    if not isinstance(value, dict):
        return None
    own = {name for name, _, _ in _fields(cls)} - {"metrics"}  # type: ignore[arg-type]
    metrics = {key: n for key, n in value.items() if key not in own and _is(float | None, n)}
    return {**value, "metrics": metrics}


def _metrics_among(row: dict[str, Any]) -> dict[str, Any]:
    """Return a line with its metrics as keys of the line itself, the inverse of `_metrics_apart`."""
    return {
        k: v for key, value in row.items() for k, v in (value if key == "metrics" else {key: value}).items()
    }


@cache
def _fields(cls: type[Entry]) -> list[tuple[str, Any, Any]]:
    """Return the name, the type, and the default of each field. The default of a required field is MISSING."""
    hints = get_type_hints(cls)
    return [
        (f.name, hints[f.name], f.default if f.default_factory is MISSING else f.default_factory)
        for f in fields(cls)
    ]


def _is(kind: Any, value: Any) -> bool:
    """Return True if a JSON value has a declared type. `_as` checks the values of mappings."""
    if len(kinds := _kinds(kind)) > 1:
        return any(_is(one, value) for one in kinds)
    kind = get_origin(kind) or kind
    if issubclass(kind, Enum):
        return isinstance(value, str)
    if kind in (int, float):
        number = isinstance(value, int if kind is int else int | float) and not isinstance(value, bool)
        return (
            number and abs(value) <= float_info.max
        )  # The JSON files of cpdrun never contain NaN or infinities.
    return isinstance(value, kind)


def _as(kind: Any, value: Any) -> Any:
    """Convert a value to a declared type. In a mapping of numbers, values of other types are replaced by None."""
    if isinstance(kind, type) and issubclass(kind, Enum):
        return kind(value)
    if get_origin(kind) is dict and (number := get_args(kind)[1]) is not Any:
        return {key: item if _is(number, item) else None for key, item in value.items()}
    return value


@cache
def _kinds(kind: Any) -> tuple[Any, ...]:
    """Return the types in a union such as `float | None`. For any other type, return a tuple with only this type."""
    return get_args(kind) if NoneType in get_args(kind) else (kind,)
