"""What the runs of a search left: values by cell and seed, and the rules of the test in the metric's own unit."""

import math
from dataclasses import replace
from statistics import fmean

from cpdrun.config.errors import ConfigError
from cpdrun.config.script import SCRIPT, direction_of, is_script, judged_by
from cpdrun.predict.features import strictness
from cpdrun.record import Ending, Result, RunDir
from cpdrun.record.measure import ERROR, MEASURES
from cpdrun.report.read.groups.tuned import FAILURES
from cpdrun.report.read.metric import Metric
from cpdrun.report.read.runs.learnt import learnt, worst
from cpdrun.search.likeliest import Gradients, likeliest_first
from cpdrun.search.observed import with_chances
from cpdrun.search.question import Question
from cpdrun.search.schedule import Ask, Chain, Ended, Rules, Standing, stand
from cpdrun.search.settings import FEWEST_SEEDS
from cpdrun.search.start import begun, predicted_width, start_at


class Results:
    """Reads what has ended once, when it is made, and a further run by `take`."""

    def __init__(self, question: Question) -> None:
        self.question = question
        self.ended = Ended()
        self.seconds: list[float] = []  # of each run that has ended
        self.core_seconds = 0.0
        self._classes = self._samples = math.nan
        self._metric: Metric | None = None
        self._failed: dict[str, int] = {}
        self._measured: dict[str, list[dict]] = {}  # all metrics of a cell's runs
        self._ordered: dict[str, Chain] = {}  # by label, once a run of the baseline has told
        self.begun = begun(question)
        for name, cell in question.cells.items():
            for seed in cell:
                self.take((name, seed))

    @property
    def runs(self) -> int:
        """How many have ended."""
        return len(self.seconds)

    def run(self, ask: Ask) -> RunDir:
        name, seed = ask
        return self.question.directory.run(self.question.cells[name][seed].name)

    def take(self, ask: Ask) -> bool:
        """Whether the run of this cell and seed has ended; if so it counts. Raises ConfigError for a metric that it
        does not have."""
        done = self.run(ask).result()
        if done is None or self.ended.has(ask):
            return done is not None
        name, seed = ask
        config = self.question.cells[name][seed].config
        self.seconds.append(_number(done.wall_seconds))
        self.core_seconds += self.seconds[-1] * config["nproc"] * config["threads"]
        self._classes = _first(self._classes, _number(done.num_classes))
        self._samples = _first(self._samples, _number(done.test_samples))
        if done.status is Ending.DIVERGED:
            value = math.nan
        else:
            value = _number(done.metrics.get(self._metric_of(done).name))
            if not math.isfinite(value):
                self.ended.skipped.add(ask)
                return True
        self.ended.values.setdefault(name, {})[seed] = value
        if done.status in (Ending.DIVERGED, Ending.DID_NOT_LEARN) and seed not in self.question.tuning.seeds:
            self.ended.barred.add(name)
        self._measured.setdefault(name, []).append(done.metrics)
        return True

    def failed(self, ask: Ask) -> None:
        """The run of this cell and seed failed, and is not tried again by this search."""
        self.ended.skipped.add(ask)
        self._failed[ask[0]] = self._failed.get(ask[0], 0) + 1
        if self._failed[ask[0]] >= FAILURES and not self.ended.values.get(ask[0]):
            self.ended.given_up.add(ask[0])

    @property
    def metric(self) -> Metric:
        return self._metric or self._metric_before()

    @property
    def tolerance(self) -> float:
        """As it is shown."""
        asked = self.question.settings.tolerance
        return self.metric.default_tolerance if asked is None else asked

    @property
    def strictness(self) -> float:
        """Of the tolerance, for a prediction."""
        return strictness(self.metric, self.tolerance, self._classes)

    def rules(self) -> Rules:
        metric = self.metric
        resolution = 1 / self._samples if metric.counts_samples and self._samples > 0 else 0.0
        return Rules(
            tolerance=self.tolerance / metric.scale,
            alpha=self.question.settings.alpha,
            most_seeds=self.question.settings.most_seeds,
            higher_is_better=metric.higher_is_better,
            worst=self._worst(),
            resolution=resolution,
        )

    def standings(self) -> list[Standing]:
        return stand(self.chains, self.ended, self.rules(), self.question.tuning)

    @property
    def chains(self) -> list[Chain]:
        """Those of the question, in each width the likeliest first, as `likeliest` says, and from where they start, as
        `start` says, once that is known."""
        return [self._ordered.get(chain.label) or self._in_order(chain) for chain in self.question.chains]

    def _in_order(self, chain: Chain) -> Chain:
        configs = {c.name: self.question.config(c.name) for width in chain.widths for c in width}
        of_width = [{configs[candidate.name]["format"] for candidate in width} for width in chain.widths]
        known = self.begun.of(chain)
        if known is not None and all(len(formats) == 1 for formats in of_width):
            return self._ordered.setdefault(chain.label, known)
        waiting = replace(known or chain, is_ordered=False, is_started=known is not None)
        if self.chosen.get(chain.baseline, chain.baseline) in self.question.tuning.arms:
            return waiting  # what it recorded depends on what is chosen for it
        ask = self.first_run(chain.baseline)
        if ask is None:
            return known or chain
        if not self.ended.has(ask):
            return waiting
        run, config = self.run(ask), self.question.cells[ask[0]][0].config
        if (predicted := with_chances(self.question, chain, run, self.strictness)) is not None:
            started = self.begun.of(predicted) or start_at(predicted, predicted_width(predicted), ask[1])
            return self._ordered.setdefault(chain.label, started)
        chain = known or chain
        done = run.result()
        additions = done.longest_chain if done is not None else None
        gradients = Gradients.of(run.rows(), config["world_size"] - 1 if additions is None else additions)
        widths = (likeliest_first(width, configs, gradients) for width in chain.widths)
        return self._ordered.setdefault(chain.label, replace(chain, widths=tuple(widths)))

    def first_run(self, named: str) -> Ask | None:
        """Of a baseline the run that says in which order to try the formats of a width; None where none will end, and
        while it is not chosen what the baseline is tuned to."""
        baseline, tuning = self.chosen.get(named, named), self.question.tuning
        if baseline in tuning.arms or baseline in self.ended.given_up:
            return None
        of_tuning = tuning.seeds if tuning.runs(named) else ()
        seeds = (*of_tuning, *range(self.question.settings.most_seeds))
        return next(((baseline, seed) for seed in seeds if (baseline, seed) not in self.ended.skipped), None)

    @property
    def first_runs(self) -> set[Ask | None]:
        """Those of all baselines; of one that is being tuned that of each value."""
        tuning, baselines = self.question.tuning, {chain.baseline for chain in self.question.chains}
        arms = {arm for name in baselines for arm in tuning.arms.get(name, ())}
        return {*map(self.first_run, baselines), *((arm, tuning.seeds[0]) for arm in arms)}

    @property
    def chosen(self) -> dict[str, str]:
        """By the name of a cell that is tuned its arm, where that is chosen."""
        better = self.metric.higher_is_better
        return self.question.tuning.chosen(self.ended, higher_is_better=better)

    def paired(self, name: str) -> dict[int, float]:
        """What has ended of a cell by seed, but for the seeds that choose."""
        aside, values = self.question.tuning.seeds, self.ended.values.get(name, {})
        return {seed: value for seed, value in values.items() if seed not in aside}

    def problem(self, baseline: str) -> str | None:
        """Why this cell is nothing to compare with, once two of its runs have ended; None where it is."""
        tried = self.paired(baseline) or self.ended.values.get(baseline, {})
        values = list(tried.values())
        healthy = [value for value in values if math.isfinite(value)]
        diverged = len(values) - len(healthy)
        if baseline in self.ended.given_up:
            return "the baseline's runs failed"
        if self._ignores_seeds(baseline):
            return (
                f"the baseline's first {len(values)} seeds measured the same to the last digit: the script seeds "
                "itself; hand it the run's, script_args='--seed {seed}'"
            )
        if len(values) >= 2 and diverged * 2 > len(values):
            return f"the baseline itself diverged in {diverged} of {len(values)} runs"
        if len(healthy) >= 2 and learnt(self.metric, fmean(healthy), self._classes) is False:
            return f"the baseline itself did not learn ({self.metric.show(fmean(healthy))}{self.metric.unit})"
        return None

    def _metric_before(self) -> Metric:
        """What will be compared, as far as that is known before a first run has ended."""
        asked, cell = self.question.settings.metric, next(iter(self.question.cells.values()))
        script = next(iter(cell.values())).config.get(SCRIPT)
        name = asked or (script and judged_by(script))
        if not script or name is None:
            return Metric(asked or "test_accuracy", ERROR if script else None)
        return Metric(name, MEASURES[direction_of(name, script["direction"])])

    def _ignores_seeds(self, name: str) -> bool:
        """A script may seed itself; runs that are all the same would be taken for evidence without any noise."""
        name = self.chosen.get(name, name)
        found = self._measured.get(name, [])
        if len(found) < FEWEST_SEEDS or not is_script(self.question.cells[name][0].config):
            return False
        return all(one == found[0] for one in found)

    def _metric_of(self, done: Result) -> Metric:
        """What is compared: the metric asked for, or that which the first run is judged by."""
        if self._metric is None:
            metrics, asked = done.metrics, self.question.settings.metric
            if asked is not None and asked not in metrics:
                raise ConfigError(f"search.metric={asked}: the runs have {', '.join(sorted(metrics))}")
            name = asked or done.judge or next(iter(metrics), "test_accuracy")
            self._metric = Metric(name, done.measures.get(name))
        return self._metric

    def _worst(self) -> float:
        chosen = self.chosen
        baselines = {chain.baseline for chain in self.question.chains}
        names = [chosen.get(name, name) for name in baselines]
        values = [value for name in names for value in self.paired(name).values()]
        return worst(self.metric, self._classes, values, self.tolerance / self.metric.scale)


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else math.nan


def _first(known: float, new: float) -> float:
    return known if math.isfinite(known) else new
