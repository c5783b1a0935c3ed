"""Whether Slurm would take a job: ``sbatch --test-only``, and what scontrol says of its partition and reservation.

Man pages: sbatch (--test-only), scontrol (show partition, show reservation). Tried on Slurm 22.05.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator, Sequence
from datetime import datetime

from hpcml.errors import HpcmlError
from hpcml.schedulers.commands import NoAnswerError, call
from hpcml.schedulers.contract import Batch
from hpcml.schedulers.rehearsal import PATIENCE_S, Rehearsal
from hpcml.schedulers.request import Request, request_for_batch
from hpcml.schedulers.slurm.query import ask_cluster, one_line
from hpcml.schedulers.slurm.script import clusters_in
from hpcml.units import spell_walltime

_OWN_WORDS = re.compile(r"^(sbatch|allocation failure): ", re.MULTILINE)  # else a wrapper of the site has said them
_STARTS = re.compile(r"to start at (\S+) using .* in partition (\S+)")
_HELD = re.compile(r"^#SBATCH (?:--hold|-H)\b", re.MULTILINE)
_FIELD = re.compile(r"(\w+)=(\S+)")
# What --test-only says where sbatch would take the job, which then waits
_WAITS = (
    *("Required node not available", "Required partition not available", "nodes are busy", "Job dependency"),
    *("Requested nodes are busy", "Unable to contact slurm controller", "Socket timed out", "Connection"),
    *("Could not establish a configuration source", "Resource temporarily unavailable"),  # the latter at MaxJobCount
)
# What it says of a job that no node can run, and of one whose nodes are all down or drained, which sbatch takes (22.05)
_NO_NODE = "Requested node configuration is not available"
_AWAY = ("down", "drain", "fail", "maint", "unknown")  # how such states of nodes begin (man sinfo)
_HIDDEN = "Access/permission denied"  # by the site's PrivateData (man slurm.conf)


def rehearse(batch: Batch, script: str, *, patience_s: float = PATIENCE_S) -> Rehearsal:
    """Ask Slurm what it would do with *script*, which is of *batch*; nothing is queued or written.

    Silence is a warning: whether the job is taken shows when it is submitted.
    """
    request, cluster = request_for_batch(batch), clusters_in(script) or ""
    try:
        if "," in cluster or cluster == "all":  # sbatch will choose: each has its own partitions and reservations
            refused, starts_at, _, waits = _tested(script, request, "", patience_s)
            return Rehearsal(refused=refused, warnings=waits, starts_at=starts_at)
        refused, reservation = _reservation(request, cluster, patience_s)
        if refused is not None:
            return Rehearsal(refused=refused)
        refused, starts_at, partition, waits = _tested(script, request, cluster, patience_s)
        if refused is not None:
            return Rehearsal(refused=refused)
        of_partition = _partition(partition or request.partition, cluster, patience_s)
    except HpcmlError as error:
        return Rehearsal(warnings=(f"Slurm did not say whether it would take the job: {error}",))
    return Rehearsal(warnings=(*reservation, *waits, *of_partition), starts_at=starts_at)


def _tested(
    script: str, request: Request, cluster: str, patience_s: float
) -> tuple[str | None, float | None, str | None, tuple[str, ...]]:
    """Return Slurm's refusal, when the job would start and in which partition, and what it would wait for."""
    from hpcml.schedulers.slurm.submission import explained, submission_environ  # noqa: PLC0415 - loads submitit

    environ = submission_environ(os.environ, request)
    answer = call(["sbatch", "--test-only"], timeout_s=patience_s, input=script, environ=environ)
    words = one_line(answer)
    if answer.was_killed:
        raise NoAnswerError(f"sbatch --test-only ended by {answer.end}")
    if answer.returncode != 0:
        if _OWN_WORDS.search(answer.stderr) is None:
            raise NoAnswerError(f"sbatch --test-only failed ({answer.end}): {words}")
        if any(sign in words for sign in _WAITS):
            return None, None, None, (f"Slurm says of the job: {words}",)
        if _NO_NODE in words and (away := _nodes_away(request.partition, cluster, patience_s)):
            return None, None, None, (f"Slurm says of the job: {words}: {away}",)
        return f"sbatch refused the job: {explained(words, environ)}", None, None, ()
    match = _STARTS.search(answer.stderr)
    if match is None:
        return None, None, None, ()
    # Of a job that will be held it tells when it could start
    return None, None if _HELD.search(script) else _unix(match[1]), match[2], ()


