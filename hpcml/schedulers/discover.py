"""A cluster described by its own scheduler: what sinfo or pbsnodes and qstat -Q say, made into a profile."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any

from hpcml.cluster import Cluster, Queue, Resources, SchedulerName
from hpcml.errors import ConfigError, HpcmlError
from hpcml.quantities import format_walltime
from hpcml.schedulers.commands import Answer, NoAnswerError, call

_TIMEOUT_S = 60.0  # sinfo waits 9 s for a controller that is down; a big site answers in seconds
_MODEST_WALLTIME_S = 3600  # where the site has no default: short enough to start soon

# -e: one line for each kind of node; without it nodes that differ are put together as "8+" (man sinfo).
_SINFO = ("sinfo", "-h", "-e", "-o", "%P|%a|%l|%L|%h|%D|%c|%m|%G")
_SCONTROL = ("scontrol", "show", "config")
_PBSNODES = ("pbsnodes", "-a", "-F", "json")
_QSTAT_QUEUES = ("qstat", "-Q", "-f", "-F", "json")
_QSTAT_SERVER = ("qstat", "-B", "-f", "-F", "json")

_GPU = re.compile(r"gpu(?::(?P<type>[^:,]*[^:,\d][^:,]*))?(?::(?P<count>\d+))?")
_MIG = re.compile(r"\dg\.\d+gb")
_SLURM_TIME = re.compile(r"(?:(?P<days>\d+)-)?(?:(?P<hours>\d+):)?(?P<minutes>\d+):(?P<seconds>\d{2})")
_PBS_SIZE = re.compile(r"(?P<number>\d+)(?P<unit>[kmgtp]?)[bw]?", re.IGNORECASE)
_KIB = {"": 1 / 1024, "k": 1, "m": 1024, "g": 1024**2, "t": 1024**3, "p": 1024**4}


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeKind:
    """Nodes that are alike."""

    count: int
    cores: int
    mem_mb: int | None
    gpus: int = 0
    gpu_type: str | None = None

    def __str__(self) -> str:
        gpus = f", {self.gpus}x {self.gpu_type or 'GPU'}" if self.gpus else ""
        return f"{self.count} with {self.cores} cores{gpus}"


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueFacts:
    """A partition or queue as its scheduler describes it; a time of None is no limit, or no default."""

    name: str
    kinds: tuple[NodeKind, ...]
    has_gpus: bool | None  # None: PBS does not tell which nodes a queue leads to
    max_walltime_s: int | None = None
    default_walltime_s: int | None = None
    is_default: bool = False
    whole_nodes: bool = False
    closed: str | None = None  # why it takes no jobs


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """All that a scheduler told."""

    scheduler: SchedulerName
    queues: tuple[QueueFacts, ...]
    version: str | None = None
    own_name: str | None = None
    max_array_size: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A profile that can be written down, and what it is in a line or two."""

    cluster: Cluster
    resources: Resources
    summary: tuple[str, ...]


def ask_scheduler(
    name: str,
    *,
    today: date,
    ask: Callable[[Sequence[str]], Answer] = lambda argv: call(argv, timeout_s=_TIMEOUT_S),
    find: Callable[[str], str | None] = shutil.which,
) -> Found:
    """Describe the cluster that this machine belongs to, under *name*.

    Raises `ConfigError` where there is no scheduler, and `NoAnswerError` where it does not answer.
    """
    has_slurm, has_pbs = find(_SINFO[0]), find(_PBSNODES[0]) and find(_QSTAT_QUEUES[0])
    if not has_slurm and not has_pbs:
        raise ConfigError(
            "no scheduler here: neither sinfo nor pbsnodes and qstat are on PATH; ask on a login node, "
            "or copy a profile of conf/cluster/"
        )
    # First: Slurm brings a qstat and a pbsnodes of its own (slurm-torque). But a site of PBS may have Slurm's programs
    # too, left over or for another machine, which then do not answer.
    problems: list[NoAnswerError] = []
    for is_there, look in ((has_slurm, _look_at_slurm), (has_pbs, _look_at_pbs)):
        try:
            if is_there:
                return describe(name, look(ask), today=today)
        except NoAnswerError as error:
            problems.append(error)
    raise NoAnswerError("; ".join(map(str, problems))) from problems[0]


def _look_at_slurm(ask: Callable[[Sequence[str]], Answer]) -> Site:
    partitions = _said(_SINFO, ask)
    config = ask(_SCONTROL)
    return slurm_site(partitions, config.stdout if config.returncode == 0 else "")


def _look_at_pbs(ask: Callable[[Sequence[str]], Answer]) -> Site:
    nodes, queues = _said(_PBSNODES, ask), _said(_QSTAT_QUEUES, ask)
    server = ask(_QSTAT_SERVER)
    return pbs_site(nodes, queues, server.stdout if server.returncode == 0 else "{}")


