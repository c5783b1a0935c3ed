"""``hpcml run --dry-run``: each run that would be submitted, and the exact commands that would start it."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from hpcml.model.own_program import says_nothing
from hpcml.model.precision import PrecisionName
from hpcml.model.run import Run
from hpcml.model.secrets import masked, masked_settings
from hpcml.runs.plan import Plan
from hpcml.walltime import format_walltime


def to_text(
    planned: Sequence[tuple[Run, Plan, tuple[str, ...]]], submissions: Sequence[tuple[Sequence[str], str]]
) -> str:
    """Return what runs have in common, a block for each with what it has alone, and the calls with their scripts.

    *planned* has each run with its plan and the settings that the user typed, *submissions* the command line that would
    be called (qsub, sbatch) and the script that it would get.
    """
    total = len(planned)
    heading = f"{total} run{'s' if total != 1 else ''} would be submitted; nothing was.\n"
    rows = [[*_overrides(overrides), *_rows(run, plan)] for run, plan, overrides in planned]
    common = set.intersection(*map(set, rows)) if total > 1 else set()
    blocks = [_block("all runs", [row for row in rows[0] if row in common])] if common else []
    for number, (run_rows, (_, _, overrides)) in enumerate(zip(rows, planned, strict=True), start=1):
        own = [row for row in run_rows if row not in common]
        words = " ".join(word for word in overrides if (_ASKED, word) not in common)
        title = words or ("as above" if common else "the defaults")
        blocks.append(_block(f"[{number}/{total}] {title}", [row for row in own if row[0] != _ASKED]))
    sent = [f"$ {shlex.join(command)}\n\n{script}" for command, script in submissions]
    return "\n".join([heading, *blocks, *sent])


_ASKED, _ENVIRONMENT = "asked", "environment"


def _block(title: str, rows: Sequence[tuple[str, str]]) -> str:
    lines, before = [title], ""
    for label, text in rows:
        lines.append(f"  {'' if label == before else label:11} {text}")
        before = label
    return "\n".join(lines) + "\n"


def _overrides(words: Sequence[str]) -> list[tuple[str, str]]:
    return [(_ASKED, word) for word in words]


def _rows(run: Run, plan: Plan) -> list[tuple[str, str]]:
    """Return label and text of each line about a run; a label may come several times in a row."""
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
    return [
        ("config", f"{run.spec_hash}  experiment={run.experiment} seed={run.seed}"),
        _subject(run),
        ("precision", _precision(run, plan)),
        ("cluster", f"{site.name} ({site.scheduler.name}, {site.status})"),
        ("resources", " ".join(f"{name}={value}" for name, value in asked.items() if value is not None)),
        ("processes", f"{plan.processes_per_node} a node"),
        *_environment(plan),
        ("command", shlex.join(masked(plan.argv))),
    ]


def _precision(run: Run, plan: Plan) -> str:
    if run.precision.name is PrecisionName.own:
        return f"own: left to the program, on {plan.device}"
    return f"{run.precision.name.name}, {plan.numerics.name} on {plan.device}"


def _subject(run: Run) -> tuple[str, str]:
    params = run.settings
    model, data, layout = (
        None if says_nothing(params, f"{group}.name") else params[f"{group}.name"]
        for group in ("model", "data", "layout")
    )
    if model is None:
        return "program", f"your own, {run.strategy.name.name}"
    return "model/data", ", ".join(filter(None, [model + f" on {data}" * bool(data), run.strategy.name.name, layout]))


def _environment(plan: Plan) -> list[tuple[str, str]]:
    return [
        (_ENVIRONMENT, f"unset {name}" if value is None else f"{name}={shlex.quote(value)}")
        for name, value in sorted(masked_settings(plan.environment).items())
    ]
