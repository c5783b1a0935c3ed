"""What Slurm or PBS says of its site: its queues and nodes, by its own programs; for ``hpcml cluster new``."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hpcml.model.cluster import SchedulerName
from hpcml.schedulers.commands import Answer, NoAnswerError, said
from hpcml.schedulers.pbs.scheduler import parse_time_s as pbs_time_s
from hpcml.schedulers.slurm import parse_time_s as slurm_time_s


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeKind:
    """Nodes that are alike: *count* of them, with *cores*, *mem_mb* (MiB; None: not told) and *gpus* on each.

    `gpu_type` is the scheduler's word (``a100``), None where it has none. GPUs are whole ones where a node offers
    slices too.
    """

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
    """A partition or queue as its scheduler describes it; times in seconds, None: no limit, or no default.

    `kinds` may be empty where the scheduler names no nodes. `whole_nodes` means that a job gets its nodes alone.
    """

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
    """All that a scheduler told of the site that it runs.

    `version` and `own_name` (the cluster's or the server's) are the scheduler's own words. None: not told.
    """

    scheduler: SchedulerName
    queues: tuple[QueueFacts, ...]
    version: str | None = None
    own_name: str | None = None
    max_array_size: int | None = None


# -e: one line for each kind of node; without it nodes that differ are put together as "8+" (man sinfo).
_SINFO = ("sinfo", "-h", "-e", "-o", "%P|%a|%l|%L|%h|%D|%c|%m|%G")
_SLURM_CONFIG = ("scontrol", "show", "config")
_GPU = re.compile(r"gpu(?::(?P<type>[^:,]*[^:,\d][^:,]*))?(?::(?P<count>\d+))?")
_MIG = re.compile(r"\dg\.\d+gb")


def look_at_slurm(ask: Callable[[Sequence[str]], Answer]) -> Site:
    """Ask Slurm by *ask*; raise `NoAnswerError` where it does not answer.

    That ``scontrol show config`` fails is tolerated: version and limits are then not known.
    """
    partitions = said(_SINFO, ask)
    config = ask(_SLURM_CONFIG)
    return slurm_site(partitions, config.stdout if config.returncode == 0 else "")


def slurm_site(sinfo: str, config: str) -> Site:
    """Read the lines of sinfo in the form asked for above, and ``scontrol show config`` (may be empty).

    One queue for each partition, with a kind of nodes for each line; memory in MiB. Lines of another form are passed
    over.
    """
    rows: dict[str, list[list[str]]] = {}
    for line in sinfo.splitlines():
        cells = line.strip().split("|")
        if len(cells) == 9:
            rows.setdefault(cells[0], []).append(cells)
    settings = dict(re.findall(r"^(\w+)\s+= (.*)$", config, flags=re.MULTILINE))
    size = settings.get("MaxArraySize", "")
    return Site(
        scheduler=SchedulerName.slurm,
        queues=tuple(_slurm_partition(name, lines) for name, lines in rows.items()),
        version=settings.get("SLURM_VERSION"),
        own_name=settings.get("ClusterName"),
        max_array_size=int(size) if size.isdigit() and int(size) else None,
    )


def _slurm_partition(name: str, lines: Sequence[Sequence[str]]) -> QueueFacts:
    _, state, limit, default, sharing, *_ = lines[0]
    kinds = tuple(_slurm_kind(cells[5:]) for cells in lines)
    return QueueFacts(
        name=name.rstrip("*"),
        kinds=kinds,
        has_gpus=any(kind.gpus for kind in kinds),
        max_walltime_s=slurm_time_s(limit),
        default_walltime_s=slurm_time_s(default),
        is_default=name.endswith("*"),
        whole_nodes=sharing == "EXCLUSIVE",
        closed=None if state == "up" else f"was {state} when asked",
    )


def _slurm_kind(cells: Sequence[str]) -> NodeKind:
    count, cores, mem_mb, gres = cells
    gpus = [_slurm_gpu(part) for part in re.sub(r"\([^)]*\)", "", gres).split(",") if re.match(r"gpu(:|$)", part)]
    # Whole GPUs before slices of them, which a node may offer besides.
    kind, amount = max(gpus, key=lambda gpu: (not _MIG.search(gpu[0] or ""), gpu[1]), default=(None, 0))
    return NodeKind(
        count=int(count),
        cores=_leading_number(cores),
        mem_mb=_leading_number(mem_mb) or None,
        gpus=amount,
        gpu_type=kind,
    )


def _slurm_gpu(gres: str) -> tuple[str | None, int]:
    match = _GPU.match(gres)
    assert match is not None  # the caller looked for "gpu"
    return match["type"], int(match["count"] or 1)


def _leading_number(text: str) -> int:
    match = re.match(r"\d+", text)
    return int(match[0]) if match else 0


_PBSNODES = ("pbsnodes", "-a", "-F", "json")
_QSTAT_QUEUES = ("qstat", "-Q", "-f", "-F", "json")
_QSTAT_SERVER = ("qstat", "-B", "-f", "-F", "json")
_PBS_SIZE = re.compile(r"(?P<number>\d+)(?P<unit>[kmgtp]?)[bw]?", re.IGNORECASE)
_PBS_KIB = {"": 1 / 1024, "k": 1, "m": 1024, "g": 1024**2, "t": 1024**3, "p": 1024**4}


def look_at_pbs(ask: Callable[[Sequence[str]], Answer]) -> Site:
    """Ask PBS by *ask*; raise `NoAnswerError` where it does not answer.

    *ask* starts a program and returns its answer. That `qstat -B` fails is tolerated: version and limits of the server
    are then not known.
    """
    nodes, queues = said(_PBSNODES, ask), said(_QSTAT_QUEUES, ask)
    server = ask(_QSTAT_SERVER)
    return pbs_site(nodes, queues, server.stdout if server.returncode == 0 else "{}")


def pbs_site(nodes: str, queues: str, server: str) -> Site:
    """Read the JSON of ``pbsnodes -a``, ``qstat -Q -f`` and ``qstat -B -f`` (may be ``{}``).

    A queue with nodes of its own (their attribute ``queue``) leads to those; every other queue leads to the nodes that
    have none. One whose jobs may ask for no GPU (resources_max.ngpus=0, its own or else the server's) has none for us,
    whatever its nodes have. Memory is in MiB. Raises `NoAnswerError` where a text is no JSON.
    """
    listed = _pbs_json(nodes, _PBSNODES)
    one: dict[str, Any] = next(iter(_pbs_json(server, _QSTAT_SERVER).get("Server", {}).values()), {})
    kinds: dict[tuple[str | None, int, int, int | None], int] = {}
    for node in listed.get("nodes", {}).values():
        has = node.get("resources_available", {})
        key = (node.get("queue"), int(has.get("ncpus", 0)), int(has.get("ngpus", 0)), _pbs_mb(has.get("mem")))
        kinds[key] = kinds.get(key, 0) + 1
    found = [
        (owner, NodeKind(count=count, cores=cores, gpus=gpus, mem_mb=mem_mb))
        for (owner, cores, gpus, mem_mb), count in kinds.items()
    ]
    size, described = one.get("max_array_size"), _pbs_json(queues, _QSTAT_QUEUES).get("Queue", {})
    return Site(
        scheduler=SchedulerName.pbs,
        queues=tuple(_pbs_queue(name, queue, found, one) for name, queue in described.items()),
        version=listed.get("pbs_version"),
        own_name=listed.get("pbs_server"),
        max_array_size=None if size is None else int(size),
    )


def _pbs_json(text: str, argv: Sequence[str]) -> dict[str, Any]:
    try:
        found = json.loads(text, strict=False)  # values may hold raw tabs and line ends
    except ValueError as error:
        raise NoAnswerError(f"{' '.join(argv)} gave no JSON: {error}") from error
    return found if isinstance(found, dict) else {}


def _pbs_queue(
    name: str, queue: Mapping[str, Any], found: Sequence[tuple[str | None, NodeKind]], server: Mapping[str, Any]
) -> QueueFacts:
    own = tuple(kind for owner, kind in found if owner == name)
    kinds = own or tuple(kind for owner, kind in found if owner is None)
    most_gpus = {**server.get("resources_max", {}), **queue.get("resources_max", {})}.get("ngpus")
    if has_none := most_gpus is not None and int(most_gpus) == 0:
        kinds = tuple(replace(kind, gpus=0) for kind in kinds)
    wants_gpus = any(int(queue.get(key, {}).get("ngpus", 0)) for key in ("resources_min", "default_chunk"))
    is_open = queue.get("enabled") == queue.get("started") == "True"
    return QueueFacts(
        name=name,
        kinds=kinds,
        has_gpus=False if has_none else True if wants_gpus else any(kind.gpus for kind in own) if own else None,
        max_walltime_s=_pbs_limit_s(queue.get("resources_max", {}).get("walltime")),
        default_walltime_s=_pbs_limit_s(queue.get("resources_default", {}).get("walltime")),
        is_default=name == server.get("default_queue"),
        closed=None if is_open else "was not enabled or not started when asked",
    )


def _pbs_limit_s(value: object) -> int | None:
    return pbs_time_s(str(value or "")) or None


def _pbs_mb(value: object) -> int | None:
    match = _PBS_SIZE.fullmatch(str(value or ""))
    return None if match is None else int(int(match["number"]) * _PBS_KIB[match["unit"].lower()] / 1024) or None


# How each scheduler is asked, and the programs that it takes, in the order in which a machine is searched for them:
# Slurm brings a qstat and a pbsnodes of its own (slurm-torque)
LOOKS: Mapping[str, tuple[Sequence[str], Callable[[Callable[[Sequence[str]], Answer]], Site]]] = {
    "slurm": (("sinfo",), look_at_slurm),
    "pbs": (("pbsnodes", "qstat"), look_at_pbs),
}
