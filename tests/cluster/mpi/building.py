"""A real MPI program for tests, and what one machine that stands for several nodes has to tell Open MPI."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

SOURCE = Path(__file__).with_name("program.c")
PACKAGES = ("openmpi-bin", "libopenmpi-dev", "gcc")
# Nodes of one machine: Open MPI would take what they share for the memory of one node, and looks for a network
ENVIRONMENT = {
    "OMPI_MCA_btl": "tcp,self",
    "OMPI_MCA_btl_tcp_if_include": "lo",
    "OMPI_MCA_oob_tcp_if_include": "lo",
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
}


def missing() -> str | None:
    """Say what this machine lacks for an MPI program, or return None."""
    lacking = [name for name in ("mpirun", "mpicc", "gcc") if shutil.which(name) is None]
    return f"not installed: {', '.join(lacking)} (apt-get install {' '.join(PACKAGES)})" if lacking else None


def build(folder: Path) -> Path:
    """Compile the program into *folder*, for everybody, and return its path."""
    program = folder / "mpi-program"
    subprocess.run(["mpicc", "-O1", "-o", str(program), str(SOURCE)], check=True)
    program.chmod(0o755)
    return program


def settings() -> list[str]:
    """Return the words of `hpcml run` that give the program and its launcher the variables above."""
    return [f"+workload.env.{name}='{value}'" for name, value in ENVIRONMENT.items()]
