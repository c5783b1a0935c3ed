"""The submitter of each cluster, made when it is first wanted."""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

from hpcml.cluster import Cluster, SchedulerName
from hpcml.operations.machine import Machine
from hpcml.places import Places
from hpcml.schedulers.local import LocalSubmitter
from hpcml.schedulers.slots import Pool
from hpcml.schedulers.submitter import Submitter


@dataclass(frozen=True, slots=True, kw_only=True)
class Backends:
    """Who takes jobs, as seen from this machine."""

    places: Places
    machine: Machine

    def submitter_for(self, cluster: Cluster) -> Submitter:
        """Return who takes the jobs of *cluster*."""
        if cluster.scheduler is SchedulerName.local:
            return LocalSubmitter(
                submissions=self.places.submissions,
                # Locks on cores and GPUs are this machine's: a home directory may be shared with others.
                lock_dir=Path(os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir()) / f"hpcml-{os.getuid()}",
                pool=Pool(cores=self.machine.cores, gpus=[device.uuid for device in self.machine.gpus]),
                max_parallel=cluster.max_parallel,
            )
        return self.by_name(cluster.scheduler.name)

    def by_name(self, scheduler: str) -> Submitter:
        """Return who answers for jobs of *scheduler*, slurm or pbs."""
        # Imported here: submitit costs a tenth of a second, which runs on this machine need not wait for.
        if scheduler == SchedulerName.slurm.name:
            from hpcml.schedulers.slurm import SlurmSubmitter  # noqa: PLC0415

            return SlurmSubmitter(submissions=self.places.submissions)
        from hpcml.schedulers.pbs import PbsSubmitter  # noqa: PLC0415

        return PbsSubmitter(submissions=self.places.submissions)
