"""The loss of a model against its parameters N, its data D and what its products read, in two published forms:

    floating    L = n / N^alpha + d / D^beta + eps + D^beta / N^alpha * log2(B) / (gamma (E + .5)^delta (M + .5)^nu)
                Sun et al., arXiv 2501.02423, equation 1 (18): E exponent and M mantissa bits, B values share a scale
    effective   L = A N_eff^-alpha + B D^-beta + E,  N_eff = N prod over roles of (1 - exp(-P / gamma))
                Kumar et al., arXiv 2411.04330, equations 3 and 4: P bits of weights, activations, keys and values

Where nothing is rounded the last term of the first is 0, and a role's factor of the second is 1. Forms of the papers,
constants of these runs. Of the first, the paper's are of Llamas of 41 to 679 million parameters that round weights in
both directions and the inputs of the weights' gradients (section 3.4: P2, P4, P6), with a scale of high precision and
no codes for inf and NaN; its table 2 has no intervals. That an integer is E = 0, and that powers of two as scales cost
nothing, is assumed here, not said there. Of the second, gamma is one for all roles here: the paper's appendix K has one
for each, which roles that always have the same bits could not tell; it ties alpha to beta ("this is not required"),
which is not done here, and adds an offset to P / gamma, which is left out; its runs round to integers (appendix D.1).

Both are sums of powers, fitted to the logarithm of the loss (robust_fit.py). N and D are divided by their geometric
means first, so that n and alpha do not run along a valley.

Legend: R runs, P parameters of a law, B draws. Losses in nats, or any unit; data in any unit, such as tokens.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from cpdrun.stats.robust_fit import DRAWS, HUBER, Array, Fit, Space, ends, fit

FLOATING, EFFECTIVE = "floating", "effective"
FORMS = (FLOATING, EFFECTIVE)
MANY = 6  # runs a parameter should have at the least; the floating form has eight
_EXPONENT = (-6.0, 12.0)  # where delta and nu are looked for


class NoLawError(ValueError):
    """Why there is nothing to fit a law to: one line."""


@dataclass(frozen=True)
class Runs:
    """One row a run, each an array (R,): parameters N > 0, data D > 0, loss > 0; exponent_bits, mantissa_bits and block
    of what products read, NaN where nothing is rounded; weight_bits and activation_bits, inf there; group: runs that
    are drawn together."""

    parameters: Array
    data: Array
    loss: Array
    exponent_bits: Array
    mantissa_bits: Array
    block: Array
    weight_bits: Array
    activation_bits: Array
    group: np.ndarray

    def __len__(self) -> int:
        return len(self.loss)

    def take(self, chosen: Any) -> "Runs":
        return Runs(**{field.name: getattr(self, field.name)[chosen] for field in fields(self)})

    @property
    def rounded(self) -> np.ndarray:
        """(R,) bool."""
        return np.isfinite(self.block)

    @property
    def formats(self) -> list[tuple[float, float, float]]:
        """(E, M, B) of each format that rounds, once."""
        chosen = self.rounded
        columns = (self.exponent_bits[chosen], self.mantissa_bits[chosen], self.block[chosen])
        return sorted({(float(e), float(m), float(b)) for e, m, b in zip(*columns, strict=True)})

    @classmethod
    def of(cls, rows: Sequence[Mapping[str, Any]]) -> "Runs":
        """Rows with the fields' names."""
        numbers = {
            field.name: np.array([row[field.name] for row in rows], dtype=float)
            for field in fields(cls)
            if field.name != "group"
        }
        return cls(**numbers, group=np.array([str(row["group"]) for row in rows]))


@dataclass(frozen=True)
class Estimate:
    """A parameter and its interval; an end of inf or -inf: not bounded. `value` is NaN where the runs do not determine
    it."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Prediction:
    """Of each asked row (R,): the loss by the law, the ends of the law's interval, and those that a single run has."""

    loss: Array
    low: Array
    high: Array
    run_low: Array
    run_high: Array


