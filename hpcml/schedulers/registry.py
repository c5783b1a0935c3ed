"""The schedulers that hpcml knows: one entry each, and what is on this machine of their programs.

One of our own is a folder beside `slurm/` and `pbs/` with the same files, its name in
`hpcml.model.cluster.SchedulerName`, and one entry of `BACKENDS`; a package adds another by an entry point in the group
``hpcml.schedulers`` that is a `Backend` (CONTRIBUTING.md). Nobody else asks which scheduler it is: what differs from
one to the other is a field of `Backend`.

>>> sorted(name for name in BACKENDS)
['flux', 'local', 'lsf', 'pbs', 'slurm']
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

from hpcml import plugins
from hpcml.errors import SubmissionError
from hpcml.schedulers import sites
from hpcml.schedulers.commands import Answer
from hpcml.schedulers.contract import Job, Site, Submitter, Ticket
from hpcml.schedulers.description import Scheduler
from hpcml.schedulers.driver import Driver
from hpcml.schedulers.flux import FLUX
from hpcml.schedulers.local.jobs import put_back as put_back_local
from hpcml.schedulers.lsf import LSF
from hpcml.schedulers.pbs import rehearsal as pbs_rehearsal
from hpcml.schedulers.pbs import script as pbs_script
from hpcml.schedulers.pbs import site as pbs_site
from hpcml.schedulers.pbs import submission as pbs_submission
from hpcml.schedulers.pbs.submitter import PbsSubmitter
from hpcml.schedulers.pbs.submitter import put_back as put_back_pbs
from hpcml.schedulers.rehearsal import Rehearse
from hpcml.schedulers.slurm import SLURM


class OpenSubmitter(Protocol):
    """The class of a backend's submitter, called with the folder of the submissions, which the nodes see."""

    def __call__(self, *, submissions: Path) -> Submitter:
        """Return the submitter; nothing is asked or written yet."""
        ...


class PutBack(Protocol):
    """What puts a run back into the queue from inside its job."""

    def __call__(self, job: Job, environ: Mapping[str, str], *, is_alone: bool) -> Ticket | None:
        """Return the ticket of the job that carries on, or None where it is this job.

        *environ* is the job's; *is_alone*: the job runs others too, which have to go on. Raises `HpcmlError` outside of
        a job, and `SubmissionError` where the scheduler refuses.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Backend:
    """A kind of scheduler: who submits to it and puts runs back, and what others need to know of it.

    `docs/clusters.md` says what users see of it; CONTRIBUTING.md walks through adding one.
    """

    title: str  # as people call it
    programs: Sequence[str]  # that hpcml calls to submit, ask and cancel
    put_back: PutBack
    # of the job with these variables, now, and how much of it is left, at most, where a suspension does not count
    time_limit: Callable[[Mapping[str, str]], tuple[int | None, int | None]] | None = None
    submitter: OpenSubmitter | None = None  # None: this machine, whose submitter needs more than a folder
    site_programs: tuple[str, ...] = ()  # that tell what the site is
    look_at_site: Callable[[Callable[[Sequence[str]], Answer]], Site] | None = None
    gpu_request: str | None = None  # how GPUs are asked for: a template of `Cluster.gpu_request`
    typed_gpu_request: str | None = None  # the same with their type; None: it has no word for it
    rehearse: Rehearse | None = None  # what is asked before a submission; None: nothing
    avoids_nodes: bool = False  # whether it can be told where a job must not run
    limits_arrays: bool = True  # whether it can be told how many jobs of an array may run at once
    job: re.Pattern[str] | None = None  # an id as resources.dependency may name it
    waits_for_elements: bool = True  # whether a job can wait for one element of an array
    alternatives: str | None = None  # what parts of a dependency of which one is enough: Slurm's ?
    contract: int | None = None  # a package's: the version of hpcml's contract (plugins.CONTRACT) that it keeps


def _of(
    scheduler: Scheduler,
    *,
    site_programs: tuple[str, ...],
    look_at_site: Callable[[Callable[[Sequence[str]], Answer]], Site],
) -> Backend:
    """Return the entry of *scheduler*, which the driver speaks to."""
    inside = Driver(scheduler=scheduler, submissions=Path("unused"))
    return Backend(
        title=scheduler.title,
        programs=scheduler.programs,
        put_back=inside.put_back,
        time_limit=inside.time_limit,
        submitter=partial(Driver, scheduler=scheduler),
        site_programs=site_programs,
        look_at_site=look_at_site,
        gpu_request=scheduler.gpu_request,
        typed_gpu_request=scheduler.typed_gpu_request,
        rehearse=scheduler.rehearse,
        avoids_nodes=scheduler.avoids_nodes,
        limits_arrays=scheduler.limits_arrays,
        job=scheduler.job,
        waits_for_elements=scheduler.waits_for_elements,
        alternatives=scheduler.alternatives,
    )


# In the order in which a machine is searched for them: Slurm brings a qstat and a pbsnodes of its own (slurm-torque)
BACKENDS: Mapping[str, Backend] = {
    "local": Backend(title="this machine", programs=(), put_back=put_back_local),
    "slurm": _of(SLURM, site_programs=("sinfo",), look_at_site=sites.look_at_slurm),
    "pbs": Backend(
        title="PBS",
        programs=("qsub", "qstat", "qdel", "qselect"),
        put_back=put_back_pbs,
        time_limit=pbs_submission.time_limit,
        submitter=PbsSubmitter,
        site_programs=("pbsnodes", "qstat"),
        look_at_site=pbs_site.look,
        gpu_request=pbs_script.GPU_REQUEST,
        rehearse=pbs_rehearsal.rehearse,
        job=re.compile(r"\d+(\[\d*\])?(\.[\w.-]+)?"),  # 4711.server and 4711[].server (man qsub)
        waits_for_elements=False,
    ),
    "lsf": _of(LSF, site_programs=("bqueues", "bhosts", "lsid"), look_at_site=sites.look_at_lsf),
    "flux": _of(FLUX, site_programs=("flux",), look_at_site=sites.look_at_flux),
}

SUBMITS = ("sbatch", "qsub", "bsub")  # programs that submit a job and end


def backend_of(scheduler: str) -> Backend:
    """Return what there is to know of *scheduler*, one of hpcml's own or a package's.

    Raises `ConfigError`, in one line, where there is none of that name or the package that adds it cannot be used.
    """
    own = BACKENDS.get(scheduler)
    return plugins.load(plugins.SCHEDULERS, scheduler, Backend, ours=BACKENDS) if own is None else own


def open_submitter(scheduler: str, *, submissions: Path) -> Submitter:
    """Return who takes the jobs of *scheduler*, one of `names.cluster_schedulers`; raises as `backend_of` does.

    *submissions* must lie on a file system that the nodes see. Nothing is started or written yet.
    """
    opens = backend_of(scheduler).submitter
    assert opens is not None, f"{scheduler} is this machine"
    return opens(submissions=submissions)


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
