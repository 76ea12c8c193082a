"""Judge the candidates of a search, and return the results as plain data."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any, Literal

from cpdrun.config.manifest import LEDGER, read_ledger
from cpdrun.config.script import is_script
from cpdrun.costmodel.costs import rounded_share
from cpdrun.record import RunDir
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
from cpdrun.stats.evidence import Judgment, Verdict, differences
from cpdrun.stats.failures import are_identical
from cpdrun.stats.ladder import Width
from cpdrun.stats.means import mean
from cpdrun.study.answers import finite
from cpdrun.study.collect import RECIPE
from cpdrun.study.fork_test import ForkTest, fork_test
from cpdrun.study.formats import mean_operand_bits
from cpdrun.study.margin import Margin, choose_margin
from cpdrun.study.metric import Metric, learnt, worst
from cpdrun.study.search_results import RunResults
from cpdrun.whatif.damage import strictness


@dataclass(frozen=True)
class MissingPrediction:
    """A ladder for which no prediction is available.

    Attributes:
        ladder: The label of the ladder.
        bits: The width at which the ladder starts instead; None if its start was recorded.
    """

    ladder: str
    bits: float | None


class Results(RunResults):
    """The results of a search, and the verdicts that follow from them.

    Attributes:
        question: The candidates, settings, and planned runs of the search.
        starts: How the ladders start, and their recorded starts.
        ledger: The hypotheses that were tested.
        unpredicted: The ladders without a prediction. A display removes each after it has shown a message.
    """

    def __init__(self, question: Question) -> None:
        self.question = question
        self.starts = choose_starts(question)
        self.unpredicted: list[MissingPrediction] = []
        # The ladders whose order and start are known.
        self._ordered: dict[str, Ladder] = {}
        arms = {arm: cell for cell, arms in question.tuning.arms.items() for arm in arms}
        ledger = read_ledger(question.directory)
        self.ledger = replace(ledger, cells={**ledger.cells, **arms})
        super().__init__(question.directory, question.cells, question.settings.metric)

    @property
    def metric(self) -> Metric:
        """The metric to compare. It is printed with enough digits to tell the margin and the means apart."""
        means = (mean([*values.values()]) for values in self.ended.values.values())
        return self.compared_metric.with_digits(self.margin.shown, means)

    @property
    def margin(self) -> Margin:
        """The margin. A margin in percent is unknown until a run of the baseline has ended."""
        question = self.question
        asked_by = "typed" if MARGIN_KEY in map(key_of, question.typed) else "the experiment's"
        courses = [
            course
            for name in sorted(self._baselines())
            if (course := self.course(name, self.values(name))) is not None
        ]
        return choose_margin(
            question.settings.tolerance, asked_by, self.compared_metric, courses, question.baseline_name
        )

    @property
    def tolerance(self) -> float:
        """The margin in the displayed unit; NaN if unknown."""
        return self.margin.shown

    @property
    def strictness(self) -> float:
        """The strictness of the margin, which a prediction needs."""
        return strictness(self.metric, self.tolerance, self.classes)

    def rules(self) -> Rules:
        """Return the inputs of the test."""
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
        """Return the ladders with the verdicts on their candidates.

        Once a run has ended and all starts are known, this also records the hypotheses in the ledger.
        """
        found = ladder_states(self.ladders, self.ended, self.rules(), self.question.tuning, self.ledger)
        if self.compared is not None and all(state.ladder.is_started for state in found):
            asked = [each for state in found for width in state.widths for each in width.hypotheses]
            self.ledger = self.ledger.merged(asked)
        return found

    @property
    def ladders(self) -> list[Ladder]:
        """The ladders, with their start and order as far as known."""
        return [self._ordered.get(ladder.label) or self._in_order(ladder) for ladder in self.question.ladders]

    def _in_order(self, ladder: Ladder) -> Ladder:
        of_width = [{self.question.config(c.name)["format"] for c in width} for width in ladder.widths]
        known = self.starts.of(ladder)
        if known is not None and all(len(formats) == 1 for formats in of_width):
            return self._ordered.setdefault(ladder.label, known)
        waiting = replace(known or ladder, is_ordered=False, is_started=known is not None)
        if self.chosen.get(ladder.baseline, ladder.baseline) in self.question.tuning.arms:
            return waiting  # a prediction needs the baseline's arm, which is not chosen yet
        first = observed_run(self, ladder.baseline)
        if first is None:
            return known or ladder
        if not self.ended.has(first):
            return waiting
        predicted = with_chances(self.question, ladder, self.run(first), self.strictness)
        if predicted is None:
            config = self.question.cells[first[0]][0].config
            # A script's run is observed only if the user typed `observe`.
            if not is_script(config) or config["observe"]:
                bits = None if known is not None else ladder.widths[0][0].bits
                self.unpredicted.append(MissingPrediction(ladder.label, bits))
            return self._ordered.setdefault(ladder.label, known or ladder)
        started = self.starts.of(predicted) or start_at(predicted, predicted_width(predicted), first[1])
        return self._ordered.setdefault(ladder.label, started)

    @property
    def chosen(self) -> dict[str, str]:
        """The chosen arm of each tuned cell."""
        better = self.compared_metric.higher_is_better
        return self.question.tuning.chosen(self.ended, higher_is_better=better)

    def paired(self, name: str) -> dict[int, float]:
        """Return the metric of a cell's runs by seed, without tuning seeds."""
        aside, values = self.question.tuning.seeds, self.ended.values.get(name, {})
        return {seed: value for seed, value in values.items() if seed not in aside}

    def mean_bits(self, candidate: Candidate) -> float | None:
        """Return a recipe's mean operand bits, or None if they were not counted or the candidate is not a recipe."""
        if self.question.axis.key != RECIPE:
            return None
        return mean_operand_bits(self.products.get(self.chosen.get(candidate.name, candidate.name)))

    def is_identical(self, candidate: Candidate) -> bool:
        """Return True if a candidate equals its baseline bit for bit."""
        ours, theirs = (self.fingerprints.get(name, {}) for name in (candidate.name, candidate.baseline))
        return are_identical(ours, theirs)

    def _baselines(self) -> set[str]:
        """Return the cells of the baselines, or their chosen arms."""
        chosen = self.chosen
        return {chosen.get(ladder.baseline, ladder.baseline) for ladder in self.question.ladders}

    def values(self, name: str) -> dict[int, float]:
        """Return the metric of a cell's runs by seed. Tuning seeds count only if there are no others."""
        return self.paired(name) or self.ended.values.get(name, {})

    def answerable_states(self) -> list[LadderState]:
        """Return the ladders whose candidates can be compared with their baseline."""
        return [state for state in self.states() if not ladder_problem(self, state.ladder)]


