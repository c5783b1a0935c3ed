"""The names of the schedulers, for those who ask which there are and load none of them."""

from __future__ import annotations

from hpcml import plugins
from hpcml.model.cluster import SchedulerName

THIS_MACHINE = SchedulerName.local.name


def cluster_schedulers() -> tuple[str, ...]:
    """Return all names but that of this machine; those of packages, which are not loaded for it, come last.

    >>> cluster_schedulers()[:2]
    ('slurm', 'pbs')
    """
    own = [scheduler.name for scheduler in SchedulerName if scheduler is not SchedulerName.local]
    others = [name for name in plugins.names(plugins.SCHEDULERS) if name not in own and name != THIS_MACHINE]
    return (*own, *others)
