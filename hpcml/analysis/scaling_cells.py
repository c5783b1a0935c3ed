"""Runs sorted into cells in which only the number of devices differs: one batch for all, or one for each."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from hpcml.analysis import fairness
from hpcml.analysis.factor import GROUPS, natural, show
from hpcml.analysis.scaling_counts import Counted, Over, count, counted
from hpcml.records import RunRecord
from hpcml.scaling import Kind

BATCH = "training.batch_size"
STRONG_SIZE, WEAK_SIZE = "batch size", "batch size a device"  # what the batch is called in a cell's `where`
_NAMES = tuple(f"{group}.name" for group in GROUPS)
_SINGLE = "single"
_STRATEGY = "strategy."
Settings = Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """The runs of one cell by number of devices."""

    kind: Kind
    settings: Settings  # all that are alike in the cell
    where: Settings  # the groups of settings, the batch, and what else tells this cell from another
    size: Fraction | None  # of the batch: global in strong scaling, of one device in weak; None: not configured
    factor: Counted
    by_count: Mapping[int, tuple[RunRecord, ...]]

    @property
    def runs(self) -> list[RunRecord]:
        """All runs, by number of devices."""
        return [run for runs in self.by_count.values() for run in runs]


def settings_of(runs: Sequence[RunRecord], *, but: Collection[str] = ()) -> dict[str, Settings]:
    """Return by uid, as text and without *but*, the names of the groups and the settings that differ among *runs*.

    Only settings that may change what runs compute, or how fast, are looked at.
    """
    keys = {*fairness.differing(runs, fairness.settings_of(runs)), *_NAMES} - set(but)
    reads = {key: fairness.setting(key) for key in sorted(keys)}
    return {run.uid: {key: show(read(run)) for key, read in reads.items()} for run in runs}


def differing(settings: Sequence[Settings]) -> list[str]:
    """Return the keys that tell *settings* from each other; those that follow from a group's name are left out."""
    keys = sorted({key for each in settings for key in each})
    return [
        key
        for key in keys
        if len({each.get(key) for each in settings}) > 1 and not _follows_from_its_name(key, settings)
    ]


def find_groups(
    runs: Sequence[RunRecord], over: Over, wanted: Literal["strong", "weak", "auto"], allowed: Collection[str] = ()
) -> list[Group]:
    """Return the cells with two numbers of devices or more; a run may lie in a strong and in a weak one.

    Settings among *allowed* make no cell of their own.
    """
    settings = settings_of(runs, but={BATCH, *allowed})
    strong = [] if wanted == "weak" else _of_kind("strong", runs, settings, over)
    weak = [] if wanted == "strong" else _of_kind("weak", runs, settings, over)
    if wanted == "auto":  # runs of several batches hold weak pairs by accident: three numbers are no accident
        known = {run.uid for group in strong for run in group.runs}
        weak = [group for group in weak if len(group.by_count) > 2 or any(run.uid not in known for run in group.runs)]
    return [*strong, *weak]


def _of_kind(kind: Kind, runs: Sequence[RunRecord], settings: Mapping[str, Settings], over: Over) -> list[Group]:
    factor = counted(over, is_weak=kind == "weak")
    found = [
        (dict(alike), size, members)
        for (alike, size), members in _sorted_out(runs, settings, factor).items()
        if len({count(run, over) for run in members}) > 1
    ]
    telling = [key for key in differing([alike for alike, _, _ in found]) if not key.endswith(".name")]
    groups = [_group(kind, alike, size, factor, members, telling) for alike, size, members in found]
    return sorted(groups, key=lambda group: [natural(word) for word in group.where.values()])


_Key = tuple[tuple[tuple[str, str], ...], Fraction | None]


def _sorted_out(
    runs: Sequence[RunRecord], by_uid: Mapping[str, Settings], factor: Counted
) -> dict[_Key, list[RunRecord]]:
    """Return runs that are alike in all that *factor* does not own and in the batch's size.

    A single process is the common start of all strategies that share the work: it joins each of them.
    """
    across = factor.over is not Over.threads
    joining: dict[_Key, list[RunRecord]] = defaultdict(list)
    sharing: dict[_Key, dict[tuple[tuple[str, str], ...], list[RunRecord]]] = defaultdict(lambda: defaultdict(list))
    for run in runs:
        number = count(run, factor.over)
        size = _size(run, number, is_weak=factor.is_weak)
        if number is None or (factor.is_weak and size is None):
            continue
        settings = by_uid[run.uid]
        strategy = {key: value for key, value in settings.items() if across and key.startswith(_STRATEGY)}
        base = tuple(item for item in settings.items() if item[0] not in strategy and not factor.owns(item[0]))
        kind = tuple((k, v) for k, v in strategy.items() if k == f"{_STRATEGY}name" or not factor.owns(k))
        if across and strategy.get(f"{_STRATEGY}name") == _SINGLE:
            joining[base, size].append(run)
        else:
            sharing[base, size][kind].append(run)
    sorted_out: dict[_Key, list[RunRecord]] = {}
    for (base, size), families in sharing.items():
        for kind, members in families.items():
            sorted_out[tuple(sorted((*base, *kind))), size] = [*joining.get((base, size), ()), *members]
    return sorted_out


def _group(
    kind: Kind,
    settings: dict[str, str],
    size: Fraction | None,
    factor: Counted,
    members: Sequence[RunRecord],
    telling: Sequence[str],
) -> Group:
    where = {group: settings.get(f"{group}.name", "not set") for group in GROUPS}
    if size is not None:
        where[WEAK_SIZE if factor.is_weak else STRONG_SIZE] = show(float(size))
    where |= {key: settings.get(key, "not set") for key in telling}
    by_count: dict[int, list[RunRecord]] = defaultdict(list)
    for run in members:
        number = count(run, factor.over)
        assert number is not None  # such runs were left out before
        by_count[number].append(run)
    return Group(
        kind=kind,
        settings=settings,
        where=where,
        size=size,
        factor=factor,
        by_count={number: tuple(runs) for number, runs in sorted(by_count.items())},
    )


def _size(run: RunRecord, number: int | None, *, is_weak: bool) -> Fraction | None:
    batch = run.params.get(BATCH)
    if not isinstance(batch, int | float) or batch <= 0:
        return None
    return Fraction(batch) / (number or 1) if is_weak else Fraction(batch)


def _follows_from_its_name(key: str, settings: Sequence[Settings]) -> bool:
    """Whether *key* belongs to a group (model.recipe) and never differs between two that have the same name."""
    group, _, rest = key.partition(".")
    if group not in GROUPS or rest == "name":
        return False
    by_name: dict[str | None, set[str | None]] = defaultdict(set)
    for each in settings:
        by_name[each.get(f"{group}.name")].add(each.get(key))
    return all(len(values) == 1 for values in by_name.values())
