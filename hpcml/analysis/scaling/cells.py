"""The cells of `hpcml scaling`: runs in which only the number of devices differs, and what is counted as a device.

Devices are GPUs, nodes, processes or CPU threads (`Over`). In strong scaling all runs of a cell have one batch size, in
weak scaling one batch size for each device. `count` reads the number from a run, `find_groups` sorts runs into cells.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from fractions import Fraction
from typing import Any, Literal

from hpcml.analysis.compare import fairness
from hpcml.analysis.compare.factor import Factor, all_have, natural
from hpcml.analysis.scaling.result import Kind
from hpcml.errors import ComparisonError
from hpcml.model.mig import gpus_of_run
from hpcml.model.own_program import says_nothing
from hpcml.model.records import RunRecord
from hpcml.model.told_apart import GROUPS, show
from hpcml.units import one_or_many

BATCH = "training.batch_size"
STRONG_SIZE, WEAK_SIZE = "batch size", "batch size a device"  # what the batch is called in a cell's `where`
_NAMES = tuple(f"{group}.name" for group in GROUPS)
_SINGLE = "single"
_STRATEGY = "strategy."
Settings = Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingRuns:
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
    """Return by uid, as text, the names of the config groups and those settings in which *runs* differ, without *but*.

    Only settings that may change what runs compute, or how fast, are looked at.
    """
    keys = {*fairness.differing(runs, fairness.settings_of(runs)), *_NAMES} - set(but)
    reads = {key: fairness.setting(key, runs) for key in sorted(keys)}
    return {run.uid: {key: show(read(run)) for key, read in reads.items()} for run in runs}


def differing(settings: Sequence[Settings]) -> list[str]:
    """Return the keys in which *settings* differ, sorted; not those that follow from a group's name."""
    keys = sorted({key for each in settings for key in each})
    return [
        key
        for key in keys
        if len({each.get(key) for each in settings}) > 1 and not _follows_from_its_name(key, settings)
    ]


def find_groups(
    runs: Sequence[RunRecord], over: Over, wanted: Literal["strong", "weak", "auto"], allowed: Collection[str] = ()
) -> list[ScalingRuns]:
    """Return the cells with two numbers of devices or more; a run may lie in a strong and in a weak one.

    Settings in *allowed* may differ within a cell. With *wanted* "auto", weak cells are left out where they are made of
    pairs of runs that strong cells hold already.
    """
    settings = settings_of(runs, but={BATCH, *allowed})
    strong = [] if wanted == "weak" else _of_kind("strong", runs, settings, over)
    weak = [] if wanted == "strong" else _of_kind("weak", runs, settings, over)
    if wanted == "auto":  # runs of several batches hold weak pairs by accident: three numbers are no accident
        known = {run.uid for group in strong for run in group.runs}
        weak = [group for group in weak if len(group.by_count) > 2 or any(run.uid not in known for run in group.runs)]
    return [*strong, *weak]


