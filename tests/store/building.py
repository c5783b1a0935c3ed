"""Run directories as launch, agent and workload leave them, for the tests of this room."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

from sqlalchemy import select

from hpcml.model.choices import Goal, Numerics
from hpcml.model.container import Container
from hpcml.model.precision import PrecisionName
from hpcml.model.records import Curve
from hpcml.model.run import (
    Cluster,
    Data,
    Layout,
    LayoutName,
    Model,
    Objective,
    Precision,
    Resources,
    Run,
    SchedulerName,
    Workload,
)
from hpcml.model.strategy import Strategy, StrategyName
from hpcml.model.training import Training
from hpcml.runs.layout import RunDir
from hpcml.runs.manifest import Manifest, Provenance, write_manifest
from hpcml.runs.plan import Plan
from hpcml.runs.private import make_home
from hpcml.store.database import Database
from hpcml.store.query import curves
from hpcml.store.schema import EVENT, METRIC, POINT, RUN, SAMPLE, SETTINGS

T0 = 1_780_000_000.0  # 2026-05-28T20:26:40+00:00, when every run here was submitted

A_RUN = Run(
    model=Model(name="digits_cnn", recipe="torch_classification"),
    data=Data(name="digits"),
    precision=Precision(name=PrecisionName.tf32),
    strategy=Strategy(name=StrategyName.single),
    layout=Layout(name=LayoutName.nchw),
    container=Container(name="none"),
    cluster=Cluster(name="local", scheduler=SchedulerName.local),
    resources=Resources(),
    training=Training(),
    objective=Objective(goal=Goal.max),
    workload=Workload(),
)


def make_run_dir(
    root: Path,
    uid: str = "20260528-202640-aaaaaa",
    *,
    planned: Numerics = Numerics.native,
    submission: str | None = None,
    **changes: Any,  # noqa: ANN401 - of Run's fields
) -> RunDir:
    """Write down a run that differs from `A_RUN` by *changes*."""
    run = replace(A_RUN, **changes)
    run_dir = RunDir(root / run.experiment / uid)
    if root.name == "runs":
        make_home(root.parent)
    run_dir.journals.mkdir(parents=True)
    plan = Plan(
        numerics=planned,
        device="cpu",
        argv=["python", "train.py"],
        environment={},
        cwd="/",
        processes_per_node=1,
        gpus_per_node=0,
        cpus_per_task=None,
        walltime_s=None,
        stop_after_s=None,
        stop_grace_s=30,
    )
    provenance = Provenance(
        command_line=["hpcml", "run"],
        submitted_at="2026-05-28T20:26:40+00:00",
        submitted_from="login1",
        user="ada",
        cwd="/",
        hpcml_version="0.1.0",
        python="3.11.7",
        git_commit="c0ffee",
        git_dirty=False,
        submission=submission,
    )
    manifest = Manifest(format=1, uid=uid, spec_hash=run.spec_hash, run=run, plan=plan, provenance=provenance)
    write_manifest(run_dir.manifest, manifest)
    return run_dir


class Journal:
    """One journal file, or one of telemetry, written line by line."""

    def __init__(
        self, run_dir: RunDir, *, writer: str = "rank0", attempt: int = 1, t0: float = T0, folder: str = "journal"
    ) -> None:
        self.path = run_dir.path / folder / f"{attempt}-node7-{writer}.jsonl"
        self.path.parent.mkdir(exist_ok=True)
        self.uid = f"{run_dir.uid}/{self.path.name}/{t0}"
        self._seq = -1
        header = {"hpcml": 1, "journal": self.uid, "run": run_dir.uid, "attempt": attempt, "writer": writer}
        self.write(json.dumps({**header, "host": "node7", "pid": 4711, "t0": t0}) + "\n")

    def write(self, text: str) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.write(text)

    def metrics(self, step: int, t_s: float = 0.0, **values: float) -> None:
        self.write(self.metrics_line(step, t_s, **values))

    def metrics_line(self, step: int, t_s: float = 0.0, **values: float) -> str:
        self._seq += 1
        told = {name: value if math.isfinite(value) else str(value) for name, value in values.items()}
        return json.dumps({"k": "m", "s": self._seq, "t": t_s, "i": step, "v": told}) + "\n"

    def event(self, name: str, t_s: float = 0.0, /, **details: Any) -> None:  # noqa: ANN401 - JSON
        self._seq += 1
        self.write(json.dumps({"k": "e", "s": self._seq, "t": t_s, "n": name, "d": details}) + "\n")


def contents(store: Database) -> dict[str, list[tuple[Any, ...]]]:
    """Return everything in the store, without the numbers that depend on the order of arrival."""
    of_run = {"id", "run_id", "metric_id", "settings", "closed_ns"}
    with store.reading() as connection:
        found = {}
        for table, join in ((RUN, None), (METRIC, RUN), (POINT, METRIC), (EVENT, RUN), (SAMPLE, RUN)):
            named = [RUN.c.uid] if join is RUN else [RUN.c.uid, METRIC.c.name] if join is METRIC else []
            query = select(*named, *(column for column in table.c if column.name not in of_run))
            if join is not None:
                key = table.c.metric_id if join is METRIC else table.c.run_id
                query = query.join(join, join.c.id == key)
            if join is METRIC:
                query = query.join(RUN, RUN.c.id == METRIC.c.run_id)
            found[table.name] = sorted(map(tuple, connection.execute(query)), key=repr)
        contents = dict(connection.execute(select(SETTINGS.c.id, SETTINGS.c.content)).all())
        runs = connection.execute(select(RUN.c.uid, RUN.c.settings))
        settings = [(uid, sorted(pair for at in ids for pair in contents[at].items())) for uid, ids in runs]
        return {**found, "settings": sorted(settings, key=repr)}


def curve(store: Database, uid: str, metric: str) -> Curve:
    """Return the run's curve of *metric*; empty where it has none."""
    return curves(store, [uid], metric)[uid]
