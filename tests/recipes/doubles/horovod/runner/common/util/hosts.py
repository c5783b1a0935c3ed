"""Which rank is where, as Horovod's launcher decides it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class SlotInfo:
    """The place of one rank."""

    hostname: str
    rank: int
    local_rank: int
    cross_rank: int
    size: int
    local_size: int
    cross_size: int


def parse_hosts(hosts: str) -> list[tuple[str, int]]:
    """Read ``name:slots,name:slots``."""
    return [(name, int(slots)) for name, slots in (host.split(":") for host in hosts.split(","))]


def get_host_assignments(hosts: list[tuple[str, int]], min_num_proc: int) -> list[SlotInfo]:
    """Fill one host after the other; here all have equally many slots."""
    places = [(node, local) for node, (_, slots) in enumerate(hosts) for local in range(slots)]
    if len(places) < min_num_proc:
        raise ValueError(f"{min_num_proc} processes are more than {len(places)} slots")
    return [
        SlotInfo(hosts[node][0], rank, local, node, len(places), hosts[node][1], len(hosts))
        for rank, (node, local) in enumerate(places)
    ]
