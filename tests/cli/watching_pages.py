"""`hpcml watch` as a process that goes on, with the link that it printed."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from tests.cli.command_line import HPCML, Hpcml

PATIENCE_S = 300


@dataclass
class Served:
    """The process, its link, and what it said on stderr after it."""

    process: subprocess.Popen[str]
    link: str
    said: str = ""

    def end(self, number: int) -> int:
        """Send it the signal *number* and return its exit code."""
        self.process.send_signal(number)
        _, self.said = self.process.communicate(timeout=PATIENCE_S)
        return self.process.returncode


@contextmanager
def watching(hpcml: Hpcml, *words: str) -> Iterator[Served]:
    """Start ``hpcml watch WORDS`` and yield it once its page can be opened."""
    process = subprocess.Popen(
        [*HPCML, "watch", *words],
        env={**hpcml.environ, "PYTHONUNBUFFERED": "1"},
        cwd=hpcml.cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert process.stderr is not None
        first = process.stdout.readline()
        found = re.fullmatch(r"(http://127\.0\.0\.1:\d+/[\w-]{32}/)\n", first)
        assert found, first + process.stderr.read()
        yield Served(process, found[1])
    finally:
        process.kill()
        process.communicate(timeout=PATIENCE_S)
