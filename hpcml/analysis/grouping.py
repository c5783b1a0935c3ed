"""Which runs stand behind each cell and level of a comparison, also where there is none."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from hpcml.analysis.cells import find_cells
from hpcml.analysis.factor import CELL_GROUPS, Factor, find_factor, show
from hpcml.analysis.fairness import setting
from hpcml.comparison import Comparison
from hpcml.publication import Group, Level
from hpcml.records import RunRecord
from hpcml.states import State

_Where = tuple[tuple[str, str], ...]


def group_runs(runs: Sequence[RunRecord], by: str, comparison: Comparison | None) -> tuple[Group, ...]:
    """Return *runs* as *comparison* sorted them, cell by cell; without one as it would have sorted them.

    The runs that count are those whose numbers the comparison is made of; without one, those that completed.
    """
    factor = find_factor(by, runs)
    if comparison is None:
        return tuple(_group(factor, cell.where, cell.runs, set()) for cell in find_cells(factor, runs))
    refused = {run.uid for cell in comparison.cells for run in cell.excluded}
    wheres: list[_Where] = [tuple(cell.where.items()) for cell in comparison.cells]
    return tuple(_group(factor, where, [run for run in runs if _is_in(run, where)], refused) for where in wheres)


def _group(factor: Factor, where: _Where, runs: Sequence[RunRecord], refused: set[str]) -> Group:
    by_level: defaultdict[str, list[RunRecord]] = defaultdict(list)
    for run in runs:
        by_level[factor.level(run)].append(run)
    levels = [
        Level(
            name=level,
            uids=tuple(run.uid for run in by_level[level]),
            counted=tuple(r.uid for r in by_level[level] if r.state is State.COMPLETED and r.uid not in refused),
        )
        for level in sorted(by_level, key=factor.sort_key)
    ]
    return Group(where=dict(where), levels=tuple(levels))


def _is_in(run: RunRecord, where: _Where) -> bool:
    for name, value in where:
        own = run.params.get(f"{name}.name") if name in CELL_GROUPS else setting(name)(run)
        if show(own) != value:
            return False
    return True
