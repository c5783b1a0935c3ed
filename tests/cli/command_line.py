"""The `hpcml` command, run as a user runs it: a process, words, an environment."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HPCML = [sys.executable, "-c", "from hpcml.cli.main import main; main()"]


@dataclass(frozen=True)
class Hpcml:
    """A user with a home of their own."""

    environ: dict[str, str]
    cwd: Path

    def __call__(self, *words: str, timeout_s: float = 300, **variables: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*HPCML, *words],
            env={**self.environ, **variables},
            cwd=self.cwd,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )

    def start(self, *words: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [*HPCML, *words],
            env=self.environ,
            cwd=self.cwd,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def runs(self) -> list[dict[str, Any]]:
        done = self("runs", "--json")
        assert done.returncode == 0, done.stderr
        found = json.loads(done.stdout)
        assert isinstance(found, list)
        return found

    @property
    def home(self) -> Path:
        return Path(self.environ["HPCML_HOME"])


def program(code: str, *words: Sequence[str]) -> str:
    """Return the override that makes *code* the user's program."""
    return f"workload.command={shlex.join([sys.executable, '-c', code, *map(str, words)])}"


def said_in_one_line(done: subprocess.CompletedProcess[str]) -> str:
    """Return the only line on stderr."""
    lines = done.stderr.splitlines()
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith("hpcml: ")
    return lines[0]
