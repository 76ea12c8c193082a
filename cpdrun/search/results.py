"""Read the results of a search: values by cell and seed, and the rules of the test in the metric's own unit."""

import math
from dataclasses import replace
from statistics import fmean

from cpdrun.config.errors import ConfigError
from cpdrun.config.script import SCRIPT, direction_of, is_script, judged_by
from cpdrun.record import Ending, Result, RunDir
from cpdrun.record.measure import ERROR, MEASURES
from cpdrun.record.run_end import failure_of, fingerprint_of, length_of
from cpdrun.search.observed import with_chances
from cpdrun.search.question import Question
from cpdrun.search.schedule import Ask, Candidate, Chain, Ended, Rules, Standing, stand
from cpdrun.search.settings import FEWEST_SEEDS, MARGIN_KEY
from cpdrun.search.start import begun, predicted_width, start_at
from cpdrun.stats.failures import Failure, are_identical
from cpdrun.stats.means import mean
from cpdrun.study.margin import Course, Margin, choose_margin, course_of
from cpdrun.study.metric import Metric, learnt, worst
from cpdrun.sweep.manifest import read_ledger
from cpdrun.whatif.damage import strictness


class Results:
    """The results of a search.

    The constructor reads all runs that have ended. Call `take` for every run that ends later.

    Attributes:
        question: The question of the search.
        ended: The values and the failures by cell and seed.
        seconds: The wall time of each run that has ended.
        core_seconds: The core time of all runs that have ended.
        fingerprints: The fingerprints by cell and seed, for runs that ended well.
        unpredicted: One sentence for each chain without a prediction. A display removes the sentences that it shows.
        begun: How the chains start.
        ledger: The hypotheses that were tested.
    """

    def __init__(self, question: Question) -> None:
        self.question = question
        self.ended = Ended()
        self.seconds: list[float] = []
        self.core_seconds = 0.0
        self._classes = self._samples = math.nan
        self._metric: Metric | None = None
        # All metrics of a cell's runs.
        self._measured: dict[str, list[dict]] = {}
        self.fingerprints: dict[str, dict[int, str]] = {}
        # The chains whose order and start are known, by label.
        self._ordered: dict[str, Chain] = {}
        self.unpredicted: list[str] = []
        self._courses: dict[Ask, Course] = {}
        self.begun = begun(question)
        arms = {arm: cell for cell, arms in question.tuning.arms.items() for arm in arms}
        self.ledger = read_ledger(question.directory)
        self.ledger = replace(self.ledger, cells={**self.ledger.cells, **arms})
        for name, cell in question.cells.items():
            for seed in cell:
                if (
                    not self.take((name, seed))
                    and (failure := failure_of(self.run((name, seed)))) is not None
                ):
                    self.failed((name, seed), failure)

    @property
    def runs(self) -> int:
        """The number of runs that have ended."""
        return len(self.seconds)

    def run(self, ask: Ask) -> RunDir:
        """Return the folder of a run."""
        name, seed = ask
        return self.question.directory.run(self.question.cells[name][seed].name)

    def take(self, ask: Ask) -> bool:
        """Count the run of this cell and seed if it has ended with a result, and return whether it has.

        Raises:
            ConfigError: The run does not have the metric.
        """
        name, seed = ask
        done = self.run(ask).result()
        if done is None or seed in self.ended.values.get(name, {}):
            return done is not None
        config = self.question.cells[name][seed].config
        self.seconds.append(_number(done.wall_seconds))
        self.core_seconds += self.seconds[-1] * config["nproc"] * config["threads"]
        self._classes = _first(self._classes, _number(done.num_classes))
        self._samples = _first(self._samples, _number(done.test_samples))
        metric = self._metric_of(done).name
        if done.status is not Ending.DIVERGED and metric not in done.metrics:
            self.failed(ask, Failure.UNKNOWN)
            return True
        # A run that failed before may have been tried again.
        self.ended.failures.get(name, {}).pop(seed, None)
        self.ended.given_up.discard(name)
        value = _number(done.metrics.get(metric))
        is_healthy = done.status is not Ending.DIVERGED and math.isfinite(value)
        self.ended.values.setdefault(name, {})[seed] = value if is_healthy else math.nan
        if done.status is Ending.DID_NOT_LEARN:
            self.ended.gave_up.setdefault(name, set()).add(seed)
        if (length := length_of(self.run(ask), config)) is not None:
            self.ended.lengths.setdefault(name, {})[seed] = length
        if (fingerprint := fingerprint_of(done)) is not None:
            self.fingerprints.setdefault(name, {})[seed] = fingerprint
        self._measured.setdefault(name, []).append(done.metrics)
        return True

    def failed(self, ask: Ask, failure: Failure) -> None:
        """Count the run of this cell and seed as failed. This search does not try it again."""
        name, seed = ask
        self.ended.failures.setdefault(name, {})[seed] = failure
        if self.ended.runs(name).is_given_up:
            self.ended.given_up.add(name)

    @property
    def failures(self) -> list[Ask]:
        """The runs that failed, the baselines' runs first. The next search of the same question tries them again."""
        asks = [(name, seed) for name, seeds in self.ended.failures.items() for seed in seeds]
        return [ask for ask in asks if self.run(ask).result() is None]

    @property
    def metric(self) -> Metric:
        """The metric, with as many digits as the margin and the means of the cells need."""
        means = (mean([*values.values()]) for values in self.ended.values.values())
        return self._compared.with_digits(self.margin.shown, means)

    @property
    def _compared(self) -> Metric:
        return self._metric or self._metric_before()

    @property
    def margin(self) -> Margin:
        """The margin. A relative margin is known once a run of the baseline has ended."""
        question = self.question
        is_typed = any(text.startswith(f"{MARGIN_KEY}=") for text in question.typed)
        asked_by = "typed" if is_typed else "the experiment's"
        asked = question.settings.tolerance
        return choose_margin(
            asked, asked_by, self._compared, self._baseline_courses(), question.baseline_name
        )

    @property
    def tolerance(self) -> float:
        """The margin in the unit in which the metric is shown, NaN if there is none (yet)."""
        return self.margin.shown

    @property
    def strictness(self) -> float:
        """How strict the margin is, for a prediction."""
        return strictness(self.metric, self.tolerance, self._classes)

    def _baseline_courses(self) -> list[Course]:
        names = {self.chosen.get(chain.baseline, chain.baseline) for chain in self.question.chains}
        return [course for name in sorted(names) if (course := self._course(name)) is not None]

    def _course(self, baseline: str) -> Course | None:
        """Read the baseline's run with the lowest seed, so that the margin does not change when further seeds end."""
        values = self.paired(baseline) or self.ended.values.get(baseline, {})
        seed = min((seed for seed, value in values.items() if math.isfinite(value)), default=None)
        if seed is None or self._metric is None:
            return None
        ask = baseline, seed
        if ask not in self._courses:
            self._courses[ask] = course_of(self.run(ask), self._metric, values[seed], self._classes)
        return self._courses[ask]

    def rules(self) -> Rules:
        """Return the rules of the test."""
        metric = self.metric
        resolution = 1 / self._samples if metric.counts_samples and self._samples > 0 else 0.0
        return Rules(
            tolerance=self.tolerance / metric.scale,
            alpha=self.question.settings.alpha,
            most_seeds=self.question.settings.most_seeds,
            higher_is_better=metric.higher_is_better,
            worst=self._worst(),
            resolution=resolution,
            metric=metric.name,
        )

    def standings(self) -> list[Standing]:
        """Return the verdicts on all candidates.

        Once all chains know where they start, this also adds the hypotheses of the candidates to the ledger.
        """
        found = stand(self.chains, self.ended, self.rules(), self.question.tuning, self.ledger)
        if self._metric is not None and all(standing.chain.is_started for standing in found):
            asked = [each for standing in found for width in standing.widths for each in width.hypotheses]
            self.ledger = self.ledger.merged(asked)
        return found

    @property
    def chains(self) -> list[Chain]:
        """The chains of the question, with the predicted order within each width and the start, if they are known."""
        return [self._ordered.get(chain.label) or self._in_order(chain) for chain in self.question.chains]

    def _in_order(self, chain: Chain) -> Chain:
        of_width = [{self.question.config(c.name)["format"] for c in width} for width in chain.widths]
        known = self.begun.of(chain)
        if known is not None and all(len(formats) == 1 for formats in of_width):
            return self._ordered.setdefault(chain.label, known)
        waiting = replace(known or chain, is_ordered=False, is_started=known is not None)
        if self.chosen.get(chain.baseline, chain.baseline) in self.question.tuning.arms:
            return waiting  # The baseline's record depends on the arm that is chosen for it.
        ask = self.first_run(chain.baseline)
        if ask is None:
            return known or chain
        if not self.ended.has(ask):
            return waiting
        predicted = with_chances(self.question, chain, self.run(ask), self.strictness)
        if predicted is None:
            config = self.question.cells[ask[0]][0].config
            if (
                not is_script(config) or config["observe"]
            ):  # A script is observed only if the user typed `observe`.
                self.unpredicted.append(_unpredicted(chain, is_started=known is not None))
            return self._ordered.setdefault(chain.label, known or chain)
        started = self.begun.of(predicted) or start_at(predicted, predicted_width(predicted), ask[1])
        return self._ordered.setdefault(chain.label, started)

    def first_run(self, named: str) -> Ask | None:
        """Return the run of a baseline from which the order of the formats within a width is predicted.

        Return None if the baseline is still being tuned or if none of its runs will end well.
        """
        baseline, tuning = self.chosen.get(named, named), self.question.tuning
        if baseline in tuning.arms or baseline in self.ended.given_up:
            return None
        of_tuning = tuning.seeds if tuning.runs(named) else ()
        seeds = (*of_tuning, *range(self.question.settings.most_seeds))
        failed = self.ended.failures.get(baseline, {})
        return next(((baseline, seed) for seed in seeds if seed not in failed), None)

    @property
    def first_runs(self) -> set[Ask | None]:
        """The first runs of all baselines. For a baseline that is being tuned, this includes a run of each arm."""
        tuning, baselines = self.question.tuning, {chain.baseline for chain in self.question.chains}
        arms = {arm for name in baselines for arm in tuning.arms.get(name, ())}
        return {*map(self.first_run, baselines), *((arm, tuning.seeds[0]) for arm in arms)}

    @property
    def chosen(self) -> dict[str, str]:
        """The chosen arm of each tuned cell, by the name of the cell."""
        better = self._compared.higher_is_better
        return self.question.tuning.chosen(self.ended, higher_is_better=better)

    def paired(self, name: str) -> dict[int, float]:
        """Return the values of a cell by seed, without the tuning seeds."""
        aside, values = self.question.tuning.seeds, self.ended.values.get(name, {})
        return {seed: value for seed, value in values.items() if seed not in aside}

    def is_identical(self, candidate: Candidate) -> bool:
        """Return whether the runs of a candidate are equal to its baseline's, bit for bit, for every seed."""
        ours, theirs = (self.fingerprints.get(name, {}) for name in (candidate.name, candidate.baseline))
        return are_identical(ours, theirs)

    def problem(self, baseline: str) -> str | None:
        """Return why candidates cannot be compared with this baseline, or None if they can.

        Most problems are known only after two runs of the baseline have ended.
        """
        tried = self.paired(baseline) or self.ended.values.get(baseline, {})
        values = list(tried.values())
        healthy = [value for value in values if math.isfinite(value)]
        diverged = len(values) - len(healthy)
        if baseline in self.ended.given_up:
            return "the baseline's runs failed"
        if invalid := self.margin.problem:
            return invalid
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
        """Return the metric that will be compared, as far as it is known before the first run has ended."""
        asked, cell = self.question.settings.metric, next(iter(self.question.cells.values()))
        script = next(iter(cell.values())).config.get(SCRIPT)
        name = asked or (script and judged_by(script))
        if not script or name is None:
            return Metric(asked or "test_accuracy", ERROR if script else None)
        return Metric(name, MEASURES[direction_of(name, script["direction"])])

    def _ignores_seeds(self, name: str) -> bool:
        """Return whether a script seems to seed itself, so that all its runs are equal.

        Equal runs would count as evidence without any noise.
        """
        name = self.chosen.get(name, name)
        found = self._measured.get(name, [])
        if len(found) < FEWEST_SEEDS or not is_script(self.question.cells[name][0].config):
            return False
        return all(one == found[0] for one in found)

    def _metric_of(self, done: Result) -> Metric:
        """Return the metric that is compared: `search.metric`, or else the metric by which the first run is judged.

        Raises:
            ConfigError: The run does not have the metric.
        """
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


def _unpredicted(chain: Chain, *, is_started: bool) -> str:
    """Return `Without APS: no prediction is available, so the search starts at 8 bits.`"""
    effect = (
        "formats of the same width are ordered without it"
        if is_started
        else f"the search starts at {chain.widths[0][0].bits:g} bits"
    )
    return f"{chain.label[:1].upper()}{chain.label[1:]}: no prediction is available, so {effect}."


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else math.nan


def _first(known: float, new: float) -> float:
    return known if math.isfinite(known) else new
