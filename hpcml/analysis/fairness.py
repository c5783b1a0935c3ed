"""What else differs between runs that are to be compared: what forbids it, what is only worth knowing."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from hpcml.analysis.factor import Factor, show
from hpcml.comparison import Discrepancy, Occurrence
from hpcml.records import RunRecord
from hpcml.spec import changes_results

_BOOKKEEPING = frozenset({"seed", "experiment"})  # seeds are what is averaged over
_JUDGEMENT = "objective."  # how runs are judged, not what they are; checked where it is used
_BINDING_FACTS = ("device", "gpu_model", "cpu_model", "torch", "threads")
_NOTED_FACTS = (
    *("hostname", "git_commit", "git_dirty", "gpu_driver", "kernel", "cuda", "cudnn", "cpu_capability"),
    "image_sha256",
)

_PLAIN = (str, int, float, bool, type(None))
_Read = Callable[[RunRecord], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Differences:
    """What is not alike in a cell besides the factor."""

    forbidding: tuple[Discrepancy, ...]
    noted: tuple[Discrepancy, ...]


def find_differences(factor: Factor, runs: Sequence[RunRecord]) -> Differences:
    """Return what differs among *runs* of one cell.

    What the factor owns may change from level to level, but not within a level: else one row would be two arms.
    """
    forbidding: list[Discrepancy] = []
    noted: list[Discrepancy] = []
    for key, kind, read in _questions(runs):
        discrepancy = _discrepancy(factor, key, kind, read, runs)
        if discrepancy is None:
            continue
        if key in _NOTED_FACTS:
            noted.append(discrepancy)
        elif not factor.owns(key) or _differs_within_a_level(factor, read, runs):
            forbidding.append(discrepancy)
        elif factor.group is None or not key.startswith(f"{factor.group}."):
            noted.append(discrepancy)  # goes with the factor, under another name
    return Differences(forbidding=tuple(forbidding), noted=tuple(noted))


def _questions(runs: Sequence[RunRecord]) -> Iterable[tuple[str, Literal["setting", "fact"], _Read]]:
    keys = {key for run in runs for key in run.params if not key.startswith(_JUDGEMENT)}
    for key in sorted(key for key in keys - _BOOKKEEPING if changes_results(key)):
        yield key, "setting", _setting(key)
    for key in (*_BINDING_FACTS, *_NOTED_FACTS):
        yield key, "fact", _fact(key)


def _setting(key: str) -> _Read:
    return lambda run: run.params.get(key)


def _fact(key: str) -> _Read:
    if key == "git_commit":
        return lambda run: run.git_commit
    if key == "git_dirty":
        return lambda run: run.git_dirty
    return lambda run: run.facts.get(key)


def _discrepancy(
    factor: Factor, key: str, kind: Literal["setting", "fact"], read: _Read, runs: Sequence[RunRecord]
) -> Discrepancy | None:
    if key == factor.key or _are_alike(map(read, runs)):
        return None
    levels: dict[str, list[str]] = defaultdict(list)
    for run in runs:
        value = read(run)
        levels["not recorded" if kind == "fact" and value is None else show(value)].append(factor.level(run))
    if len(levels) < 2:
        return None
    occurrences = tuple(
        Occurrence(value=value, n_runs=len(of), levels=tuple(sorted(set(of), key=factor.sort_key)))
        for value, of in sorted(levels.items(), key=lambda item: (-len(item[1]), item[0]))
    )
    return Discrepancy(key=key, kind=kind, occurrences=occurrences)


def _are_alike(values: Iterable[object]) -> bool:
    """Whether all *values* are one plain value, as nearly all settings of nearly all comparisons are."""
    values = iter(values)
    first = next(values, None)
    kind = type(first)
    return kind in _PLAIN and all(type(value) is kind and value == first for value in values)


def _differs_within_a_level(factor: Factor, read: _Read, runs: Sequence[RunRecord]) -> bool:
    values: dict[str, set[str]] = defaultdict(set)
    for run in runs:
        values[factor.level(run)].add(show(read(run)))
    return any(len(of) > 1 for of in values.values())
