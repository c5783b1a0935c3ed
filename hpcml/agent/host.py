"""Facts about this machine that comparisons hold equal or report: processor, memory, kernel, modules, variables.

The agent records them in the event "facts" of each attempt.
"""

from __future__ import annotations

import os
import platform
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_CPU_INFO = Path("/proc/cpuinfo")
_CGROUP_CPU_MAX = Path("/sys/fs/cgroup/cpu.max")

# Variables that change how a program computes or communicates, by name. NVIDIA_API_KEY and TF_TOKEN_... are secrets:
# what belongs to a family is still left out where its name speaks of one.
_TELLING = re.compile(
    r"(NCCL|OMP|KMP|MKL|OPENBLAS|CUDA|CUBLAS|CUDNN|PYTORCH|TORCH|XLA|UCX)_[A-Z0-9_]+"
    r"|NVIDIA_(TF32_OVERRIDE|VISIBLE_DEVICES|DRIVER_CAPABILITIES)"
    r"|TF_(ENABLE|DISABLE|CUDNN|GPU|XLA|DETERMINISTIC|FORCE|NUM|CPP|USE)_[A-Z0-9_]+|GPU_DEVICE_ORDINAL"
)
_SPEAKS_OF_A_SECRET = re.compile(r"KEY|TOKEN|SECRET|PASS|PWD|CREDENTIAL|AUTH|COOKIE|CERT")
_MOST_CHARACTERS = 500


def usable_cores(cpu_max: Path = _CGROUP_CPU_MAX) -> int:
    """Return the number of cores that this process may use: its affinity, limited by the cgroup's quota.

    *cpu_max* holds quota and period in microseconds, or "max" for no quota (cgroup version 2, cpu.max); where it cannot
    be read, the affinity alone counts.
    """
    cores = len(os.sched_getaffinity(0))
    try:
        quota, period = cpu_max.read_text(encoding="ascii").split()
    except (OSError, ValueError):
        return cores
    return cores if quota == "max" else max(1, min(cores, int(quota) // int(period)))


def facts() -> dict[str, Any]:
    """Return the facts of this machine as a flat dict; a fact that cannot be found out is left out.

    The keys are hostname, cpu_model, cores, memory_mb (MiB), kernel and python. Facts of the GPUs come from the sampler
    (telemetry/gpus).
    """
    found: dict[str, Any] = {
        "hostname": os.uname().nodename,
        "cpu_model": _cpu_model(),
        "cores": usable_cores(),
        "memory_mb": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2**20,
        "kernel": os.uname().release,
        "python": sys.version.split()[0],
    }
    return {name: value for name, value in found.items() if value is not None}


def telling_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that change how a program computes, as facts ``env.NAME``; never one that may hold a secret.

    >>> telling_variables({"NCCL_ALGO": "Ring", "NVIDIA_API_KEY": "x", "PATH": "/bin"})
    {'env.NCCL_ALGO': 'Ring'}
    """
    return {
        f"env.{name}": value[:_MOST_CHARACTERS]
        for name, value in sorted(environ.items())
        if _TELLING.fullmatch(name) and not _SPEAKS_OF_A_SECRET.search(name)
    }


def loaded_modules(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the modules that are loaded, sorted, as the fact ``modules``; nothing where none is.

    Environment Modules and Lmod say them in ``LOADEDMODULES``, and their files in ``_LMFILES_``.

    >>> loaded_modules({"LOADEDMODULES": "GCC/12.3.0:CUDA/12.1.1"})
    {'modules': 'CUDA/12.1.1, GCC/12.3.0'}
    >>> loaded_modules({"_LMFILES_": "/apps/modules/all/CUDA/12.1.1.lua"})
    {'modules': 'CUDA/12.1.1'}
    """
    names = environ.get("LOADEDMODULES", "").split(":")
    if not any(names):
        files = [Path(file.removesuffix(".lua")) for file in environ.get("_LMFILES_", "").split(":") if file]
        names = ["/".join(file.parts[-2:]) for file in files]
    found = ", ".join(sorted(filter(None, names)))
    return {"modules": found} if found else {}


def _cpu_model() -> str | None:
    try:
        for line in _CPU_INFO.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return " ".join(line.partition(":")[2].split())
    except OSError:
        pass
    return platform.processor() or None