def _of_kind(kind: Kind, runs: Sequence[RunRecord], settings: Mapping[str, Settings], over: Over) -> list[ScalingRuns]:
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
    """Return runs by the settings that *factor* does not own, and by batch size.

    A run of a single process is the common start of all strategies that share the work: it joins each of them.
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
) -> ScalingRuns:
    named = {group: f"{group}.name" for group in GROUPS}
    known = {group for group, key in named.items() if not all(says_nothing(run.params, key) for run in members)}
    where = {group: settings.get(key, "not set") if group in known else "not set" for group, key in named.items()}
    if size is not None and not all(says_nothing(run.params, BATCH) for run in members):
        where[WEAK_SIZE if factor.is_weak else STRONG_SIZE] = show(float(size))
    where |= {key: settings.get(key, "not set") for key in telling}
    by_count: dict[int, list[RunRecord]] = defaultdict(list)
    for run in members:
        number = count(run, factor.over)
        assert number is not None  # such runs were left out before
        by_count[number].append(run)
    return ScalingRuns(
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


class Over(Enum):
    """What is counted as a device, with its plural for people."""

    gpus = "GPUs"
    nodes = "nodes"
    processes = "processes"  # where there is no GPU: DDP over gloo, or a framework's logical devices
    threads = "CPU threads"


_ACROSS = frozenset({"strategy.name", "strategy.processes_per_node", "strategy.devices"})
_COMPANIONS: Mapping[Over, frozenset[str]] = {
    Over.gpus: _ACROSS | {"resources.nodes", "resources.gpus_per_node", "n_gpus"},
    Over.nodes: frozenset({"strategy.name", "resources.nodes", "n_gpus"}),
    Over.processes: _ACROSS | {"resources.nodes"},
    Over.threads: frozenset({"resources.cpus_per_task", "threads"}),
}
# In weak scaling the batch grows with the devices, and people let these go with it; a step's time depends on neither.
_WITH_THE_BATCH = frozenset({"training.batch_size", "training.learning_rate", "training.steps", "training.eval_every"})
_MORE: Mapping[Over, str] = {
    Over.gpus: "strategy=ddp resources.gpus_per_node=2,4",
    Over.nodes: "strategy=ddp resources.nodes=2,4",
    Over.processes: "strategy=ddp strategy.processes_per_node=2 resources.cpus_per_task=1",
    Over.threads: "resources.cpus_per_task=1,2,4",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted(Factor):
    """The number of devices as the compared setting; in weak scaling together with the batch that grows with it."""

    over: Over
    is_weak: bool

    def owns(self, key: str) -> bool:
        """Whether the setting or fact *key* may change along with the number of devices."""
        return key in _COMPANIONS[self.over] or (self.is_weak and key in _WITH_THE_BATCH)

    def level(self, run: RunRecord) -> str:
        """Return the number of devices of *run*."""
        return str(count(run, self.over))

    def sort_key(self, level: str) -> tuple[Any, ...]:
        """Order by number."""
        return (0, natural(level), level)


def counted(over: Over, *, is_weak: bool) -> Counted:
    """Return the factor "the number of ..." for *over*."""
    return Counted(name=f"the number of {over.value}", key="", group=None, over=over, is_weak=is_weak)


def count(run: RunRecord, over: Over) -> int | None:
    """Return how many devices *run* was given; None: not known.

    That is read from the configuration (threads also from the facts), so that failed runs have a number too.
    """
    nodes = _whole(run, "resources.nodes") or 1
    if over is Over.nodes:
        return nodes
    if over is Over.gpus:
        per_node = _gpus_per_node(run)
        return None if per_node is None else nodes * per_node
    if over is Over.processes:
        if _gpus_per_node(run) is not None:
            return None
        return nodes * (_whole(run, "strategy.processes_per_node") or 1) * (_whole(run, "strategy.devices") or 1)
    threads = run.facts.get("threads")
    return _whole(run, "resources.cpus_per_task") or (threads if isinstance(threads, int) and threads > 0 else None)


def choose_over(runs: Sequence[RunRecord], wanted: Over | None) -> Over:
    """Return what to count: *wanted*, else the first of `Over` in which *runs* differ.

    Raises `ComparisonError`, with what to do, where all runs have the same number.
    """
    for over in [wanted] if wanted is not None else Over:
        counts = {count(run, over) for run in runs} - {None}
        if len(counts) > 1:
            return over
    over = wanted or _natural_choice(runs)
    known = sorted(number for number in {count(run, over) for run in runs} if number is not None)
    others = [each for each in Over if len({count(run, each) for run in runs} - {None}) > 1]
    if known:
        what = f"{all_have(runs)} {known[0]} {one_or_many(known[0], over.value)}"
    else:
        what = (
            f"no run of {len(runs)} says on how many {'GPUs or CPU threads' if wanted is None else over.value} it ran"
        )
    cure = f"--over {others[0].name}" if others else f"hpcml run -m {_MORE[over]} launches some that differ"
    raise ComparisonError(f"nothing to compare: {what}; {cure}")


def _natural_choice(runs: Sequence[RunRecord]) -> Over:
    if any(_gpus_per_node(run) is not None for run in runs):
        return Over.gpus
    return Over.processes if any((count(run, Over.processes) or 1) > 1 for run in runs) else Over.threads


def _gpus_per_node(run: RunRecord) -> int | None:
    """Return the GPUs of each node as asked for, else 1 where the run had a GPU; None without one."""
    if run.facts.get("device") == "cpu":
        return None
    asked = gpus_of_run(run.params)
    if isinstance(asked, int | float):
        return int(asked) or None
    has_gpu = run.facts.get("device") is not None or bool(run.params.get("cluster.gpus_per_node"))
    return 1 if has_gpu else None


def _whole(run: RunRecord, key: str) -> int | None:
    value = run.params.get(key)
    return int(value) if isinstance(value, int | float) and value > 0 else None
