"""The results of a search: the verdicts on its candidates, the rules of the test, and both as plain data."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any, Literal

from cpdrun.config.script import is_script
from cpdrun.search.initial_width import (
    choose_starts,
    predicted_width,
    start_at,
    starts_record,
    with_chances,
)
from cpdrun.search.ladders import Candidate, Ladder, LadderState, Rules, ladder_states
from cpdrun.search.question import Question, key_of
from cpdrun.search.settings import FEWEST_SEEDS, MARGIN_KEY
from cpdrun.stats.ended_runs import RunKey
from cpdrun.stats.evidence import Judgement, Verdict, differences
from cpdrun.stats.failures import are_identical
from cpdrun.stats.ladder import Width
from cpdrun.stats.means import mean
from cpdrun.study.answers import finite
from cpdrun.study.margin import Margin, choose_margin
from cpdrun.study.metric import Metric, learnt, worst
from cpdrun.study.search_results import RunResults
from cpdrun.sweep.manifest import LEDGER, read_ledger
from cpdrun.whatif.damage import strictness


@dataclass(frozen=True)
class MissingPrediction:
    """A ladder for which no prediction is available.

    Attributes:
        ladder: The label of the ladder.
        bits: The bit width at which the ladder therefore starts, or None if its start was known already.
    """

    ladder: str
    bits: float | None


class Results(RunResults):
    """The results of a search, and the verdicts that follow from them.

    Attributes:
        question: The candidates, settings, and planned runs of the search.
        starts: The way in which the ladders start, and their recorded starts.
        ledger: The hypotheses that were tested.
        unpredicted: The ladders without a prediction. A display removes each ladder after it has shown a message.
    """

    def __init__(self, question: Question) -> None:
        self.question = question
        self.starts = choose_starts(question)
        self.unpredicted: list[MissingPrediction] = []
        # The ladders whose order and start are known, keyed by label.
        self._ordered: dict[str, Ladder] = {}
        arms = {arm: cell for cell, arms in question.tuning.arms.items() for arm in arms}
        ledger = read_ledger(question.directory)
        self.ledger = replace(ledger, cells={**ledger.cells, **arms})
        super().__init__(question.directory, question.cells, question.settings.metric)

    @property
    def metric(self) -> Metric:
        """The metric that is compared, with enough digits to show the margin and the means of the cells."""
        means = (mean([*values.values()]) for values in self.ended.values.values())
        return self.compared_metric.with_digits(self.margin.shown, means)

    @property
    def margin(self) -> Margin:
        """The margin. A relative margin is unknown until a run of the baseline has ended."""
        question = self.question
        asked_by = "typed" if MARGIN_KEY in map(key_of, question.typed) else "the experiment's"
        courses = [
            course
            for name in sorted(self._baselines())
            if (course := self.course(name, self._values(name))) is not None
        ]
        return choose_margin(
            question.settings.tolerance, asked_by, self.compared_metric, courses, question.baseline_name
        )

    @property
    def tolerance(self) -> float:
        """The margin in the unit in which the metric is shown. It is NaN if there is none or if it is not known yet."""
        return self.margin.shown

    @property
    def strictness(self) -> float:
        """The strictness of the margin, which a prediction needs (`cpdrun.whatif.damage.strictness`)."""
        return strictness(self.metric, self.tolerance, self.classes)

    def rules(self) -> Rules:
        """Return the margin and the other inputs of the test."""
        metric, settings = self.metric, self.question.settings
        tolerance = self.tolerance / metric.scale
        values = [value for name in self._baselines() for value in self.paired(name).values()]
        return Rules(
            tolerance=tolerance,
            alpha=settings.alpha,
            most_seeds=settings.most_seeds,
            higher_is_better=metric.higher_is_better,
            worst=worst(metric, self.classes, values, tolerance),
            resolution=1 / self.samples if metric.counts_samples and self.samples > 0 else 0.0,
            metric=metric.name,
        )

    def states(self) -> list[LadderState]:
        """Return each ladder with the verdicts on its candidates.

        If the starts of all ladders are known and a run has ended, this also adds the hypotheses to the ledger.
        """
        found = ladder_states(self.ladders, self.ended, self.rules(), self.question.tuning, self.ledger)
        if self.compared is not None and all(state.ladder.is_started for state in found):
            asked = [each for state in found for width in state.widths for each in width.hypotheses]
            self.ledger = self.ledger.merged(asked)
        return found

    @property
    def ladders(self) -> list[Ladder]:
        """The ladders of the search, with their start and the order within each width as soon as these are known."""
        return [self._ordered.get(ladder.label) or self._in_order(ladder) for ladder in self.question.ladders]

    def _in_order(self, ladder: Ladder) -> Ladder:
        of_width = [{self.question.config(c.name)["format"] for c in width} for width in ladder.widths]
        known = self.starts.of(ladder)
        if known is not None and all(len(formats) == 1 for formats in of_width):
            return self._ordered.setdefault(ladder.label, known)
        waiting = replace(known or ladder, is_ordered=False, is_started=known is not None)
        if self.chosen.get(ladder.baseline, ladder.baseline) in self.question.tuning.arms:
            return waiting  # The prediction reads a run of the baseline's arm, which is not chosen yet.
        first = self._observed_run(ladder.baseline)
        if first is None:
            return known or ladder
        if not self.ended.has(first):
            return waiting
        predicted = with_chances(self.question, ladder, self.run(first), self.strictness)
        if predicted is None:
            config = self.question.cells[first[0]][0].config
            # A script's run is observed only if the user typed `observe`. Without it, there is no message.
            if not is_script(config) or config["observe"]:
                bits = None if known is not None else ladder.widths[0][0].bits
                self.unpredicted.append(MissingPrediction(ladder.label, bits))
            return self._ordered.setdefault(ladder.label, known or ladder)
        started = self.starts.of(predicted) or start_at(predicted, predicted_width(predicted), first[1])
        return self._ordered.setdefault(ladder.label, started)

    def _observed_run(self, named: str) -> RunKey | None:
        """Return the run of the baseline `named` that predictions read: its first run that has not failed.

        The result is None if the baseline is still being tuned, if it was given up, or if all its runs have failed.
        """
        baseline, tuning = self.chosen.get(named, named), self.question.tuning
        if baseline in tuning.arms or baseline in self.ended.given_up:
            return None
        of_tuning = tuning.seeds if tuning.runs(named) else ()
        seeds = (*of_tuning, *range(self.question.settings.most_seeds))
        failed = self.ended.failures.get(baseline, {})
        return next(((baseline, seed) for seed in seeds if seed not in failed), None)

    @property
    def observed_runs(self) -> set[RunKey | None]:
        """The runs to observe for predictions: one of each baseline, or one of each arm while the baseline is tuned.

        The set also contains None if a baseline has no such run.
        """
        tuning, baselines = self.question.tuning, {ladder.baseline for ladder in self.question.ladders}
        arms = {arm for name in baselines for arm in tuning.arms.get(name, ())}
        return {*map(self._observed_run, baselines), *((arm, tuning.seeds[0]) for arm in arms)}

    @property
    def chosen(self) -> dict[str, str]:
        """The names of the chosen arms, keyed by the name of the tuned cell."""
        better = self.compared_metric.higher_is_better
        return self.question.tuning.chosen(self.ended, higher_is_better=better)

    def paired(self, name: str) -> dict[int, float]:
        """Return the metric of a cell's runs, keyed by seed and without the tuning seeds."""
        aside, values = self.question.tuning.seeds, self.ended.values.get(name, {})
        return {seed: value for seed, value in values.items() if seed not in aside}

    def gaps(self) -> dict[str, list[float]]:
        """Return the differences of each candidate's pairs, keyed by the name of the candidate's cell."""
        rules, found = self.rules(), {}
        for candidate in (c for ladder in self.question.ladders for width in ladder.widths for c in width):
            pairs = self.ended.compared(candidate.name, candidate.baseline)
            found[candidate.name] = differences(
                pairs.ours, pairs.baseline, higher_is_better=rules.higher_is_better, worst=rules.worst
            )
        return found

    def is_identical(self, candidate: Candidate) -> bool:
        """Return whether the runs of a candidate and its baseline are equal, bit for bit, for every seed."""
        ours, theirs = (self.fingerprints.get(name, {}) for name in (candidate.name, candidate.baseline))
        return are_identical(ours, theirs)

    def _baselines(self) -> set[str]:
        """Return the names of the baselines' cells, or of their arms where these are chosen."""
        chosen = self.chosen
        return {chosen.get(ladder.baseline, ladder.baseline) for ladder in self.question.ladders}

    def _values(self, name: str) -> dict[int, float]:
        """Return the metric of a cell's runs, keyed by seed. Tuning seeds are included only if there are no others."""
        return self.paired(name) or self.ended.values.get(name, {})

    def baseline_problem(self, baseline: str) -> str | None:
        """Return the reason why candidates cannot be compared with this baseline, or None if they can.

        The reason is a clause for a message. Whether the baseline diverged or did not learn is judged only after two of
        its runs have ended.

        Args:
            baseline: The name of the baseline's cell or of its chosen arm.
        """
        values = list(self._values(baseline).values())
        healthy = [value for value in values if math.isfinite(value)]
        diverged = len(values) - len(healthy)
        if baseline in self.ended.given_up:
            return "the baseline's runs failed"
        if self._ignores_seeds(baseline):
            return (
                f"the first {len(values)} seeds of the baseline gave exactly the same result, so the script seems to "
                "set its own seed. Pass the run's seed to it: script_args='--seed {seed}'"
            )
        if len(values) >= 2 and diverged * 2 > len(values):
            return f"the baseline itself diverged in {diverged} of {len(values)} runs"
        if len(healthy) >= 2 and learnt(self.metric, fmean(healthy), self.classes) is False:
            return f"the baseline itself did not learn ({self.metric.show(fmean(healthy))}{self.metric.unit})"
        return self.margin.problem

    def _ignores_seeds(self, baseline: str) -> bool:
        """Return whether a script seems to ignore the run's seed, because all runs of the baseline have equal metrics.

        Such runs are copies of one run. The test would take them for evidence without any noise.
        """
        name = self.chosen.get(baseline, baseline)
        found = self.metrics.get(name, [])
        if len(found) < FEWEST_SEEDS or not is_script(self.question.cells[name][0].config):
            return False
        return all(one == found[0] for one in found)

    def answerable_states(self) -> list[LadderState]:
        """Return the states of the ladders whose candidates can be compared with their baseline."""
        return [state for state in self.states() if not self.baseline_problem(state.ladder.baseline)]

    def tuning_runs(self) -> int:
        """Return the number of runs on tuning seeds that have ended."""
        tuning = self.question.tuning
        arms = (arm for arms in tuning.arms.values() if len(arms) > 1 for arm in arms)
        return sum(self.ended.has((arm, seed)) for arm in arms for seed in tuning.seeds)


