"""Compute the effects of configs on the tensors that a run observed.

    python -m cpdrun.whatif RUN_DIR CONFIGS.json OUT.json

CONFIGS.json contains {name: resolved config}. The program writes {name: effects} to OUT.json (`simulate/effects.py`). A
config that is not compatible with the run gets {"error": message} in place of its effects.
"""

import argparse
import sys
from pathlib import Path

from cpdrun.parent import die_with
from cpdrun.record import RunDir, read_json, write_json
from cpdrun.train.instantiate import BuildError
from cpdrun.whatif.collect.observation import Observation
from cpdrun.whatif.simulate.effects import effects

MAX_CONFIGS_BYTES = 1 << 30


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m cpdrun.whatif", description=__doc__.splitlines()[0])
    for name in ("run_dir", "configs", "out"):
        parser.add_argument(name, type=Path)
    parser.add_argument("--parent", type=int, help="end when this process does")
    given = parser.parse_args(argv)
    if given.parent is not None:
        die_with(given.parent)
    run = RunDir(given.run_dir)
    configs = read_json(given.configs, MAX_CONFIGS_BYTES)
    if not isinstance(configs, dict):
        return _refused(
            f"{given.configs} holds no configs: it must be JSON, a name and a resolved config each"
        )
    try:
        observation = Observation.load(run.observed)
    except FileNotFoundError:
        return _refused(f"{run.path} was not observed: type observe=16 for a run that is")
    except (OSError, ValueError) as error:
        return _refused(str(error))
    found = {}
    for name, config in configs.items():
        try:
            found[name] = effects(observation, config).as_json()
        except (ValueError, BuildError) as error:  # the other configs may still be valid
            found[name] = {"error": str(error)}
    write_json(given.out, found)
    return 0


def _refused(why: str) -> int:
    print(f"error: {why}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
