"""hpcml's command as a user types it, with a home of its own; for benchmarks that measure through it."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_COMMAND = "from hpcml.cli.main import main; main()"


def command_of(python: str | Path = sys.executable) -> str:
    """Return the command that is installed with *python*; where there is none, the script ends with a line."""
    found = Path(python).with_name("hpcml")
    if not found.exists():
        raise SystemExit(f"there is no {found}: use the Python of an environment in which hpcml is installed")
    return str(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class Hpcml:
    """Runs and asks in *home*. A command that fails ends the script, with its line; what runs say goes to stderr."""

    home: Path

    def sweep(self, *words: str) -> None:
        """Run every combination, one run after the other, and wait for them; those that fail are left to the tables."""
        self._call("run", "-m", "cluster.max_parallel=1", *words, stdout=sys.stderr.fileno(), may_be=(0, 1))

    def asked(self, *words: str) -> Any:  # noqa: ANN401 - JSON
        """Return what a command answers with ``--json``."""
        return json.loads(self._call(*words, "--json", stdout=subprocess.PIPE))

    def said(self, *words: str) -> str:
        """Return what a command prints."""
        return self._call(*words, stdout=subprocess.PIPE)

    def _call(self, *words: str, stdout: int, may_be: tuple[int, ...] = (0,)) -> str:
        command = [sys.executable, "-c", _COMMAND, "--home", str(self.home), *words]  # also where nothing is installed
        done = subprocess.run(command, check=False, stdout=stdout, text=True)
        if done.returncode not in may_be:
            raise SystemExit(f"hpcml {' '.join(words)} ended with status {done.returncode}")
        return done.stdout
