"""Journals written by hand, for tests of what reads them."""

from __future__ import annotations

import json

from hpcml.runs.layout import RunDir


def tell(run_dir: RunDir, file: str, *events: tuple[str, dict[str, object]]) -> None:
    """Append *events* to the journal called *file*, as 0-agent or 1-launch."""
    attempt, _, writer = file.partition("-")
    header = {
        "hpcml": 1,
        "journal": file,
        "run": run_dir.uid,
        "attempt": int(attempt),
        "writer": writer,
        "host": "h",
        "pid": 1,
        "t0": 1,
    }
    run_dir.journals.mkdir(exist_ok=True)
    path = run_dir.journals / f"{file}.jsonl"
    lines = [] if path.exists() else [header]
    lines += [{"s": 1, "t": 1.0, "k": "e", "n": name, "d": details} for name, details in events]
    with path.open("a") as journal:
        journal.writelines(json.dumps(line) + "\n" for line in lines)