def observed_run(results: Results, baseline: str) -> RunKey | None:
    """Return the baseline's first healthy run, which predictions read.

    None if the baseline is still being tuned or was given up, or if all its runs failed.
    """
    name, tuning = results.chosen.get(baseline, baseline), results.question.tuning
    if name in tuning.arms or name in results.ended.given_up:
        return None
    of_tuning = tuning.seeds if tuning.runs(baseline) else ()
    seeds = (*of_tuning, *range(results.question.settings.most_seeds))
    failed = results.ended.failures.get(name, {})
    return next(((name, seed) for seed in seeds if seed not in failed), None)


def observed_runs(results: Results) -> set[RunKey | None]:
    """Return the runs to observe for predictions: one of each baseline, or of each arm while it is tuned.

    None is included if a baseline has no such run.
    """
    tuning, baselines = results.question.tuning, {ladder.baseline for ladder in results.question.ladders}
    arms = {arm for name in baselines for arm in tuning.arms.get(name, ())}
    return {*(observed_run(results, name) for name in baselines), *((arm, tuning.seeds[0]) for arm in arms)}


def pair_differences(results: Results) -> dict[str, list[float]]:
    """Return the differences of each candidate's pairs, keyed by the candidate's cell."""
    rules, found = results.rules(), {}
    for candidate in (c for ladder in results.question.ladders for width in ladder.widths for c in width):
        pairs = results.ended.compared(candidate.name, candidate.baseline)
        found[candidate.name] = differences(
            pairs.ours, pairs.baseline, higher_is_better=rules.higher_is_better, worst=rules.worst
        )
    return found


def ladder_problem(results: Results, ladder: Ladder) -> str | None:
    """Return why a ladder's candidates cannot be compared with their baseline, as a clause for a message.

    Returns None if they can be compared.
    """
    return baseline_problem(results, ladder.baseline) or _coverage_problem(results, ladder)


