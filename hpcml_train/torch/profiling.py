"""Chosen steps under a profiler: torch's own, or NVIDIA's around this process, which waits for a sign of it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import torch

from hpcml_client.client import Client

_ROWS = 40  # of the table: the operations that took longest
_PATH = "HPCML_PROFILE"  # of the agent: where this process is to write; absent: it is not profiled


class StepWindow:
    """The steps that are profiled: from *first* on, *count* of them; `close` ends what the training did not reach."""

    def __init__(self, tool: str, path: str, *, first: int, count: int) -> None:
        self._tool, self._path = tool, path
        self._first, self._last = first, first + count - 1
        self._profiler: Any | None = None
        self._is_open = False

    @classmethod
    def of_run(cls, run: Client, done: int) -> StepWindow | None:
        """Return the window that the run asks for in this process; None where it asks for none.

        Counted are the steps of this attempt: *done* were done before it.
        """
        profile: Mapping[str, Any] = (run.config.get("run") or {}).get("profile") or {}
        tool, path, first = profile.get("tool", "none"), os.environ.get(_PATH), profile.get("first_step")
        if tool == "none" or not path or (first is None and tool != "torch"):
            return None
        return cls(tool, path, first=done + int(first or 2), count=int(profile["steps"]))

    def before(self, step: int) -> None:
        """Begin, where *step* is the first."""
        if step != self._first:
            return
        self._is_open = True
        if self._tool == "torch":
            kinds = [torch.profiler.ProfilerActivity.CPU]
            if torch.cuda.is_available():
                kinds.append(torch.profiler.ProfilerActivity.CUDA)
            self._profiler = torch.profiler.profile(activities=kinds)
            self._profiler.start()
        elif torch.cuda.is_available():
            torch.cuda.profiler.start()  # type: ignore[no-untyped-call]

    def after(self, step: int) -> None:
        """End, where *step* was the last."""
        if step == self._last:
            self.close()

    def close(self) -> None:
        """End the profile and write what torch's own has found: a trace for browsers, and a table."""
        if not self._is_open:
            return
        self._is_open = False
        if self._profiler is not None:
            self._profiler.stop()
            self._profiler.export_chrome_trace(f"{self._path}.json")
            by = "self_cuda_time_total" if torch.cuda.is_available() else "self_cpu_time_total"
            with open(f"{self._path}.txt", "w", encoding="utf-8") as file:
                file.write(self._profiler.key_averages().table(sort_by=by, row_limit=_ROWS))
        elif torch.cuda.is_available():
            torch.cuda.profiler.stop()  # type: ignore[no-untyped-call]