def baseline_labels(results: Results, states: Sequence[LadderState]) -> dict[str, str]:
    """Return the labels of the baselines, keyed by the name of the cell.

    If there are several baselines, each label contains the label of a ladder.
    """
    name = results.question.baseline_name
    ladders = {state.ladder.baseline: state.ladder.label for state in reversed(states)}
    if len(ladders) == 1:
        return dict.fromkeys(ladders, name)
    return {cell: f"{name} {ladder}" for cell, ladder in reversed(ladders.items())}


def tuned_arms(results: Results) -> dict[str, str]:
    """Return the labels of the tuned cells whose arm is chosen, keyed by the name of the arm, baselines first."""
    states, tuning = results.states(), results.question.tuning
    labels = baseline_labels(results, states)
    for state in states:
        labels |= {candidate.name: candidate.label for candidate, _, _ in state}
    return {arm: label for arm, label in labels.items() if arm in tuning.values}


def sweep_record(results: Results) -> dict[str, Any]:
    """Return the `search` block of sweep.yaml: settings, starts of the ladders, ledger, and chosen values.

    The chosen values are for human readers. A report does not read them, but chooses again by the same rule from the
    same runs.
    """
    question = results.question
    found = question.asked | starts_record(results.starts.by, results.ladders, question.tuning.arms)
    found |= {LEDGER: results.ledger.as_yaml}
    if not question.tuning:
        return found
    chosen = {label: dict(question.tuning.values[arm]) for arm, label in tuned_arms(results).items()}
    return found | {"tune": found["tune"] | {"chosen": chosen}}


