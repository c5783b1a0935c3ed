"""A machine looked at without a run: its GPUs and its load, by the code that samples runs."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from hpcml.agent.devices import Found
from hpcml.agent.machine_reader import MachineReader
from hpcml.agent.node_reader import NodeReader
from hpcml.agent.nvml.inventory import shown_gpus
from hpcml.agent.nvml.session import attempt, started
from hpcml.journal import Event, Metrics
from hpcml.live import NodeNow
from hpcml.operations.sampled import Sampled

_NOBODYS = "no run: all that NVML shows"


@contextmanager
def machine(environ: Mapping[str, str], *, interval_s: float) -> Iterator[Callable[[], NodeNow]]:
    """Yield a function that takes a sample and returns what is known; without NVML the host alone is sampled."""
    with started(environ) as obstacle:
        refused: dict[str, str] = {}
        gpus, hidden = ([], []) if obstacle else attempt(shown_gpus, "nvml", refused) or ([], [])
        parts = [part for gpu in gpus for part in gpu.instances or (gpu,)]
        doubts = [obstacle, refused.get("nvml"), *hidden]
        found = Found(gpus=parts, source=_NOBODYS, reason="; ".join(filter(None, doubts)) or None)
        began_s = time.monotonic()
        told: list[Metrics | Event] = []

        def tell(name: str, details: Mapping[str, Any]) -> None:
            told.append(Event(seq=0, t_s=time.monotonic() - began_s, name=name, details=dict(details)))

        node = NodeReader(found=found, host=MachineReader(), tell=tell, refused=refused)
        sampled = Sampled(node=0, host=socket.gethostname(), t0=time.time())
        ticks = 0

        def sample() -> NodeNow:
            nonlocal ticks
            values = node.read()
            if ticks == 0:
                tell("devices", {**node.describe(), "interval_s": interval_s})
            told.append(Metrics(seq=0, t_s=time.monotonic() - began_s, step=ticks, values=values))
            node.tell_changes(values)
            ticks += 1
            sampled.take(told)
            told.clear()
            return sampled.now()

        yield sample
