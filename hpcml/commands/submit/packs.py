"""Packing several small runs into one job, their order in it, and the batches that jobs go out in. Pure functions."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, TypeVar

from hpcml.analysis.compare.result import ENOUGH_NODES
from hpcml.codec import encode
from hpcml.commands.submit.plan import Planned, with_times
from hpcml.errors import ConfigError
from hpcml.model.cluster import SchedulerName
from hpcml.model.identity import identifies
from hpcml.model.run import Run
from hpcml.runs.manifest import Manifest, Provenance
from hpcml.runs.run_json import FORMAT
from hpcml.schedulers.batches import token_of
from hpcml.schedulers.contract import Batch, Job
from hpcml.schedulers.request import PACK_MARGIN_S, Request, request_for, request_for_pack
from hpcml.spelling import did_you_mean
from hpcml.units import format_walltime, parse_walltime_s

NOWHERE = Provenance(command_line=[], submitted_at="", submitted_from="", user="", cwd="", hpcml_version="", python="")
T = TypeVar("T")


def chunks(items: Sequence[T], largest: int | None) -> list[Sequence[T]]:
    """Cut *items* into as few pieces as may be, of nearly equal size, none larger than *largest* (None: no limit).

    >>> [len(chunk) for chunk in chunks(range(1000), 400)]
    [333, 333, 334]
    """
    pieces = -(-len(items) // (largest or len(items)))
    ends = [len(items) * number // pieces for number in range(pieces + 1)]
    return [items[begin:end] for begin, end in pairwise(ends)]


def share(limit: int | None, number: int, arrays: int) -> int | None:
    """Return how many elements of array *number* of so many *arrays* may run at once under one *limit* (None: all).

    Each may run one at least, so that of more arrays than the limit allows more than that run.

    >>> [share(5, number, 2) for number in range(2)]
    [2, 3]
    """
    return None if limit is None else max(1, limit * (number + 1) // arrays - limit * number // arrays)


def packs_of(planned: Sequence[Planned]) -> list[list[Planned]]:
    """Return the runs of each job, or element of a job array, in the order in which they run.

    Packs stand in the order of their first runs; a run with ``schedule.pack=none`` is a pack of its own. Runs share a
    pack if they agree in their request to the scheduler and, but for the factors that ``schedule.pack`` names, in all
    settings (``all``: in the experiment alone). A packed run has all of its walltime for itself; the job's walltime is
    the sum.

    Raises `ConfigError` for a factor that no run has, a pack without a walltime, and one whose sum the site would not
    run.
    """
    packs: list[list[Planned]] = []
    groups: dict[str, list[tuple[Request, list[Planned]]]] = {}
    for item in planned:
        alike = _alike(item)
        if alike is None:
            packs.append([item])
            continue
        request, known = _request(item), groups.setdefault(alike, [])
        members = next((found for wanted, found in known if wanted == request), None)
        if members is None:
            members = []
            known.append((request, members))
            packs.append(members)
        members.append(item)
    return [_as_pack(pack, offset) if len(pack) > 1 else pack for offset, pack in enumerate(packs)]


def warnings(planned: Sequence[Planned]) -> Iterator[str]:
    """Yield a line for each factor that no job holds two values of, though the sweep does.

    Also where the runs of each arm would share a job of their own: then arm and node are one, and nothing tells the
    speed of the one from that of the other (`hpcml.analysis.nodes`).
    """
    packs = packs_of(planned)
    if any(len({item.run.seed for item in pack}) > 1 for pack in packs):
        arms = [{_arm(item) for item in pack} for pack in packs]
        jobs: Counter[str] = Counter(arm for held in arms for arm in held)
        if len(jobs) > 1 and all(len(held) == 1 for held in arms) and max(jobs.values()) < ENOUGH_NODES:
            yield (
                f"schedule.pack={planned[0].run.schedule.pack} puts the seeds of each arm into jobs of their own: arm "
                "and node would be one, and compare gives no interval of their speed-up; name the compared setting in "
                "schedule.pack, as in schedule.pack=precision, to have all arms of a seed on one node"
            )
    for factor in sorted({factor for item in planned for factor in item.run.schedule.pack_factors}):
        values = [
            {_values(factor, item) for item in pack if factor in item.run.schedule.pack_factors} for pack in packs
        ]
        if len(set().union(*values)) > 1 and all(len(held) <= 1 for held in values):
            yield (
                f"schedule.pack names {factor}, and no two runs that differ in it can share a job: "
                "they differ in something else too, or ask for other resources"
            )


def in_turn(items: Sequence[Planned], *, offset: int = 0) -> list[Planned]:
    """Return *items* in blocks of one repeat and seed, each block beginning with another run than the one before.

    So no configuration is always measured first, on a node that is still cold or a file system whose cache is empty.
    *offset* is where the first block begins: with packs, in each with another run.
    """
    blocks: dict[tuple[int, int], list[Planned]] = {}
    for item in items:
        blocks.setdefault((item.repeat, item.run.seed), []).append(item)
    ordered: list[Planned] = []
    for number, key in enumerate(sorted(blocks)):
        block = blocks[key]
        first = (number + offset) % len(block)
        ordered += block[first:] + block[:first]
    return ordered


def _as_pack(items: Sequence[Planned], offset: int) -> list[Planned]:
    _refuse_too_long(items)
    ordered = in_turn(items, offset=offset)
    return [replace(item, plan=with_times(item.plan, item.run, is_packed=True)) for item in ordered]


def _alike(item: Planned) -> str | None:
    """Return as text what runs must have in common to share a pack; None for a run that is not to be packed."""
    run = item.run
    if run.schedule.pack == "none":
        return None
    schedule = encode(run.schedule)
    if run.schedule.pack == "all":
        return json.dumps([run.experiment, schedule])
    settings = _settings(run)
    free = {key for factor in run.schedule.pack_factors for key in _keys(factor, settings, run)}
    return json.dumps([{key: value for key, value in settings.items() if key not in free}, schedule], sort_keys=True)


def _settings(run: Run) -> dict[str, Any]:
    return {key: value for key, value in run.settings.items() if identifies(key)}


def _arm(item: Planned) -> str:
    """Return as text all settings of a run but its seed."""
    return json.dumps({key: value for key, value in _settings(item.run).items() if key != "seed"}, sort_keys=True)


def _values(factor: str, item: Planned) -> str:
    settings = _settings(item.run)
    return json.dumps({key: settings[key] for key in _keys(factor, settings, item.run)}, sort_keys=True)


def _keys(factor: str, settings: dict[str, Any], run: Run) -> list[str]:
    """Return the settings that *factor* names: one (``training.batch_size``), or all of a group (``precision``).

    Raises `ConfigError`, with names that are spelled alike, where there is none.
    """
    keys = [key for key in settings if key == factor or key.startswith(f"{factor}.")]
    if keys:
        return keys
    groups = {key.partition(".")[0] for key in settings}
    hint = did_you_mean(factor, [*settings, *groups]) or "name settings such as precision or training.batch_size"
    raise ConfigError(f"schedule.pack={run.schedule.pack}: no setting that tells runs apart is called {factor}: {hint}")


def _request(item: Planned) -> Request:
    nameless = Manifest(format=FORMAT, uid="", spec_hash="", run=item.run, plan=item.plan, provenance=NOWHERE)
    return request_for(nameless)


def _refuse_too_long(items: Sequence[Planned]) -> None:
    run, count = items[0].run, len(items)
    site, walltime_s = run.cluster, run.resources.walltime_s
    if site.scheduler is SchedulerName.local:
        return
    if walltime_s is None:
        raise ConfigError(
            f"schedule.pack={run.schedule.pack}: the walltime of a job is the sum of its runs': set resources.walltime"
        )
    total_s = count * walltime_s + PACK_MARGIN_S
    queue_name = run.resources.partition_or_queue
    queue = site.queues.get(queue_name or "")
    limits = {f"cluster={site.name}": site.max_walltime}
    if queue is not None:
        limits[f"queue {queue_name} of cluster={site.name}"] = queue.max_walltime
    for where, limit in limits.items():
        if limit is not None and total_s > parse_walltime_s(limit, field="max_walltime"):
            raise ConfigError(
                f"schedule.pack={run.schedule.pack}: {count} runs x {run.resources.walltime} and {PACK_MARGIN_S} s are "
                f"{format_walltime(total_s)} in one job; {where} allows {limit}"
            )


# The batches.


def batches_of(packed: Sequence[Sequence[Job]], submission: str) -> list[Batch]:
    """Return the batches that packs go out in: one for each distinct request, split at the site's `max_array_size`.

    Each pack becomes one element of an array: its runs share that job and run one after the other. Packs with equal
    requests keep their order; the queue of this machine takes unequal ones too. `resources.array_parallelism` is
    divided evenly among the arrays of those that name the same. A batch of one run has that run's own token; every
    other has *submission* with a running number, and a scheduler can be asked by that token whether it has the batch.
    """
    groups: list[tuple[Request, list[Sequence[Job]]]] = []
    for pack in packed:
        request = request_for_pack(pack)
        members = next((members for known, members in groups if _may_share(known, request)), None)
        if members is None:
            groups.append((request, [pack]))
        else:
            members.append(pack)
    arrays = [
        ((request.cluster.name, request.array_parallelism), chunk)
        for request, members in groups
        for chunk in chunks(members, _largest(request))
    ]
    sizes = Counter(limit for limit, _ in arrays)
    seen: Counter[tuple[str, int | None]] = Counter()
    batches: list[Batch] = []
    for number, (limit, chunk) in enumerate(arrays):
        is_alone = len(chunk) == len(chunk[0]) == 1
        token = token_of(chunk[0][0]) if is_alone else f"{submission}-{number}"
        batches.append(Batch(token=token, packs=chunk, at_once=share(limit[1], seen[limit], sizes[limit])))
        seen[limit] += 1
    return batches


def _largest(request: Request) -> int | None:
    return None if request.cluster.scheduler is SchedulerName.local else request.cluster.max_array_size


def _may_share(one: Request, other: Request) -> bool:
    """Tell whether jobs may be in one batch: in an array all are equal, the queue of this machine takes any."""
    if one.cluster.scheduler is not SchedulerName.local or other.cluster.scheduler is not SchedulerName.local:
        return one == other
    limits = [(each.cluster.name, each.cluster.max_parallel, each.array_parallelism) for each in (one, other)]
    return limits[0] == limits[1]