def _coverage_problem(results: Results, ladder: Ladder) -> str | None:
    """Return a clause about a candidate whose coverage is unknown or below search.min_coverage, or None.

    Only candidates that run scripts are checked here, because a script's products are not counted until it runs. For
    cpdrun's own training loop, `cpdrun.train.preflight.check` checks the coverage before the first run starts. A
    candidate with the same precision as its baseline is not checked.
    """
    question, least = results.question, results.question.settings.min_coverage
    precision = question.config(ladder.baseline).get("precision")
    for candidate in (candidate for width in ladder.widths for candidate in width):
        name = results.chosen.get(candidate.name, candidate.name)
        products, config = results.products.get(name), question.config(candidate.name)
        if not least or not products or not is_script(config) or config.get("precision") == precision:
            continue
        share, label = rounded_share(products), candidate.label.removesuffix(f" {ladder.label}")
        if math.isnan(share):
            return (
                f"the coverage of {label} was not counted ({products.get('problem', 'no products')}), so it "
                "may be less than search.min_coverage. To search anyway, add search.min_coverage=0"
            )
        if share < least:
            return (
                f"{label} rounds only {math.floor(100 * share)}% of the multiply-accumulates, so a "
                "certificate would say little about it. The logs of its runs list what stays in float32. To search "
                f"anyway, add search.min_coverage={math.floor(100 * share) / 100:g}"
            )
    return None


def baseline_problem(results: Results, baseline: str) -> str | None:
    """Return why candidates cannot be compared with a baseline, as a clause for a message, if so.

    Two runs must have ended to judge if the baseline diverged or did not learn.
    """
    values = list(results.values(baseline).values())
    healthy = [value for value in values if math.isfinite(value)]
    diverged = len(values) - len(healthy)
    if baseline in results.ended.given_up:
        return "the baseline's runs failed"
    if _ignores_seeds(results, baseline):
        return (
            f"the first {len(values)} seeds of the baseline gave exactly the same result, so the script seems to "
            "set its own seed. Pass the run's seed to it: type its option among its arguments, such as --seed {seed}. "
            f"Delete {results.directory.path} first, so that these runs do not count as a question asked before"
        )
    if len(values) >= 2 and diverged * 2 > len(values):
        return f"the baseline itself diverged in {diverged} of {len(values)} runs"
    metric = results.metric
    if len(healthy) >= 2 and learnt(metric, fmean(healthy), results.classes) is False:
        return f"the baseline itself did not learn ({metric.show(fmean(healthy))}{metric.unit})"
    return results.margin.problem


def _ignores_seeds(results: Results, baseline: str) -> bool:
    """Return True if a script seems to ignore the seed, because all runs of the baseline are equal.

    The test would take such copies of one run for evidence without any noise.
    """
    name = results.chosen.get(baseline, baseline)
    found = results.metrics.get(name, [])
    if len(found) < FEWEST_SEEDS or not is_script(results.question.cells[name][0].config):
        return False
    return all(one == found[0] for one in found)


def baseline_labels(results: Results, states: Sequence[LadderState]) -> dict[str, str]:
    """Return the label of each baseline's cell. Several baselines include the label of a ladder."""
    name = results.question.baseline_name
    ladders = {state.ladder.baseline: state.ladder.label for state in reversed(states)}
    if len(ladders) == 1:
        return dict.fromkeys(ladders, name)
    return {cell: f"{name} {ladder}" for cell, ladder in reversed(ladders.items())}


def tuned_arms(results: Results) -> dict[str, str]:
    """Return the labels of the chosen arms, keyed by arm, baselines first."""
    states, tuning = results.states(), results.question.tuning
    labels = baseline_labels(results, states)
    for state in states:
        labels |= {candidate.name: candidate.label for candidate, _, _ in state}
    return {arm: label for arm, label in labels.items() if arm in tuning.values}


def sweep_record(results: Results) -> dict[str, Any]:
    """Return the `search` section of sweep.yaml: settings, starts, ledger, and chosen values.

    The chosen values are for human readers. A report repeats the choice from the same runs.
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
        values: The chosen value of each tuned key.
        at_edge: "smallest" or "largest" for each chosen value at an end of the values tried.
        measured: The metric on each tuning seed; None for a run that diverged or failed.
    """

    values: dict[str, Any]
    at_edge: dict[str, str]
    measured: list[float | None]


