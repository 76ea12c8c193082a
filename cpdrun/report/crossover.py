"""Show predicted step times as sentences, as text and as numbers.

A panel holds the predictions for one setting: every method on every network. A plain sum is one that a platform's
own all_reduce computes.
"""

import math
from typing import Any

import pandas as pd

from cpdrun.costmodel.crossover import MARGIN, Cell, Crossover, Panel
from cpdrun.report.render import join_last, render_lines
from cpdrun.report.tables import BITS_A_PARAMETER, Shown, show_bits
from cpdrun.study.study import Study
from cpdrun.study.verdicts import MARKS


def sentences(study: Study, found: Crossover) -> list[str]:
    """Name the fastest method on each network, and the assumptions."""
    return render_lines(
        "crossover.j2",
        study=study,
        panels=[_winners(panel) for panel in found.panels],
        work=found.calibration.workload,
        about=found.calibration.about,
        margin=MARGIN,
        ms=_ms,
    )


def _winners(panel: Panel) -> dict[str, Any]:
    """Return the template variables for one panel.

    Returns:
        `plain`: the networks on which each plain sum wins. `others`: every other winner, with the plain sum on its
        network. `open`: the networks on which an open method beats the winner. `missing`: why some methods have no
        prediction. `label`: the setting.
    """
    winners = [cell for network in panel.networks if (cell := panel.winner(network)) is not None]
    plain: dict[str, list[str]] = {}
    for cell in winners:
        if cell.group.method.is_plain:
            plain.setdefault(cell.name, []).append(cell.network)
    open_: dict[str, list[str]] = {}
    for network in panel.networks:
        for cell in panel.faster_but_open(network):
            open_.setdefault(cell.name, []).append(network)
    return {
        "label": panel.facet.label,
        "plain": {name: join_last(networks) for name, networks in plain.items()},
        "others": [(cell, panel.plain(cell.network)) for cell in winners if not cell.group.method.is_plain],
        "open": {name: join_last(networks) for name, networks in open_.items()},
        "missing": panel.missing,
    }


def shown(found: Crossover) -> Shown:
    """Return the step times as text, with one row per method, fewest bits first.

    If any method reaches the baseline's loss, columns with the seconds to this loss are added.
    """
    networks, several = found.panels[0].networks, len(found.panels) > 1
    in_time = any(math.isfinite(cell.to_loss_s) for panel in found.panels for cell in panel.cells)
    header = [*(["setting"] if several else []), "method", "bits per parameter and step", "verdict"]
    header += [f"{network}, ms a step" for network in networks]
    header += [f"{network}, s to the loss" for network in networks] if in_time else []
    rows = []
    for panel in found.panels:
        by_method: dict[str, dict[str, Cell]] = {}
        for cell in sorted(panel.cells, key=lambda cell: cell.group.bits_a_parameter):
            by_method.setdefault(cell.name, {})[cell.network] = cell
        for name, cells in by_method.items():
            first = next(iter(cells.values()))
            row = [*([panel.facet.label] if several else []), name]
            row += [show_bits(first.group.bits_a_parameter), _verdict(first)]
            row += [_marked(panel, cells[network]) for network in networks]
            row += [_seconds(cells[network].to_loss_s) for network in networks] if in_time else []
            rows.append(row)
    return Shown(header, rows, 2 if several else 1)


def numbers(found: Crossover) -> pd.DataFrame:
    """Return the step times as numbers, with one row per method and network."""
    rows = []
    for panel in found.panels:
        for cell in panel.cells:
            rows.append(
                {
                    **panel.facet.keys,
                    "method": cell.name,
                    "network": cell.network,
                    "pattern": cell.pattern,
                    BITS_A_PARAMETER: cell.group.bits_a_parameter,
                    "bytes_per_step": cell.group.wire_bytes,
                    "compute_s": cell.compute_s,
                    "exchange_s": cell.exchange_s,
                    "step_s": cell.step_s,
                    "steps_to_loss": cell.steps_to_loss,
                    "seconds_to_loss": cell.to_loss_s,
                    "verdict": str(cell.verdict or ""),
                    "wins": cell is panel.winner(cell.network),
                }
            )
    return pd.DataFrame(rows)


def _verdict(cell: Cell) -> str:
    return "-" if cell.verdict is None else f"{MARKS[cell.verdict]} {cell.verdict}"


def _marked(panel: Panel, cell: Cell) -> str:
    return f"{_ms(cell.step_s)} (fastest)" if cell is panel.winner(cell.network) else _ms(cell.step_s)


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.3g}" if seconds < 1 else f"{1e3 * seconds:.0f}"


def _seconds(seconds: float) -> str:
    return f"{seconds:.3g}" if math.isfinite(seconds) else "-"
