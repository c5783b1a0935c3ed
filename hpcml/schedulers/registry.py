"""The schedulers that hpcml knows, and what is on this machine of their programs.

One of our own is a module beside `slurm` and `pbs` with its `Scheduler`, its name in
`hpcml.model.cluster.SchedulerName`, and one entry of `BACKENDS`; a package adds another by an entry point in the group
``hpcml.schedulers`` that is a `Scheduler` (docs/plugins.md). Nobody else asks which scheduler it is.

>>> sorted(name for name in BACKENDS)
['flux', 'local', 'lsf', 'pbs', 'slurm']
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

from hpcml import plugins
from hpcml.errors import SubmissionError
from hpcml.schedulers.description import Backend, Scheduler
from hpcml.schedulers.driver import Driver
from hpcml.schedulers.flux import FLUX
from hpcml.schedulers.lsf import LSF
from hpcml.schedulers.names import THIS_MACHINE
from hpcml.schedulers.pbs.scheduler import PBS
from hpcml.schedulers.slurm import SLURM

BACKENDS: Mapping[str, Backend] = {
    THIS_MACHINE: Backend(title="this machine"),
    **{scheduler.name: scheduler for scheduler in (SLURM, PBS, LSF, FLUX)},
}
SUBMITS = ("sbatch", "qsub", "bsub")  # programs that submit a job and end


def backend_of(scheduler: str) -> Backend:
    """Return what there is to know of *scheduler*, one of hpcml's own or a package's.

    Raises `ConfigError`, in one line, where there is none of that name or the package that adds it cannot be used.
    """
    own = BACKENDS.get(scheduler)
    return plugins.load(plugins.SCHEDULERS, scheduler, Scheduler, ours=BACKENDS) if own is None else own


def open_submitter(scheduler: str, *, submissions: Path) -> Driver:
    """Return who takes the jobs of *scheduler*, one of `names.cluster_schedulers`; raises as `backend_of` does.

    *submissions* must lie on a file system that the nodes see. Nothing is started or written yet.
    """
    description = backend_of(scheduler)
    assert isinstance(description, Scheduler), f"{scheduler} is this machine"
    return Driver(scheduler=description, submissions=submissions)


def find_programs(scheduler: str) -> dict[str, str | None]:
    """Return where each program that hpcml calls is, by its name; None for one that is not on PATH.

    `hpcml doctor` shows them; of this machine there are none. Raises as `backend_of` does.
    """
    return {program: shutil.which(program) for program in backend_of(scheduler).programs}


def require_programs(scheduler: str, *, cluster: str) -> None:
    """Raise `SubmissionError` where jobs for *cluster* cannot be submitted from this machine at all.

    *cluster* is named in the message. Called before a run's directory is written, so that nothing is left behind.
    """
    absent = [program for program, place in find_programs(scheduler).items() if place is None]
    if absent:
        raise SubmissionError(
            f"cluster={cluster} takes jobs by {scheduler}; not on PATH here: {', '.join(absent)} (submit from one of "
            "its login nodes, look at the job with --dry-run, or run it here with cluster=local)"
        )
