"""How the ranks of ``strategy=mpi`` are started: by which launcher, or in one line why that is not possible there."""

from __future__ import annotations

from collections.abc import Mapping

from hpcml.errors import ConfigError, require
from hpcml.model.cluster import Cluster, SchedulerName
from hpcml.model.run import Launcher, Run
from hpcml.model.strategy import StrategyName
from hpcml.runs.plan import MpiStart

# What a scheduler's jobs have; the first is taken where neither the run nor the site names one.
_OF_SCHEDULER: Mapping[SchedulerName, tuple[Launcher, ...]] = {
    SchedulerName.local: (Launcher.mpirun, Launcher.mpiexec),
    SchedulerName.slurm: (Launcher.srun, Launcher.mpirun, Launcher.mpiexec),
    SchedulerName.pbs: (Launcher.mpirun, Launcher.mpiexec, Launcher.pbsdsh),
}
_OTHERS = (Launcher.mpirun, Launcher.mpiexec)  # of a scheduler that is not in the table


def mpi_start_of(run: Run) -> MpiStart | None:
    """Return how the ranks of all nodes of *run* are started as one MPI job; None: by the agents of the nodes.

    Raises `ConfigError` where ``workload.launcher`` belongs to another scheduler or strategy, is another than the
    site's only one, or would start the ranks a second time.
    """
    asked, strategy, site = run.workload.launcher, run.strategy.name, run.cluster
    if strategy is StrategyName.horovod and asked is Launcher.auto:
        return None
    if strategy not in (StrategyName.mpi, StrategyName.horovod):
        require(
            asked is Launcher.auto,
            f"workload.launcher={asked.name} means something with strategy=mpi and horovod only, not {strategy.name}",
        )
        return None
    own = run.workload.own_launcher
    if asked is Launcher.none:
        require(
            run.workload.command is not None,
            f"workload.launcher=none: hpcml starts the command once, and model={run.model.name} has none: choose auto",
        )
        return MpiStart(launcher=Launcher.none.name)
    if own is not None:
        raise ConfigError(
            f"{own} starts the processes itself, and strategy={strategy.name} would start it once for each of them: "
            f"leave {own} out, or set workload.launcher=none"
        )
    launcher = _launcher(run, asked)
    require(
        run.resources.nodes == 1 or site.mpi_launcher is not None or not _is_alone(site),
        f"strategy={strategy.name} on {run.resources.nodes} nodes: {launcher.name} hears of no other node in jobs of "
        f"cluster={site.name} ({site.scheduler.name}), and hpcml starts ranks there by nothing else: set "
        "resources.nodes=1, or strategy=ddp; where the site's own launcher does hear of them, name it in "
        "cluster.mpi_launcher",
    )
    return MpiStart(launcher=launcher.name, pmi=site.mpi if launcher is Launcher.srun else None)


def _is_alone(site: Cluster) -> bool:
    """Whether the job tells an MPI's own launcher only of the node that it is on: under Flux, and below jsrun."""
    is_below_jsrun = site.scheduler is SchedulerName.lsf and site.lsf.launcher == "jsrun"
    return is_below_jsrun or site.scheduler is SchedulerName.flux


def _launcher(run: Run, asked: Launcher) -> Launcher:
    site = run.cluster
    known = _OF_SCHEDULER.get(site.scheduler, _OTHERS)
    only = None if site.mpi_launcher is None else Launcher(site.mpi_launcher)
    if asked is Launcher.auto:
        return known[0] if only is None else only
    if only is not None and asked is not only:
        raise ConfigError(
            f"workload.launcher={asked.name}: cluster={site.name} starts MPI programs by {only.name} "
            "(cluster.mpi_launcher): leave it at auto"
        )
    require(
        asked in known or asked is only,
        f"workload.launcher={asked.name}: cluster={site.name} takes jobs by {site.scheduler.name}, which has "
        f"{', '.join(one.name for one in known)}",
    )
    return asked
