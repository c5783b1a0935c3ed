"""Runs sorted into cells: alike in every setting but the factor, so that within a cell only the factor can tell."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from hpcml.analysis.factor import CELL_GROUPS, Factor, natural, show
from hpcml.analysis.fairness import differing, setting, settings_of
from hpcml.records import RunRecord

Where = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """The runs of one cell."""

    where: Where  # the config groups, then each setting by which runs of these groups are told apart
    runs: tuple[RunRecord, ...]
    mixed: tuple[str, ...]  # settings that differ within it: the factor's own, and those that were allowed to

    @property
    def name(self) -> str:
        """The cell in one line."""
        return ", ".join(f"{key}={value}" for key, value in self.where)


def find_cells(factor: Factor, runs: Sequence[RunRecord], allowed: Collection[str] | None = ()) -> list[Group]:
    """Return the cells of *runs* in natural order; settings among *allowed* make none, nor does any for None.

    A setting of which the factor is the cause (its companions) makes no cell either.
    """
    names = [name for name in CELL_GROUPS if name not in factor.groups]
    by_groups: dict[Where, list[RunRecord]] = defaultdict(list)
    for run in runs:
        by_groups[tuple((name, show(run.params.get(f"{name}.name"))) for name in names)].append(run)
    found: list[Group] = []
    for where, members in by_groups.items():
        keys = differing(members, settings_of(members))
        splitting = [key for key in keys if allowed is not None and key not in allowed and not factor.owns(key)]
        mixed = tuple(key for key in keys if key not in splitting)
        found += [
            Group(where=where + more, runs=tuple(of), mixed=mixed) for more, of in _split(members, splitting).items()
        ]
    return sorted(found, key=lambda group: [(natural(value), value) for _, value in group.where])


def _split(runs: Sequence[RunRecord], keys: Sequence[str]) -> dict[Where, list[RunRecord]]:
    """Return *runs* by their values of *keys*; what is written in two ways and means one thing (64, 64.0) is one."""
    reads = {key: setting(key) for key in keys}
    values = {key: [show(read(run)) for run in runs] for key, read in reads.items()}
    keys = [key for key in keys if len(set(values[key])) > 1]
    cells: dict[Where, list[RunRecord]] = defaultdict(list)
    for at, run in enumerate(runs):
        cells[tuple((key, values[key][at]) for key in keys)].append(run)
    return cells
