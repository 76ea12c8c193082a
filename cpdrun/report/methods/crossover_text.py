"""Format the predicted step times as sentences, as a table and as numbers."""

import math

import pandas as pd

from cpdrun.report.methods.crossover import MARGIN, Cell, Crossover, Panel
from cpdrun.report.tables import BITS_A_PARAMETER, Shown, show_bits
from cpdrun.study.study import Study
from cpdrun.study.verdicts import MARKS


def sentences(study: Study, found: Crossover) -> list[str]:
    """Return where a plain sum is fastest, which methods are fastest elsewhere, and the assumptions."""
    lines = []
    for panel in found.panels:
        where = f"{panel.facet.label}: " if panel.facet.label else ""
        lines.append(where + _winners(study, panel))
        lines += [f"Not predicted: {'; '.join(panel.missing)}."] if panel.missing else []
    work, about = found.calibration.workload, found.calibration.about
    lines.append(
        f"Predicted, not measured: {work.values:,} parameters, {_ms(work.compute_s)} ms of computing a step "
        f"({about.get('device', 'unknown device')}, {about.get('threads', '?')} threads), the exchange after it and "
        f"not behind it; within {100 * MARGIN:.0f} % counts as equally fast."
    )
    return lines


def _winners(study: Study, panel: Panel) -> str:
    winners = {network: panel.winner(network) for network in panel.networks}
    plain: dict[str, list[str]] = {}
    for network, cell in winners.items():
        if cell is not None and cell.group.method.is_plain:
            plain.setdefault(cell.name, []).append(network)
    within = f"of the methods certified to be at most {study.margin_text} worse than {study.baseline_name}"
    if plain:
        first = "; ".join(f"plain {name} wins on {_listed(networks)}" for name, networks in plain.items())
        first = f"{first[0].upper()}{first[1:]}, {within}."
    elif any(winners.values()):
        first = f"Plain fp32 and bf16 win on none of these networks, {within}."
    else:
        return f"No method is certified to do as well as {study.baseline_name}, so none wins."
    others = []
    for network, cell in winners.items():
        if cell is None or cell.group.method.is_plain:
            continue
        against = panel.plain(network)
        times = f", {against.step_s / cell.step_s:.2g} times as fast as {against.name}" if against else ""
        others.append(f"{network}: {cell.name}, {_ms(cell.step_s)} ms a step{times}")
    lines = [first, f"Fastest elsewhere: {'; '.join(others)}."] if others else [first]
    open_: dict[str, list[str]] = {}
    for network in winners:
        for cell in panel.faster_but_open(network):
            open_.setdefault(cell.name, []).append(network)
    if open_:
        names = "; ".join(f"{name} on {_listed(networks)}" for name, networks in open_.items())
        lines.append(f"Faster, but open: {names}.")
    return " ".join(lines)


def shown(study: Study, found: Crossover) -> Shown:
    """Return a table with a row for each method, fewest bits first.

    The columns are the milliseconds of a step on each network, with the winner marked, and the seconds to the
    baseline's loss if any method's curves reach it.
    """
    networks, several = found.panels[0].networks, len(found.panels) > 1
    in_time = any(math.isfinite(cell.to_loss_s) for panel in found.panels for cell in panel.cells)
    header = [*(["setting"] if several else []), "method", "bits a parameter a step", "verdict"]
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


def numbers(study: Study, found: Crossover) -> pd.DataFrame:
    """Return a table of numbers with a row for each method and network."""
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


def _listed(names: list[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)