class Law:
    """One form, fitted. `runs` it was fitted to; `fitted` in the inner, centred parameters."""

    def __init__(self, form: str, runs: Runs, *, starts: int = 12, draws: int = DRAWS, seed: int = 0):
        """Raises NoLawError where the runs cannot hold a law, ValueError for a form that is none."""
        if form not in FORMS:
            raise ValueError(f"no form {form!r}; there are: {', '.join(FORMS)}")
        refuse(runs)
        self.form, self.runs = form, runs
        self._centre = _Centre.of(runs)
        self._space, terms = _floating(runs) if form == FLOATING else _effective(runs)
        self._terms = terms
        self.fitted: Fit = fit(
            lambda theta, rows: self._model(theta, runs.take(rows)),
            np.log(runs.loss),
            self._space,
            groups=list(runs.group),
            starts=starts,
            draws=draws,
            seed=seed,
        )

    def _model(self, theta: Array, runs: Runs) -> tuple[Array, Array]:
        """Logarithm of the loss (R,) and its derivatives (R, P)."""
        value, slope = self._terms(theta, runs, self._centre)
        return np.log(value), slope / value[:, None]

    def draws(self, asked: Runs) -> Array:
        """Losses (B + 1, R) of `asked`, whose own are not read: by the fit, then by each draw."""
        return np.array([np.exp(self._model(theta, asked)[0]) for theta in self.fitted.all()])

    def predict(self, asked: Runs, ci: float = 95) -> Prediction:
        """`asked.loss` is not read. A run has what is left over of the fit, drawn at random, on top of the law."""
        every = np.log(self.draws(asked))
        rng = np.random.default_rng(0)
        spread = rng.choice(self._spread, size=(8, *every[1:].shape))
        of_runs = (every[None, 1:] + spread).reshape(-1, len(asked))
        law, runs = (
            np.exp([ends(drawn[:, i], every[0, i], ci) for i in range(len(asked))]).T.reshape(2, -1)
            for drawn in (every[1:], of_runs)
        )
        return Prediction(np.exp(every[0]), *law, *runs)

    @property
    def _spread(self) -> Array:
        """What is left over, as large as it would be of runs that the law has not seen: R / (R - P) of its square."""
        n, p = len(self.runs), len(self.fitted.theta)
        return self.fitted.left_over * math.sqrt(n / max(n - p, 1))

    def estimates(self, ci: float) -> dict[str, Estimate]:
        """The parameters by the names of the papers, in the runs' own units."""
        inner = np.array([self._outer(theta) for theta in self.fitted.all()])
        hidden = self._hidden(ci)
        found = {}
        for i, (name, rises) in enumerate(_OUTER[self.form]):
            value, draws = float(inner[0, i]), inner[1:, i]
            below, above = self.fitted.bounded(i, ci)
            below, above = (below, above) if rises else (above, below)
            above = above and not (hidden and name == "gamma")
            known = name not in self.unseen and not self.fitted.undetermined[i]
            known = known and not (hidden and name in ("delta", "nu"))
            if name in _LOGARITHMIC:
                low, high = np.exp(ends(np.log(draws), math.log(value), ci)).tolist()
            else:
                low, high = ends(draws, value, ci)
                low = max(low, 0.0) if name in _NOT_BELOW_0 else low
            found[name] = Estimate(
                value if known else math.nan,
                low if known and below else -math.inf,
                high if known and above else math.inf,
            )
        return found

    def _hidden(self, ci: float) -> bool:
        """Whether formats may cost nothing: in the tail of the draws their term is below what the fit tells apart."""
        if self.form == EFFECTIVE:
            return False
        free = replace(self.runs, block=np.full(len(self.runs), math.nan))
        shares = [
            np.max(1 - np.exp(self._model(theta, free)[0] - self._model(theta, self.runs)[0]))
            for theta in self.fitted.drawn
        ]
        return bool(np.mean(np.array(shares) < HUBER) > (100 - ci) / 200) if shares else False

    @property
    def unseen(self) -> dict[str, str]:
        """Parameters that these runs say nothing of, and why."""
        return _unseen(self.form, self.runs)

    def _outer(self, theta: Array) -> list[float]:
        """Inner to the papers' parameters."""
        c = self._centre
        if self.form == FLOATING:
            a, alpha, b, beta, e, k, delta, nu = theta
            log_gamma = -(k - beta * c.log_d + alpha * c.log_n + delta * c.exponent + nu * c.mantissa)
            log_gamma += math.log(c.log2_block)
            tail = [math.exp(np.clip(log_gamma, -700, 700)), delta, nu]
        else:
            a, alpha, b, beta, e, g = theta
            tail = [math.exp(g)]
        return [math.exp(a + alpha * c.log_n), alpha, math.exp(b + beta * c.log_d), beta, e, *tail]


