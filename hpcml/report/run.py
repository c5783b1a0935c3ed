"""``hpcml run --dry-run``: each run that would be submitted, and the exact commands that would start it."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from hpcml.codec import encode, flatten
from hpcml.model.own_program import says_nothing
from hpcml.model.precision import PrecisionName
from hpcml.model.run import Run, spec_hash
from hpcml.model.strategy import KINDS
from hpcml.runs.manifest import Plan
from hpcml.units import format_walltime


def to_text(
    planned: Sequence[tuple[Run, Plan, tuple[str, ...]]], submissions: Sequence[tuple[Sequence[str], str]]
) -> str:
    """Return a block for each run, then the command and the script of each submission.

    *planned* has each run with its plan and the settings that the user typed, *submissions* the command line that would
    be called (qsub, sbatch) and the script that it would get.
    """
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
        f"  {_subject(run)}",
        f"  precision   {_precision(run, plan)}",
        f"  cluster     {site.name} ({site.scheduler.name}, {site.status})",
        f"  resources   {' '.join(f'{name}={value}' for name, value in asked.items() if value is not None)}",
        f"  processes   {plan.processes_per_node} a node, {_steps(run)}",
        *_environment(plan),
        f"  command     {shlex.join(plan.argv)}",
    ]
    return "\n".join(lines) + "\n"


def _precision(run: Run, plan: Plan) -> str:
    if run.precision.name is PrecisionName.own:
        return f"own: left to the program, on {plan.device}"
    return f"{run.precision.name.name}, {plan.numerics.name} on {plan.device}"


def _subject(run: Run) -> str:
    params = flatten(encode(run))
    model, data, layout = (
        None if says_nothing(params, f"{group}.name") else params[f"{group}.name"]
        for group in ("model", "data", "layout")
    )
    if model is None:
        return f"program     your own, {run.strategy.name.name}"
    return (
        f"model/data  {', '.join(filter(None, [model + f' on {data}' * bool(data), run.strategy.name.name, layout]))}"
    )


def _steps(run: Run) -> str:
    return "synchronous steps" if KINDS[run.strategy.name].is_synchronous else "asynchronous steps"


def _environment(plan: Plan) -> list[str]:
    settings = [
        f"unset {name}" if value is None else f"{name}={shlex.quote(value)}"
        for name, value in sorted(plan.environment.items())
    ]
    return [f"  {'environment' if index == 0 else '':11} {text}" for index, text in enumerate(settings)]
