"""Runs sorted into cells: alike in every setting but the compared one, so that only this can make a difference.

Used by `hpcml compare` (`find_cells`) and by `hpcml report` (`group_runs`: the runs behind each row, whether or not a
comparison was possible).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from hpcml.analysis.compare.factor import CELL_GROUPS, Factor, find_factor, find_seeds, natural
from hpcml.analysis.compare.fairness import ITS_SEED, differing, setting, settings_of
from hpcml.analysis.compare.result import Comparison, Level, ReportGroup
from hpcml.errors import ComparisonError
from hpcml.model.metric_goal import goal_by_name, is_duration_or_rate
from hpcml.model.own_program import says_nothing
from hpcml.model.records import RunRecord
from hpcml.model.state import State
from hpcml.model.told_apart import show

_DIGITS = 18  # of a seed
_RULES = "workload.metrics"  # by which metrics are read of what a program prints
Where = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CellRuns:
    """The runs of one cell, and the settings that tell it from other cells."""

    where: Where  # the config groups, then each setting by which runs of these groups are told apart
    runs: tuple[RunRecord, ...]
    mixed: tuple[str, ...]  # settings that differ within it: the factor's own, and those that were allowed to
    seed: int | None = None  # the one seed of all, where each run is a unit and its `seed` is a number of its own

    @property
    def name(self) -> str:
        """The settings of the cell in one line, e.g. "model=resnet, data=digits"."""
        return ", ".join(f"{key}={value}" for key, value in self.where)


def find_cells(factor: Factor, runs: Sequence[RunRecord], allowed: Collection[str] | None = ()) -> list[CellRuns]:
    """Return the cells of *runs*, sorted by their settings with numbers by size.

    Runs that differ in a setting lie in different cells, except for the factor itself, the settings that follow from it
    (`Factor.owns`), and those in *allowed*. With *allowed* None any setting may differ, and only the config groups
    (model, data, strategy ...) make cells.
    """
    names = [name for name in CELL_GROUPS if name not in factor.groups]
    by_groups: dict[Where, list[RunRecord]] = defaultdict(list)
    for run in runs:
        by_groups[tuple((name, _chosen(run, name)) for name in names)].append(run)
    found: list[CellRuns] = []
    for where, members in by_groups.items():
        keys = differing(members, settings_of(members))
        splitting = [key for key in keys if allowed is not None and key not in allowed and not factor.owns(key)]
        read = [run for run in members if run.metrics] if _RULES in splitting else []
        if len({show(run.params.get(_RULES)) for run in read}) == 1:
            splitting.remove(_RULES)  # runs of which nothing was read say nothing by other rules: they make no cell
        mixed = tuple(key for key in keys if key not in splitting)
        found += [
            CellRuns(where=where + more, runs=tuple(alike), mixed=mixed)
            for more, alike in _split(members, splitting).items()
        ]
    return sorted(found, key=lambda group: [(natural(value), value) for _, value in group.where])


def with_repeats_as_units(cell: CellRuns, metric: str, goal: str | None) -> CellRuns:
    """Return *cell* with each run as a unit of its own where *metric* is a time and all runs are repeats of one seed.

    What differs from run to run of a program is how long it takes, and that is asked for: a seed more would be the same
    work. Of what a program learns, repeats of a seed say nothing about others; there the seed stays the unit, as of
    a time that is to be long (how long an agent survives).
    """
    seeds = {run.seed for run in cell.runs}
    usual = goal_by_name(metric)
    if len(seeds) != 1 or not is_duration_or_rate(metric) or usual is None or usual.name != goal:
        return cell
    in_order = sorted(cell.runs, key=lambda run: run.uid)
    own = {run.uid: replace(run, seed=number) for number, run in enumerate(in_order)}
    return replace(cell, runs=tuple(own[run.uid] for run in cell.runs), seed=seeds.pop())


def with_seeds_from(word: str, runs: Sequence[RunRecord]) -> list[RunRecord]:
    """Return *runs* with the setting that *word* names as their seed; it is none of their settings then.

    Values that are no whole numbers are numbered in their order. Raises `ComparisonError` where no run has such a
    setting or some have not, where it is the same in all, and where the runs have several seeds besides.
    """
    key = find_seeds(word, runs)
    values = [run.params.get(key) for run in runs]
    texts = sorted({show(value) for value in values}, key=natural)
    if lacking := sum(value is None for value in values):
        raise ComparisonError(f"--seed {word}: {lacking} of {len(runs)} runs have none: leave them out with --where")
    if len(texts) == 1:
        raise ComparisonError(f"--seed {word}: all runs have {texts[0]}")
    if len(own := sorted({run.seed for run in runs})) > 1:
        raise ComparisonError(f"--seed {word}: these runs have several seeds besides; --where seed={own[0]} takes one")
    are_numbers = all(text.isascii() and text.isdecimal() and len(text) <= _DIGITS for text in texts)
    numbers = {text: int(text) if are_numbers else place for place, text in enumerate(texts)}
    return [
        replace(
            run,
            seed=numbers[show(value)],
            params={name: setting for name, setting in run.params.items() if name != key},
        )
        for run, value in zip(runs, values, strict=True)
    ]


def _split(runs: Sequence[RunRecord], keys: Sequence[str]) -> dict[Where, list[RunRecord]]:
    """Return *runs* by their values of *keys*; equal numbers written differently (64, 64.0) are one value."""
    reads = {key: setting(key, runs) for key in keys}
    values = {key: [show(read(run)) for run in runs] for key, read in reads.items()}
    keys = [key for key in keys if len(set(values[key])) > 1]
    cells: dict[Where, list[RunRecord]] = defaultdict(list)
    for at, run in enumerate(runs):
        cells[tuple((key, values[key][at]) for key in keys)].append(run)
    return cells


def _chosen(run: RunRecord, group: str) -> str:
    """Return the option of a config group; "not set" where that says nothing of the user's own program."""
    key = f"{group}.name"
    return show(None if says_nothing(run.params, key) else run.params.get(key))


