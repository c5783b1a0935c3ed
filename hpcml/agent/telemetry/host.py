"""What a run uses of its node besides GPUs: CPU time, memory, files, network, energy of the processors.

`HostReader` reads it for a run, from the control group of its job (`JobGroup`) or, without one, from its tree of
processes. Units: seconds, MiB, joules, totals since the start.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from hpcml.agent.child import METRICS
from hpcml.agent.memory_kills import MOUNTS, OURS, is_called_by
from hpcml.agent.telemetry.backoff import Backoff

_POWERCAP = Path("/sys/class/powercap")
_INFINIBAND = Path("/sys/class/infiniband")
_MIB = 2**20
_TREE_EVERY_S = 5.0  # finding a tree of processes means looking at all of the node


@dataclass(slots=True)
class _Package:
    """A processor's energy counter (RAPL, Linux powercap), in microjoules; it begins again at `wraps_at_uj`."""

    file: Path
    wraps_at_uj: int
    total_uj: int = 0
    last_uj: int | None = None

    def read_j(self) -> float:
        """Return the joules since the first call.

        A counter that has wrapped more than once between two calls cannot be told from one that has wrapped once.
        """
        now_uj = int(self.file.read_text(encoding="ascii"))
        if self.last_uj is not None:
            self.total_uj += (now_uj - self.last_uj) % (self.wraps_at_uj + 1)
        self.last_uj = now_uj
        return self.total_uj / 1e6


@dataclass(slots=True)
class HostReader:
    """Reads the job's control group where there is one, else the processes below the process *root*.

    The sum over a tree of processes contains what ended children used, once their parents have waited for them
    (proc(5)).
    """

    root: int  # process id
    group: JobGroup | None
    network: bool = False
    powercap: Path = _POWERCAP
    infiniband: Path = _INFINIBAND
    refused: dict[str, str] = field(default_factory=dict)
    _packages: Sequence[_Package] = ()
    _tree_pace: Backoff = field(default_factory=Backoff)
    _tree_at_s: float = float("-inf")

    def __post_init__(self) -> None:
        self._packages = self._find_packages()

    @property
    def cpu_from(self) -> str:
        """The source of CPU time: cgroup or processes."""
        return "cgroup" if self.group is not None and self.group.cpu is not None else "processes"

    @property
    def memory_from(self) -> str:
        """The source of memory: cgroup or processes."""
        return "cgroup" if self.group is not None and self.group.memory is not None else "processes"

    def read(self, at_s: float, *, whatever_it_takes: bool = False) -> dict[str, float]:
        """Return the values at *at_s* (monotonic seconds) by name.

        Walking the tree of processes is slow, and done at most every five seconds unless *whatever_it_takes*. What
        cannot be read is left out, with the reason in `refused`.
        """
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
        """Return CPU seconds, resident MiB, and MiB read and written, summed over the tree of processes.

        This process is left out. `read_mb` and `written_mb` went to storage, `read_calls_mb` and `written_calls_mb`
        through system calls, caches and pipes included (proc(5), /proc/PID/io).
        """
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
                if member.name() == METRICS:
                    continue  # a fork of the agent, whose memory would count twice
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
            try:
                if not (zone / "name").read_text(encoding="ascii").startswith("package"):
                    continue  # a part of one, or psys, the whole platform (kernel, power/powercap/powercap.rst)
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
        """Return the MiB that this node's network cards received and sent; they are of all jobs on the node."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class JobGroup:
    """The folders of the job's control group; None: no such controller, or no group for the job alone."""

    version: int
    cpu: Path | None
    memory: Path | None

    def cpu_s(self) -> float | None:
        """Return the CPU time of all processes that ever ran in the group, in seconds; None where it is not counted."""
        if self.cpu is None:
            return None
        if self.version == 1:
            text = _read(self.cpu / "cpuacct.usage")  # nanoseconds
            return int(text) / 1e9 if text else None
        used_us = _keys(self.cpu / "cpu.stat").get("usage_usec")
        return None if used_us is None else used_us / 1e6

    def memory_mb(self) -> float | None:
        """Return the memory in use in MiB, without cached files that the kernel may drop at once."""
        if self.memory is None:
            return None
        current, key = ("usage_in_bytes", "total_inactive_file") if self.version == 1 else ("current", "inactive_file")
        text = _read(self.memory / f"memory.{current}")
        return (int(text) - _keys(self.memory / "memory.stat").get(key, 0)) / _MIB if text else None


def find_job_group(job_id: str | None, *, ours: Path = OURS, mounts: Path = MOUNTS) -> JobGroup | None:
    """Return the control group that Slurm or PBS made for the job *job_id* on this node; None where there is none.

    Both put the job's id into the name of one folder; everything below it belongs to the job (cgroups(7)).
    """
    text = _read(ours) if job_id else None
    if not text:
        return None
    found: dict[str, Path] = {}
    for line in text.splitlines():
        controllers, _, group = line.partition(":")[2].partition(":")
        inside = _up_to_job(group, job_id)
        if inside is None:
            continue
        for controller in controllers.split(","):  # "" is version 2
            place = mounts / controller / inside
            if place.is_dir():
                found[controller] = place
    if "cpuacct" in found or "memory" in found:
        return JobGroup(version=1, cpu=found.get("cpuacct"), memory=found.get("memory"))
    if "" not in found:
        return None
    unified = found[""]
    return JobGroup(
        version=2,
        cpu=unified if (unified / "cpu.stat").exists() else None,
        memory=unified if (unified / "memory.current").exists() else None,
    )


def _up_to_job(group: str, job_id: str | None) -> str | None:
    parts = group.strip("/").split("/")
    for depth in range(1, len(parts) + 1):
        if is_called_by(inside := "/".join(parts[:depth]), job_id):
            return inside
    return None


def _read(file: Path) -> str | None:
    try:
        return file.read_text(encoding="ascii", errors="replace").strip() or None
    except OSError:
        return None


def _keys(file: Path) -> dict[str, int]:
    pairs = (line.split() for line in (_read(file) or "").splitlines())
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdecimal()}
