"""One rank of an MPI job: started by the launcher, starts the program and tells the agent of its node how that went.

``python -m hpcml.agent.main --rank MANIFEST ATTEMPT``. It gives the program the variables and the log files that an
agent gives to its ranks, and stays its parent, since the agents do not see how another's child ends. Signals that ask
to end are passed on; those for checkpoints come from the agents. A program that leaves at a checkpoint (status 75) is a
success to the launcher, which would else kill the others.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from hpcml.agent.assignment import read_turn
from hpcml.agent.mpi.records import RankEnd, Records
from hpcml.agent.outcome import LEFT_AT_CHECKPOINT, OBEYED
from hpcml.agent.processes import kill
from hpcml.agent.ranks import mpi_rank_of
from hpcml.agent.supervise import Guard, Rank
from hpcml.errors import HpcmlError
from hpcml.runs.private import make_folder, open_file
from hpcml_client.client import Ranks, ranks_by_launcher

_USAGE = 2
_CANNOT_START = 127
_PASSED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_LEFT_TO_AGENTS = (signal.SIGUSR1, signal.SIGUSR2)  # which know who catches them
_PAUSE_S = 0.2
_PMI = ("PMIX_RANK", "PMI_RANK", "PMI_FD", "OMPI_COMM_WORLD_RANK", "PALS_RANKID", "MV2_COMM_WORLD_RANK", "PMI2_RANK")


@dataclass(frozen=True, slots=True, kw_only=True)
class StartedRank:
    """A rank whose program runs."""

    place: Ranks
    process: subprocess.Popen[bytes]
    guard: Guard


def refusal(place: Ranks | None, environ: Mapping[str, str], *, launcher: str, count: int) -> str | None:
    """Return why this process is no rank of the job as it was planned; None: it is.

    Without this an MPI program would run *count* times as the only one, and succeed (MPI calls that a singleton).
    """
    if place is None:
        return f"{launcher} has told this process no rank"
    if not any(name in environ for name in _PMI):
        return (
            f"{launcher} gave its processes no PMI, by which MPI programs find each other: set cluster.mpi to one of "
            "the words of `srun --mpi=list` (pmix for Open MPI), or workload.launcher=mpirun"
        )
    if place.world_size != count:
        return f"{launcher} started {place.world_size} process(es), and {count} were planned"
    return None


def start(rank: Rank, place: Ranks, records: Records, *, node: int) -> StartedRank:
    """Start the program in a session of its own; raise `OSError` where it cannot be started."""
    guard = Guard()
    make_folder(rank.stdout.parent)
    try:
        with open_file(rank.stdout, "ab") as stdout, open_file(rank.stderr, "ab") as stderr:
            process = subprocess.Popen(
                list(rank.argv),
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                cwd=rank.cwd,
                env=dict(rank.environ),
                start_new_session=True,
                close_fds=False,  # PMI_FD: the program talks to its launcher by it
            )
    except OSError:
        guard.dismiss()
        raise
    guard.watch(process.pid)
    with suppress(ProcessLookupError):  # it has ended already
        records.began(place.rank, node, process.pid)
    return StartedRank(place=place, process=process, guard=guard)


def see_through(started: StartedRank, records: Records, *, count: int, grace_s: float) -> int:
    """Wait for the program, write down how it ended, and return what the launcher is told.

    One that was ended by SIGTERM holds its answer back until all others have ended, or their grace is over: the
    launcher would kill them for it.
    """

    def pass_on(number: int, _frame: object) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(started.process.pid, number)

    for number in _PASSED_ON:
        signal.signal(number, pass_on)
    code = started.process.wait()
    kill({started.process.pid})  # what it left behind
    started.guard.dismiss()
    records.ended(started.place.rank, RankEnd(code=code, at_s=time.time(), host=socket.gethostname()))
    if code in OBEYED:
        until = time.monotonic() + grace_s
        while time.monotonic() < until and len(records.ends()) < count:
            time.sleep(_PAUSE_S)
    if code == LEFT_AT_CHECKPOINT:
        return 0
    return 128 - code if code < 0 else code


def be_rank(words: Sequence[str]) -> int:
    """Be the rank that the launcher's variables name; return the program's exit status, or 2 where it is none.

    *words* are the manifest and the number of the attempt.
    """
    for number in _LEFT_TO_AGENTS:
        signal.signal(number, lambda *_: None)  # not ignored: that the program would inherit
    source, attempt = words
    try:
        turn = read_turn(Path(source), None, os.environ)
    except (HpcmlError, OSError) as error:
        sys.stderr.write(f"hpcml: {error}\n")
        return _USAGE
    plan = turn.plan
    assert plan.mpi is not None  # the agent starts nothing else by a launcher
    each, count = plan.processes_per_node, plan.processes_per_node * turn.run.resources.nodes
    place, records = ranks_by_launcher(os.environ), Records(turn.run_dir.mpi(int(attempt)))
    host = socket.gethostname()
    if (why := refusal(place, os.environ, launcher=plan.mpi.launcher, count=count)) is not None or place is None:
        sys.stderr.write(f"hpcml: {why}\n")
        records.ended(0 if place is None else place.rank, RankEnd(code=_USAGE, at_s=time.time(), host=host, reason=why))
        return _USAGE
    rank = mpi_rank_of(turn, int(attempt), os.environ, place)
    try:
        started = start(rank, place, records, node=place.rank // each)
    except OSError as error:
        why = f"cannot start {error.filename or rank.argv[0]}: {error.strerror}"
        sys.stderr.write(f"hpcml: {why}\n")
        records.ended(place.rank, RankEnd(code=_CANNOT_START, at_s=time.time(), host=host, reason=why))
        return _CANNOT_START
    return see_through(started, records, count=count, grace_s=plan.stop_grace_s)
