"""The device that was planned for this process, where it is not there."""

from __future__ import annotations


class NoGpuError(RuntimeError):
    """A GPU was planned for this process, and its framework sees none."""

    def __init__(self, framework: str, version: str) -> None:
        super().__init__(
            f"the plan says cuda, but {framework} {version} sees no GPU: is it built for CUDA, "
            "and does nvidia-smi show a GPU on this node?"
        )