# ---- The results as plain data


@dataclass(frozen=True)
class ChosenValues:
    """The values of the tuned keys that were chosen for a cell.

    Attributes:
        values: The chosen values, keyed by the tuned key.
        at_edge: "smallest" or "largest" for each key whose chosen value is at an end of the values tried.
        measured: The metric on each tuning seed, or None for a run that diverged or failed.
    """

    values: dict[str, Any]
    at_edge: dict[str, str]
    measured: list[float | None]


@dataclass(frozen=True)
class CandidateResult:
    """The verdict on a candidate and its evidence.

    Attributes:
        candidate: The label of the candidate.
        bits: The bit width.
        verdict: The verdict.
        pairs: The number of pairs.
        settled_at: The number of pairs after which the candidate was certified or refuted, or None while it is open.
        difference: The mean difference from the baseline in the unit in which the metric is stored. Positive values are
            better. It is None without pairs.
        low: The lower end of the confidence interval of the difference, or None if the interval has no lower end.
        high: The upper end of the confidence interval of the difference, or None if the interval has no upper end.
        own_low: The lower end of the confidence interval that uses only the spread of the candidate's own pairs, or
            None if the interval has no lower end.
        own_high: The upper end of that interval, or None if the interval has no upper end.
        more: The number of further pairs that are likely to decide the candidate, or None if it is unknown.
        more_range: The ends of the range in which that number lies in 80 % of searches, or None if `more` is None.
        is_identical: Whether the candidate's runs are equal to the baseline's runs, bit for bit.
        error_of_certifying: The probability of wrongly certifying the candidate: its share of the error probability.
        runs_ended: The number of the candidate's runs that have ended.
        runs_failed: The number of the candidate's runs that failed.
        pairs_left_out: The number of pairs that are left out because the baseline's run failed.
        at_most_fail: The upper confidence limit for the fraction of runs that fail, or None without runs.
        tuned: The chosen values, or None if nothing is tuned or nothing is chosen yet.
    """

    candidate: str
    bits: float
    verdict: Verdict
    pairs: int
    settled_at: int | None
    difference: float | None
    low: float | None
    high: float | None
    own_low: float | None
    own_high: float | None
    more: int | None
    more_range: list[int] | None
    is_identical: bool
    error_of_certifying: float
    runs_ended: int
    runs_failed: int
    pairs_left_out: int
    at_most_fail: float | None
    tuned: ChosenValues | None


