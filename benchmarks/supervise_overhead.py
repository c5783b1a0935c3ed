"""How long a run's program waits for hpcml: from starting the agent to the program's first instruction.

A run is made with `hpcml run`, whose program prints the time and what CPU time its agent has had until then
(``/proc/PID/schedstat``). Its agent is then started again by hand REPEAT times, as job.sh would, each a new attempt in
the same run directory. The peer starts the same program directly. The clock is the same for both sides, since both ask
the kernel. Of other hpcmls, by their Pythons as arguments, the same is measured, all in turns.

Then a pack of PACKED runs: from the agent's word that a run has ended to the next program's first instruction.

Where strace is installed, the path operations of the agent's process up to the start of the program are counted, in the
first attempt of a run (what the first left is removed, and it is made again): system calls that name a file (strace's
``%file``), which a shared parallel file system answers one by one. Of them fstat of a file that is open is counted
apart, since it names none.

Take PYTHONDONTWRITEBYTECODE out of the environment: where Python must not write what it compiles, there is no bundle.
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
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from hpcml_command import command_of

REPEAT = 15
PACKED = 8
PROGRAM = "read -r ns _ < /proc/$PPID/schedstat; echo $EPOCHREALTIME $ns"


def submit(python: Path, home: str, *words: str) -> list[Path]:
    """Submit runs of PROGRAM and return their directories once they have ended."""
    program = Path(home) / "program"
    program.write_text(f"#!/bin/bash\n{PROGRAM}\n", encoding="utf-8")
    program.chmod(0o700)
    command = [command_of(python), "run", f"workload.command={program}", "schedule.snapshot=none", *words]
    environ = {**os.environ, "HPCML_HOME": home}
    subprocess.run(command, check=True, env=environ, cwd=home, capture_output=True)
    return sorted(Path(home).glob("runs/*/2*"))


def agent_ms(run_dir: Path, attempt: int) -> tuple[float, float]:
    """Return how long the program waited, and how much of that its agent computed."""
    began = time.time()
    subprocess.run(["/bin/bash", str(run_dir / "job.sh")], check=True, env={**os.environ, "HPCML_RUN_AGAIN": "1"})
    at, cpu_ns = (run_dir / "logs" / f"{attempt}-rank0.out").read_text(encoding="ascii").split()
    return (float(at) - began) * 1000, float(cpu_ns) / 1e6


def packed_ms(run_dirs: Sequence[Path]) -> list[float]:
    """Return how long the programs of a pack waited after the end of those before them."""
    began = sorted(float((run_dir / "logs" / "0-rank0.out").read_text().split()[0]) for run_dir in run_dirs)
    ended = []
    for run_dir in run_dirs:
        (journal,) = run_dir.glob("journal/*agent.jsonl")
        head, *events = [json.loads(line) for line in journal.read_text(encoding="utf-8").splitlines()]
        ended += [head["t0"] + event["t"] for event in events if event.get("n") == "attempt_ended"]
    return [(after - before) * 1000 for before, after in zip(sorted(ended), began[1:], strict=False)]


def path_operations(run_dir: Path, trace: Path) -> tuple[int, int]:
    """Return how many path operations the agent's process makes before the program starts, and how many are fstat."""
    shutil.rmtree(run_dir / "attempts")
    for path in (*run_dir.glob("journal/*agent.jsonl"), *run_dir.glob("logs/*"), *run_dir.glob("telemetry/*")):
        path.unlink()
    words = ["strace", "-f", "-e", "trace=%file", "-o", str(trace), "/bin/bash", str(run_dir / "job.sh")]
    subprocess.run(words, check=True, env={**os.environ, "HPCML_RUN_AGAIN": "1"})
    lines = trace.read_text(encoding="utf-8", errors="replace").splitlines()
    agent = lines[0].split()[0]
    first = next(at for at, line in enumerate(lines) if "execve(" in line and "hpcml.agent.main" in line)
    last = next(at for at, line in enumerate(lines) if "execve(" in line and f'{run_dir.parents[2]}/program"' in line)
    own = [line for line in lines[first:last] if line.split()[0] == agent and "(" in line.split()[1]]
    return len(own), sum("AT_EMPTY_PATH" in line for line in own)


def direct_ms(program: Path) -> float:
    began = time.time()
    printed = subprocess.run([str(program)], check=True, capture_output=True, text=True).stdout
    return (float(printed.split()[0]) - began) * 1000


def show(python: Path, waits: Sequence[tuple[float, float]], packed: Sequence[float], counted: tuple[int, int]) -> None:
    walls, cpus = zip(*waits, strict=True)
    cells = [f"{statistics.median(of):.1f} ({min(of):.1f})" for of in (walls, cpus, packed)]
    print(f"| {python} | {' | '.join(cells)} | {counted[0]} | {counted[1]} |")


def main() -> None:
    pythons = [Path(word) for word in sys.argv[1:]] or [Path(sys.executable)]
    with ExitStack() as stack:
        homes = {python: stack.enter_context(tempfile.TemporaryDirectory()) for python in pythons}
        runs = {python: submit(python, home)[0] for python, home in homes.items()}
        counted = dict.fromkeys(pythons, (0, 0))
        if shutil.which("strace"):
            counted = {python: path_operations(runs[python], Path(homes[python]) / "trace") for python in pythons}
        waits: dict[Path, list[tuple[float, float]]] = {python: [] for python in pythons}
        packed: dict[Path, list[float]] = {python: [] for python in pythons}
        for attempt in range(1, REPEAT + 1):
            for python in pythons:
                waits[python].append(agent_ms(runs[python], attempt))
        for _ in range(3):
            for python in pythons:
                with tempfile.TemporaryDirectory() as home:
                    seeds = ",".join(map(str, range(PACKED)))
                    packed[python] += packed_ms(submit(python, home, "-m", f"seed={seeds}", "schedule.pack=seed"))
        direct = [direct_ms(Path(homes[pythons[0]]) / "program") for _ in range(REPEAT)]
    print(f"Directly a program of bash starts in {statistics.median(direct):.1f} ms. Median (least) ms through:")
    print("| agent of | until the program | CPU of the agent | next of a pack | path operations | of them fstat |")
    print("|---|---:|---:|---:|---:|---:|")
    for python in pythons:
        show(python, waits[python], packed[python], counted[python])


if __name__ == "__main__":
    main()
