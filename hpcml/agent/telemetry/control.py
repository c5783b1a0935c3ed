"""The agent's side of the sampler: starts the process, reads what it writes, and sums it up at the end.

The agent never waits longer than two seconds for the sampler, which may hang in the GPU driver.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpcml.agent.assignment import Turn
from hpcml.agent.outcome import how
from hpcml.runs.journal import parse_chunk

if TYPE_CHECKING:
    from hpcml.agent.telemetry.summary import NodeSummary

PATIENCE_S = 2.0  # NVML may take half a minute, and a program that waits for it costs more than a gap in the samples
_TO_DIE_S = 0.5
_READ_EVERY_S = 5.0
_CHUNK_BYTES = 4 << 20
_CHOOSE_GPUS = ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "GPU_DEVICE_ORDINAL")


@dataclass(slots=True)
class SamplerHandle:
    """The sampler of one attempt on one node, as the agent sees it.

    No method raises an error for what the sampler does or fails to do, and none waits for it for longer than two
    seconds; `trouble` has the reason why there are no samples, or no more.
    """

    process: subprocess.Popen[bytes] | None
    is_on: bool = True  # else it tells the facts of the GPUs and takes no samples
    trouble: str | None = None  # why there is none, or no more
    _facts: Mapping[str, Any] | None = None  # of the GPUs, told and not yet taken
    _has_said: bool = False
    _said: bytes = b""
    _journal: Path | None = None
    _offset: int = 0
    _summary: NodeSummary | None = None
    _read_at_s: float = field(default_factory=time.monotonic)
    _stopped: bool = False

    @classmethod
    def start(cls, turn: Turn, attempt: int, environ: Mapping[str, str]) -> SamplerHandle:
        """Start the sampler of this node; with telemetry switched off it only reports the GPUs' facts and ends.

        It sees the GPUs that the program will see: the plan's CUDA_VISIBLE_DEVICES goes before that of *environ*. Where
        it cannot start, the handle has no process.
        """
        planned = turn.manifest.plan.environment
        chosen = {**environ, **{name: planned[name] for name in _CHOOSE_GPUS if name in planned}}
        is_on = turn.manifest.run.telemetry.enabled
        try:
            return cls(
                subprocess.Popen(
                    _argv(turn, attempt),
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,  # its complaints, if any, go where the agent's go
                    env={name: value for name, value in chosen.items() if value is not None},
                    start_new_session=True,  # signals to the agent's group are not for it
                ),
                is_on,
            )
        except OSError as error:
            return cls(None, is_on, trouble=f"the sampler cannot start: {error}")

    def take_facts(self, timeout_s: float = 0.0) -> Mapping[str, Any]:
        """Return the facts of the GPUs once, when the sampler has sent them.

        Returns an empty dict where it has not within *timeout_s*, and in later calls.
        """
        until = time.monotonic() + timeout_s
        while self.process is not None and not (self._has_said or self._stopped):
            assert self.process.stdout is not None
            left_s = max(0.0, until - time.monotonic())
            if not select.select([self.process.stdout], [], [], left_s)[0] or not self._listen():
                break
        facts, self._facts = self._facts, None
        return facts or {}

    def begin(self) -> None:
        """Mark the start of the program: energies and means of the summary count from now."""
        self._summary = _summary_from(time.monotonic())

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

    def end(self) -> dict[str, Any]:
        """End the sampler after a last sample; return the details of the event `telemetry` (docs/telemetry.md).

        They are flat, with the units in the names; `trouble` is among them where sampling did not go to the end.
        """
        ended_s = time.monotonic()
        if self._summary is None:
            self._summary = _summary_from(ended_s)
        self._summary.end(ended_s)
        self.stop()
        self._fold(to_the_end=True)
        details = {**self._summary.details(), "wall_s": ended_s - self._summary.begin_s}
        return details | ({"trouble": self.trouble} if self.trouble else {})

    def stop(self) -> None:
        """End the sampler, with SIGKILL if it does not answer; further calls do nothing."""
        if self.process is None or self._stopped:
            return
        self._stopped = True
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        with suppress(OSError):  # it has ended
            self.process.stdin.write(b"stop\n")
            self.process.stdin.flush()
        try:
            code = self.process.wait(PATIENCE_S - _TO_DIE_S)
        except subprocess.TimeoutExpired:
            self.trouble = self.trouble or f"the sampler did not answer within {PATIENCE_S:g} s and was killed"
            self.process.kill()
            with suppress(subprocess.TimeoutExpired):  # it hangs in the driver, which not even SIGKILL ends
                self.process.wait(_TO_DIE_S)
        else:
            if code != 0:
                self.trouble = self.trouble or _of_sampler(code)
        with suppress(OSError):
            self.process.stdin.close()
        if not self._has_said and select.select([self.process.stdout], [], [], 0.0)[0]:
            self._listen()
        self.process.stdout.close()

    def _listen(self) -> bool:
        """Take what the sampler says; tell whether it may say more."""
        assert self.process is not None
        assert self.process.stdout is not None
        heard = os.read(self.process.stdout.fileno(), 1 << 16)
        self._said += heard
        line, newline, _ = self._said.partition(b"\n")
        if newline:
            words = json.loads(line)
            self._has_said, self._facts = True, words["facts"]
            self._journal = Path(words["telemetry"]) if words["telemetry"] else None
        return bool(heard)

    def _fold(self, *, to_the_end: bool = False) -> None:
        """Add what the sampler has written since the last time: a chunk of it, or all there is."""
        if self._journal is None or self._summary is None:
            return
        with self._journal.open("rb") as file:
            while True:
                file.seek(self._offset)
                chunk = parse_chunk(file.read(_CHUNK_BYTES), offset=self._offset)
                self._summary.add(chunk.records)
                if chunk.end == self._offset:
                    return
                self._offset = chunk.end
                if not to_the_end:
                    return


def _summary_from(begin_s: float) -> NodeSummary:
    from hpcml.agent.telemetry.summary import NodeSummary  # noqa: PLC0415 - after the sampler was started, not before

    return NodeSummary(begin_s)


def _argv(turn: Turn, attempt: int) -> Sequence[str]:
    plan, telemetry = turn.manifest.plan, turn.manifest.run.telemetry
    words = [
        sys.executable,
        "-P",
        "-m",
        "hpcml.agent.telemetry.sampler",
        str(turn.run_dir.path),
        "--run",
        turn.manifest.uid,
    ]
    words += ["--attempt", str(attempt), "--node", str(turn.node), "--agent", str(os.getpid())]
    words += ["--interval-s", str(telemetry.interval_s)]
    words += ["--gpus", str(plan.gpus_per_node)] if plan.gpus_per_node else []
    words += [word for name in telemetry.samplers for word in ("--sampler", name)]
    switches = {
        "--without-gpus": plan.device != "cuda",
        "--facts-only": not telemetry.enabled,
        "--network": telemetry.network,
        "--pcie": telemetry.pcie,
    }
    return [*words, *(word for word, is_on in switches.items() if is_on)]


def _of_sampler(code: int) -> str:
    """Return in words how the sampler ended, by its exit code."""
    return f"the sampler has ended: {how(code)}"
