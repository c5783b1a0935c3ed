"""Whether a scheduler's programs are on this machine."""

from __future__ import annotations

import shutil

from hpcml.errors import SubmissionError

_PROGRAMS = {
    "local": (),
    "slurm": ("sbatch", "squeue", "sacct", "scancel"),
    "pbs": ("qsub", "qstat", "qdel", "qselect"),
}


def find_programs(scheduler: str) -> dict[str, str | None]:
    """Return where each program that hpcml calls is; None for one that is not on PATH."""
    return {program: shutil.which(program) for program in _PROGRAMS[scheduler]}


def require_programs(scheduler: str, *, cluster: str) -> None:
    """Raise `SubmissionError` where jobs for *cluster* cannot be submitted from this machine at all."""
    absent = [program for program, place in find_programs(scheduler).items() if place is None]
    if absent:
        raise SubmissionError(
            f"cluster={cluster} takes jobs by {scheduler}; not on PATH here: {', '.join(absent)} (submit from one of "
            "its login nodes, look at the job with --dry-run, or run it here with cluster=local)"
        )
