"""What this machine is: the facts that a comparison must hold equal or show."""

from __future__ import annotations

import os
import platform
import socket
from pathlib import Path
from typing import Any

import psutil

_CPU_INFO = Path("/proc/cpuinfo")
_CGROUP_CPU_MAX = Path("/sys/fs/cgroup/cpu.max")


def usable_cores(cpu_max: Path = _CGROUP_CPU_MAX) -> int:
    """Return the cores this process may use: its affinity, cut by the cgroup's quota where there is one."""
    cores = len(os.sched_getaffinity(0))
    try:
        quota, period = cpu_max.read_text(encoding="ascii").split()
    except (OSError, ValueError):
        return cores
    return cores if quota == "max" else max(1, min(cores, int(quota) // int(period)))


def facts() -> dict[str, Any]:
    """Return flat facts; a key whose value cannot be had is left out. The GPUs have theirs in `gpu`."""
    found: dict[str, Any] = {
        "hostname": socket.gethostname(),
        "cpu_model": _cpu_model(),
        "cores": usable_cores(),
        "memory_mb": psutil.virtual_memory().total // 2**20,
        "kernel": platform.release(),
        "python": platform.python_version(),
    }
    return {name: value for name, value in found.items() if value is not None}


def _cpu_model() -> str | None:
    try:
        for line in _CPU_INFO.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return " ".join(line.partition(":")[2].split())
    except OSError:
        pass
    return platform.processor() or None
