"""Images built by jobs: each is a run of its own, after which those begin that need the image."""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from hpcml.cluster import Cluster
from hpcml.codec import encode
from hpcml.container import Container
from hpcml.operations.backends import Backends
from hpcml.operations.images import Wanted
from hpcml.operations.launch import Launched, launch
from hpcml.operations.plan import Planned
from hpcml.places import Places
from hpcml.precision import Numerics, PrecisionName
from hpcml.spec import Data, Model, Precision, Run, Schedule, Snapshot, Workload
from hpcml.strategy import Strategy, StrategyName
from hpcml.workload import Software, build_plan

_EXPERIMENT = "images"  # where such runs are listed


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildJobs:
    """Submits builds; each image is built once on a cluster, whoever asks for it."""

    places: Places
    backends: Backends
    command_line: Sequence[str]
    tell: Callable[[str], None]
    _jobs: dict[tuple[str, str], Launched] = field(default_factory=dict)

    def job_for(self, wanted: Wanted, item: Planned) -> Launched:
        """Return the run that builds the image for *item*, submitted now if it was not yet."""
        asked = (wanted.definition.key, item.run.cluster.name)
        if asked not in self._jobs:
            (launched,) = launch([_planned(wanted, item, self.places)], self.places, self.backends, self.command_line)
            self._jobs[asked] = launched
            self.tell(
                f"{wanted.definition.base} is built by {launched.ticket.scheduler} job {launched.ticket.job_id}, "
                f"run {launched.run_dir.uid}; what needs it begins afterwards"
            )
        return self._jobs[asked]


def waiting_for(item: Planned, job_id: str) -> Planned:
    """Return *item* as a run that begins after the job has succeeded."""
    wanted = item.run.resources
    dependency = ",".join(filter(None, [wanted.dependency, f"afterok:{job_id}"]))
    return replace(item, run=replace(item.run, resources=replace(wanted, dependency=dependency)))


def _planned(wanted: Wanted, item: Planned, places: Places) -> Planned:
    run = _build_run(wanted, item.run, places)
    software = Software(python=sys.executable, recipes=places.home, cwd=places.home)
    plan = build_plan(run, run.profile_device(), software, cpus_per_task=run.resources.cpus_per_task)
    return Planned(run=run, plan=replace(plan, needs_login=True), overrides=(), user_config=item.user_config)


def _build_run(wanted: Wanted, needs_it: Run, places: Places) -> Run:
    """Return a run that builds: with the resources of *needs_it*, but one node, and of its GPUs at most one."""
    resources = replace(
        needs_it.resources,
        nodes=1,
        gpus_per_node=min(1, needs_it.resources.gpus_per_node or 0),
        array_parallelism=None,
        dependency=None,
    )
    return replace(
        needs_it,
        model=Model(name="image", recipe=None),
        data=Data(name="custom"),
        precision=Precision(name=PrecisionName.fp32, numerics=Numerics.auto),
        strategy=Strategy(name=StrategyName.single),
        container=Container(name="none"),
        cluster=_with_module(needs_it.cluster),
        resources=resources,
        workload=Workload(command=shlex.join(_command(wanted, places)), cwd=str(places.home)),
        schedule=Schedule(snapshot=Snapshot.none),
        seed=0,
        experiment=_EXPERIMENT,
        name=wanted.definition.key[:12],
        tags=[],
    )


def _with_module(cluster: Cluster) -> Cluster:
    modules = [*cluster.modules, *filter(None, [cluster.container_module])]
    return replace(cluster, modules=list(dict.fromkeys(modules)))


def _command(wanted: Wanted, places: Places) -> list[str]:
    """Write down what is to be built, to the letter, and return what builds it: a tag may mean something else then."""
    folder = places.home / "builds"
    folder.mkdir(parents=True, exist_ok=True)
    order, draft = folder / f"{wanted.definition.key}.json", folder / f".{wanted.definition.key}-{os.getpid()}"
    words = {
        "definition": encode(wanted.definition),
        "images": str(wanted.cache.root),
        "runtime": wanted.container.runtime or wanted.cluster.container_runtime,
        "module": wanted.cluster.container_module,
    }
    draft.write_text(json.dumps(words, indent=2), encoding="utf-8")
    draft.replace(order)
    return [sys.executable, "-P", "-m", "hpcml.images.job", str(order)]