def describe(name: str, site: Site, *, today: date) -> Found:
    """Make a profile of what a scheduler told; the queue with the most GPUs becomes the default."""
    usable = [queue for queue in site.queues if queue.closed is None] or list(site.queues)
    if not usable:
        raise HpcmlError("the scheduler answered, but named no queue that you may use")
    queue = max(usable, key=_attraction)
    kind = max(
        queue.kinds, key=lambda kind: (kind.gpus > 0, kind.count), default=NodeKind(count=0, cores=0, mem_mb=None)
    )
    limits_s = [queue.max_walltime_s for queue in usable]
    cluster = Cluster(
        name=name,
        scheduler=site.scheduler,
        gpu_type=kind.gpu_type,
        gpus_per_node=kind.gpus if queue.kinds else None,
        cores_per_node=kind.cores or None,
        cores_per_gpu=kind.cores // kind.gpus if kind.gpus else None,
        mem_per_node=_memory(kind.mem_mb),
        whole_nodes=queue.whole_nodes,
        gpu_request=_gpu_request(site.scheduler, kind),
        gpu_queue=queue.name if queue.has_gpus else None,
        queues={facts.name: _queue(facts) for facts in site.queues},
        max_walltime=None if None in limits_s else format_walltime(max(filter(None, limits_s))),
        max_array_size=site.max_array_size,
        notes=list(_notes(queue, kind)),
        source=f"asked the scheduler on {today.isoformat()}",
    )
    default_s = queue.default_walltime_s or min(_MODEST_WALLTIME_S, queue.max_walltime_s or _MODEST_WALLTIME_S)
    resources = Resources(
        partition=queue.name,
        gpus_per_node=min(1, kind.gpus),
        cpus_per_task=max(1, cluster.cores_per_gpu or 0) if kind.gpus else None,
        walltime=format_walltime(default_s),
    )
    software = "Slurm" if site.scheduler is SchedulerName.slurm else "PBS"
    who = f"{site.own_name or name}: {software} {site.version or ''}".rstrip()
    lines = (f"{who}, as it described itself on {today.isoformat()}.", "The default queue is a guess: the most GPUs.")
    return Found(cluster=cluster, resources=resources, summary=lines)


def slurm_site(sinfo: str, config: str) -> Site:
    """Read the lines of sinfo in the form asked for above, and ``scontrol show config`` (may be empty)."""
    rows: dict[str, list[list[str]]] = {}
    for line in sinfo.splitlines():
        cells = line.strip().split("|")
        if len(cells) == 9:
            rows.setdefault(cells[0], []).append(cells)
    settings = dict(re.findall(r"^(\w+)\s+= (.*)$", config, flags=re.MULTILINE))
    size = settings.get("MaxArraySize", "")
    return Site(
        scheduler=SchedulerName.slurm,
        queues=tuple(_partition(name, lines) for name, lines in rows.items()),
        version=settings.get("SLURM_VERSION"),
        own_name=settings.get("ClusterName"),
        max_array_size=int(size) if size.isdigit() and int(size) else None,
    )


def pbs_site(nodes: str, queues: str, server: str) -> Site:
    """Read the JSON of ``pbsnodes -a``, ``qstat -Q -f`` and ``qstat -B -f`` (may be ``{}``)."""
    listed = _json(nodes, _PBSNODES)
    one: dict[str, Any] = next(iter(_json(server, _QSTAT_SERVER).get("Server", {}).values()), {})
    kinds: dict[tuple[str | None, int, int, int | None], int] = {}
    for node in listed.get("nodes", {}).values():
        has = node.get("resources_available", {})
        key = (node.get("queue"), int(has.get("ncpus", 0)), int(has.get("ngpus", 0)), _pbs_mb(has.get("mem")))
        kinds[key] = kinds.get(key, 0) + 1
    found = [
        (owner, NodeKind(count=count, cores=cores, gpus=gpus, mem_mb=mem_mb))
        for (owner, cores, gpus, mem_mb), count in kinds.items()
    ]
    size = one.get("max_array_size")
    return Site(
        scheduler=SchedulerName.pbs,
        queues=tuple(
            _pbs_queue(name, queue, found, is_default=name == one.get("default_queue"))
            for name, queue in _json(queues, _QSTAT_QUEUES).get("Queue", {}).items()
        ),
        version=listed.get("pbs_version"),
        own_name=listed.get("pbs_server"),
        max_array_size=None if size is None else int(size),
    )


def _said(argv: Sequence[str], ask: Callable[[Sequence[str]], Answer]) -> str:
    answer = ask(argv)
    if answer.returncode:
        words = " ".join((answer.stderr or answer.stdout).split())
        raise NoAnswerError(f"{argv[0]} did not answer (exit status {answer.returncode}): {words}")
    return answer.stdout


