"""The `hpcml` command as an ordinary user of the cluster types it."""

from __future__ import annotations

import json
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.cluster.slurm.account import Account

_START = "from hpcml.cli.main import main; main()"
_OPEN = ("PENDING", "RUNNING")


@dataclass(frozen=True)
class Hpcml:
    """A user of the cluster with a project of their own, who may ask the scheduler as often as they like."""

    account: Account
    project: Path
    environ: dict[str, str] = field(default_factory=lambda: {"HPCML_POLL_INTERVAL_S": "0"})

    def __call__(self, *words: str, **variables: str) -> subprocess.CompletedProcess[bytes]:
        environ = {"HPCML_HOME": str(self.home), **self.environ, **variables}
        return self.account.run([str(self.account.python), "-c", _START, *words], cwd=self.project, environ=environ)

    def start(self, *words: str) -> subprocess.Popen[bytes]:
        """Start a command; what it says is dropped."""
        environ = {"HPCML_HOME": str(self.home), **self.environ}
        return self.account.start([str(self.account.python), "-c", _START, *words], cwd=self.project, environ=environ)

    @property
    def home(self) -> Path:
        return self.project / "hpcml"

    def run(self, *words: str, **variables: str) -> subprocess.CompletedProcess[bytes]:
        """Submit; a refusal is for the caller to look at."""
        conf = self.account.sources / "tests" / "schedulers" / "slurm" / "conf"
        return self("run", "--config-dir", str(conf), "cluster=testslurm", *words, **variables)

    def submit(self, *words: str, **variables: str) -> list[dict[str, Any]]:
        """Submit what must be taken; return what `hpcml run --json` says."""
        done = self.run("--json", *words, **variables)
        assert done.returncode == 0, done.stderr.decode()
        submitted: list[dict[str, Any]] = json.loads(done.stdout)
        return submitted

    def runs(self) -> list[dict[str, Any]]:
        done = self("runs", "--json")
        assert done.returncode == 0, done.stderr
        found: list[dict[str, Any]] = json.loads(done.stdout)
        return found

    def status(self) -> list[dict[str, Any]]:
        """Ask the scheduler about what is open, then return all runs."""
        asked = self("status")
        assert asked.returncode == 0, asked.stderr.decode()
        return self.runs()

    def until(self, holds: Callable[[list[dict[str, Any]]], bool], *, timeout_s: float = 300) -> list[dict[str, Any]]:
        """Ask again and again until *holds* of all runs."""
        deadline = time.monotonic() + timeout_s
        while not holds(runs := self.status()):
            assert time.monotonic() < deadline, [(run["state"], run["attempt"], run["reason"]) for run in runs]
            time.sleep(0.5)
        return runs

    def runs_once_ended(self, *, timeout_s: float = 300) -> list[dict[str, Any]]:
        return self.until(lambda runs: all(run["state"] not in _OPEN for run in runs), timeout_s=timeout_s)

    def until_running(self, count: int = 1) -> list[dict[str, Any]]:
        """Wait until so many runs have their program started."""

        def started(runs: list[dict[str, Any]]) -> bool:
            logs = [list((Path(run["path"]) / "logs").glob(f"{run['attempt']}-rank*.out")) for run in runs]
            return (
                sum(run["state"] == "RUNNING" and bool(found) for run, found in zip(runs, logs, strict=True)) >= count
            )

        return self.until(started)

    def write(self, name: str, text: str) -> Path:
        """Leave a program in the project, which belongs to the user."""
        path = self.project / name
        self.account.run(["tee", str(path)], cwd=self.project, input=text.encode())
        return path


def _has_printed(run: dict[str, Any]) -> bool:
    return any((Path(run["path"]) / "logs").glob(f"{run['attempt']}-rank*.out"))


def events(run: dict[str, Any], name: str) -> list[dict[str, Any]]:
    """Return the events called *name* of all journals, with the attempt that each belongs to."""
    found = []
    for path in sorted((Path(run["path"]) / "journal").glob("*.jsonl")):
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        attempt = lines[0]["attempt"]
        found += [{"attempt": attempt, **line["d"]} for line in lines[1:] if line.get("n") == name]
    return found


def torch_folder(account: Account) -> Path:
    """Return a copy of this Python's packages that the user may read: torch is too large to install twice."""
    source = Path(sysconfig.get_paths()["purelib"])
    target = account.cluster.root / f"packages-{sys.version_info[0]}.{sys.version_info[1]}-{source.stat().st_mtime_ns}"
    if not (target / "complete").exists():
        for flags in (["-aLl"], ["-aL"]):  # as hard links, which takes seconds, where this is one file system
            subprocess.run(["rm", "-rf", str(target)], check=True)
            if (
                subprocess.run(["cp", *flags, str(source), str(target)], check=False, capture_output=True).returncode
                == 0
            ):
                break
        (target / "complete").touch()
    return target