@dataclass(frozen=True)
class LadderResult:
    """The result of a ladder. A ladder holds the candidates that differ only in their format.

    Attributes:
        chain: The ladder's label: the values that all of its candidates share.
        problem: The reason why candidates cannot be compared with the baseline, or None if they can.
        smallest: The label of the certified candidate with the fewest bits, or None if no candidate is certified.
        bits: The bit width of `smallest`, or None if no candidate is certified.
        started_at: The bit width at which the ladder started.
        is_over: Whether the ladder needs no further run.
        candidates: The candidates, most bits first.
        baseline_tuned: The values chosen for the baseline, or None if nothing is tuned or nothing is chosen yet.
    """

    chain: str
    problem: str | None
    smallest: str | None
    bits: float | None
    started_at: float
    is_over: bool
    candidates: list[CandidateResult]
    baseline_tuned: ChosenValues | None


@dataclass(frozen=True)
class TuneResult:
    """The keys that a search tunes, and the runs that it has used for tuning.

    Attributes:
        values: The values to choose from, keyed by the tuned key.
        seeds: The tuning seeds, which are in no pair.
        runs: The number of runs on tuning seeds that have ended.
    """

    values: dict[str, list[Any]]
    seeds: list[int]
    runs: int


@dataclass(kw_only=True)
class SearchResult:
    """The results of a search.

    Attributes:
        sweep: The folder of the sweep.
        metric: The name of the metric.
        tolerance: The margin in the unit in which the metric is shown, or None while it is unknown.
        margin_origin: The origin of the margin, such as "typed".
        confidence: The confidence in percent.
        runs: The number of runs that have ended.
        difference_is: The meaning of each candidate's `difference`.
        hypotheses: The number of hypotheses that share the error probability.
        error_left: The error probability that is left for further hypotheses.
        chains: The result of each ladder.
        tune: The tuned keys, or None if nothing is tuned.
    """

    sweep: str
    metric: str
    tolerance: float | None
    margin_origin: str
    confidence: float
    runs: int
    difference_is: Literal["mean over seeds"]
    hypotheses: int
    error_left: float
    chains: list[LadderResult]
    tune: TuneResult | None


