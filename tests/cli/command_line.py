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

from tests import warm

CODE = "from hpcml.cli.main import main; main()"
HPCML = [sys.executable, "-c", CODE]


@dataclass(frozen=True)
class Hpcml:
    """A user with a home of their own."""

    environ: dict[str, str]
    cwd: Path

    def __call__(self, *words: str, timeout_s: float = 300, **variables: str) -> subprocess.CompletedProcess[str]:
        return warm.run(CODE, *words, environ={**self.environ, **variables}, cwd=self.cwd, timeout_s=timeout_s)

    def start(self, *words: str) -> warm.Process:
        return warm.start(CODE, *words, environ=self.environ, cwd=self.cwd)

    def runs(self) -> list[dict[str, Any]]:
        done = self("runs", "--json")
        assert done.returncode == 0, done.stderr
        found = json.loads(done.stdout)
        assert isinstance(found, list)
        return found

    @property
    def home(self) -> Path:
        return Path(self.environ["HPCML_HOME"])


_TYPED_IN = "import json, os; os.chdir(json.load(open(os.environ['HPCML_CONFIG']))['provenance']['cwd'])"


def program(code: str, *words: Sequence[str]) -> str:
    """Return the override that makes *code* the user's program; its signs to the test are where that typed it."""
    return f"workload.command={shlex.join([sys.executable, '-c', f'{_TYPED_IN}{chr(10)}{code}', *map(str, words)])}"


def said_in_one_line(done: subprocess.CompletedProcess[str]) -> str:
    """Return the only line on stderr."""
    lines = done.stderr.splitlines()
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith("hpcml: ")
    return lines[0]
