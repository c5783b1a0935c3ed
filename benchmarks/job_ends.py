"""What it costs to record the ends of jobs whose agents were all killed at once: CPU time of `hpcml status`.

RUNS run directories are written whose agents say that they are one process of this machine, which lives; `hpcml status`
reads them into the store. Then the process is ended, and `hpcml status` finds it, journals the end of each run, and
reads these ends. That is measured, once for each number of RUNS.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from commands_at_size import MAIN, used
from store_at_size import write_run

from hpcml.runs.liveness import ProcessIdentity
from hpcml_client.journal import JournalWriter

METRICS, STEPS = ["loss", "step_time_s"], 20


def write_running(home: Path, number: int, agent: ProcessIdentity) -> None:
    """Write a run that *agent* carries out."""
    write_run(home / "runs", number, METRICS, STEPS)
    (folder,) = (home / "runs" / "benchmark").glob(f"*-{number:06d}-*")
    for journal in (folder / "journal").glob("*agent*"):  # it says how the run ended
        journal.unlink()
    with JournalWriter.open(str(folder / "journal"), run=folder.name, writer="launch") as journal:
        journal.event("submitted", {"scheduler": "local", "job_id": "local-1", "queue": agent.as_details()})
    with JournalWriter.open(str(folder / "journal"), run=folder.name, writer="agent") as journal:
        journal.event("attempt_started", {"job_id": "local-1", "node": 0, **agent.as_details()})
        journal.event("facts", {"hostname": "node1", "gpu_model": "NVIDIA A100", "torch": "2.13.0"})


def ends(home: Path, runs: int) -> tuple[float, float]:
    """Return the CPU seconds and the memory in MB of the command that records the ends of *runs*."""
    agent = subprocess.Popen(["sleep", "3600"])
    for number in range(runs):
        write_running(home, number, ProcessIdentity.of_process(agent.pid))
    environ = {**os.environ, "HPCML_HOME": str(home), "HPCML_STORE": str(home / "store.db")}
    status = [sys.executable, "-P", "-c", MAIN, "status"]
    used(status, environ)
    agent.kill()
    agent.wait()
    measured = used(status, environ)
    listed = [sys.executable, "-P", "-c", MAIN, "runs", "--state", "lost", "--json"]
    found = subprocess.run(listed, env=environ, capture_output=True, text=True, check=True).stdout.count('"LOST"')
    if found != runs:
        raise SystemExit(f"{found} of {runs} ends were recorded")
    return measured


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--runs", type=int, nargs="+", default=[0, 500, 2000], help="how many jobs end")
    print("| jobs that ended | CPU s | MB |\n|---:|---:|---:|")
    for runs in parser.parse_args().runs:
        with tempfile.TemporaryDirectory() as home:
            cpu_s, memory_mb = ends(Path(home), runs)
        print(f"| {runs:,} | {cpu_s:.2f} | {memory_mb:.0f} |", flush=True)


if __name__ == "__main__":
    main()
