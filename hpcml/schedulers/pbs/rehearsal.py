"""Whether PBS would take a job, as far as qstat tells of its queue and server: PBS has no submission for trial.

Source: man qstat, pbs_queue_attributes; recorded from PBS 23.06. A reservation of PBS is a queue, by its id.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

from hpcml.errors import HpcmlError
from hpcml.schedulers.commands import NoAnswerError, call
from hpcml.schedulers.contract import Batch
from hpcml.schedulers.pbs.answers import parse_time_s
from hpcml.schedulers.rehearsal import PATIENCE_S, Rehearsal
from hpcml.schedulers.request import Request, request_for_batch
from hpcml.units import spell_walltime

_UNKNOWN = "Unknown queue"


def rehearse(batch: Batch, script: str, *, patience_s: float = PATIENCE_S) -> Rehearsal:  # noqa: ARG001 - PBS reads none
    """Compare *batch* with what PBS says of its queue; a default queue that is not named is not looked for."""
    request, n = request_for_batch(batch), len(batch.packs)
    name = request.partition or request.reservation
    try:
        found = Rehearsal() if name is None else _judged(name, request, n, patience_s)
        too_large = _too_large(n, _server(patience_s), "the server") if n > 1 and found.refused is None else None
        return found if too_large is None else Rehearsal(refused=too_large)
    except HpcmlError as error:
        return Rehearsal(warnings=(f"PBS did not say whether it would take the job: {error}",))


def _judged(name: str, request: Request, n: int, patience_s: float) -> Rehearsal:
    """Compare a job, or an array of *n*, with the limits of the queue *name*."""
    answer = call(["qstat", "-Q", "-f", "-F", "json", name], timeout_s=patience_s, environ=dict(os.environ))
    words = " ".join((answer.stderr or answer.stdout).split())
    if _UNKNOWN in answer.stderr:
        what = "or a reservation that has expired" if request.reservation or name[:1] in "RSM" else "as PBS knows it"
        return Rehearsal(refused=f"resources.partition={name}: {words.removeprefix('qstat: ')}: it is no queue, {what}")
    if answer.returncode != 0:
        raise NoAnswerError(words)
    queue = _queue(answer.stdout, name)
    if queue.get("enabled") == "False":
        return Rehearsal(refused=f"resources.partition={name}: this queue takes no jobs now (enabled=False)")
    most = queue.get("resources_max", {})
    limit_s = parse_time_s(str(most.get("walltime") or "")) or None
    if limit_s is not None and request.walltime_s is not None and request.walltime_s > limit_s:
        return Rehearsal(
            refused=f"resources.walltime is {spell_walltime(request.walltime_s)}, and queue {name} allows "
            f"{spell_walltime(limit_s)}"
        )
    nodes = str(most.get("nodect") or "")
    if nodes.isdigit() and request.nodes > int(nodes):
        return Rehearsal(refused=f"resources.nodes={request.nodes}: queue {name} allows {nodes} to a job")
    if (too_large := _too_large(n, queue, f"queue {name}")) is not None:
        return Rehearsal(refused=too_large)
    stopped = queue.get("started") == "False"
    return Rehearsal(warnings=(f"queue {name} is stopped: no job starts in it now (started=False)",) if stopped else ())


def _too_large(n: int, limits: Mapping[str, Any], whose: str) -> str | None:
    most = str(limits.get("max_array_size") or "")
    if not most.isdigit() or n <= int(most):
        return None
    return f"a job array of {n} runs: {whose} allows {most} in one; cluster.max_array_size={most} makes several of it"


def _server(patience_s: float) -> Mapping[str, Any]:
    """Return what PBS says of its server; nothing where it does not, since qsub will tell."""
    answer = call(["qstat", "-B", "-f", "-F", "json"], timeout_s=patience_s, environ=dict(os.environ))
    try:
        found = next(iter(json.loads(answer.stdout, strict=False)["Server"].values()))
    except (ValueError, LookupError, AttributeError, TypeError, StopIteration):
        return {}
    return found if isinstance(found, dict) else {}


def _queue(text: str, name: str) -> Mapping[str, Any]:
    try:
        found = json.loads(text, strict=False).get("Queue", {}).get(name.partition("@")[0], {})
    except (ValueError, AttributeError) as error:
        raise NoAnswerError(f"qstat gave no JSON: {error}") from error
    return found if isinstance(found, dict) else {}
