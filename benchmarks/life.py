"""What watching costs the scheduler and the user, and how soon an end is known; on a real Slurm.

    sudo PYTHONPATH=. python benchmarks/life.py            # needs root: it starts the tests' Slurm; about ten minutes

1. ``hpcml status`` over 1000 runs that have not ended (one array, held): wall seconds, of the first, which reads 1000
   new run directories into the store, of those that ask Slurm, and of those that find its answer in the store.
2. Programs of Slurm called while ``hpcml wait`` watches those 1000 for WATCHED_S seconds, at the default interval;
   counted by wrappers of squeue and sacct in front of the real ones, and given per hour.
3. Seconds between the end of a job and the moment at which ``hpcml wait`` ends, against submitit's ``job.result()``,
   for jobs of LASTED_S seconds: of a program that ends by itself, and of one that is killed together with its agent
   (with submitit: with its process), of which only the scheduler knows.

The promises: at most 60 calls an hour, and less than 1 s for 1000 runs.
"""

from __future__ import annotations

import shutil
import statistics
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

from tests.cluster.slurm.account import Account, prepare
from tests.cluster.slurm.cluster import Cluster, missing
from tests.schedulers.slurm import as_user

RUNS = 1000
WATCHED_S = 240
LASTED_S = (75, 100, 125)
MOST_CALLS_PER_HOUR, LONGEST_STATUS_S = 60, 1.0
HPCML = "from hpcml.cli.start import main; main()"
SUBMITIT = """
import os, signal, subprocess, sys, time
import submitit

def work(seconds, end, dies):
    time.sleep(seconds)
    with open(end, "w") as file:
        file.write(repr(time.time()))
    if dies:
        os.kill(os.getpid(), signal.SIGKILL)

executor = submitit.SlurmExecutor("log")
executor.update_parameters(time=10, partition="qcpu", account="proj1", mem="100M")
job = executor.submit(work, int(sys.argv[1]), sys.argv[2], sys.argv[3] == "dies")
try:
    job.result()
except Exception:
    pass
print(time.time() - float(open(sys.argv[2]).read()))
"""
OURS = """
import os, signal, sys, time
time.sleep(int(sys.argv[1]))
with open(sys.argv[2], "w") as file:
    file.write(repr(time.time()))
if sys.argv[3] == "dies":
    os.kill(os.getppid(), signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def command(account: Account, *words: str) -> list[str]:
    return [str(account.python), "-c", HPCML, *words]


def submit(account: Account, folder: Path, *words: str) -> None:
    conf = account.sources / "tests" / "schedulers" / "slurm" / "conf"
    run = command(account, "run", "--config-dir", str(conf), "cluster=testslurm", *words, "--detach")
    done = account.run(run, cwd=folder, environ={"HPCML_HOME": str(folder / "home")})
    if done.returncode != 0:
        sys.exit(done.stderr.decode())


def status_s(account: Account, folder: Path, **variables: str) -> float:
    started = time.perf_counter()
    environ = {"HPCML_HOME": str(folder / "home"), **variables}
    done = account.run(command(account, "status"), cwd=folder, environ=environ)
    if done.returncode != 0:
        sys.exit(done.stderr.decode())
    return time.perf_counter() - started


def wrappers(account: Account, folder: Path) -> dict[str, str]:
    """Put wrappers that count in front of the real programs; return the environment that finds them."""
    place = folder / "wrappers"
    for name in ("squeue", "sacct", "scontrol"):
        text = f'#!/bin/bash\necho {name} >> "{folder}/calls"\nexec /usr/bin/{name} "$@"\n'
        account.call(as_user.write_program, place, name, text)
    return {"PATH": f"{place}:{account.environ['PATH']}", "HPCML_HOME": str(folder / "home")}


def calls_per_hour(account: Account, folder: Path) -> tuple[float, Counter[str]]:
    environ = {**account.environ, **wrappers(account, folder)}
    process = subprocess.Popen(
        command(account, "wait"), cwd=folder, env=environ, user="hpcuser", group="hpcuser", extra_groups=[],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    time.sleep(WATCHED_S)
    if process.poll() is not None:
        sys.exit(f"hpcml wait ended by itself with status {process.returncode}")
    process.kill()
    process.wait()
    calls = Counter((folder / "calls").read_text().split())
    return calls.total() * 3600 / WATCHED_S, calls


def latencies_s(account: Account, how: str) -> tuple[list[float], list[float]]:
    """Return what hpcml and what submitit took to know of the end of each job; *how* is ends or dies."""
    ours: list[tuple[subprocess.Popen[bytes], Path]] = []
    theirs: list[subprocess.Popen[bytes]] = []
    for seconds in LASTED_S:
        folder = account.new_folder()
        for name, text in {"ours.py": OURS, "theirs.py": SUBMITIT}.items():
            account.run(["tee", name], cwd=folder, input=text.encode())
        program = f"{account.python} {folder}/ours.py {seconds} {folder}/end {how}"
        submit(account, folder, f"workload.command={program}")
        waiting = {**account.environ, "HPCML_HOME": str(folder / "home")}
        as_user = {"cwd": folder, "user": "hpcuser", "group": "hpcuser", "extra_groups": []}
        wait = subprocess.Popen(command(account, "wait"), env=waiting, stdout=subprocess.DEVNULL, **as_user)  # type: ignore[call-overload]
        ours.append((wait, folder))
        words = [str(account.python), "theirs.py", str(seconds), str(folder / "end-theirs"), how]
        theirs.append(subprocess.Popen(words, env=account.environ, stdout=subprocess.PIPE, **as_user))  # type: ignore[call-overload]
    known: dict[Path, float] = {}
    while len(known) < len(ours):
        for process, folder in ours:
            if folder not in known and process.poll() is not None:
                known[folder] = time.time() - float((folder / "end").read_text())
        time.sleep(0.02)
    return list(known.values()), [float(process.communicate()[0]) for process in theirs]


def main() -> int:
    if reason := missing():
        sys.exit(reason)
    cluster = Cluster()
    was_up = cluster.is_up()
    cluster.start()
    try:
        account = prepare(cluster)
        folder = account.new_folder()
        words = ["-m", f"seed=range({RUNS})", "workload.command=true", "resources.extra_directives=[--hold]"]
        submit(account, folder, *words)
        first = status_s(account, folder)
        asking = statistics.median(status_s(account, folder, HPCML_POLL_INTERVAL_S="0") for _ in range(5))
        later = statistics.median(status_s(account, folder) for _ in range(5))
        hourly, calls = calls_per_hour(account, folder)
        account.run(["scancel", "--user", "hpcuser"], cwd=folder)
        shutil.rmtree(folder)
        known = {how: latencies_s(account, how) for how in ("ends", "dies")}
    finally:
        if not was_up:
            cluster.stop()
    print(f"| `hpcml status` over {RUNS} runs | wall s |\n|---|---:|")
    print(f"| the first, which reads them in | {first:.2f} |\n| asking Slurm, median of 5 | {asking:.2f} |")
    print(f"| with the answer of before, median of 5 | {later:.2f} |\n")
    print(f"{calls.total()} calls in {WATCHED_S} s {dict(calls)}: {hourly:.0f} an hour\n")
    print("| seconds until an end is known, median (longest) | hpcml | submitit |\n|---|---:|---:|")
    for how, (ours, theirs) in known.items():
        cells = [f"{statistics.median(values):.1f} ({max(values):.1f})" for values in (ours, theirs)]
        print(f"| the program {how} | {cells[0]} | {cells[1]} |")
    return int(hourly > MOST_CALLS_PER_HOUR or max(asking, later) > LONGEST_STATUS_S)


if __name__ == "__main__":
    sys.exit(main())