def search_result(results: Results) -> SearchResult:
    """Return the results as plain data."""
    ladders = [_ladder_result(results, state) for state in results.states()]
    settings, tuning = results.question.settings, results.question.tuning
    return SearchResult(
        sweep=str(results.directory.path),
        metric=results.metric.name,
        tolerance=finite(results.tolerance),
        margin_origin=results.margin.origin,
        confidence=settings.confidence,
        runs=results.runs,
        difference_is="mean over seeds",
        hypotheses=len(results.ledger.hypotheses),
        error_left=settings.alpha * results.ledger.left,
        chains=ladders,
        tune=TuneResult(dict(tuning.keys), list(tuning.seeds), results.tuning_runs()) if tuning else None,
    )


def _ladder_result(results: Results, state: LadderState) -> LadderResult:
    answer, ladder = state.answer, state.ladder
    return LadderResult(
        chain=ladder.label,
        problem=results.baseline_problem(ladder.baseline),
        smallest=answer[0].label if answer else None,
        bits=answer[0].bits if answer else None,
        started_at=ladder.widths[ladder.start][0].bits,
        is_over=state.active is None,
        candidates=[_candidate_result(results, state, *row) for row in state],
        baseline_tuned=_chosen_values(results, ladder.baseline),
    )


def _candidate_result(
    results: Results, state: LadderState, candidate: Candidate, judgement: Judgement, width: Width
) -> CandidateResult:
    counts, more = state.failures[candidate.name], judgement.more
    return CandidateResult(
        candidate=candidate.label,
        bits=candidate.bits,
        verdict=width.verdict_of(judgement),
        pairs=judgement.pairs,
        settled_at=judgement.settled_at,
        difference=finite(judgement.mean),
        low=finite(judgement.low),
        high=finite(judgement.high),
        own_low=finite(judgement.own_low),
        own_high=finite(judgement.own_high),
        more=None if more is None else more.likely,
        more_range=None if more is None else [more.low, more.high],
        is_identical=results.is_identical(candidate),
        error_of_certifying=judgement.errors[0],
        runs_ended=counts.ended,
        runs_failed=counts.failed,
        pairs_left_out=counts.left_out,
        at_most_fail=counts.at_most(results.question.settings.confidence),
        tuned=_chosen_values(results, candidate.name),
    )


def _chosen_values(results: Results, name: str) -> ChosenValues | None:
    tuning = results.question.tuning
    if name not in tuning.values:
        return None
    measured = [finite(value) for value in tuning.measured(name, results.ended)]
    return ChosenValues(dict(tuning.values[name]), dict(tuning.edges(name)), measured)
