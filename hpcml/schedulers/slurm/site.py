"""What Slurm says of its site: partitions and nodes by sinfo, limits by ``scontrol show config``."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from hpcml.model.cluster import SchedulerName
from hpcml.schedulers.commands import Answer, said
from hpcml.schedulers.contract import NodeKind, QueueFacts, Site
from hpcml.schedulers.slurm.answers import parse_time_s

# -e: one line for each kind of node; without it nodes that differ are put together as "8+" (man sinfo).
_SINFO = ("sinfo", "-h", "-e", "-o", "%P|%a|%l|%L|%h|%D|%c|%m|%G")
_SCONTROL = ("scontrol", "show", "config")
_GPU = re.compile(r"gpu(?::(?P<type>[^:,]*[^:,\d][^:,]*))?(?::(?P<count>\d+))?")
_MIG = re.compile(r"\dg\.\d+gb")


def look(ask: Callable[[Sequence[str]], Answer]) -> Site:
    """Ask Slurm by *ask*; raise `NoAnswerError` where it does not answer.

    That ``scontrol show config`` fails is tolerated: version and limits are then not known.
    """
    partitions = said(_SINFO, ask)
    config = ask(_SCONTROL)
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
        queues=tuple(_partition(name, lines) for name, lines in rows.items()),
        version=settings.get("SLURM_VERSION"),
        own_name=settings.get("ClusterName"),
        max_array_size=int(size) if size.isdigit() and int(size) else None,
    )


def _partition(name: str, lines: Sequence[Sequence[str]]) -> QueueFacts:
    _, state, limit, default, sharing, *_ = lines[0]
    kinds = tuple(_slurm_kind(cells[5:]) for cells in lines)
    return QueueFacts(
        name=name.rstrip("*"),
        kinds=kinds,
        has_gpus=any(kind.gpus for kind in kinds),
        max_walltime_s=parse_time_s(limit),
        default_walltime_s=parse_time_s(default),
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
