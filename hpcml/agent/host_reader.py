"""What a run uses of its node beside GPUs, read again and again: cores, memory, files, power of the processors."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from hpcml.agent.job_group import JobGroup
from hpcml.agent.pace import Pace

_POWERCAP = Path("/sys/class/powercap")
_INFINIBAND = Path("/sys/class/infiniband")
_MIB = 2**20
_TREE_EVERY_S = 5.0  # finding a tree of processes means looking at all of the node


@dataclass(slots=True)
class _Package:
    """A processor's energy counter (RAPL), which begins again at `wraps_at_uj`."""

    file: Path
    wraps_at_uj: int
    total_uj: int = 0
    last_uj: int | None = None

    def read_j(self) -> float:
        now_uj = int(self.file.read_text(encoding="ascii"))
        if self.last_uj is not None:
            self.total_uj += (now_uj - self.last_uj) % (self.wraps_at_uj + 1)
        self.last_uj = now_uj
        return self.total_uj / 1e6


@dataclass(slots=True)
class HostReader:
    """Reads what belongs to the job's control group where it has one, else to the tree of processes below *root*.

    The sum over a tree has in it what ended children used, once their parents have waited for them (proc(5)).
    """

    root: int  # process id
    group: JobGroup | None
    network: bool = False
    powercap: Path = _POWERCAP
    infiniband: Path = _INFINIBAND
    refused: dict[str, str] = field(default_factory=dict)
    _packages: Sequence[_Package] = ()
    _tree_pace: Pace = field(default_factory=Pace)
    _tree_at_s: float = float("-inf")

    def __post_init__(self) -> None:
        self._packages = self._find_packages()

    @property
    def cpu_from(self) -> str:
        """Where CPU time is from."""
        return "cgroup" if self.group is not None and self.group.cpu is not None else "processes"

    @property
    def memory_from(self) -> str:
        """Where memory is from."""
        return "cgroup" if self.group is not None and self.group.memory is not None else "processes"

    def read(self, at_s: float, *, whatever_it_takes: bool = False) -> dict[str, float]:
        """Return the values at *at_s*."""
        values = {"load1": os.getloadavg()[0], **self._package_energy()}
        values |= {name: value for name, value in self._of_group().items() if value is not None}
        is_due = at_s - self._tree_at_s >= _TREE_EVERY_S and self._tree_pace.is_due()
        if is_due or whatever_it_takes:
            self._tree_at_s = at_s
            began = time.perf_counter()
            values = {**self._of_tree(), **values}  # the group knows better
            self._tree_pace.took(time.perf_counter() - began)
        if self.network:
            values |= self._traffic()
        return values

    def _of_group(self) -> dict[str, float | None]:
        if self.group is None:
            return {}
        return {"cpu_s": self.group.cpu_s(), "memory_mb": self.group.memory_mb()}

    def _of_tree(self) -> dict[str, float]:
        cpu_s = resident = 0.0
        files = {"read_mb": 0.0, "written_mb": 0.0, "read_calls_mb": 0.0, "written_calls_mb": 0.0}
        try:
            root = psutil.Process(self.root)
            members = [root, *(member for member in root.children(recursive=True) if member.pid != os.getpid())]
        except psutil.Error as error:
            self.refused["processes"] = repr(error)
            return {}
        for member in members:
            try:
                times = member.cpu_times()
                cpu_s += times.user + times.system + times.children_user + times.children_system
                resident += member.memory_info().rss
                used = member.io_counters()
            except psutil.NoSuchProcess:
                continue  # its parent has what it used
            except psutil.AccessDenied as error:  # set-user-id
                self.refused["files"] = repr(error)
                continue
            files["read_mb"] += used.read_bytes / _MIB
            files["written_mb"] += used.write_bytes / _MIB
            files["read_calls_mb"] += used.read_chars / _MIB
            files["written_calls_mb"] += used.write_chars / _MIB
        return {"cpu_s": cpu_s, "memory_mb": resident / _MIB, **files}

    def _find_packages(self) -> list[_Package]:
        found = []
        for zone in sorted(self.powercap.glob("*-rapl:*")):
            if zone.name.count(":") != 1:
                continue  # a part of a package
            try:
                int((zone / "energy_uj").read_text(encoding="ascii"))
                wraps_at_uj = int((zone / "max_energy_range_uj").read_text(encoding="ascii"))
            except (OSError, ValueError) as error:  # readable by root alone since Linux 5.10 (CVE-2020-8694)
                self.refused["package_j"] = str(error)
                continue
            found.append(_Package(file=zone / "energy_uj", wraps_at_uj=wraps_at_uj))
        if not found and "package_j" not in self.refused:
            self.refused["package_j"] = f"no RAPL counters in {self.powercap}"
        return found

    def _package_energy(self) -> dict[str, float]:
        values = {}
        for number, package in enumerate(self._packages):
            try:
                values[f"package{number}_j"] = package.read_j()
            except (OSError, ValueError) as error:
                self.refused[f"package{number}_j"] = str(error)
        return values

    def _traffic(self) -> dict[str, float]:
        received = sent = 0.0
        for name, card in psutil.net_io_counters(pernic=True).items():
            if name != "lo":
                received, sent = received + card.bytes_recv / _MIB, sent + card.bytes_sent / _MIB
        values = {"net_received_mb": received, "net_sent_mb": sent}
        for name, file in (("ib_received_mb", "port_rcv_data"), ("ib_sent_mb", "port_xmit_data")):
            counters = list(self.infiniband.glob(f"*/ports/*/counters/{file}"))
            if not counters:
                self.refused[name] = f"no ports in {self.infiniband}"
                continue
            # in words of four bytes (Linux, Documentation/ABI/stable/sysfs-class-infiniband)
            values[name] = sum(int(counter.read_text(encoding="ascii")) for counter in counters) * 4 / _MIB
        return values
