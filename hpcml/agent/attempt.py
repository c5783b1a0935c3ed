"""One attempt of one run on one node, from the start of its program to its last word in the journal (`carry_out`).

In order: the workload is started and watched, and its end is settled (`hpcml.agent.ending`). Trouble of hpcml's own
(facts, telemetry) is journalled and never ends the workload.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

from hpcml.agent import history, host, staging
from hpcml.agent.assignment import Turn
from hpcml.agent.claim import Hold
from hpcml.agent.ending import settle
from hpcml.agent.memory_kills import job_around, out_of_memory, read_kills
from hpcml.agent.mpi.job import JobPart, part_of
from hpcml.agent.other_nodes import ended_everywhere
from hpcml.agent.outcome import Ended, Outcome, Unharmed, tell_end
from hpcml.agent.ranks import JOB_END, marks_of, provide_client, ranks_of
from hpcml.agent.signals import Inbox
from hpcml.agent.supervise import JobHooks, Limits, Rank, supervise
from hpcml.agent.telemetry.control import PATIENCE_S, SamplerHandle
from hpcml.agent.time_limit import time_limit_of
from hpcml.errors import HpcmlError, why_not
from hpcml.model.metric_sources import is_path
from hpcml.model.state import State
from hpcml.runs.atomic import write_text
from hpcml.runs.cancellation import is_cancelled
from hpcml.runs.layout import RunDir
from hpcml.runs.plan import Image, Plan
from hpcml.runs.state import EventName
from hpcml_client.journal import JournalWriter

if TYPE_CHECKING:
    from hpcml.agent.metrics.printed import FoundMetrics

_READS_WITHIN_S = 10.0  # files of metrics, once the program has ended: as `staging` has it, of the time that is left


def carry_out(
    turn: Turn,
    hold: Hold,
    inbox: Inbox,
    environ: Mapping[str, str],
    journal: JournalWriter,
    telemetry: SamplerHandle | None,
) -> Ended:
    """Carry the attempt out, whose start is in *journal*, and journal everything about it.

    *telemetry* is the sampler that was started for it; None: the run was cancelled before, and ends at once.
    """

    def tell(name: str, **details: object) -> None:
        journal.event(name, details)

    if telemetry is None:
        outcome = _cancelled()
    else:
        try:
            outcome = _work(turn, hold, inbox, environ, journal, telemetry)
        except (OSError, HpcmlError) as error:  # of a file that the start needs
            why = why_not(error, turn.plan.cwd) if isinstance(error, OSError) else str(error)
            reason = f"its agent could not carry it out: {why}"
            outcome = Outcome(state=State.FAILED, exit_code=None, signal=None, reason=reason, wall_s=0.0)
            _tell_other_nodes(turn, hold.attempt, outcome, Unharmed(journal.event))
        if turn.run.resources.nodes > 1:
            with Unharmed(journal.event)("ends of the other nodes"):
                why_ended = partial(_why_ended, turn, hold.attempt, environ)
                outcome = ended_everywhere(turn, hold, outcome, inbox, why_ended=why_ended)
        if hold.superseded:
            # We were taken for dead: the run, its state and its place in the queue are the later attempt's.
            reason = f"attempt {hold.attempt + 1} has taken the run over"
            tell_end(tell, EventName.ATTEMPT_INTERRUPTED, replace(outcome, state=State.CANCELLED, reason=reason))
            journal.close()
            return Ended(status=1, interrupted=outcome.interrupted)
        if is_cancelled(turn.run_dir) and (outcome.state is State.FAILED or outcome.checkpointed):
            # It was killed, or left, because somebody wanted that.
            outcome = replace(outcome, state=State.CANCELLED, reason="cancelled")
    if outcome.interrupted and not turn.is_local and not is_cancelled(turn.run_dir):
        tell_end(tell, EventName.ATTEMPT_INTERRUPTED, outcome)
        journal.close()
        return Ended(status=outcome.exit_status, interrupted=True)
    ended = settle(turn, hold, outcome, inbox, environ, journal)
    return replace(ended, interrupted=outcome.interrupted)


def _cancelled() -> Outcome:
    return Outcome(state=State.CANCELLED, exit_code=None, signal=None, reason="cancelled before it started", wall_s=0.0)


def _image_facts(plan: Plan, run_dir: RunDir) -> dict[str, str]:
    """Return path, key, base and SHA-256 of the run's image as facts; empty without an image.

    The record that the build wrote beside the image, with its definition and packages, is copied into the run's
    directory: images are removed. Of an image that a job built after the submission, only the record has the SHA-256. A
    file that was replaced after the submission is read again.
    """
    if plan.image is None:
        return {}
    image, text = plan.image, None
    if image.key is not None:
        with suppress(OSError):
            text = Path(image.path).with_suffix(".json").read_text(encoding="utf-8")
    record: dict[str, str] = {}
    with suppress(ValueError):  # half a record is none
        record = json.loads(text) if text is not None else {}
    sha256, base, digest = (record.get(name) for name in ("sha256", "base", "base_digest"))
    actual = _sha256_if_replaced(image) or image.sha256
    is_of_it = actual in (None, sha256)
    if text is not None and record and is_of_it:
        write_text(run_dir.image_record, text)
    found = {"image": image.path, "image_key": image.key, "image_sha256": actual or sha256}
    if actual != image.sha256:
        found["image_sha256_at_submission"] = image.sha256
    if is_of_it:
        found |= {"image_base": base, "image_base_digest": digest}
    return {name: value for name, value in found.items() if value is not None}


def _sha256_if_replaced(image: Image) -> str | None:
    """Return the SHA-256 of the file that is in the place of *image* by now; None where it is the same file still."""
    path = Path(image.path)
    try:
        status = path.stat()
        if image.mtime_ns is None or (status.st_size, status.st_mtime_ns) == (image.size_bytes, image.mtime_ns):
            return None
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return None  # what starts it says so


def _work(
    turn: Turn, hold: Hold, inbox: Inbox, environ: Mapping[str, str], journal: JournalWriter, telemetry: SamplerHandle
) -> Outcome:
    """Run the workload beside its sampler and return its outcome; facts and telemetry go to *journal*.

    The sampler is ended in every case. Errors of telemetry are journalled as "agent_trouble".
    """
    unharmed = Unharmed(journal.event)
    try:
        provide_client(turn.run_dir)
        plan, shared = turn.plan, None
        if plan.staging is not None:
            if (prevented := staging.make_ready(turn, hold, inbox)) is not None:
                _tell_other_nodes(turn, hold.attempt, prevented, unharmed)
                return prevented
            shared = staging.shared_before(turn)
        with unharmed("facts"):
            given = {name: value for name, value in {**environ, **plan.environment}.items() if value is not None}
            own = {**host.facts(), **host.telling_variables(given), **host.loaded_modules(given)}
            own |= _image_facts(plan, turn.run_dir)
            journal.event("facts", {**own, **telemetry.take_facts(PATIENCE_S)})
        telemetry.begin()
        outcome = _supervise(turn, hold, inbox, environ, journal, telemetry)
        if telemetry.is_on:
            with unharmed("telemetry"):
                journal.event("telemetry", {"node": turn.node, **telemetry.end(most_held_mb=outcome.most_held_mb)})
                if facts := telemetry.take_facts():
                    journal.event("facts", facts)
        if shared is not None and not hold.superseded:  # the folder is the later attempt's
            with unharmed("files"):
                staging.leave(turn, hold.attempt, shared, journal)
        return outcome
    finally:
        with unharmed("telemetry"):
            telemetry.stop()


def _supervise(
    turn: Turn,
    hold: Hold,
    inbox: Inbox,
    environ: Mapping[str, str],
    journal: JournalWriter,
    telemetry: SamplerHandle,
) -> Outcome:
    """Start the ranks and watch them to their end, reading metrics from the output of the first rank meanwhile."""
    unharmed = Unharmed(journal.event)
    part = None if turn.plan.mpi is None else part_of(turn, hold.attempt, environ)
    ranks = ranks_of(turn, hold.attempt, environ) if part is None else [part.process]
    first = ranks[0] if part is None else part.output
    found = cache(partial(_found_metrics, turn, hold.attempt, first, journal))

    def begin() -> None:
        with unharmed("metrics"):
            found().start()

    def follow() -> None:
        hold.beat()
        with unharmed("telemetry"):
            if facts := telemetry.take_facts():
                journal.event("facts", facts)
            if lost := telemetry.read():
                journal.event("telemetry_lost", {"node": turn.node, "reason": lost})

    def tell(name: str, **details: object) -> None:
        journal.event(name, details)

    def tell_beforehand(outcome: Outcome) -> None:
        if not turn.is_local:  # PBS kills ten seconds later, which may be within the program's grace
            tell_end(tell, EventName.ATTEMPT_ENDING, outcome)
            journal.sync()

    with unharmed("metrics from files"):
        if _files_of_metrics(turn):
            found().look()
    job_id = None if turn.is_local else job_around(environ)  # a job around a local queue has other runs
    kills_before = read_kills(job_id)
    outcome = supervise(
        ranks,
        inbox,
        _limits_of(turn),
        tell=tell,
        on_start=begin,
        on_tick=follow,
        is_unwanted=lambda: hold.superseded or is_cancelled(turn.run_dir),
        job=replace(_hooks_of(turn, hold.attempt, environ, part, tell), on_end_asked=tell_beforehand),
    )
    with unharmed("metrics"):
        found().end(within_s=_READS_WITHIN_S, has_completed=outcome.state is State.COMPLETED)
    outcome = _told_to_other_nodes(turn, hold.attempt, outcome, part, unharmed)
    return out_of_memory(outcome, kills_before, read_kills(job_id))


def _told_to_other_nodes(
    turn: Turn, attempt: int, outcome: Outcome, part: JobPart | None, unharmed: Unharmed
) -> Outcome:
    """Return *outcome* as the MPI job has it, where the ranks are one, once the other nodes have been told of it."""
    if part is not None:
        with unharmed("end of the MPI job"):
            outcome = part.judged(outcome)
    _tell_other_nodes(turn, attempt, outcome, unharmed)
    if part is not None:
        with unharmed("word to the other nodes"):
            part.tell_others(outcome)
    return outcome


def _hooks_of(
    turn: Turn, attempt: int, environ: Mapping[str, str], part: JobPart | None, tell: Callable[..., None]
) -> JobHooks:
    return JobHooks(
        ranks=part.sessions if part is not None and part.has_ranks else None,
        codes=(lambda codes: codes) if part is None else part.codes,
        why_ended=partial(_why_ended, turn, attempt, environ),
        has_failed_elsewhere=lambda: _failure_in_shared_job(turn, attempt),
        time_limit=time_limit_of(turn, attempt, environ, tell),
        marks=marks_of(turn, attempt, environ),
    )


def _limits_of(turn: Turn) -> Limits:
    plan = turn.plan
    return Limits(
        stop_after_s=plan.stop_after_s,
        margin_s=max(0, (plan.walltime_s or 0) - (plan.stop_after_s or 0)),
        warn_after_s=plan.warn_after_s,
        notice_s=turn.run.schedule.notice_s,
        grace_s=plan.stop_grace_s,
    )


def _found_metrics(turn: Turn, attempt: int, first: Rank, journal: JournalWriter) -> FoundMetrics:
    """Return what reads the metrics of a program that does not report them: of the first rank, into *journal*."""
    from hpcml.agent.metrics.follow import WRITER, MetricsFollower  # noqa: PLC0415 - mostly while the program runs
    from hpcml.agent.metrics.printed import FoundMetrics  # noqa: PLC0415 - as above

    workload, plan, run_dir = turn.run.workload, turn.plan, turn.run_dir
    cwd = Path(plan.cwd)
    root = cwd if plan.staging is None else run_dir.work / plan.staging.project
    return FoundMetrics(
        rules=workload.metrics,
        printed=(first.stdout, first.stderr),
        journal=journal,
        is_again=attempt > 0,
        files=MetricsFollower(
            root=root,
            wanted=_files_of_metrics(turn),
            journal=JournalWriter(str(run_dir.journals), run=turn.uid, attempt=attempt, writer=WRITER),
            journals=run_dir.journals,
            attempt=attempt,
            start_at=os.path.relpath(cwd, root),
            goes_on=attempt > 0 and _goes_on(run_dir, attempt),
        ),
    )


def _files_of_metrics(turn: Turn) -> Sequence[str]:
    """Return which files of metrics are followed, in the words of ``workload.metrics_from``.

    They are followed on the first node, for a user's own program. Without a working directory of its own the run
    follows only files that it names: others may be anybody's.
    """
    if turn.node != 0 or turn.run.workload.command is None:
        return ()
    is_its_own = turn.plan.staging is not None
    return [word for word in turn.run.workload.metrics_from if is_its_own or is_path(word)]


def _goes_on(run_dir: RunDir, attempt: int) -> bool:
    try:
        return history.is_continued(run_dir, attempt)
    except (HpcmlError, OSError):
        return False


def _is_in_shared_job(turn: Turn) -> bool:
    """Tell whether this node's part ends for a failure elsewhere in the job, which nobody else may tell of.

    So it is in a job of several nodes in which other runs wait, and where a launcher has started the ranks.
    """
    is_told = turn.pack is not None or turn.plan.mpi is not None
    return is_told and turn.run.resources.nodes > 1


def _tell_other_nodes(turn: Turn, attempt: int, outcome: Outcome, unharmed: Unharmed) -> None:
    """Leave word of a failure here where the others are told of it by nobody else."""
    if outcome.state is State.FAILED and _is_in_shared_job(turn):
        with unharmed("word to the other nodes"):
            how = f"node {turn.node} ({os.uname().nodename}) ended first: {outcome.reason}"
            write_text(turn.run_dir.has_failed(attempt), how + "\n")


def _why_ended(turn: Turn, attempt: int, environ: Mapping[str, str]) -> str | None:
    return _failure_elsewhere(environ) or _failure_in_shared_job(turn, attempt)


def _failure_in_shared_job(turn: Turn, attempt: int) -> str | None:
    if not _is_in_shared_job(turn):
        return None
    try:
        return turn.run_dir.has_failed(attempt).read_text(encoding="utf-8", errors="replace").strip() or None
    except OSError:
        return None


def _failure_elsewhere(environ: Mapping[str, str]) -> str | None:
    """Return which node of the job ended first, and how, where the job script ends the others for that; else None."""
    try:
        words = Path(environ[JOB_END]).read_text(encoding="utf-8", errors="replace").strip()
    except (KeyError, OSError):
        return None
    return words or None
