"""The process that samples a node, forked by the agent: `sample` is all that it does.

It has one thread, and may hang in NVML for as long as it likes: nobody waits for it. On its standard output it says one
line, once it reads: the file it writes and the facts of the GPUs, as JSON. Any word on its standard input asks for a
last tick; the end of that input, or of the agent, ends it at once.
``python -P -m hpcml.agent.telemetry.sampler RUN_DIR ...`` does the same for a process that is no fork of an agent.
"""

from __future__ import annotations

import json
import os
import select
import sys
import time
from argparse import ArgumentParser
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hpcml.agent.child import CONTROL, SAID, SAMPLER, end_with
from hpcml.agent.memory_kills import job_around
from hpcml.agent.nvml.inventory import shown_gpus
from hpcml.agent.nvml.session import attempt, started
from hpcml.agent.telemetry.gpus import FoundGpus, find_gpus, gpu_facts
from hpcml.agent.telemetry.host import HostReader, find_job_group
from hpcml.agent.telemetry.node import NodeReader
from hpcml.agent.telemetry.others import OtherSamplers, Watched
from hpcml.paths import begin_in_utf8
from hpcml.runs.layout import RunDir
from hpcml_client.journal import JournalWriter

UNITS = {
    "_w": "W",
    "_j": "J",
    "_s": "s",
    "_us": "us",
    "_mb": "MiB",
    "_mhz": "MHz",
    "_c": "degrees Celsius",
    "_percent": "% of the time, or of the whole",
}


@dataclass(slots=True)
class Sampler:
    """The sampling loop; ticks that came too late are skipped and counted as missed."""

    node: NodeReader
    journal: JournalWriter
    interval_s: float
    others: OtherSamplers | None = None  # of packages, whose values are metrics of the run
    metrics: JournalWriter | None = None  # where those go
    ticks: int = 0
    missed: int = 0

    def begin(self, about: Mapping[str, Any]) -> None:
        """Take the first sample, after an event that describes what is read."""
        values = self._measure(last=False)
        self.journal.event("devices", {**self.node.describe(), **about, "units": UNITS})
        self._write(values)

    def run(self, control: int) -> None:
        """Sample at the interval until the file descriptor *control* has input (one last sample follows) or ends."""
        due_s = time.monotonic() + self.interval_s
        while True:
            if select.select([control], [], [], max(0.0, due_s - time.monotonic()))[0]:
                if os.read(control, 4096):
                    self._write(self._measure(last=True))
                return
            late = int((time.monotonic() - due_s) / self.interval_s)
            self.missed += late
            due_s += (late + 1) * self.interval_s
            self._write(self._measure(last=False))

    def _measure(self, *, last: bool) -> dict[str, float]:
        began_s = time.perf_counter()
        values = self.node.read(whatever_it_takes=last)
        return {
            **values,
            "sampler.cpu_s": time.process_time(),
            "sampler.tick_us": (time.perf_counter() - began_s) * 1e6,
            "sampler.missed_ticks": float(self.missed),
        }

    def _write(self, values: Mapping[str, float]) -> None:
        self.journal.metrics(self.ticks, values)
        if self.others is not None and self.metrics is not None and (read := self.others.read()):
            self.metrics.metrics(self.ticks, read)
        self.ticks += 1
        self.node.tell_changes(values)


@dataclass(frozen=True, slots=True, kw_only=True)
class Orders:
    """What a sampler is to do."""

    run_dir: Path
    run: str  # the run's id
    attempt: int
    node: int
    agent: int  # the process that it ends with
    interval_s: float = 1.0
    gpus: int | None = None  # how many the job asked for on this node
    without_gpus: bool = False
    facts_only: bool = False
    network: bool = False
    pcie: bool = False
    samplers: Sequence[str] = field(default_factory=list)  # of packages, by name


