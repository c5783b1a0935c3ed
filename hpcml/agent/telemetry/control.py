"""The agent's side of the sampler: starts the process, reads what it writes, and sums it up at the end.

The sampler is a `Child` of the agent, since NVML may hang: it is never waited for longer than two seconds. The program
waits for its first sample, so that everything is counted from the program's start.
"""

from __future__ import annotations

import json
import os
import select
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hpcml.agent.assignment import Turn
from hpcml.agent.child import SAMPLER, TO_DIE_S, Child
from hpcml.agent.outcome import how
from hpcml.agent.telemetry.summary import NodeSummary
from hpcml.runs.journal import parse_chunk

PATIENCE_S = 2.0  # NVML may take half a minute, and a program that waits for it costs more than a gap in the samples
_READ_EVERY_S = 5.0
_CHUNK_BYTES = 4 << 20
_CHOOSE_GPUS = ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "GPU_DEVICE_ORDINAL")


@dataclass(slots=True)
class SamplerHandle:
    """The sampler of one attempt on one node, as the agent sees it.

    No method raises an error for what the sampler does or fails to do, and none waits for it for longer than two
    seconds; `trouble` has the reason why there are no samples, or no more.
    """

    process: Child | None
    is_on: bool = True  # else it tells the facts of the GPUs and takes no samples
    trouble: str | None = None  # why there is none, or no more
    _facts: Mapping[str, Any] | None = None  # of the GPUs, told and not yet taken
    _has_said: bool = False
    _said: bytes = b""
    _journal: Path | None = None
    _offset: int = 0
    _begin_s: float | None = None  # of the monotonic clock: when the program was started
    _summary: NodeSummary | None = None
    _read_at_s: float = field(default_factory=time.monotonic)
    _stopped: bool = False

    @classmethod
    def start(cls, turn: Turn, attempt: int, environ: Mapping[str, str]) -> SamplerHandle:
        """Start the sampler of this node; without telemetry it only reports the facts of GPUs.

        It sees the GPUs that the program will see: the plan's CUDA_VISIBLE_DEVICES goes before that of *environ*. Where
        it cannot start, the handle has no process.
        """
        plan, telemetry = turn.plan, turn.run.telemetry
        chosen = {**environ, **{name: plan.environment[name] for name in _CHOOSE_GPUS if name in plan.environment}}
        agent = os.getpid()

        def act() -> int:
            from hpcml.agent.telemetry.sampler import Orders, sample  # noqa: PLC0415 - NVML's, in its own process

            os.environ.clear()
            os.environ.update({name: value for name, value in chosen.items() if value is not None})
            orders = Orders(
                run_dir=turn.run_dir.path,
                run=turn.uid,
                attempt=attempt,
                node=turn.node,
                agent=agent,
                interval_s=telemetry.interval_s,
                gpus=plan.gpus_per_node or None,
                without_gpus=plan.device != "cuda",
                facts_only=not telemetry.enabled,
                network=telemetry.network,
                pcie=telemetry.pcie,
                samplers=telemetry.samplers,
            )
            return sample(orders)

        handle = cls(None, telemetry.enabled)
        if plan.device == "cuda" or telemetry.enabled:
            try:
                handle.process = Child.of_this(act, SAMPLER)
            except OSError as error:
                handle.trouble = f"the sampler cannot start: {error}"
        return handle

    def take_facts(self, timeout_s: float = 0.0) -> Mapping[str, Any]:
        """Return the facts of the GPUs once, when the sampler has sent them.

        Returns an empty dict where it has not within *timeout_s*, and in later calls.
        """
        until = time.monotonic() + timeout_s
        while self.process is not None and not (self._has_said or self._stopped):
            left_s = max(0.0, until - time.monotonic())
            if not select.select([self.process.said], [], [], left_s)[0] or not self._listen():
                break
        facts, self._facts = self._facts, None
        return facts or {}

    def begin(self) -> None:
        """Mark the start of the program, to be called just before it: energies and means count from now."""
        self._begin_s = time.monotonic()

    def read(self) -> str | None:
        """Read what the sampler has written; to be called often. Return why the sampler has ended, once, else None."""
        news = None
        if self.process is not None and self.is_on and self.trouble is None:
            code = self.process.poll()
            news = self.trouble = None if code is None else _of_sampler(code)
        if time.monotonic() - self._read_at_s >= _READ_EVERY_S:
            self._read_at_s = time.monotonic()
            self._fold()
        return news

    def end(self, *, most_held_mb: float | None = None) -> dict[str, Any]:
        """End the sampler after a last sample; return the details of the event `telemetry` (docs/telemetry.md).

        *most_held_mb* is what a process of the program held at most, which samples may have missed.
        They are flat, with the units in the names; `trouble` is among them where sampling did not go to the end.
        """
        ended_s = time.monotonic()
        if self._begin_s is None:
            self._begin_s = ended_s
        self.stop()
        summary = self._summed_up()
        summary.end(ended_s)
        self._fold(to_the_end=True)
        details = {**summary.details(), "wall_s": ended_s - self._begin_s}
        if most_held_mb is not None:
            details["host_max_memory_mb"] = max(most_held_mb, details.get("host_max_memory_mb", 0.0))
        return details | ({"trouble": self.trouble} if self.trouble else {})

    def stop(self) -> None:
        """End the sampler after a last sample, with SIGKILL if it does not answer; further calls do nothing."""
        if self.process is None or self._stopped:
            return
        self._stopped = True
        code = self.process.end("stop\n", within_s=PATIENCE_S - TO_DIE_S)
        if code is None:
            self.trouble = self.trouble or f"the sampler did not answer within {PATIENCE_S:g} s and was killed"
        elif code != 0:
            self.trouble = self.trouble or _of_sampler(code)
        if not self._has_said and select.select([self.process.said], [], [], 0.0)[0]:
            self._listen()
        self.process.close()

    def _listen(self) -> bool:
        """Take what the sampler says; tell whether it may say more."""
        assert self.process is not None
        heard = os.read(self.process.said, 1 << 16)
        self._said += heard
        line, newline, _ = self._said.partition(b"\n")
        if newline:
            words = json.loads(line)
            self._has_said, self._facts = True, words["facts"]
            self._journal = Path(words["telemetry"]) if words["telemetry"] else None
        return bool(heard)

    def _summed_up(self) -> NodeSummary:
        if self._summary is None:
            assert self._begin_s is not None
            self._summary = NodeSummary(self._begin_s)
        return self._summary

    def _fold(self, *, to_the_end: bool = False) -> None:
        """Add what the sampler has written since the last time: a chunk of it, or all there is."""
        if self._journal is None or self._begin_s is None:
            return
        summary = self._summed_up()
        with self._journal.open("rb") as file:
            while True:
                file.seek(self._offset)
                chunk = parse_chunk(file.read(_CHUNK_BYTES), offset=self._offset)
                summary.add(chunk.records)
                if chunk.end == self._offset:
                    return
                self._offset = chunk.end
                if not to_the_end:
                    return


def _of_sampler(code: int) -> str:
    """Return in words how the sampler ended, by its exit code."""
    return f"the sampler has ended: {how(code)}"
