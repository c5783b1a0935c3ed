"""What an agent reads of a run.json (`read_orders`): the plan, and a few settings.

To load all that a run is (`hpcml.model.run`) would be a fifth of a program's start, and an agent needs no more of it
than what it tells a webhook (`RunOrders.manifest`). Where this version of hpcml has written run.json, all of it was
valid then, since a `Run` that exists is. What another version has written is read whole before the start: it may say
what this one does not know.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from hpcml import __version__
from hpcml.codec import decode
from hpcml.model.launcher import launcher_in
from hpcml.model.metric_sources import MetricRule
from hpcml.model.telemetry import Telemetry
from hpcml.runs.plan import Plan
from hpcml.runs.run_json import must_be_ours, naming, read_own
from hpcml.units import parse_wait_s

TYPE_CHECKING = False  # not typing's own, which a program's start would wait for
if TYPE_CHECKING:
    from typing import Any

    from hpcml.model.run import Run
    from hpcml.runs.manifest import Manifest


@dataclass(frozen=True, slots=True, kw_only=True)
class StartSettings:
    """The settings of a run that its agent heeds; enumerations by the names of their members."""

    scheduler: str  # model.cluster.SchedulerName
    cluster: str
    rendezvous_suffix: str
    nodes: int
    command: str | None  # of the user's own program
    strategy: str  # model.strategy.StrategyName
    metrics: list[MetricRule]
    metrics_from: list[str]
    notice: str
    max_requeues: int
    notify: str  # model.run.Notify
    webhook_file: str | None
    mig: str | None
    telemetry: Telemetry
    observe: str  # model.run.Observe
    profiler: str  # model.run.ProfileTool
    profiled_ranks: list[int]

    @classmethod
    def of(cls, run: Run) -> StartSettings:
        """Return those of *run*."""
        return cls(
            scheduler=run.cluster.scheduler.name,
            cluster=run.cluster.name,
            rendezvous_suffix=run.cluster.rendezvous_suffix,
            nodes=run.resources.nodes,
            command=run.workload.command,
            strategy=run.strategy.name.name,
            metrics=run.workload.metrics,
            metrics_from=run.workload.metrics_from,
            notice=run.schedule.notice,
            max_requeues=run.schedule.max_requeues,
            notify=run.schedule.notify.name,
            webhook_file=run.schedule.webhook_file,
            mig=run.resources.mig,
            telemetry=run.telemetry,
            observe=run.precision.observe.name,
            profiler=run.profile.tool.name,
            profiled_ranks=run.profile.ranks,
        )

    @classmethod
    def written(cls, run: Mapping[str, Any]) -> StartSettings:
        """Return those of a run as run.json has it; raise `KeyError`, `TypeError` or `ConfigError` where one is not."""
        found = {
            "scheduler": run["cluster"]["scheduler"],
            "cluster": run["cluster"]["name"],
            "rendezvous_suffix": run["cluster"]["rendezvous_suffix"],
            "nodes": run["resources"]["nodes"],
            "command": run["workload"]["command"],
            "strategy": run["strategy"]["name"],
            "metrics": run["workload"]["metrics"],
            "metrics_from": run["workload"]["metrics_from"],
            "notice": run["schedule"]["notice"],
            "max_requeues": run["schedule"]["max_requeues"],
            "notify": run["schedule"]["notify"],
            "webhook_file": run["schedule"]["webhook_file"],
            "mig": run["resources"]["mig"],
            "telemetry": run["telemetry"],
            "observe": run["precision"]["observe"],
            "profiler": run["profile"]["tool"],
            "profiled_ranks": run["profile"]["ranks"],
        }
        settings = decode(cls, found)
        assert isinstance(settings, StartSettings)
        return settings

    @property
    def own_launcher(self) -> str | None:
        """What the user's own command starts the processes of a training with (`Workload.own_launcher`)."""
        return launcher_in(self.command or "")

    @property
    def notice_s(self) -> int:
        """The time between the request for a checkpoint and the end of the walltime, in seconds."""
        return parse_wait_s(self.notice, field="schedule.notice")


@dataclass(frozen=True, kw_only=True)
class RunOrders:
    """What a run.json tells an agent."""

    uid: str
    plan: Plan
    settings: StartSettings
    code: str | None  # the folder with the snapshot of the code that runs
    written: Mapping[str, Any]  # all of it, where `manifest` is yet to be made

    @classmethod
    def of(cls, manifest: Manifest) -> RunOrders:
        """Return the orders in *manifest*."""
        settings, code = StartSettings.of(manifest.run), manifest.provenance.code
        orders = cls(uid=manifest.uid, plan=manifest.plan, settings=settings, code=code, written={})
        orders.__dict__["manifest"] = manifest  # where the cached property keeps it
        return orders

    @cached_property
    def manifest(self) -> Manifest:
        """All that was written; asking for it first raises `ConfigError` where values are not valid."""
        return _whole(self.written)


def read_orders(path: Path) -> RunOrders:
    """Return the orders in *path*, by which something will be executed: nobody but this user could have written them.

    Raises `NotPrivateError` where another could (`hpcml.runs.private`), `HpcmlError` where the file cannot be read or
    has another format, and `ConfigError` for values that are not valid.
    """
    raw = read_own(path)
    must_be_ours(path, raw)
    with naming(path):
        try:
            origin = raw["provenance"]
            if origin["hpcml_version"] == __version__:
                settings = StartSettings.written(raw["run"])
                plan = decode(Plan, raw["plan"], where="plan")
                return RunOrders(uid=raw["uid"], plan=plan, settings=settings, code=origin["code"], written=raw)
        except (KeyError, TypeError):  # half of it is not there, which is told of what is read whole
            pass
        return RunOrders.of(_whole(raw))


def _whole(written: Mapping[str, Any]) -> Manifest:
    from hpcml.runs.manifest import decoded  # noqa: PLC0415 - loads all that a run is

    return decoded(written)
