"""What tests of checkpoints do with a run directory, and what they find in it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import hpcml_client
from hpcml.runs.journal import Event, read_journal


def connect(run_dir: Path, attempt: int = 0, **environ: str) -> hpcml_client.Client:
    return hpcml_client.connect({"HPCML_RUN_DIR": str(run_dir), "HPCML_ATTEMPT": str(attempt), **environ})


def text(content: str = "state") -> object:
    return lambda path: Path(path).write_text(content)


def names(run_dir: Path) -> list[str]:
    return sorted(path.name for path in (run_dir / "checkpoints").iterdir())


def events(run_dir: Path, name: str) -> list[dict[str, object]]:
    found = (r for path in sorted(run_dir.glob("journal/*.jsonl")) for r in read_journal(path).records)
    return [record.details for record in found if isinstance(record, Event) and record.name == name]


def spawn(*argv: str, **environ: str) -> subprocess.Popen[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HPCML_")}
    command = [sys.executable, "-W", "error", "-c", *argv]
    return subprocess.Popen(command, env={**kept, **environ}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
