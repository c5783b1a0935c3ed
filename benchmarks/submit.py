"""What submitting a sweep costs: from the typed command until the scheduler has it, against hydra-submitit-launcher.

    sudo PYTHONPATH=. python benchmarks/submit.py            # needs root: it starts the tests' Slurm and PBS double

1. 1000 points on a real Slurm (tests/cluster/slurm), held so that nothing runs: wall seconds of ``hpcml run -m
   'seed=range(1000)' --detach`` (compose, validate, write run directories, one sbatch of one array, tickets) against
   the same configuration composed and submitted by Hydra's own sweeper with hydra-submitit-launcher: wall seconds until
   the array stands in squeue, measured for PEER_POINTS points and for half as many; what a further point costs is
   extrapolated to 1000, and labelled so. The peer is installed into a venv of its own below the cluster's folder.
   hpcml is compiled and has its bundles, as whoever installs it for others leaves it: its user could not write them.
   What Slurm itself takes is measured, too: sbatch with the same script once more; and what the disk takes: bare Python
   that makes the same folders, links and files once more, and then flushes the same of them, by as many threads.
2. 10 000 points on the PBS double, with nothing started: wall seconds, and the memory of the largest process.

The promises: 1000 points at least LEAST_RATIO times faster than the peer.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.cluster.pbs.double import PbsDouble
from tests.cluster.slurm.account import Account, prepare
from tests.cluster.slurm.cluster import Cluster, missing

PEER_POINTS = 60
LEAST_RATIO = 15
REPEAT = 3
SYNCS_AT_ONCE = 16  # as hpcml.runs.atomic
HPCML = "from hpcml.cli.start import main; main()"
MIB = 1024
PEER = """
import sys
import hydra
from hydra.core.config_store import ConfigStore
from omegaconf import OmegaConf
from hpcml.config.compose import mutable_twin
from hpcml.model.run import Run

ConfigStore.instance().store(name="run_schema", node=OmegaConf.structured(mutable_twin(Run)))

@hydra.main(version_base="1.3", config_path=sys.argv.pop(1), config_name="run")
def task(cfg):
    pass

task()
"""

WRITES = """
import os, sys, threading, time
given, made, threads = sys.argv[1], sys.argv[2], int(sys.argv[3])
runs = []
for run in os.scandir(given):
    entries = [(one.name, os.readlink(one.path) if one.is_symlink() else None,
                open(one.path, "rb").read() if one.is_file(follow_symlinks=False) else None) for one in os.scandir(run)]
    runs.append((run.name, entries))
def flush(paths):
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)
began = time.perf_counter()
written = []
for name, entries in runs:
    run = f"{made}/{name}"
    os.mkdir(run)
    for entry, target, content in entries:
        path = f"{run}/{entry}"
        if target is not None:
            os.symlink(target, path)
        elif content is None:
            os.mkdir(path)
        else:
            with open(path, "xb", buffering=0) as file:
                file.write(content)
            written.append(path)
    written.append(run)
workers = [threading.Thread(target=flush, args=(written[first::threads],)) for first in range(threads)]
for worker in workers:
    worker.start()
for worker in workers:
    worker.join()
print(time.perf_counter() - began)
"""


def install(account: Account) -> None:
    """Compile the account's sources and make their bundles."""
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environ["PYTHONPATH"] = str(account.sources)
    packages = [str(account.sources / name) for name in ("hpcml", "hpcml_client", "hpcml_train")]
    for words in (["-m", "compileall", "-q", *packages], ["-P", "-m", "hpcml.agent.bundle"]):
        subprocess.run([str(account.python), *words], env=environ, check=True)


def ours_s(account: Account, points: int, folder: Path) -> tuple[float, float, float]:
    """Return the wall seconds of the whole command, of sbatch alone, and of bare Python that writes the same files.

    The arrays are held and cancelled afterwards.

    *folder* stays: for a minute ext4 looks at each inode that was freed before it takes one (`recently_deleted`), and
    whoever makes files after somebody has removed thousands pays for that.
    """
    conf = account.sources / "tests" / "schedulers" / "slurm" / "conf"
    words = ["run", "-m", "--config-dir", str(conf), "cluster=testslurm", f"seed=range({points})"]
    words += ["workload.command=true", "resources.extra_directives=[--hold]", "--detach"]
    started = time.perf_counter()
    done = account.run(
        [str(account.python), "-c", HPCML, *words], cwd=folder, environ={"HPCML_HOME": str(folder / "home")}
    )
    took_s = time.perf_counter() - started
    if done.returncode != 0:
        sys.exit(done.stderr.decode())
    (script,) = (folder / "home" / "submissions").glob("*/job.sh")
    started = time.perf_counter()
    account.run(["sbatch", str(script)], cwd=folder)
    slurm_s = time.perf_counter() - started
    account.run(["scancel", "--user", "hpcuser"], cwd=folder)
    (runs,) = (folder / "home" / "runs").iterdir()
    bare = ["/bin/sh", "-c", f'mkdir bare && exec "$@" "{runs}" bare {SYNCS_AT_ONCE}', "-", str(account.python)]
    written = account.run([*bare, "-c", WRITES], cwd=folder)
    if written.returncode != 0:
        sys.exit(written.stderr.decode())
    return took_s, slurm_s, float(written.stdout)