# the papers' names; whether it rises with the inner parameter of the same place
_OUTER = {
    FLOATING: (("n", True), ("alpha", True), ("d", True), ("beta", True), ("eps", True), ("gamma", False),
               ("delta", True), ("nu", True)),
    EFFECTIVE: (("A", True), ("alpha", True), ("B", True), ("beta", True), ("E", True), ("gamma", True)),
}  # fmt: skip


_LOGARITHMIC = ("n", "d", "A", "B", "gamma")
_NOT_BELOW_0 = ("alpha", "beta", "eps", "E")


@dataclass(frozen=True)
class _Centre:
    """Means of logarithms that the inner parameters are about."""

    log_n: float
    log_d: float
    exponent: float
    mantissa: float
    log2_block: float

    @classmethod
    def of(cls, runs: Runs) -> "_Centre":
        rounded = runs.take(runs.rounded)
        return cls(
            float(np.mean(np.log(runs.parameters))),
            float(np.mean(np.log(runs.data))),
            float(np.mean(np.log(rounded.exponent_bits + 0.5))),
            float(np.mean(np.log(rounded.mantissa_bits + 0.5))),
            float(np.mean(np.log2(rounded.block))),
        )


def _common(runs: Runs, centre: _Centre) -> tuple[Array, Array]:
    return np.log(runs.parameters) - centre.log_n, np.log(runs.data) - centre.log_d


def _space(
    names: str, runs: Runs, low: Sequence[float], high: Sequence[float], start: Sequence[tuple[float, float]]
) -> Space:
    """The first five are common: log n, alpha, log d, beta, eps (which may be 0), in the scale of the losses."""
    scale = math.log(float(np.median(runs.loss)))
    ends = [(scale - 3, scale), (0.1, 1.0), (scale - 3, scale), (0.1, 1.0), (0.0, 0.9 * math.exp(scale))]
    ends += list(start)
    return Space(
        tuple(names.split()),
        np.array([scale - 16, 0.0, scale - 16, 0.0, 0.0, *low]),
        np.array([scale + 6, 4.0, scale + 6, 4.0, 2 * math.exp(scale), *high]),
        *(np.array(end) for end in zip(*ends, strict=True)),
    )


def _floating(runs: Runs) -> tuple[Space, Any]:
    unseen = _unseen(FLOATING, runs)
    scale = math.log(float(np.median(runs.loss)))
    held = [(-1e-6, 1e-6) if name in unseen else _EXPONENT for name in ("delta", "nu")]
    starts = [(-1e-7, 1e-7) if name in unseen else (0.0, 4.0) for name in ("delta", "nu")]
    space = _space(
        "n alpha d beta eps gamma delta nu",
        runs,
        [scale - 20, held[0][0], held[1][0]],
        [scale + 4, held[0][1], held[1][1]],
        [(scale - 7, scale - 1), *starts],
    )
    return space, _floating_terms


def _floating_terms(theta: Array, runs: Runs, centre: _Centre) -> tuple[Array, Array]:
    """The loss (R,) and its derivatives (R, 8)."""
    a, alpha, b, beta, e, k, delta, nu = theta
    x, y = _common(runs, centre)
    rounded = runs.rounded
    block = np.where(rounded, np.log2(np.where(rounded, runs.block, 1)), 0.0) / centre.log2_block
    exponent = np.where(rounded, np.log(np.where(rounded, runs.exponent_bits, 1) + 0.5) - centre.exponent, 0)
    mantissa = np.where(rounded, np.log(np.where(rounded, runs.mantissa_bits, 1) + 0.5) - centre.mantissa, 0)
    of_n, of_d = np.exp(a - alpha * x), np.exp(b - beta * y)
    of_format = block * np.exp(np.clip(k + beta * y - alpha * x - delta * exponent - nu * mantissa, -700, 50))
    slope = [
        of_n,
        -x * (of_n + of_format),
        of_d,
        -y * of_d + y * of_format,
        np.ones(len(runs)),
        of_format,
        -exponent * of_format,
        -mantissa * of_format,
    ]
    return of_n + of_d + e + of_format, np.array(slope).T


