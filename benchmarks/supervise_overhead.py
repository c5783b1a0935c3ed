"""How long a run's program waits for hpcml: from starting the agent to the program's first instruction.

A run is made with `hpcml run`, whose program prints the time. Its agent is then started again by hand REPEAT times, as
job.sh would, each a new attempt in the same run directory. The peer starts the same program directly. Wall clock; the
clock is the same for both sides, since both ask the kernel.

Where strace is installed, the path operations of the agent's process up to the start of the program are counted: system
calls that name a file (strace's ``%file``), which a shared parallel file system answers one by one. Of them fstat of a
file that is open is counted apart, since it names none.
"""

from __future__ import annotations

import json
import os
import shutil
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


def path_operations(run_dir: Path, trace: Path) -> tuple[int, int]:
    """Return how many path operations the agent's process makes before the program starts, and how many are fstat."""
    words = ["strace", "-f", "-e", "trace=%file", "-o", str(trace), "/bin/bash", str(run_dir / "job.sh")]
    subprocess.run(words, check=True, env={**os.environ, "HPCML_RUN_AGAIN": "1"})
    lines = trace.read_text(encoding="utf-8", errors="replace").splitlines()
    agent = lines[0].split()[0]
    first = next(at for at, line in enumerate(lines) if "execve(" in line and "hpcml.agent.main" in line)
    last = next(at for at, line in enumerate(lines) if "execve(" in line and f'"{PROGRAM[0]}", "{PROGRAM[1]}"' in line)
    own = [line for line in lines[first:last] if line.split()[0] == agent and "(" in line.split()[1]]
    return len(own), sum("AT_EMPTY_PATH" in line for line in own)


def direct_ms() -> float:
    began = time.time()
    printed = subprocess.run(PROGRAM, check=True, capture_output=True, text=True).stdout
    return (float(printed) - began) * 1000


def main() -> None:
    with tempfile.TemporaryDirectory() as home:
        run_dir = make_run(home)
        through = [agent_ms(run_dir, attempt) for attempt in range(1, REPEAT + 1)]
        direct = [direct_ms() for _ in range(REPEAT)]
        counted = path_operations(run_dir, Path(home) / "trace") if shutil.which("strace") else None
    ours, theirs = statistics.median(through), statistics.median(direct)
    print("| start of a program | ms until it runs (median of 15) |")
    print("|---|---:|")
    print(f"| directly | {theirs:.1f} |")
    print(f"| through hpcml's agent | {ours:.1f} |")
    print(f"\nThe agent adds {ours - theirs:.0f} ms to a run, once for each attempt.")
    if counted is not None:
        print(f"Path operations of the agent until then: {counted[0]}, of which {counted[1]} fstat of an open file.")


if __name__ == "__main__":
    main()
