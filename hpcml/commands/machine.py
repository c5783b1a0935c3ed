"""The cores and GPUs of this machine that the current process may use; local runs are planned for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hpcml.agent import host
from hpcml.agent.nvml.inventory import list_gpus
from hpcml.agent.telemetry.gpus import visible_gpus

if TYPE_CHECKING:
    from hpcml.agent.telemetry.gpus import Gpu


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """The machine that hpcml was typed on; `cores` and `gpus` are those that this process may use."""

    cores: int
    gpus: Sequence[Gpu]


def look_around(environ: Mapping[str, str]) -> Machine:
    """Return the cores and GPUs that this process may use.

    Cores are limited by affinity and cgroup, GPUs by CUDA_VISIBLE_DEVICES in *environ*; without NVML there are no GPUs.
    """
    visible = visible_gpus(list_gpus(environ), environ.get("CUDA_VISIBLE_DEVICES"), environ.get("CUDA_DEVICE_ORDER"))
    return Machine(cores=host.usable_cores(), gpus=visible)