def _json(text: str, argv: Sequence[str]) -> dict[str, Any]:
    try:
        found = json.loads(text, strict=False)  # values may hold raw tabs and line ends
    except ValueError as error:
        raise NoAnswerError(f"{' '.join(argv)} gave no JSON: {error}") from error
    return found if isinstance(found, dict) else {}


def _attraction(queue: QueueFacts) -> tuple[int, bool, float]:
    gpus = sum(kind.count * kind.gpus for kind in queue.kinds) if queue.has_gpus else 0
    return gpus, queue.is_default, queue.max_walltime_s or float("inf")


def _gpu_request(scheduler: SchedulerName, kind: NodeKind) -> str | None:
    if not kind.gpus:
        return None
    if scheduler is SchedulerName.pbs:
        return ":ngpus={gpus}"
    return "--gpus-per-node={gpu_type}:{gpus}" if kind.gpu_type else "--gpus-per-node={gpus}"


def _queue(facts: QueueFacts) -> Queue:
    limit_s = facts.max_walltime_s
    return Queue(
        max_walltime=None if limit_s is None else format_walltime(limit_s), gpus=facts.has_gpus, note=facts.closed
    )


def _notes(queue: QueueFacts, kind: NodeKind) -> Iterator[str]:
    for other in queue.kinds:
        if other != kind:
            yield f"{queue.name} leads to other nodes too: {other}"
    if kind.gpus and queue.has_gpus is None:
        yield "which queue leads to the GPUs was not told: set resources.partition and cluster.gpu_queue"


def _partition(name: str, lines: Sequence[Sequence[str]]) -> QueueFacts:
    _, state, limit, default, sharing, *_ = lines[0]
    kinds = tuple(_slurm_kind(cells[5:]) for cells in lines)
    return QueueFacts(
        name=name.rstrip("*"),
        kinds=kinds,
        has_gpus=any(kind.gpus for kind in kinds),
        max_walltime_s=_slurm_s(limit),
        default_walltime_s=_slurm_s(default),
        is_default=name.endswith("*"),
        whole_nodes=sharing == "EXCLUSIVE",
        closed=None if state == "up" else f"was {state} when asked",
    )


def _slurm_kind(cells: Sequence[str]) -> NodeKind:
    count, cores, mem_mb, gres = cells
    gpus = [_gpu(part) for part in re.sub(r"\([^)]*\)", "", gres).split(",") if re.match(r"gpu(:|$)", part)]
    # Whole GPUs before slices of them, which a node may offer besides.
    kind, amount = max(gpus, key=lambda gpu: (not _MIG.search(gpu[0] or ""), gpu[1]), default=(None, 0))
    return NodeKind(count=int(count), cores=_number(cores), mem_mb=_number(mem_mb) or None, gpus=amount, gpu_type=kind)


def _gpu(gres: str) -> tuple[str | None, int]:
    match = _GPU.match(gres)
    assert match is not None  # the caller looked for "gpu"
    return match["type"], int(match["count"] or 1)


def _number(text: str) -> int:
    match = re.match(r"\d+", text)
    return int(match[0]) if match else 0


def _slurm_s(text: str) -> int | None:
    """Return seconds of ``2-00:00:00``, ``1:00:00`` or ``30:00`` (minutes here), None for infinite and n/a."""
    match = _SLURM_TIME.fullmatch(text)
    if match is None:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds or None


def _pbs_queue(
    name: str, queue: Mapping[str, Any], found: Sequence[tuple[str | None, NodeKind]], *, is_default: bool
) -> QueueFacts:
    own = tuple(kind for owner, kind in found if owner == name)
    wants_gpus = any(int(queue.get(key, {}).get("ngpus", 0)) for key in ("resources_min", "default_chunk"))
    is_open = queue.get("enabled") == queue.get("started") == "True"
    return QueueFacts(
        name=name,
        kinds=own or tuple(kind for owner, kind in found if owner is None),
        has_gpus=True if wants_gpus else any(kind.gpus for kind in own) if own else None,
        max_walltime_s=_pbs_s(queue.get("resources_max", {}).get("walltime")),
        default_walltime_s=_pbs_s(queue.get("resources_default", {}).get("walltime")),
        is_default=is_default,
        closed=None if is_open else "was not enabled or not started when asked",
    )


def _pbs_s(value: object) -> int | None:
    """Return seconds of ``48:00:00``, ``30:00`` or ``90``."""
    total_s = 0
    for part in str(value or 0).split(":"):
        if not part.isdigit():
            return None
        total_s = total_s * 60 + int(part)
    return total_s or None


def _pbs_mb(value: object) -> int | None:
    match = _PBS_SIZE.fullmatch(str(value or ""))
    return None if match is None else int(int(match["number"]) * _KIB[match["unit"].lower()] / 1024) or None


def _memory(mem_mb: int | None) -> str | None:
    if mem_mb is None:
        return None
    return f"{mem_mb // 1024}G" if mem_mb % 1024 == 0 else f"{mem_mb}M"
