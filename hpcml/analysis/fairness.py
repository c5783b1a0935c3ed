"""What else differs between runs that are to be compared: what forbids it, what is only worth knowing.

Settings make cells of their own (`hpcml.analysis.cells`); what is left here are facts, which nobody chose, and settings
that were allowed to be mixed. A fact is binding where it may move the metric or the time of all runs that have it: the
device with its caps and its state, the software. Others are noted: which node of several alike it was, the commit.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from hpcml.analysis.factor import SOFTWARE, Factor, show, suggest
from hpcml.comparison import Discrepancy, Occurrence
from hpcml.errors import ComparisonError
from hpcml.records import RunRecord
from hpcml.spec import changes_results

_BOOKKEEPING = frozenset({"seed", "experiment"})  # seeds are what is averaged over
_JUDGEMENT = "objective."  # how runs are judged, not what they are; checked where it is used
_BINDING_FACTS = (
    *("device", "gpu_model", "n_gpus", "gpu_driver", "gpu_power_limit_w", "gpu_max_sm_mhz", "gpu_ecc"),
    *("cpu_model", "threads", *SOFTWARE, "image_sha256"),
    *("gpu_shared", "thermal_throttling", "precision_effective"),
)
_NOTED_FACTS = (
    *("hostname", "git_commit", "git_dirty", "kernel", "python", "cpu_capability"),
    "power_throttling",  # under one cap it is what the arm itself does: a precision that draws more is slowed more
)
# Known of a run only if it was measured beside it, or probed: not to know it is no difference, the rows flag it.
_MEASURED = frozenset({"gpu_shared", "thermal_throttling", "power_throttling", "precision_effective"})
_THROTTLED_FROM = 0.01  # of the time
_WORDS = {
    "driver": "gpu_driver",
    "image": "image_sha256",
    "power": "gpu_power_limit_w",
    "clocks": "gpu_max_sm_mhz",
    "throttling": "thermal_throttling",
    "shared": "gpu_shared",
    "gpu": "gpu_model",
    "cpu": "cpu_model",
}  # of --allow, for facts with longer names

_PLAIN = {str, int, float, bool, type(None)}  # others are compared as they are written
_Read = Callable[[RunRecord], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Differences:
    """What is not alike in a cell besides the factor."""

    forbidding: tuple[Discrepancy, ...]
    noted: tuple[Discrepancy, ...]


def find_differences(factor: Factor, runs: Sequence[RunRecord], settings: Collection[str] | None = None) -> Differences:
    """Return what differs among *runs* of one cell; of settings, only among *settings* where they are given.

    What the factor owns may change from level to level, but not within a level: else one row would be two arms.
    """
    forbidding: list[Discrepancy] = []
    noted: list[Discrepancy] = []
    for key, kind, read in _questions(settings_of(runs) if settings is None else settings):
        discrepancy = _discrepancy(factor, key, kind, read, runs)
        if discrepancy is None:
            continue
        if key in _NOTED_FACTS:
            noted.append(discrepancy)
        elif not factor.owns(key) or _differs_within_a_level(factor, read, runs):
            forbidding.append(discrepancy)
        elif not factor.is_about(key) and key not in _MEASURED:
            noted.append(discrepancy)  # goes with the factor, under another name
    return Differences(forbidding=tuple(forbidding), noted=tuple(noted))


def settings_of(runs: Sequence[RunRecord]) -> list[str]:
    """Return the settings of *runs* that may change what they compute, in order."""
    keys: set[str] = set().union(*(run.params for run in runs))
    return sorted(key for key in keys - _BOOKKEEPING if not key.startswith(_JUDGEMENT) and changes_results(key))


def differing(runs: Sequence[RunRecord], keys: Iterable[str]) -> list[str]:
    """Return which of the settings *keys* are not alike in all *runs*."""
    params = [run.params for run in runs]  # asked a million times for ten thousand runs: without a call for each
    return [
        key
        for key in keys
        if not are_alike([of.get(key) for of in params]) and not are_alike(list(map(setting(key), runs)))
    ]


def find_allowed(words: Collection[str], runs: Sequence[RunRecord]) -> frozenset[str]:
    """Return the settings and facts that *words* mean, or raise `ComparisonError` with what they may have meant."""
    known = {*settings_of(runs), *_BINDING_FACTS, *_WORDS}
    found = set()
    for word in words:
        keys = [key for key in (word, f"{word}.name") if key in known]
        if not keys:
            near = suggest(word, sorted(known)) or f"facts are {', '.join(_BINDING_FACTS)}"
            raise ComparisonError(f"allow={word}: no setting of these runs and no fact that forbids; {near}")
        found.add(_WORDS.get(keys[0], keys[0]))
    return frozenset(found)


def setting(key: str) -> _Read:
    """Return how to read the setting *key*; in words of a user's own program the run's own seed is no difference."""
    if key.startswith("workload."):
        return lambda run: _without_seed(run.params.get(key), run.seed)
    return lambda run: run.params.get(key)


def are_alike(values: Sequence[object]) -> bool:
    """Whether all *values* are one value, as nearly all settings of nearly all comparisons are."""
    if not values or values.count(values[0]) < len(values):
        return False
    kinds = set(map(type, values))  # True == 1, and yet it is another setting
    return len(kinds) == 1 and kinds <= _PLAIN


def _questions(settings: Iterable[str]) -> Iterator[tuple[str, Literal["setting", "fact"], _Read]]:
    for key in settings:
        yield key, "setting", setting(key)
    for key in (*_BINDING_FACTS, *_NOTED_FACTS):
        yield key, "fact", _fact(key)


def _without_seed(value: object, seed: int) -> object:
    if not isinstance(value, str):
        return value
    return re.sub(rf"(?i)(seed[\s=:_/-]{{1,3}}){seed}(?!\w)", r"\1{seed}", value)


def _fact(key: str) -> _Read:  # noqa: PLR0911 - one for each kind
    if key == "git_commit":
        return lambda run: run.git_commit
    if key == "git_dirty":
        return lambda run: run.git_dirty
    if key == "precision_effective":
        return lambda run: run.precision_effective
    if key == "gpu_shared":
        return lambda run: _yes(run.usage.energy_scope == "shared" if run.usage and run.usage.energy_scope else None)
    if key == "thermal_throttling":
        return lambda run: _is_throttled(run.usage.throttled_thermal_share if run.usage else None)
    if key == "power_throttling":
        return lambda run: _is_throttled(run.usage.throttled_power_share if run.usage else None)
    return lambda run: run.facts.get(key)


def _is_throttled(share: float | None) -> str | None:
    return _yes(None if share is None else share >= _THROTTLED_FROM)


def _yes(value: bool | None) -> str | None:  # noqa: FBT001 - the answer itself
    return None if value is None else "yes" if value else "no"


def _discrepancy(
    factor: Factor, key: str, kind: Literal["setting", "fact"], read: _Read, runs: Sequence[RunRecord]
) -> Discrepancy | None:
    if key == factor.key or are_alike(list(map(read, runs))):
        return None
    levels: dict[str, list[str]] = defaultdict(list)
    for run in runs:
        value = read(run)
        if value is None and key in _MEASURED:
            continue
        levels["not recorded" if kind == "fact" and value is None else show(value)].append(factor.level(run))
    if len(levels) < 2:
        return None
    occurrences = tuple(
        Occurrence(value=value, n_runs=len(of), levels=tuple(sorted(set(of), key=factor.sort_key)))
        for value, of in sorted(levels.items(), key=lambda item: (-len(item[1]), item[0]))
    )
    return Discrepancy(key=key, kind=kind, occurrences=occurrences)


def _differs_within_a_level(factor: Factor, read: _Read, runs: Sequence[RunRecord]) -> bool:
    values: dict[str, set[str]] = defaultdict(set)
    for run in runs:
        values[factor.level(run)].add(show(read(run)))
    return any(len(of) > 1 for of in values.values())
