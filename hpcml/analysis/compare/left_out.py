"""Runs of the compared arms that a selection left out, and what becomes of verdicts that do not hold with them.

Who names runs, or selects by their state or by a metric, may have chosen the good ones, and no test of the chosen knows
it. So a claim about a part of an arm has to hold of all of it too. An arm is known by its settings and by what may
change its results: code, packages, hardware. Runs of another version of the program are no part of it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from hpcml.analysis.compare.fairness import ARM_FACTS, read_fact, setting, settings_of
from hpcml.analysis.compare.losses import BAD, GOOD
from hpcml.errors import ComparisonError
from hpcml.model.comparison import Cell, Comparison, Row, Verdict, WithAll
from hpcml.model.records import RunRecord

_Settings = tuple[str, ...]
_DOUBTS: frozenset[Verdict] = frozenset({"unstable", "not proven", "not as requested"})
_IMPLIED: Mapping[Verdict, frozenset[Verdict]] = {
    "equivalent": frozenset({"identical"}),
    "non-inferior": frozenset({"identical", "equivalent", "better"}),
    "worse": frozenset({"worse by more than the margin"}),
}


def of_the_same_arms(runs: Sequence[RunRecord], others: Sequence[RunRecord]) -> list[RunRecord]:
    """Return those of *others* that are over and are of an arm of *runs*: a seed more, or a seed once more."""
    ended = [run for run in others if run.state.is_final]
    if not ended:
        return []
    of_settings = _by_settings([*runs, *ended])
    arms: defaultdict[_Settings, list[RunRecord]] = defaultdict(list)
    for run in runs:
        arms[of_settings(run)].append(run)
    return [run for run in ended if (arm := arms.get(of_settings(run))) and _is_as(run, arm)]


def held_against_all(comparison: Comparison, whole: Comparison | ComparisonError, *, n_left_out: int) -> Comparison:
    """Return *comparison* without the claims that do not hold in *whole*, which has *n_left_out* runs more.

    Where *whole* is the reason why these cannot be compared, claims are exploratory.
    """
    if not n_left_out:
        return comparison
    if isinstance(whole, ComparisonError):
        why = f"the selection left out {_runs(n_left_out)} of these arms, and with them: {whole.args[0]}"
        rows = [[_exploratory(row, why) for row in cell.rows] for cell in comparison.cells]
    else:
        known = {(tuple(cell.where.items()), row.level): row for cell in whole.cells for row in cell.rows}
        rows = [_judged(cell, known) for cell in comparison.cells]
    cells = zip(comparison.cells, rows, strict=True)
    return replace(comparison, cells=tuple(replace(cell, rows=tuple(of)) for cell, of in cells))


def _judged(cell: Cell, known: Mapping[tuple[tuple[tuple[str, str], ...], str], Row]) -> list[Row]:
    where = tuple(cell.where.items())
    everyone = {row.level: known.get((where, row.level)) for row in cell.rows}
    of_reference = next((_n_more(row, everyone[row.level]) for row in cell.rows if row.level == cell.reference), 0)
    rows = [_held(row, everyone[row.level], of_reference, cell.reference) for row in cell.rows]
    by_losses = any(row.with_all and row.with_all.withdrawn and row.verdict == "unstable" for row in rows)
    base = everyone.get(cell.reference)
    if not by_losses or base is None:
        return rows
    return [replace(row, losses=base.losses) if row.level == cell.reference else row for row in rows]


def _held(row: Row, whole: Row | None, of_reference: int, reference: str) -> Row:
    """Return *row* with the claim that *whole*, the same row of all runs, allows."""
    own = _n_more(row, whole)
    if whole is None or row.verdict == "reference" or not (own or of_reference):
        return row
    parts = [(own, row.level), (of_reference, reference)]
    left_out = " and ".join(f"{_runs(n)} of {level}" for n, level in parts if n)
    held = WithAll(left_out=left_out, verdict=whole.verdict)
    flag = f"the selection left out {left_out}"
    both = f"{flag}: {row.verdict} without them, {whole.verdict} with them"
    if row.verdict not in GOOD | BAD:
        flags = (*row.flags, flag) if whole.verdict == row.verdict else (both, *row.flags)  # nothing else says it
        return replace(row, with_all=held, flags=flags)
    if whole.verdict in {row.verdict, *_IMPLIED.get(row.verdict, ())}:
        return replace(row, with_all=held, flags=(*row.flags, f"{flag}: with them it is {whole.verdict} too"))
    return replace(
        row,
        verdict=whole.verdict if whole.verdict in _DOUBTS else "inconclusive",
        p_claim=None,
        losses=whole.losses if whole.verdict == "unstable" else row.losses,
        flags=(*row.flags, both),
        with_all=replace(held, withdrawn=row.verdict),
    )


def _exploratory(row: Row, why: str) -> Row:
    return row if row.difference is None or row.exploratory is not None else replace(row, exploratory=why)


def _n_more(row: Row, whole: Row | None) -> int:
    """Return how many runs *whole* has more than *row*, of those that say how its arm did."""
    if whole is None:
        return 0
    return max(0, _n_telling(whole) - _n_telling(row))


def _n_telling(row: Row) -> int:
    elsewhere = 0 if row.losses is None else row.losses.n_elsewhere
    return row.n_ok + row.n_nan + row.n_without_metric + row.n_failed - elsewhere


def _runs(n: int) -> str:
    return f"{n} run{'s'[: n != 1]}"


def _by_settings(runs: Sequence[RunRecord]) -> Callable[[RunRecord], _Settings]:
    """Return what tells the settings of a run, but for its seed; runs that share them are asked once for each seed."""
    keys = settings_of(runs)
    reads = [setting(key, runs) for key in keys]
    known: dict[tuple[int, int], _Settings] = {}

    def read(run: RunRecord) -> _Settings:
        at = id(run.params), run.seed
        if at not in known:
            known[at] = tuple(repr(of(run)) for of in reads)
        return known[at]

    return read


def _is_as(run: RunRecord, arm: Sequence[RunRecord]) -> bool:
    """Tell whether no fact is known by which *run* is of another kind than all runs of *arm*."""
    for key in ARM_FACTS:
        read = read_fact(key)
        own, others = read(run), [read(each) for each in arm]
        if own is not None and None not in others and own not in others:
            return False
    return True
