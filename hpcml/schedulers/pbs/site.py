"""What PBS says of its site: nodes by pbsnodes, queues and limits by ``qstat -Q`` and ``qstat -B``."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from hpcml.model.cluster import SchedulerName
from hpcml.schedulers.commands import Answer, NoAnswerError, said
from hpcml.schedulers.contract import NodeKind, QueueFacts, Site
from hpcml.schedulers.pbs.answers import parse_time_s

_PBSNODES = ("pbsnodes", "-a", "-F", "json")
_QSTAT_QUEUES = ("qstat", "-Q", "-f", "-F", "json")
_QSTAT_SERVER = ("qstat", "-B", "-f", "-F", "json")
_PBS_SIZE = re.compile(r"(?P<number>\d+)(?P<unit>[kmgtp]?)[bw]?", re.IGNORECASE)
_KIB = {"": 1 / 1024, "k": 1, "m": 1024, "g": 1024**2, "t": 1024**3, "p": 1024**4}


def look(ask: Callable[[Sequence[str]], Answer]) -> Site:
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
            _pbs_queue(name, queue, found, one) for name, queue in _json(queues, _QSTAT_QUEUES).get("Queue", {}).items()
        ),
        version=listed.get("pbs_version"),
        own_name=listed.get("pbs_server"),
        max_array_size=None if size is None else int(size),
    )


def _json(text: str, argv: Sequence[str]) -> dict[str, Any]:
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
        max_walltime_s=_limit_s(queue.get("resources_max", {}).get("walltime")),
        default_walltime_s=_limit_s(queue.get("resources_default", {}).get("walltime")),
        is_default=name == server.get("default_queue"),
        closed=None if is_open else "was not enabled or not started when asked",
    )


def _limit_s(value: object) -> int | None:
    return parse_time_s(str(value or "")) or None


def _pbs_mb(value: object) -> int | None:
    match = _PBS_SIZE.fullmatch(str(value or ""))
    return None if match is None else int(int(match["number"]) * _KIB[match["unit"].lower()] / 1024) or None
