"""What LSF says of its site: queues by bqueues, hosts by bhosts, its name and version by lsid.

After IBM's documentation of their ``-o``; that bqueues may print JSON is the assumption of public clients.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence

from hpcml.model.cluster import SchedulerName
from hpcml.schedulers.commands import Answer, said
from hpcml.schedulers.contract import NodeKind, QueueFacts, Site
from hpcml.schedulers.lsf.answers import parse_limit_s

_QUEUES = ("bqueues", "-noheader", "-o", "queue_name status runlimit default_runlimit delimiter='^'")
_HOSTS = ("bhosts", "-noheader", "-o", "host_name max ng delimiter='^'")
_LSID = ("lsid",)


def look(ask: Callable[[Sequence[str]], Answer]) -> Site:
    """Ask LSF by *ask*; raise `NoAnswerError` where it does not answer. That lsid fails is tolerated."""
    queues, hosts = said(_QUEUES, ask), said(_HOSTS, ask)
    about = ask(_LSID)
    return lsf_site(queues, hosts, about.stdout if about.returncode == 0 else "")


def lsf_site(queues: str, hosts: str, about: str) -> Site:
    """Read the lines of bqueues and bhosts in the form asked for above, and what lsid prints (may be empty).

    Every queue may lead to every host: which it does, LSF's short forms do not tell. Lines of another form, banners,
    are passed over. Cores are a host's slots.
    """
    kinds: Counter[tuple[int, int]] = Counter()
    for cells in _cells(hosts, 3):
        if cells[1].isdigit():
            kinds[int(cells[1]), int(cells[2]) if cells[2].isdigit() else 0] += 1
    nodes = tuple(NodeKind(count=count, cores=cores, mem_mb=None, gpus=gpus) for (cores, gpus), count in kinds.items())
    version = re.search(r"LSF\D*(\d[\w.]*)", about)
    name = re.search(r"^My cluster name is (\S+)", about, re.MULTILINE)
    return Site(
        scheduler=SchedulerName.lsf,
        queues=tuple(
            QueueFacts(
                name=queue,
                kinds=nodes,
                has_gpus=None if any(kind.gpus for kind in nodes) else False,
                max_walltime_s=parse_limit_s(limit),
                default_walltime_s=parse_limit_s(default),
                closed=None if status == "Open:Active" else f"was {status} when asked",
            )
            for queue, status, limit, default in _cells(queues, 4)
        ),
        version=version[1] if version else None,
        own_name=name[1] if name else None,
    )


def _cells(text: str, count: int) -> list[list[str]]:
    rows = [[cell.strip() for cell in line.split("^")] for line in text.splitlines()]
    return [row for row in rows if len(row) == count]
