"""Simulate screening designs, and measure how often they find the planted factors and how often other ones.

    python scripts/research/simulations/simulate_screening.py [--runs 2000] [--interactions 0.5]

Each row is a design. One is the folded-over design of `cpdrun search --allocate`, with 24 runs for 12 factors. It is
analyzed with Lenth's method if there is one seed, and with t tests if there are several. The other is the smallest
design that is not folded over.

Each column is a ratio of the planted effects to the noise. Noise is normally distributed, and its size is the standard
deviation of one run about its expectation, without the contribution of the seed. `found` is the share of simulations in
which every planted factor is called sensitive at a family-wise error of 5%. `wrong` is the share in which any other
factor is called sensitive. With --interactions SHARE, each pair of planted factors has an interaction of this share of
their effect.

The script takes about ten minutes. The result is in results/reference/screen/power.txt.
"""

import argparse
import itertools

import numpy as np

from cpdrun.stats.screening import Design, Sensitivity, design, effects

RATIOS = (0.0, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 5.0)


def share_found(
    of: Design, seeds: int, active: int, ratio: float, interaction: float, simulations: int, seed: int = 0
) -> tuple[float, float]:
    """Return the share of simulations that find all planted factors, and the share that find a wrong factor.

    Args:
        of: The design.
        seeds: The number of seeds of each run.
        active: The number of planted factors, which are selected at random in each simulation.
        ratio: The cost of each planted factor, in standard deviations of the noise.
        interaction: The additional cost of each pair of them if both are low, as a share of that cost.
        simulations: The number of simulations.
        seed: The seed of all random numbers.
    """
    rng = np.random.default_rng(seed)
    levels = of.levels
    found = wrong = 0
    for _ in range(simulations):
        planted = rng.choice(levels.shape[1], active, replace=False)
        mean_N = (levels[:, planted] * ratio / 2).sum(axis=1)
        for i, j in itertools.combinations(planted, 2):
            mean_N = mean_N + interaction * ratio / 2 * levels[:, i] * levels[:, j]
        y_NxS = mean_N[:, None] + rng.normal(size=(of.runs, seeds)) + 3 * rng.normal(size=seeds)
        found_effects = effects(of, y_NxS, margin=1.0)
        sensitive = {
            i for i, each in enumerate(found_effects.factors) if each.verdict is Sensitivity.SENSITIVE
        }
        found += set(planted) <= sensitive
        wrong += bool(sensitive - set(planted))
    return found / simulations, wrong / simulations


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--runs", type=int, default=2000, help="number of simulations for each cell (default: 2000)"
    )
    parser.add_argument("--factors", type=int, default=12)
    parser.add_argument("--active", type=int, default=3, help="number of planted factors (default: 3)")
    parser.add_argument(
        "--interactions", type=float, default=0.0, help="interaction of each pair, as a share of the effect"
    )
    arguments = parser.parse_args()
    print(f"{arguments.active} of {arguments.factors} factors, interactions {arguments.interactions:g}")
    print(f"{'design':<28}{'':<8}" + "".join(f"{ratio:>7g}" for ratio in RATIOS))
    for folded, seeds in ((True, 1), (False, 1), (True, 2), (False, 2), (True, 3)):
        of = design(arguments.factors, foldover=folded)
        name = f"{of.runs}{' folded' if folded else ''} x {seeds} seed{'s' if seeds > 1 else ''}"
        cells = [
            share_found(of, seeds, arguments.active, ratio, arguments.interactions, arguments.runs)
            for ratio in RATIOS
        ]
        for what, i in (("found", 0), ("wrong", 1)):
            print(
                f"{name if not i else '':<28}{what:<8}" + "".join(f"{cell[i]:>7.3f}" for cell in cells),
                flush=True,
            )


if __name__ == "__main__":
    main()
