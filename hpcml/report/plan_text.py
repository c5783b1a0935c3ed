"""What ``hpcml run --dry-run`` shows: each run that would be submitted, and exactly how it would be started."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from hpcml.manifest import Plan
from hpcml.quantities import format_walltime
from hpcml.spec import Run, spec_hash
from hpcml.strategy import KINDS


def to_text(
    planned: Sequence[tuple[Run, Plan, tuple[str, ...]]], submissions: Sequence[tuple[Sequence[str], str]]
) -> str:
    """Return one block for each run, then each submission's command and script, as they would be sent."""
    total = len(planned)
    heading = f"{total} run{'s' if total != 1 else ''} would be submitted; nothing was.\n"
    blocks = [_block(number, total, *entry) for number, entry in enumerate(planned, start=1)]
    sent = [f"$ {shlex.join(command)}\n\n{script}" for command, script in submissions]
    return "\n".join([heading, *blocks, *sent])


def _block(number: int, total: int, run: Run, plan: Plan, overrides: tuple[str, ...]) -> str:
    site, wanted = run.cluster, run.resources
    asked = {
        "partition": wanted.partition,
        "account": wanted.account,
        "qos": wanted.qos,
        "nodes": wanted.nodes,
        "gpus_per_node": plan.gpus_per_node,
        "cpus_per_task": plan.cpus_per_task,
        "mem": wanted.mem,
        "walltime": None if plan.walltime_s is None else format_walltime(plan.walltime_s),
    }
    lines = [
        f"[{number}/{total}] {' '.join(overrides) or 'the defaults'}",
        f"  config      {spec_hash(run)}  experiment={run.experiment} seed={run.seed}",
        f"  model/data  {run.model.name} on {run.data.name}, {run.strategy.name.name}, {run.layout.name.name}",
        f"  precision   {run.precision.name.name}, {plan.numerics.name} on {plan.device}",
        f"  cluster     {site.name} ({site.scheduler.name}, {site.status})",
        f"  resources   {' '.join(f'{name}={value}' for name, value in asked.items() if value is not None)}",
        f"  processes   {plan.processes_per_node} a node, {_steps(run)}",
        *_environment(plan),
        f"  command     {shlex.join(plan.argv)}",
    ]
    return "\n".join(lines) + "\n"


def _steps(run: Run) -> str:
    return "synchronous steps" if KINDS[run.strategy.name].is_synchronous else "asynchronous steps"


def _environment(plan: Plan) -> list[str]:
    settings = [
        f"unset {name}" if value is None else f"{name}={shlex.quote(value)}"
        for name, value in sorted(plan.environment.items())
    ]
    return [f"  {'environment' if index == 0 else '':11} {text}" for index, text in enumerate(settings)]