def sample(orders: Orders) -> int:
    """Sample until the agent asks for the end, or ends itself; return the exit status."""
    with nullcontext() if orders.without_gpus else started(os.environ) as obstacle:
        found, refused = _gpus(orders, obstacle)
        facts = {**gpu_facts(found.gpus if found.is_known else ()), "gpu_mapping": found.source}
        if found.reason:
            facts["gpu_mapping_reason"] = found.reason
        facts = facts if found.gpus or found.reason else {}
        if orders.facts_only:
            _say({"telemetry": None, "facts": facts})
            return 0
        journal = JournalWriter.open(
            str(RunDir(orders.run_dir).telemetry),
            run=orders.run,
            attempt=orders.attempt,
            writer=f"node{orders.node}",
        )
        with journal:
            group = find_job_group(job_around(os.environ))
            host = HostReader(root=orders.agent, group=group, network=orders.network)
            node = NodeReader(found=found, host=host, tell=journal.event, traffic=orders.pcie, refused=refused)
            sampler = Sampler(node=node, journal=journal, interval_s=orders.interval_s)
            with ExitStack() as opened:
                if orders.samplers:
                    _add_others(sampler, orders, found, opened)
                sampler.begin({"interval_s": orders.interval_s, **facts})
                _say({"telemetry": journal.path, "facts": facts})
                sampler.run(CONTROL)
            journal.event("sampler_ended", {"ticks": sampler.ticks, "missed_ticks": sampler.missed})
    return 0


def _add_others(sampler: Sampler, orders: Orders, found: FoundGpus, opened: ExitStack) -> None:
    """Have *sampler* read those of packages too, into a journal of the run of their own."""
    metrics = opened.enter_context(
        JournalWriter.open(
            str(RunDir(orders.run_dir).journals),
            run=orders.run,
            attempt=orders.attempt,
            writer=f"sampler{orders.node}",
        )
    )
    uuids = [gpu.uuid for gpu in found.gpus]
    watched = Watched(agent_pid=orders.agent, node=orders.node, gpu_uuids=uuids)
    sampler.others, sampler.metrics = OtherSamplers(metrics.event, watched), metrics
    sampler.others.open(orders.samplers)


def _gpus(orders: Orders, obstacle: str | None) -> tuple[FoundGpus, dict[str, str]]:
    if orders.without_gpus:
        return FoundGpus(gpus=(), source="the run uses none"), {}
    if obstacle:
        return FoundGpus(gpus=(), source="none shown", reason=obstacle), {"nvml": obstacle}
    refused: dict[str, str] = {}
    shown, hidden = attempt(shown_gpus, "nvml", refused) or ([], [])
    refused |= {f"gpus {number}": why for number, why in enumerate(hidden)}
    return find_gpus(shown, os.environ, expected=orders.gpus), refused


def _say(words: Mapping[str, Any]) -> None:
    os.write(SAID, (json.dumps(words) + "\n").encode())


def _main() -> int:
    parser = ArgumentParser(prog="hpcml.agent.telemetry.sampler", description=__doc__)
    parser.add_argument("run_dir", type=Path)
    parser.add_argument("--run", required=True, help="the run's id")
    parser.add_argument("--attempt", type=int, required=True)
    parser.add_argument("--node", type=int, required=True)
    parser.add_argument("--agent", type=int, required=True, help="the process that it ends with")
    parser.add_argument("--interval-s", type=float, default=1.0)
    parser.add_argument("--gpus", type=int, help="how many the job asked for on this node")
    for switch in ("--without-gpus", "--facts-only", "--network", "--pcie"):
        parser.add_argument(switch, action="store_true")
    parser.add_argument("--sampler", action="append", default=[], dest="samplers", help="one that a package adds")
    orders = Orders(**vars(parser.parse_args()))
    end_with(orders.agent, SAMPLER)
    return sample(orders)


if __name__ == "__main__":
    begin_in_utf8()
    sys.exit(_main())
