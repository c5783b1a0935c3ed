"""How long `hpcml run` takes on this machine from the typed command to the first line of its program.

``--against CLONE`` measures another clone of hpcml beside this one: both in turns, so that other work on the machine is
in the figures of both. Wall clock, and the CPU time of the command itself with what it waited for (the operating
system's, os.wait4): the queue, the agent and the sampler are no children of it. The program is ``date``; the runs have
homes and cores of their own, and start in a small repository of git. Modules are compiled before, as pip leaves them.
"""

from __future__ import annotations

import argparse
import compileall
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

REPEAT = 9
ROOT = Path(__file__).resolve().parent.parent
HPCML = [sys.executable, "-c", "from hpcml.cli.start import main; main()"]
GIT = ["git", "-c", "user.name=benchmark", "-c", "user.email=benchmark"]


def environ_of(clone: Path, folder: Path) -> dict[str, str]:
    """Return the environment in which hpcml is that of *clone*, with a home in *folder* and nobody else's claims."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("HPCML_", "PYTHON"))}
    own = {"PYTHONPATH": str(clone), "HPCML_HOME": str(folder / "home"), "XDG_RUNTIME_DIR": str(folder / "runtime")}
    return {**kept, **own}


def measure(environ: dict[str, str], out: Path, seed: int) -> tuple[float, float, float]:
    """Run once; return seconds until the program's first line, until the end of the command, and its CPU seconds."""
    sink = [(os.POSIX_SPAWN_OPEN, descriptor, os.devnull, os.O_WRONLY, 0) for descriptor in (1, 2)]
    words = ["run", f"seed={seed}", f"workload.command=bash -c 'date +%s.%N >{out}'"]
    began = time.time()
    pid = os.posix_spawn(HPCML[0], [*HPCML, *words], environ, file_actions=sink)
    _, status, used = os.wait4(pid, 0)
    ended = time.time()
    if status:
        sys.exit(f"hpcml run ended with status {os.waitstatus_to_exitcode(status)}")
    return float(out.read_text(encoding="ascii")) - began, ended - began, used.ru_utime + used.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--against", type=Path, help="another clone of hpcml")
    parser.add_argument("--repeat", type=int, default=REPEAT, help="how often each is started")
    chosen = parser.parse_args()
    clones = {"this hpcml": ROOT} | ({} if chosen.against is None else {str(chosen.against): chosen.against.resolve()})
    with tempfile.TemporaryDirectory() as name:
        project = Path(name) / "project"
        project.mkdir()
        (project / "train.py").write_text("print(1)\n", encoding="ascii")
        for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "first"]):
            subprocess.run([*GIT, *words], cwd=project, check=True)
        os.chdir(project)
        environs = {}
        for number, (title, clone) in enumerate(clones.items()):
            for package in ("hpcml", "hpcml_client"):
                compileall.compile_dir(clone / package, quiet=1)
            (Path(name) / str(number) / "runtime").mkdir(parents=True, mode=0o700)
            environs[title] = environ_of(clone, Path(name) / str(number))
            measure(environs[title], Path(name) / "out", seed=0)  # makes the store
        found: dict[str, list[tuple[float, float, float]]] = {title: [] for title in clones}
        for seed in range(1, chosen.repeat + 1):
            for title in clones:
                found[title].append(measure(environs[title], Path(name) / "out", seed))
    print(f"median (least) of {chosen.repeat}\n\n| `hpcml run` | until its first line, s | until the end, s | CPU s |")
    print("|---|---:|---:|---:|")
    for title, values in found.items():
        first, end, cpu = ([value[at] for value in values] for at in range(3))
        cells = [f"{statistics.median(each):.2f} ({min(each):.2f})" for each in (first, end)]
        print(f"| {title} | {cells[0]} | {cells[1]} | {min(cpu):.2f} |")


if __name__ == "__main__":
    main()
