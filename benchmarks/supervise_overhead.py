"""How long a run's program waits for hpcml: from starting the agent to the program's first instruction.

A run is made with `hpcml run`, whose program prints the time. Its agent is then started again by hand REPEAT times, as
job.sh would, each a new attempt in the same run directory. The peer starts the same program directly. Wall clock; the
clock is the same for both sides, since both ask the kernel.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

REPEAT = 15
PROGRAM = ["date", "+%s.%N"]


def make_run(home: str) -> Path:
    """Return the directory of a run of PROGRAM that has ended."""
    hpcml = str(Path(sys.executable).with_name("hpcml"))
    environ = {**os.environ, "HPCML_HOME": home}
    command = f"workload.command={' '.join(PROGRAM)}"
    subprocess.run([hpcml, "run", command], check=True, env=environ, cwd=home, stdout=subprocess.DEVNULL)
    listed = subprocess.run([hpcml, "runs", "--json"], check=True, env=environ, capture_output=True, text=True)
    return Path(json.loads(listed.stdout)[0]["path"])


def agent_ms(run_dir: Path, attempt: int) -> float:
    began = time.time()
    subprocess.run(["/bin/bash", str(run_dir / "job.sh")], check=True, env={**os.environ, "HPCML_RUN_AGAIN": "1"})
    printed = (run_dir / "logs" / f"{attempt}-rank0.out").read_text(encoding="ascii")
    return (float(printed) - began) * 1000


def direct_ms() -> float:
    began = time.time()
    printed = subprocess.run(PROGRAM, check=True, capture_output=True, text=True).stdout
    return (float(printed) - began) * 1000


def main() -> None:
    with tempfile.TemporaryDirectory() as home:
        run_dir = make_run(home)
        through = [agent_ms(run_dir, attempt) for attempt in range(1, REPEAT + 1)]
        direct = [direct_ms() for _ in range(REPEAT)]
    ours, theirs = statistics.median(through), statistics.median(direct)
    print("| start of a program | ms until it runs (median of 15) |")
    print("|---|---:|")
    print(f"| directly | {theirs:.1f} |")
    print(f"| through hpcml's agent | {ours:.1f} |")
    print(f"\nThe agent adds {ours - theirs:.0f} ms to a run, once for each attempt.")


if __name__ == "__main__":
    main()
