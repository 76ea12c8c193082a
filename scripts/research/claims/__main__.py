"""Judge all claims from the stored values, and write the pages of claims and of the papers' tables.

PYTHONPATH=scripts python -m research.claims
"""

import argparse
from functools import cache
from pathlib import Path

from research.claims.claim import read_claims
from research.claims.judgment import judge
from research.claims.page import count_verdicts, page
from research.claims.paper_tables import paper_tables
from research.claims.values import Values, read_table, read_values

from cpdrun.record import write_text


def main() -> None:
    parser = argparse.ArgumentParser(description="Judge what papers claim, from the stored values of runs.")
    folder = Path("results/reference")
    parser.add_argument(
        "--values", type=Path, default=folder, help="folder of stored values (default: %(default)s)"
    )
    parser.add_argument(
        "--out",
        type=Path,
        help="the page of claims (default: claims.md in that folder); paper_tables.md is written beside it",
    )
    parser.add_argument(
        "--confidence", type=float, default=0.95, help="of each verdict (default: %(default)s)"
    )
    arguments = parser.parse_args()
    if not 0 < arguments.confidence < 1:
        parser.error("--confidence must lie between 0 and 1")

    @cache
    def stored(sweep: str) -> Values | None:
        return read_values(arguments.values / sweep)

    judgments = [
        judge(claim, stored, arguments.confidence, lambda name: read_table(arguments.values / name))
        for claim in read_claims()
    ]
    out = arguments.out or arguments.values / "claims.md"
    write_text(out, page(judgments, arguments.confidence))
    write_text(out.with_name("paper_tables.md"), paper_tables(stored))
    print(f"{count_verdicts(judgments)}. Every comparison is in {out}.")


if __name__ == "__main__":
    main()
