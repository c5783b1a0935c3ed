"""A double as tests use it: a server process, the scheduler's programs in a folder for PATH, and faults on demand."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from tests.cluster.double.faults import Faults, write_faults

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
PROGRAMS = {
    "lsf": ("bsub", "bjobs", "bkill", "bmod", "brequeue", "blaunch"),
    "flux": ("flux",),
}


@dataclass
class Double:
    """*dialect* is lsf or flux; jobs are real processes of this machine."""

    dialect: str
    folder: Path
    process: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    @property
    def bin(self) -> Path:
        """What to put in front of PATH."""
        return self.folder / "bin"

    @property
    def state(self) -> Path:
        return self.folder / "state"

    def start(self) -> None:
        self.bin.mkdir(parents=True, exist_ok=True)
        self.state.mkdir(exist_ok=True)
        for program in PROGRAMS[self.dialect]:
            words = shlex.join([sys.executable, "-S", "-E", str(HERE / "client.py"), str(self.state), program])
            wrapper = self.bin / program
            silence = "flux-jobs: ERROR: Unable to connect to Flux: broker socket was not found"
            wrapper.write_text(
                "#!/bin/sh\n"
                + (f"export DOUBLE_SILENCE={shlex.quote(silence)}\n" if self.dialect == "flux" else "")
                + f'exec {words} "$@"\n'
            )
            wrapper.chmod(0o755)
        (self.state / "address").unlink(missing_ok=True)
        with (self.state / "server.log").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-S", "-m", "tests.cluster.double.server", self.dialect, str(self.state)],
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        until = time.monotonic() + 300
        while not (self.state / "address").exists():
            assert self.process.poll() is None, self.log()
            assert time.monotonic() < until, self.log()
            time.sleep(0.01)

    def stop(self) -> None:
        """End the server and every job; an exception of the server is a failure of the test."""
        if self.process is not None:
            self.process.terminate()
            self.process.wait(timeout=300)
        assert "Traceback" not in self.log(), self.log()

    def log(self) -> str:
        return (self.state / "server.log").read_text(errors="replace")

    def set(self, **faults: object) -> None:
        """Set the faults given, and clear all others."""
        write_faults(self.state, Faults(**faults))  # type: ignore[arg-type]

    def call_words(self) -> list[list[str]]:
        path = self.state / "calls.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def calls(self) -> Counter[str]:
        """Return how often each program was called; of flux, each of its commands."""
        return Counter(" ".join(words[:2]) if words[0] == "flux" else words[0] for words in self.call_words())
