"""The machine that hpcml was typed on: its cores and GPUs, as far as this process may use them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hpcml.agent import host
from hpcml.agent.devices import visible_gpus
from hpcml.agent.gpu import Gpu
from hpcml.agent.nvml.inventory import list_gpus


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """The machine that hpcml was typed on."""

    cores: int
    gpus: Sequence[Gpu]


def look_around(environ: Mapping[str, str]) -> Machine:
    """Return the cores and GPUs that this process may use."""
    visible = visible_gpus(list_gpus(environ), environ.get("CUDA_VISIBLE_DEVICES"), environ.get("CUDA_DEVICE_ORDER"))
    return Machine(cores=host.usable_cores(), gpus=visible)