def group_runs(runs: Sequence[RunRecord], by: str, comparison: Comparison | None) -> tuple[ReportGroup, ...]:
    """Return *runs* in the cells and levels of *comparison*; where that is None, sorted anew by the setting *by*.

    `Level.counted` are the runs whose numbers the comparison is made of; without a comparison those that completed.
    """
    factor = find_factor(by, runs)
    if comparison is None:
        return tuple(_group(factor, cell.where, cell.runs, None) for cell in find_cells(factor, runs))
    refused = {run.uid for cell in comparison.cells for run in cell.excluded}
    left_out = {run.uid for run in comparison.excluded}
    runs = [run for run in runs if run.uid not in left_out]
    wheres: list[Where] = [tuple(cell.where.items()) for cell in comparison.cells]
    return tuple(_group(factor, where, [run for run in runs if _is_in(run, where)], refused) for where in wheres)


def _group(factor: Factor, where: Where, runs: Sequence[RunRecord], refused: set[str] | None) -> ReportGroup:
    by_level: defaultdict[str, list[RunRecord]] = defaultdict(list)
    for run in runs:
        by_level[factor.level(run)].append(run)
    levels = [
        Level(
            name=level,
            uids=tuple(run.uid for run in by_level[level]),
            counted=tuple(
                run.uid
                for run in by_level[level]
                if (run.state is State.COMPLETED if refused is None else run.uid not in refused)
            ),
        )
        for level in sorted(by_level, key=factor.sort_key)
    ]
    return ReportGroup(where=dict(where), levels=tuple(levels))


def _is_in(run: RunRecord, where: Where) -> bool:
    for name, value in where:
        if value == ITS_SEED and str(run.params.get(name)) == str(run.seed):
            continue
        own = _chosen(run, name) if name in CELL_GROUPS else show(setting(name, ())(run))
        if own != value:
            return False
    return True