def _effective(runs: Runs) -> tuple[Space, Any]:
    space = _space("A alpha B beta E gamma", runs, [math.log(0.02)], [math.log(200)], [(-1.0, 1.5)])
    return space, _effective_terms


def _effective_terms(theta: Array, runs: Runs, centre: _Centre) -> tuple[Array, Array]:
    """The loss (R,) and its derivatives (R, 6)."""
    a, alpha, b, beta, e, g = theta
    x, y = _common(runs, centre)
    gamma, log_share, slope_g = math.exp(g), np.zeros(len(runs)), np.zeros(len(runs))
    for bits in (runs.weight_bits, runs.activation_bits):
        ratio = np.where(np.isfinite(bits), bits / gamma, 700.0)
        lost = np.exp(-np.minimum(ratio, 700.0))
        log_share += np.log(np.maximum(-np.expm1(-ratio), 1e-300))
        slope_g -= np.where(np.isfinite(bits), lost * ratio / np.maximum(-np.expm1(-ratio), 1e-300), 0.0)
    of_n, of_d = np.exp(np.clip(a - alpha * (x + log_share), -700, 50)), np.exp(b - beta * y)
    slope = [of_n, -(x + log_share) * of_n, of_d, -y * of_d, np.ones(len(runs)), -alpha * slope_g * of_n]
    return of_n + of_d + e, np.array(slope).T


def refuse(runs: Runs) -> None:
    """Raises NoLawError, in a line, for runs that cannot hold a law of either form."""
    if len(runs) == 0:
        raise NoLawError("a law needs finished runs with a finite loss: there is none")
    sizes, budgets = (len(np.unique(values)) for values in (runs.parameters, runs.data))
    if sizes < 2:
        raise NoLawError(
            f"a law of loss needs models of several sizes: all {len(runs)} runs have "
            f"{runs.parameters[0]:,.0f} parameters"
        )
    if budgets < 2:
        raise NoLawError(
            f"a law of loss needs several amounts of data: all {len(runs)} runs read {runs.data[0]:,.0f}"
        )
    kinds = len(runs.formats) + bool(np.any(~runs.rounded))
    if kinds < 2:
        raise NoLawError(
            f"a law of formats needs at least two, or one and none: all {len(runs)} runs have the same"
        )
    if len(runs) < 2 * MANY:
        raise NoLawError(f"a law needs at least {2 * MANY} runs, not {len(runs)}")


def _unseen(form: str, runs: Runs) -> dict[str, str]:
    """Which parameters of a format the runs cannot tell: all of their formats are alike in it."""
    if form == EFFECTIVE:
        return {}
    found = {}
    for name, place, word in (("delta", 0, "exponent"), ("nu", 1, "mantissa")):
        values = sorted({fmt[place] for fmt in runs.formats})
        if len(values) < 2:
            found[name] = f"all formats have {values[0]:g} {word} bits" if values else "nothing is rounded"
    return found


@dataclass(frozen=True)
class HeldOut:
    """A law of the smaller sizes, asked for the largest: `measured` and `predicted` have the same rows."""

    law: Law
    measured: Runs
    predicted: Prediction

    @property
    def factor(self) -> float:
        """How many times larger the held-out size is than the largest that the law has seen."""
        return float(self.measured.parameters.max() / self.law.runs.parameters.max())

    @property
    def within(self) -> int:
        """How many runs lie in their interval."""
        loss = self.measured.loss
        return int(np.sum((loss >= self.predicted.run_low) & (loss <= self.predicted.run_high)))

    @property
    def error(self) -> float:
        """Mean absolute error of the loss, as a share of it."""
        return float(np.mean(np.abs(self.predicted.loss / self.measured.loss - 1)))


def hold_out_largest(form: str, runs: Runs, *, ci: float = 95, **settings: Any) -> HeldOut:
    """Fit without the largest size, then predict it. Raises NoLawError where the rest holds no law."""
    refuse(runs)
    largest = runs.parameters == runs.parameters.max()
    if len(np.unique(runs.parameters)) < 3:
        raise NoLawError("to leave the largest size out a law needs three sizes: there are two")
    law = Law(form, runs.take(~largest), **settings)
    measured = runs.take(largest)
    return HeldOut(law, measured, law.predict(measured, ci))
