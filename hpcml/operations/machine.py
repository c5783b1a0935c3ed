"""The machine that hpcml was typed on: its cores and GPUs, as far as this process may use them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hpcml.agent import gpu, host


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """The machine that hpcml was typed on."""

    cores: int
    gpus: Sequence[gpu.Gpu]


def look_around(environ: Mapping[str, str]) -> Machine:
    """Return the cores and GPUs that this process may use."""
    visible = gpu.visible_gpus(gpu.list_gpus(), environ.get("CUDA_VISIBLE_DEVICES"))
    return Machine(cores=host.usable_cores(), gpus=visible)
