"""From which batch, and from which model, more devices pay: over cells that differ in that alone."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from hpcml.analysis.equivalence import INDICATIVE_BELOW
from hpcml.analysis.scaling_cells import STRONG_SIZE, WEAK_SIZE
from hpcml.analysis.scaling_conclusions import pays, percent
from hpcml.analysis.scaling_counts import one_or_many
from hpcml.scaling import ScalingCell, ScalingPoint

_MODEL = "model"
_Rest = tuple[tuple[str, str], ...]


def pays_from(cells: Sequence[ScalingCell], least_efficiency: float) -> list[str]:
    """Return a sentence for each number of devices in each row of cells that differ in a batch or a model alone.

    Models go by their operations for a sample, as programs counted them; without that nothing is said of models.
    """
    said = []
    for kind in ("strong", "weak"):
        for size in (STRONG_SIZE if kind == "strong" else WEAK_SIZE, _MODEL):
            rows = _rows([cell for cell in cells if cell.kind == kind], size)
            for rest, row in rows.items():
                told = _told_apart(rest, list(rows))
                said += [f"{told}{sentence}" for sentence in _over_sizes(size, row, least_efficiency)]
    return said


def _rows(cells: Sequence[ScalingCell], size: str) -> Mapping[_Rest, list[ScalingCell]]:
    """Return cells in the order of their *size*, where there are two or more that are alike in all else."""
    rows: dict[_Rest, list[ScalingCell]] = defaultdict(list)
    for cell in cells:
        if size in cell.where and (size != _MODEL or cell.flops_per_sample is not None):
            own = (size, f"{_MODEL}.") if size == _MODEL else (size,)
            rows[tuple(item for item in cell.where.items() if not item[0].startswith(own))].append(cell)
    return {
        rest: sorted(row, key=lambda cell: cell.flops_per_sample or 0.0 if size == _MODEL else float(cell.where[size]))
        for rest, row in rows.items()
        if 1 < len(row) == len({cell.where[size] for cell in row})
    }


def _over_sizes(size: str, row: Sequence[ScalingCell], least_efficiency: float) -> list[str]:
    said = []
    for devices in sorted({point.devices for cell in row for point in cell.points}):
        found = [(cell, point) for cell in row for point in cell.points if point.devices == devices]
        found = [(cell, point) for cell, point in found if cell.reference is not None and devices > cell.reference]
        if len(found) > 1:
            verdicts = [(_name(cell, size), pays(point, least_efficiency), point) for cell, point in found]
            words = one_or_many(devices, row[0].over)
            said.append(f"{devices} {words} {_verdict(size, verdicts, is_one=devices == 1)}")
    return said


def _verdict(size: str, verdicts: Sequence[tuple[str, bool, ScalingPoint]], *, is_one: bool) -> str:
    pay = "pays" if is_one else "pay"
    paying = [name for name, does, _ in verdicts if does]
    others = [name for name, does, _ in verdicts if not does]
    if not paying:
        return f"{'is' if is_one else 'are'} shown to pay at no {size} tried ({', '.join(others)})"
    rest = f"; not shown at {', '.join(others)}" if others else ", the smallest tried"
    first = next(at for at, (_, does, _) in enumerate(verdicts) if does)
    if not all(does for _, does, _ in verdicts[first:]):
        return f"{pay} at {size} {', '.join(paying)}{rest}"
    name, _, point = verdicts[first]
    few = f", n={point.n}: indicative only" if point.n < INDICATIVE_BELOW else ""
    return f"{pay} from {size} {name} on (efficiency {percent(point.efficiency, point.efficiency_ci95)}{few}){rest}"


def _name(cell: ScalingCell, size: str) -> str:
    flops = cell.flops_per_sample
    return f"{cell.where[size]} ({flops / 1e6:.3g} MFLOP a sample)" if size == _MODEL and flops else cell.where[size]


def _told_apart(rest: _Rest, all_rests: Sequence[_Rest]) -> str:
    """Return what tells a row of cells from the other rows, or "" for a single one."""
    rows = [dict(each) for each in all_rests]
    telling = [key for key, _ in rest if len({row.get(key) for row in rows}) > 1]
    words = [f"{key} {value}" for key, value in rest if key in telling]
    return f"{', '.join(words)}: " if words else ""
