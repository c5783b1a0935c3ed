"""The `hpcml` command on a terminal: what a person sees and types."""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
import time
from pathlib import Path

from tests.cli.command_line import HPCML, Hpcml


class OnTerminal:
    """A command with a terminal of its own as stdin, stdout and stderr."""

    def __init__(self, hpcml: Hpcml, *words: str) -> None:
        self._master, terminal = pty.openpty()
        self.said = ""
        environ = {**hpcml.environ, "COLUMNS": "200", "LINES": "40", "TERM": "xterm"}
        self.process = subprocess.Popen(
            [*HPCML, *words],
            env=environ,
            cwd=Path(hpcml.cwd),
            stdin=terminal,
            stdout=terminal,
            stderr=terminal,
            start_new_session=True,
        )
        os.close(terminal)

    def until(self, text: str, *, timeout_s: float = 300) -> None:
        """Read until *text* was shown."""
        deadline = time.monotonic() + timeout_s
        while text not in self.said:
            assert time.monotonic() < deadline, self.said
            self._read(0.1)

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def ctrl_c(self) -> None:
        os.killpg(self.process.pid, signal.SIGINT)

    def end(self, *, timeout_s: float = 300) -> int:
        """Read to the end and return the exit code."""
        deadline = time.monotonic() + timeout_s
        while self.process.poll() is None:
            assert time.monotonic() < deadline, self.said
            self._read(0.1)
        self._read(0.1)
        os.close(self._master)
        return self.process.returncode

    def _read(self, timeout_s: float) -> None:
        try:
            while select.select([self._master], [], [], timeout_s)[0]:
                self.said += os.read(self._master, 1 << 16).decode("utf-8", "replace")
        except OSError:  # nobody writes there any more
            return
