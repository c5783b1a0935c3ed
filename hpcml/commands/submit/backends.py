"""The machine that hpcml was typed on, and the submitter of each cluster's scheduler, made on first use."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from hpcml.agent import host
from hpcml.agent.nvml.inventory import list_gpus
from hpcml.agent.telemetry.gpus import visible_gpus
from hpcml.model.cluster import Cluster, SchedulerName
from hpcml.paths import Places
from hpcml.schedulers.contract import Submitter
from hpcml.schedulers.local.runtime import Pool
from hpcml.schedulers.local.submitter import LocalSubmitter
from hpcml.schedulers.registry import open_submitter

if TYPE_CHECKING:
    from hpcml.agent.telemetry.gpus import Gpu


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """The machine that hpcml was typed on; `cores` and `gpus` are those that this process may use."""

    cores: int
    gpus: Sequence[Gpu]


def look_around(environ: Mapping[str, str]) -> Machine:
    """Return the cores and GPUs that this process may use.

    Cores are limited by affinity and cgroup, GPUs by CUDA_VISIBLE_DEVICES in *environ*; without NVML there are no GPUs.
    """
    visible = visible_gpus(list_gpus(environ), environ.get("CUDA_VISIBLE_DEVICES"), environ.get("CUDA_DEVICE_ORDER"))
    return Machine(cores=host.usable_cores(), gpus=visible)


@dataclass(frozen=True, slots=True, kw_only=True)
class Backends:
    """Finds the submitter for a cluster or a scheduler, as seen from this machine.

    Submitters are made anew in each call and hold no connection: making one asks nobody.
    """

    places: Places
    machine: Callable[[], Machine]  # looked at where a job is submitted to it: most commands submit none

    @classmethod
    def here(cls, places: Places, environ: Mapping[str, str]) -> Backends:
        """Return those of a process with the variables *environ*, which looks at its machine once at most."""
        return cls(places=places, machine=cache(lambda: look_around(environ)))

    def submitter_for(self, cluster: Cluster) -> Submitter:
        """Return the submitter for the jobs of *cluster*."""
        if cluster.scheduler is SchedulerName.local:
            return self.this_machine(max_parallel=cluster.max_parallel)
        return self.by_name(cluster.scheduler.name)

    def this_machine(self, *, max_parallel: int | None = None) -> LocalSubmitter:
        """Return the submitter for jobs on this machine.

        It shares the machine's cores and GPUs among all runs of the user, by one queue (`lock_dir`).
        """
        return LocalSubmitter(
            submissions=self.places.submissions,
            lock_dir=lock_dir(os.environ),
            pool=self._pool,
            max_parallel=max_parallel,
        )

    def _pool(self) -> Pool:
        machine = self.machine()
        return Pool(cores=machine.cores, gpus=[device.uuid for device in machine.gpus])

    def by_name(self, scheduler: str) -> Submitter:
        """Return the submitter for jobs of *scheduler*, slurm or pbs, where no cluster profile is at hand.

        It is enough to query and cancel jobs, which need the job's ticket alone.
        """
        return open_submitter(scheduler, submissions=self.places.submissions)


def lock_dir(environ: Mapping[str, str]) -> Path:
    """Return where the queue has its lock: on this machine, since a home directory may be shared with others.

    That is XDG_RUNTIME_DIR, or else the temporary folder: also where it cannot be used, as another user's behind su,
    and where it is logind's, which goes with the user's last login (man pam_systemd), while the queue and runs stay.
    """
    given = environ.get("XDG_RUNTIME_DIR", "")
    is_lasting = given.startswith("/") and not Path(given).is_relative_to("/run/user")
    base = given if is_lasting and os.access(given, os.W_OK | os.X_OK) else tempfile.gettempdir()
    return Path(base) / f"hpcml-{os.getuid()}"
