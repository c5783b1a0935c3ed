"""Whether a comparison is fair: what else differs between its runs, and whether time or place may explain a difference.

Settings make cells of their own (`hpcml.analysis.compare.cells`); what is left here are facts, which nobody chose
(driver, node, image), and settings that were allowed to differ. A fact forbids the comparison where it may move the
metric or the time of all runs that have it: the device with its caps and its state, the software. Others are only
noted: which of several equal nodes it was. `order_flags` finds arms that ran one after the other.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from hpcml.analysis.compare.factor import LAST_STEP, PRECISION_EFFECTIVE, SOFTWARE, Factor
from hpcml.analysis.compare.result import Discrepancy, Occurrence
from hpcml.analysis.flags import Flag, FlagCode, flag
from hpcml.analysis.frame import Arm, node_of
from hpcml.errors import ComparisonError
from hpcml.model.identity import changes_results
from hpcml.model.record_keys import flag_setting
from hpcml.model.records import RunRecord
from hpcml.model.told_apart import factor_name, setting_of, show
from hpcml.spelling import did_you_mean

ITS_SEED = "{seed}"  # how a setting reads that has the seed of its run as its value
_BOOKKEEPING = frozenset({"seed", "experiment"})  # seeds are what is averaged over
_JUDGEMENT = "objective."  # how runs are judged, not what they are; checked where it is used
_BINDING_FACTS = (
    *("device", "gpu_model", "n_gpus", "gpu_driver", "gpu_power_limit_w", "gpu_max_sm_mhz", "gpu_ecc"),
    *("cpu_model", "threads", *SOFTWARE, "image_sha256", "code", "packages", "modules"),
    *("gpu_shared", "thermal_throttling", PRECISION_EFFECTIVE, LAST_STEP),
)
_NOTED_FACTS = (
    *("hostname", "git_commit", "git_dirty", "kernel", "python", "cpu_capability", "blas"),
    "power_throttling",  # under one cap it is what the arm itself does: a precision that draws more is slowed more
)
# Known of a run only if it was measured beside it, or probed: not to know it is no difference, the rows flag it.
_MEASURED = frozenset({"gpu_shared", "thermal_throttling", "power_throttling", PRECISION_EFFECTIVE})
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

# A word of a command, as a shell takes it, that is a placeholder, with what is in front of it there or before
_SETTING = re.compile(r" (?:--?[A-Za-z][\w.-]* )?'(?:[-+~]{0,2}[\w./@=-]+=|-[A-Za-z])?\{([^{}'\s]+)\}'(?= |$)")
_PLAIN = {str, int, float, bool, type(None)}  # others are compared as they are written
_Read = Callable[[RunRecord], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Differences:
    """Facts and settings besides the factor that differ in a cell: those that forbid a comparison, others noted."""

    forbidding: tuple[Discrepancy, ...]
    noted: tuple[Discrepancy, ...]


def find_differences(
    factor: Factor,
    runs: Sequence[RunRecord],
    settings: Collection[str] | None = None,
    *,
    metric: str | None = None,
    may_stop_early: bool = False,
) -> Differences:
    """Return what differs among *runs* of one cell besides *factor*.

    *settings* names the settings to look at; None means all that may change a result. *metric* is the compared one: it
    must have been reported last at the same step, but for scatter (`_is_scatter`), and unless runs *may_stop_early*, at
    a target. What follows from the factor (`Factor.owns`) may change from level to level, but not within one: else one
    row would be two arms.
    """
    forbidding: list[Discrepancy] = []
    noted: list[Discrepancy] = []
    for key, kind, read in _questions(settings_of(runs) if settings is None else settings, metric, runs):
        discrepancy = _discrepancy(factor, key, kind, read, runs)
        if discrepancy is None:
            continue
        if key in _NOTED_FACTS or (key == LAST_STEP and (may_stop_early or _is_scatter(factor, read, runs))):
            noted.append(discrepancy)
        elif not factor.owns(key) or _differs_within_a_level(factor, read, runs):
            forbidding.append(discrepancy)
        elif not factor.is_about(key) and key not in _MEASURED:
            noted.append(discrepancy)  # goes with the factor, under another name
    return Differences(forbidding=tuple(forbidding), noted=tuple(noted))


def settings_of(runs: Sequence[RunRecord]) -> list[str]:
    """Return the names of the settings of *runs* that may change what they compute, sorted.

    Left out are seed and experiment, and how runs are judged (objective.*).
    """
    keys: set[str] = set().union(*(run.params for run in runs))
    return sorted(key for key in keys - _BOOKKEEPING if not key.startswith(_JUDGEMENT) and changes_results(key))


def differing(runs: Sequence[RunRecord], keys: Iterable[str]) -> list[str]:
    """Return those of the settings *keys* that differ among *runs*, in the order of *keys*."""
    return [
        key
        for key in keys
        if not are_alike([run.params.get(key) for run in runs]) and not are_alike(list(map(setting(key, runs), runs)))
    ]


def find_allowed(words: Collection[str], runs: Sequence[RunRecord]) -> frozenset[str]:
    """Return the settings and facts that the words of ``--allow`` mean ("driver" is the fact gpu_driver).

    Raises `ComparisonError` for an unknown word, with the nearest known ones.
    """
    known = {*settings_of(runs), *_BINDING_FACTS, *_WORDS}
    found = set()
    for word in words:
        keys = [key for key in (word, f"{word}.name", flag_setting(word)) if key in known]
        if not keys:
            near = did_you_mean(word, sorted({*map(factor_name, known)})) or f"facts are {', '.join(_BINDING_FACTS)}"
            raise ComparisonError(f"allow={word}: no setting of these runs and no fact that forbids; {near}")
        found.add(_WORDS.get(keys[0], keys[0]))
    return frozenset(found)


def setting(key: str, runs: Sequence[RunRecord]) -> _Read:
    """Return a function that reads the setting *key* of one of *runs*.

    In settings of a user's own program (workload.*) the run's own seed is masked: ``--seed 3`` and ``--seed 4`` are
    alike. So is a variable such as ``SEED`` where all of *runs* that set it have their seed as its value; one that is 0
    in all of them is the seed of none. A command is read without the words that are settings of their own.
    """
    if not key.startswith("workload."):
        return lambda run: run.params.get(key)
    if "seed" in key.rpartition(".")[2].lower():
        pairs = {(str(run.params[key]), str(run.seed)) for run in runs if run.params.get(key) is not None}
        if len(pairs) > 1 and all(value == seed for value, seed in pairs):
            return lambda run: None if run.params.get(key) is None else ITS_SEED
    if key == "workload.command":
        return lambda run: _without_seed(_without_settings(run), run.seed)
    return lambda run: _without_seed(setting_of(run, key), run.seed)


def are_alike(values: Sequence[object]) -> bool:
    """Whether all *values* are equal and of one type; also False where they are of a type that needs closer comparison.

    >>> are_alike([1, 1]), are_alike([1, True])
    (True, False)
    """
    if not values or values.count(values[0]) < len(values):
        return False
    kinds = set(map(type, values))  # True == 1, and yet it is another setting
    return len(kinds) == 1 and kinds <= _PLAIN


def _questions(
    settings: Iterable[str], metric: str | None, runs: Sequence[RunRecord]
) -> Iterator[tuple[str, Literal["setting", "fact"], _Read]]:
    for key in settings:
        yield key, "setting", setting(key, runs)
    if metric is not None:
        yield LAST_STEP, "fact", lambda run: None if (of := run.metrics.get(metric)) is None else of.last_step
    for key in (*_BINDING_FACTS, *_NOTED_FACTS):
        if key != LAST_STEP:
            yield key, "fact", read_fact(key)


def _without_settings(run: RunRecord) -> object:
    """Return the command of *run* without flags whose values are recorded: a run may have a flag that another lacks."""
    command = run.params.get("workload.command")
    if not isinstance(command, str):
        return command
    return _SETTING.sub(lambda found: "" if flag_setting(found[1]) in run.params else found[0], command)


def _without_seed(value: object, seed: int) -> object:
    if not isinstance(value, str):
        return value
    return re.sub(rf"(?i)(seed[\s=:_/-]{{1,3}}){seed}(?!\w)", r"\1{seed}", value)


def read_fact(key: str) -> _Read:  # noqa: PLR0911 - one for each kind
    """Return a function that reads the fact *key* of a run, None where it is not known."""
    if key == "code":
        return _code
    if key == "git_commit":
        return lambda run: run.git_commit
    if key == "git_dirty":
        return lambda run: run.git_dirty
    if key == PRECISION_EFFECTIVE:
        return lambda run: run.precision_effective
    if key == "gpu_shared":
        return lambda run: _yes(run.usage.energy_scope == "shared" if run.usage and run.usage.energy_scope else None)
    if key == "thermal_throttling":
        return lambda run: _is_throttled(run.usage.throttled_thermal_share if run.usage else None)
    if key == "power_throttling":
        return lambda run: _is_throttled(run.usage.throttled_power_share if run.usage else None)
    return lambda run: run.facts.get(key)


def _code(run: RunRecord) -> object:
    """Return the digest of the code that was kept; where none was, the commit and whether there were other edits."""
    if (kept := run.facts.get("code")) is not None or run.git_commit is None:
        return kept
    return f"commit {run.git_commit[:12]}{' with uncommitted edits' if run.git_dirty else ''}"


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


_SCATTER = 0.05  # of the largest step: by so much may last steps of runs differ


def _is_scatter(factor: Factor, read: _Read, runs: Sequence[RunRecord]) -> bool:
    """Whether the last steps are those of chance, such as the ends of episodes, and not those of the levels.

    Either the runs of a seed have the same in all levels, or they differ by little, and as much within levels: no
    level's lie beyond those of another.
    """
    of_seeds: dict[str, dict[int, set[object]]] = defaultdict(lambda: defaultdict(set))
    for run in runs:
        of_seeds[factor.level(run)][run.seed].add(read(run))
    first, *others = of_seeds.values()
    if all(each == first for each in others):
        return True
    of_levels = [[step for of in each.values() for step in of if isinstance(step, int)] for each in of_seeds.values()]
    if not all(len(set(steps)) > 1 for steps in of_levels):
        return False
    least, most = min(map(min, of_levels)), max(map(max, of_levels))
    overlap = max(map(min, of_levels)) <= min(map(max, of_levels))
    return overlap and most - least <= _SCATTER * most


_NAMED = 3  # levels or nodes in a line that people read
_LEAST = 2  # runs of an arm on a node, below which an order says nothing


def order_flags(arms: Sequence[Arm]) -> list[Flag]:
    """Return a flag for each order in which the arms ran one after the other on a node.

    A node warms up, its load and its clocks drift: what drifts while one arm runs after the other is part of their
    difference, and no test can tell it apart. Runs without a recorded start or node are left out.
    """
    starts: defaultdict[str, defaultdict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for arm in arms:
        for run in arm.ok:
            if run.t_start is not None and (node := node_of(run)) is not None:
                starts[node][arm.level].append(run.t_start)
    nodes: defaultdict[tuple[str, ...], list[str]] = defaultdict(list)
    for node, levels in sorted(starts.items()):
        order = _one_after_the_other([(min(times), max(times), level) for level, times in levels.items()])
        if order and all(len(times) >= _LEAST for times in levels.values()):
            nodes[order].append(node)
    return [
        flag(FlagCode.NOT_INTERLEAVED, order=f"{', then '.join(_listed(order))} on {', '.join(_listed(those))}")
        for order, those in nodes.items()
    ]


def _one_after_the_other(blocks: list[tuple[float, float, str]]) -> tuple[str, ...]:
    """Return the levels in the order in which they ran, where each was over before the next began; else ()."""
    blocks.sort()
    if len(blocks) < 2 or any(last > next_first for (_, last, _), (next_first, _, _) in pairwise(blocks)):
        return ()
    return tuple(level for _, _, level in blocks) if blocks[0][0] < blocks[-1][1] else ()


def _listed(names: Sequence[str]) -> list[str]:
    more = len(names) - _NAMED
    return [*names[:_NAMED], f"{more} more"] if more > 0 else list(names)
