"""What the predicted step times say: the sentence, the table as shown, the numbers."""

import math

import pandas as pd

from cpdrun.report.methods.crossover import MARGIN, Cell, Crossover, Panel
from cpdrun.report.tables import BITS_A_PARAMETER, Shown, show_bits
from cpdrun.report.verdict import tolerance
from cpdrun.study.groups.verdicts import MARKS
from cpdrun.study.study import Study


def sentences(study: Study, found: Crossover) -> list[str]:
    """Where a plain sum wins first of all, then who wins elsewhere; what is predicted from what; what is missing."""
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
    within = f"of the methods within {tolerance(study)} of {study.baseline_name}"
    if plain:
        first = "; ".join(f"plain {name} wins on {_listed(networks)}" for name, networks in plain.items())
        first = f"{first[0].upper()}{first[1:]}, {within}."
    elif any(winners.values()):
        first = f"Plain fp32 and bf16 win on none of these networks, {within}."
    else:
        return f"No method has been shown to do as well as {study.baseline_name}: nobody wins."
    others = []
    for network, cell in winners.items():
        if cell is None or cell.group.method.is_plain:
            continue
        against = panel.plain(network)
        times = f", {against.step_s / cell.step_s:.2g} times as fast as {against.name}" if against else ""
        others.append(f"{network}: {cell.name}, {_ms(cell.step_s)} ms a step{times}")
    return " ".join([first, *([f"Fastest elsewhere: {'; '.join(others)}."] if others else [])])


def shown(study: Study, found: Crossover) -> Shown:
    """A row a method, fewest bits first; milliseconds of a step on each network, the winner marked; then seconds to the
    baseline's loss, where the curves say it."""
    networks, several = found.panels[0].networks, len(found.panels) > 1
    in_time = any(math.isfinite(cell.to_loss_s) for panel in found.panels for cell in panel.cells)
    header = [*(["setting"] if several else []), "method", "bits a parameter a step", "as good"]
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
            row += [show_bits(first.group.bits_a_parameter), _as_good(study, first)]
            row += [_marked(panel, cells[network]) for network in networks]
            row += [_seconds(cells[network].to_loss_s) for network in networks] if in_time else []
            rows.append(row)
    return Shown(header, rows, 2 if several else 1)


def numbers(study: Study, found: Crossover) -> pd.DataFrame:
    """A row a method and network."""
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
                    "is_within": cell.is_within,
                    "verdict": str(judged.verdict) if (judged := study.judged.get(cell.group)) else "",
                    "wins": cell is panel.winner(cell.network),
                }
            )
    return pd.DataFrame(rows)


def _as_good(study: Study, cell: Cell) -> str:
    mark = MARKS[judged.verdict] if (judged := study.judged.get(cell.group)) else ""
    return " ".join(["yes" if cell.is_within else "no", *([mark] if mark else [])])


def _marked(panel: Panel, cell: Cell) -> str:
    return f"{_ms(cell.step_s)} (fastest)" if cell is panel.winner(cell.network) else _ms(cell.step_s)


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.3g}" if seconds < 1 else f"{1e3 * seconds:.0f}"


def _seconds(seconds: float) -> str:
    return f"{seconds:.3g}" if math.isfinite(seconds) else "-"


def _listed(names: list[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)
