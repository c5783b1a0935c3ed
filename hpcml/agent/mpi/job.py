"""An agent's part in an MPI job: the first node's starts the launcher, the others wait, and all watch their ranks."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from hpcml.agent.assignment import Turn
from hpcml.agent.failure import last_text
from hpcml.agent.mpi import launch
from hpcml.agent.mpi.records import Records, codes_of, named, wait_for_end
from hpcml.agent.outcome import GOOD, LEFT_AT_CHECKPOINT, Outcome
from hpcml.agent.ranks import job_environment, mpi_meeting, started_once
from hpcml.agent.supervise import Rank
from hpcml.paths import begin_in_utf8
from hpcml.runs.atomic import write_text
from hpcml.runs.plan import MpiStart
from hpcml.runs.private import make_folder

HOST_FILE = "HPCML_HOSTFILE"  # for a program that is a launcher itself
_TAIL_BYTES = 4096
_HEARD_WITHIN_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class JobPart:
    """What this node's agent starts and watches for one attempt: `process`, the launcher, or what waits for its end."""

    turn: Turn
    attempt: int
    start: MpiStart
    records: Records
    process: Rank
    output: Rank  # whose log files have what the first rank of this node prints

    @property
    def has_ranks(self) -> bool:
        """Whether ranks are started by `hpcml.agent.mpi.rank`; not where the program is a launcher itself."""
        return self.start.launcher != "none"

    def sessions(self) -> set[int]:
        """Return the sessions of this node's ranks."""
        return self.records.sessions_of(self.turn.node) if self.has_ranks else set()

    def codes(self, of_processes: Sequence[int]) -> list[int]:
        """Return the exit codes of all ranks on the first node, given that of the launcher; on others as they are."""
        if not self.has_ranks or self.turn.node != 0:
            return list(of_processes)
        count = self.turn.plan.processes_per_node * self.turn.run.resources.nodes
        return codes_of(of_processes[0], self.records.ends(), count)

    def judged(self, outcome: Outcome) -> Outcome:
        """Return the *outcome* of the first node's part with the rank that failed first as its reason."""
        if self.turn.node != 0 or not self.has_ranks:
            return outcome
        said = last_text(self.turn.run_dir.launcher_log(self.attempt), _TAIL_BYTES)
        return named(outcome, self.records.ends(), launcher=self.start.launcher, said=said)

    def tell_others(self, outcome: Outcome) -> None:
        """Tell the other nodes, from the first, that the MPI job is over."""
        if self.turn.node == 0:
            self.records.finish(LEFT_AT_CHECKPOINT if outcome.checkpointed else outcome.exit_status)


def part_of(turn: Turn, attempt: int, environ: Mapping[str, str]) -> JobPart:
    """Return what this node has to do in the MPI job of *turn*; *environ* is the environment of the agent's job."""
    plan, run_dir = turn.plan, turn.run_dir
    assert plan.mpi is not None
    records = Records(run_dir.mpi(attempt))
    make_folder(records.folder)
    size = launch.Size(nodes=turn.run.resources.nodes, each=plan.processes_per_node, cpus=plan.cpus_per_task)
    hosts = _write_hosts(records.folder, environ, size)
    around = launch.environment(environ, plan.mpi, size) if plan.mpi.launcher == "none" else environ
    once = started_once(turn, attempt, {**around, **({} if hosts is None else {HOST_FILE: str(hosts)})})
    first = turn.node * size.each if plan.mpi.launcher != "none" else 0
    output = replace(once, stdout=run_dir.stdout(attempt, first), stderr=run_dir.stderr(attempt, first))
    if turn.node != 0:
        process = _waiting(turn, attempt, environ)
    elif plan.mpi.launcher == "none":
        process = once
    else:
        process = _launching(turn, attempt, environ, plan.mpi, size, hosts)
    return JobPart(turn=turn, attempt=attempt, start=plan.mpi, records=records, process=process, output=output)


def _launching(
    turn: Turn, attempt: int, environ: Mapping[str, str], start: MpiStart, size: launch.Size, hosts: Path | None
) -> Rank:
    given = {**job_environment(turn, environ), **mpi_meeting(turn, environ)}
    theirs = launch.environment(given, start, size)
    argv = launch.command(
        start,
        size,
        launch.rank_command(str(turn.source), attempt),
        theirs,
        hosts=hosts,
        ask=lambda words: launch.asked(words, theirs),
    )
    log = turn.run_dir.launcher_log(attempt)
    return Rank(argv=argv, environ=theirs, cwd=Path(turn.plan.cwd), stdout=log, stderr=log)


def _waiting(turn: Turn, attempt: int, environ: Mapping[str, str]) -> Rank:
    log = turn.run_dir.launcher_log(attempt).with_name(f"{attempt}-launcher{turn.node}.log")
    argv = [sys.executable, "-P", "-m", "hpcml.agent.mpi.job", str(turn.run_dir.mpi(attempt))]
    return Rank(argv=argv, environ=dict(environ), cwd=turn.run_dir.path, stdout=log, stderr=log)


def _write_hosts(folder: Path, environ: Mapping[str, str], size: launch.Size) -> Path | None:
    """Leave the host file in *folder*; None where the scheduler names no nodes that a launcher would not know."""
    hosts = launch.hosts_of(environ)
    if not hosts:
        return None
    path = folder / "hosts"
    write_text(path, launch.host_file(hosts[: size.nodes], size.each))
    return path


def main(words: Sequence[str] | None = None) -> int:
    """Wait, on another node than the first, for the end of the MPI job whose folder is given; return its code.

    SIGTERM is the agent's business: it asks this node's ranks to end, and the first node tells when they have.
    """
    (folder,) = sys.argv[1:] if words is None else words
    code = wait_for_end(Records(Path(folder)))
    if code not in GOOD:
        time.sleep(_HEARD_WITHIN_S)  # the agent hears which rank it was, and ends this process
    return code


if __name__ == "__main__":
    begin_in_utf8()
    sys.exit(main())