def _nodes_away(partition: str | None, cluster: str, patience_s: float) -> str | None:
    """Return how many nodes of *partition* (None: the default one) are down or drained; None where all are there."""
    there = [] if partition is None else [f"--partition={partition}"]
    answer = ask_cluster(["sinfo", "--noheader", "--format=%P|%D|%T", *there], cluster, patience_s=patience_s)
    rows = [line.strip().split("|") for line in answer.stdout.splitlines() if line.count("|") == 2]
    counts = [(int(count), state) for name, count, state in rows if partition is not None or name.endswith("*")]
    away = sum(count for count, state in counts if state.startswith(_AWAY))
    if not away:
        return None
    some = f"{away} of {sum(count for count, _ in counts)} nodes are down or drained"
    return f"{some}: it waits for them, or is refused where none of them has what it asks for"


def _partition(name: str | None, cluster: str, patience_s: float) -> tuple[str, ...]:
    """Say where no job starts in a partition now: sbatch takes it all the same."""
    if name is None or "," in name:
        return ()
    answer = ask_cluster(["scontrol", "--oneliner", "show", "partition", name], cluster, patience_s=patience_s)
    if _HIDDEN in answer.stderr:
        return ()
    if answer.returncode != 0:
        raise NoAnswerError(one_line(answer))
    state = dict(_FIELD.findall(answer.stdout)).get("State", "")
    return () if state in ("", "UP") else (f"partition {name} is {state}: no job starts in it now",)


def _reservation(request: Request, cluster: str, patience_s: float) -> tuple[str | None, tuple[str, ...]]:
    """Look whether the reservation is there, has begun, and outlives the job; Slurm forgets one that has ended."""
    name = request.reservation
    if name is None:
        return None, ()
    answer = ask_cluster(["scontrol", "--oneliner", "show", "reservation", name], cluster, patience_s=patience_s)
    if answer.returncode != 0:
        words = one_line(answer)
        if "not found" not in words:
            raise NoAnswerError(words)
        there = ", ".join(_reservations(cluster, patience_s)) or "none"
        return (
            f"resources.reservation={name}: {words}: it has expired, or is called otherwise (reservations of this "
            f"Slurm: {there})"
        ), ()
    facts, now = dict(_FIELD.findall(answer.stdout)), time.time()
    begins, ends = _unix(facts.get("StartTime", "")), _unix(facts.get("EndTime", ""))
    if ends is not None and ends <= now:
        return f"resources.reservation={name} has expired, at {facts['EndTime']}", ()
    return None, tuple(_of_times(name, begins, ends, request, now))


def _of_times(name: str, begins: float | None, ends: float | None, request: Request, now: float) -> Iterator[str]:
    if begins is not None and begins > now:
        yield f"resources.reservation={name} begins in {spell_walltime(begins - now)}: the job waits for it"
    first = max(now, begins or now)
    if ends is not None and request.walltime_s is not None and first + request.walltime_s > ends:
        yield (
            f"resources.reservation={name} ends in {spell_walltime(ends - now)}, and the job asks for "
            f"{spell_walltime(request.walltime_s)}: it may never start in it"
        )


def _reservations(cluster: str, patience_s: float) -> Sequence[str]:
    answer = ask_cluster(["scontrol", "--oneliner", "show", "reservation"], cluster, patience_s=patience_s)
    return re.findall(r"^ReservationName=(\S+)", answer.stdout, re.MULTILINE)


def _unix(text: str) -> float | None:
    try:
        return datetime.fromisoformat(text).timestamp()  # of this machine's time zone, as scontrol prints it
    except ValueError:
        return None
