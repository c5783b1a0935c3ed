"""What Flux says of its site: nodes by ``flux resource list``, queues by ``flux queue status``.

Recorded on flux-core 0.88.0. ``flux queue list`` is not asked: it writes colours and ticks into a pipe.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from hpcml.model.cluster import SchedulerName
from hpcml.schedulers.commands import Answer, said
from hpcml.schedulers.contract import NodeKind, QueueFacts, Site

_RESOURCES = (
    "flux",
    "resource",
    "list",
    "-s",
    "all",
    "-o",
    "{state} {nnodes} {ncores} {ngpus} {nodelist} {properties}",
)
_QUEUES = ("flux", "queue", "status")
_VERSION = ("flux", "--version")
_DEFAULT = "default"  # of an instance without named queues


def look(ask: Callable[[Sequence[str]], Answer]) -> Site:
    """FluxAsk Flux by *ask*; raise `NoAnswerError` where it does not answer."""
    resources, queues = said(_RESOURCES, ask), said(_QUEUES, ask)
    version = ask(_VERSION)
    return flux_site(resources, queues, version.stdout if version.returncode == 0 else "")


def flux_site(resources: str, queues: str, version: str) -> Site:
    """Read the lines of ``flux resource list`` in the form above, ``flux queue status`` and ``flux --version``.

    Nodes of one line are taken to be alike: Flux tells their sum. Its limits of time are not told.
    """
    kinds: list[tuple[set[str], NodeKind]] = []
    for line in resources.splitlines():
        match = re.fullmatch(r"\w+ (\d+) (\d+) (\d+) (\S+) ?(\S*)", line.strip())
        if match is not None and (nodes := int(match[1])):
            kind = NodeKind(count=nodes, cores=int(match[2]) // nodes, mem_mb=None, gpus=int(match[3]) // nodes)
            kinds.append((set(match[5].split(",")) - {""}, kind))
    closed: dict[str, str | None] = {}
    for name, word, why in re.findall(
        r"^(?:(\S+): )?(?:Job submission|Scheduling) is (\w+)(.*)$", queues, re.MULTILINE
    ):
        is_open = word in ("enabled", "started")
        closed[name or _DEFAULT] = closed.get(name or _DEFAULT) or (None if is_open else f"was {word}{why} when asked")
    told = re.search(r"flux-core:\s*(\S+)", version)
    return Site(
        scheduler=SchedulerName.flux,
        queues=tuple(_queue(name, why, kinds) for name, why in closed.items()),
        version=told[1] if told else None,
    )


def _queue(name: str, closed: str | None, kinds: Sequence[tuple[set[str], NodeKind]]) -> QueueFacts:
    """Return a queue with the nodes whose properties name it; where none do, with all."""
    own = tuple(kind for properties, kind in kinds if name in properties) or tuple(kind for _, kind in kinds)
    return QueueFacts(name=name, kinds=own, has_gpus=any(kind.gpus for kind in own), closed=closed)