@dataclass(frozen=True)
class CandidateResult:
    """The verdict on a candidate and its evidence.

    Attributes:
        candidate: The label of the candidate.
        bits: The bit width. For a recipe, the planned bits (`cpdrun.study.choices`), by which candidates are sorted.
        mean_operand_bits: The mean bits of the operands of a recipe's products; None if they were not counted.
        verdict: The verdict.
        pairs: The number of pairs.
        settled_at: The number of pairs after which the candidate was certified or refuted; None while it is open.
        difference: The mean difference from the baseline in the metric's stored unit. Positive is better. None without
            pairs.
        low: The lower end of the confidence interval of the difference; None if it has no lower end.
        high: The upper end of the confidence interval of the difference; None if it has no upper end.
        own_low: The lower end of the interval that uses only the spread of the candidate's own pairs; None if it has no
            lower end.
        own_high: The upper end of that interval; None if it has no upper end.
        more: The number of further pairs that will likely decide the candidate; None if unknown.
        more_range: The range that contains this number in 80% of searches; None if `more` is None.
        is_identical: Whether the candidate's runs equal the baseline's runs bit for bit.
        error_of_certifying: The candidate's share of the probability of a wrong certificate.
        runs_ended: The number of the candidate's runs that have ended.
        runs_failed: The number of the candidate's runs that failed.
        pairs_left_out: The number of pairs that are left out because the baseline's run failed.
        at_most_fail: The upper confidence limit for the fraction of runs that fail; None without runs.
        tuned: The chosen values; None if nothing is tuned or chosen yet.
    """

    candidate: str
    bits: float
    mean_operand_bits: float | None
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
    """The answer of a search about one ladder. The candidates of a ladder differ only in their format.

    Attributes:
        chain: The ladder's label: the values that all of its candidates share.
        problem: Why candidates cannot be compared with the baseline; None if they can.
        smallest: The certified candidate with the fewest bits, if any.
        bits: The bit width of `smallest`.
        started_at: The bit width at which the ladder started.
        is_over: Whether the ladder needs no further run.
        candidates: The candidates, most bits first.
        baseline_tuned: The values chosen for the baseline; None if nothing is tuned or chosen yet.
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
    """The tuned keys, and the runs that were used for tuning.

    Attributes:
        values: The values to choose from, for each tuned key.
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
        tolerance: The margin in the displayed unit; None while it is unknown.
        margin_origin: The origin of the margin, such as "typed".
        confidence: The confidence in percent.
        runs: The number of runs that have ended.
        difference_is: The meaning of each candidate's `difference`.
        hypotheses: The number of hypotheses that share the error probability.
        error_left: The error probability that is left for further hypotheses.
        chains: The result of each ladder.
        tune: The tuned keys; None if nothing is tuned.
        fork_tests: The gaps over the steps, if the runs start from a checkpoint.
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
    fork_tests: list[ForkTest]


def search_result(results: Results) -> SearchResult:
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
        tune=TuneResult(dict(tuning.keys), list(tuning.seeds), tuning.runs_ended(results.ended))
        if tuning
        else None,
        fork_tests=fork_tests(results),
    )


def fork_tests(results: Results) -> list[ForkTest]:
    """Return the gaps over the steps for each baseline, if the runs start from a checkpoint."""
    if next(iter(results.cells.values()))[0].config.get("init_from") is None:
        return []
    labels = baseline_labels(results, results.states())
    found = []
    for baseline, label in labels.items():
        ladders = [ladder for ladder in results.question.ladders if ladder.baseline == baseline]
        candidates = [c for ladder in ladders for width in ladder.widths for c in width]
        runs = {candidate.label: _paired_runs(results, candidate.name) for candidate in candidates}
        setting = ladders[0].label if len(labels) > 1 else ""
        theirs = label, _paired_runs(results, baseline)
        found.append(
            fork_test(setting, theirs, runs, results.metric, results.question.settings.confidence / 100)
        )
    return [each for each in found if each is not None]


def _paired_runs(results: Results, cell: str) -> dict[int, RunDir]:
    """Return the runs of a cell that are used in pairs, keyed by seed. For a tuned cell, use its best setting."""
    name = results.chosen.get(cell, cell)
    return {seed: results.run((name, seed)) for seed in results.paired(name)}


def _ladder_result(results: Results, state: LadderState) -> LadderResult:
    answer, ladder = state.answer, state.ladder
    return LadderResult(
        chain=ladder.label,
        problem=ladder_problem(results, ladder),
        smallest=answer[0].label if answer else None,
        bits=answer[0].bits if answer else None,
        started_at=ladder.widths[ladder.start][0].bits,
        is_over=state.active is None,
        candidates=[_candidate_result(results, state, *row) for row in state],
        baseline_tuned=_chosen_values(results, ladder.baseline),
    )


def _candidate_result(
    results: Results, state: LadderState, candidate: Candidate, judgment: Judgment, width: Width
) -> CandidateResult:
    counts, more = state.failures[candidate.name], judgment.more
    return CandidateResult(
        candidate=candidate.label,
        bits=candidate.bits,
        mean_operand_bits=results.mean_bits(candidate),
        verdict=width.verdict_of(judgment),
        pairs=judgment.pairs,
        settled_at=judgment.settled_at,
        difference=finite(judgment.mean),
        low=finite(judgment.low),
        high=finite(judgment.high),
        own_low=finite(judgment.own_low),
        own_high=finite(judgment.own_high),
        more=None if more is None else more.likely,
        more_range=None if more is None else [more.low, more.high],
        is_identical=results.is_identical(candidate),
        error_of_certifying=judgment.errors[0],
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
