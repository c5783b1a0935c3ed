"""What a whole machine is doing, whoever's it is: for somebody who looks at it without a run."""

from __future__ import annotations

import os
from dataclasses import dataclass, field

import psutil

_MIB = 2**20
_NOT_BUSY = ("idle", "iowait", "guest", "guest_nice")  # what guests use is in user and nice already (proc(5))


@dataclass(slots=True)
class MachineReader:
    """Reads the CPU time and the memory in use of all processes; stands where a run's `HostReader` does."""

    cpu_from: str = "machine"
    memory_from: str = "machine"
    refused: dict[str, str] = field(default_factory=dict)

    def read(self, _: float, *, whatever_it_takes: bool = False) -> dict[str, float]:  # noqa: ARG002 - as HostReader
        """Return the values of now."""
        times = psutil.cpu_times()._asdict()
        memory = psutil.virtual_memory()
        return {
            "cpu_s": sum(spent_s for name, spent_s in times.items() if name not in _NOT_BUSY),
            "memory_mb": (memory.total - memory.available) / _MIB,
            "load1": os.getloadavg()[0],
        }
