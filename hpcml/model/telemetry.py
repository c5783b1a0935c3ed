"""The `telemetry` section of the configuration: what is measured while a program runs."""

from __future__ import annotations

from dataclasses import dataclass, field

from hpcml.errors import require
from hpcml.units import parse_interval_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Telemetry:
    """What is measured while the program runs, by a separate process (the sampler) on each node."""

    enabled: bool = True
    interval: str = "1s"  # between samples: NVML's calls take a lock that the program needs, too
    network: bool = False  # traffic of the node's network cards and InfiniBand ports
    pcie: bool = False  # traffic of the GPUs' PCIe and NVLink
    samplers: list[str] = field(default_factory=list)  # of packages: what they read becomes metrics of the run

    def __post_init__(self) -> None:
        seconds = parse_interval_s(self.interval, field="telemetry.interval")
        require(0.1 <= seconds <= 600, f"telemetry.interval={self.interval} must lie between 100ms and 10m")

    @property
    def interval_s(self) -> float:
        """The time between two samples, in seconds."""
        return parse_interval_s(self.interval, field="telemetry.interval")