def peer_s(account: Account, python: Path, points: int) -> float:
    """Return the wall seconds until the peer's array stands in the queue; then it is cancelled and ended."""
    folder = account.new_folder()
    (folder / "peer.py").write_text(PEER)
    words = [str(account.sources / "conf"), "-m", "hydra/launcher=submitit_slurm", f"seed=range({points})"]
    words += ["hydra.launcher.partition=qcpu", "hydra.launcher.timeout_min=10", "hydra.launcher.mem_gb=1"]
    words += ["hydra.launcher.account=proj1", "+hydra.launcher.additional_parameters.hold=true"]
    words += [f"hydra.sweep.dir={folder}/sweep"]
    started = time.perf_counter()
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [str(python), str(folder / "peer.py"), *words],
            cwd=folder, env=account.environ, stdout=log, stderr=log, user="hpcuser", group="hpcuser", extra_groups=[],
        )  # fmt: skip
        while not account.run(["squeue", "--noheader", "--user", "hpcuser"], cwd=folder).stdout.strip():
            if process.poll() is not None:
                sys.exit((folder / "log").read_text(errors="replace"))
            time.sleep(0.05)
        took_s = time.perf_counter() - started
        process.kill()
        process.wait()
    account.run(["scancel", "--user", "hpcuser"], cwd=folder)
    while account.run(["squeue", "--noheader", "--user", "hpcuser"], cwd=folder).stdout.strip():
        time.sleep(0.2)
    shutil.rmtree(folder)
    return took_s


def peer_python(account: Account) -> Path:
    folder = account.cluster.root / "venv-peer"
    python = folder / "bin" / "python"
    if not python.exists():
        subprocess.run(["/usr/bin/python3", "-m", "venv", str(folder)], check=True)
        wanted = ["hydra-core==1.3.*", "hydra-submitit-launcher==1.2.*", "submitit"]
        subprocess.run([str(python), "-m", "pip", "-q", "install", *wanted], check=True)
    return python


def on_slurm() -> float:
    if reason := missing():
        sys.exit(reason)
    cluster = Cluster()
    was_up = cluster.is_up()
    cluster.start()
    try:
        account = prepare(cluster)
        python = peer_python(account)
        install(account)
        folders = [account.new_folder() for _ in range(1 + REPEAT)]
        ours_s(account, 3, folders[0])  # thrown away: files are read for the first time
        every = [ours_s(account, 1000, folder) for folder in folders[1:]]
        ours, slurm, bare = (min(seconds) for seconds in zip(*every, strict=True))
        half, whole = (peer_s(account, python, points) for points in (PEER_POINTS // 2, PEER_POINTS))
        for folder in folders:
            shutil.rmtree(folder)
    finally:
        if not was_up:
            cluster.stop()
    each_s = (whole - half) / (PEER_POINTS - PEER_POINTS // 2)
    peer = whole + each_s * (1000 - PEER_POINTS)
    print("| 1000 points, Slurm | wall s | ratio |\n|---|---:|---:|")
    print(f"| hpcml, the least of {REPEAT} | {ours:.2f} | 1 |")
    print(f"| of that sbatch and slurmctld, the same array once more | {slurm:.3f} | {slurm / ours:.3f} |")
    print(f"| bare Python that writes the same files | {bare:.2f} | {bare / ours:.2f} |")
    print(
        f"| hydra-submitit-launcher (extrapolated from {PEER_POINTS}: {whole:.1f} s) | {peer:.0f} | {peer / ours:.1f} |"
    )
    return peer / ours


def on_pbs(points: int) -> None:
    with tempfile.TemporaryDirectory(dir="/srv") as name:
        folder = Path(name)
        double = PbsDouble(folder / "pbs")
        double.start()
        double.set(closed=True)
        environ = {**os.environ, "HPCML_HOME": str(folder / "home"), "PATH": f"{double.bin}:{os.environ['PATH']}"}
        words = ["run", "-m", "cluster=salomon", "resources.account=OPEN-0-0", f"seed=range({points})"]
        words += ["workload.command=true", "resources.walltime=1h", "--detach"]
        started = time.perf_counter()
        process = subprocess.Popen(
            [sys.executable, "-c", HPCML, *words], env=environ, cwd=folder, stdout=subprocess.DEVNULL
        )
        _, status, usage = os.wait4(process.pid, 0)
        took_s = time.perf_counter() - started
        if status != 0:
            sys.exit(f"hpcml run ended with status {status}")
        double.stop()
    print("\n| points, PBS double | wall s | ms each | largest process MiB |\n|---|---:|---:|---:|")
    print(f"| {points} | {took_s:.1f} | {took_s / points * 1000:.2f} | {usage.ru_maxrss / MIB:.0f} |")


def main() -> int:
    ratio = on_slurm()
    on_pbs(10_000)
    print(f"\n{ratio:.1f} times faster than the peer; promised: {LEAST_RATIO}")
    return int(ratio < LEAST_RATIO)


if __name__ == "__main__":
    sys.exit(main())
