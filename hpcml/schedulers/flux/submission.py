"""Flux told: jobs are submitted, or cancelled."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Mapping
from pathlib import Path

from hpcml.errors import HpcmlError, SubmissionError
from hpcml.model.image import without_login
from hpcml.schedulers.commands import NoAnswerError, UncertainSubmissionError, call
from hpcml.schedulers.flux.answers import (
    find_submitted_ids,
    is_silence,
    one_line,
    parse_jobs,
    refusals_of_cancel,
    why_never_placed,
)
from hpcml.schedulers.flux.query import ASK_TIMEOUT_S, heard, jobs_named
from hpcml.schedulers.flux.script import FluxAsk

log = logging.getLogger(__name__)

SUBMIT_TIMEOUT_S = 120.0
_PLACING_S = 0.5  # within which Flux says that a job can never be placed


def submission_environ(environ: Mapping[str, str], *, needs_login: bool) -> dict[str, str]:
    """Return what flux gets and the job inherits: nothing that an outer job was told of itself."""
    kept = environ if needs_login else without_login(environ)
    outer = ("FLUX_JOB_", "FLUX_TASK_", "PMI_", "PMIX_")
    return {name: value for name, value in kept.items() if not name.startswith(outer)}


def submit(
    wanted: FluxAsk,
    script: Path,
    *,
    environ: Mapping[str, str],
    timeout_s: float = SUBMIT_TIMEOUT_S,
    ask_timeout_s: float = ASK_TIMEOUT_S,
) -> list[str]:
    """Run ``flux submit`` once and return the ids of all its jobs in their order.

    A call that was cut short may have made some of them: Flux is then asked by name; where it has only a part, that is
    cancelled. Raises `SubmissionError` with Flux's own words where nothing is queued, and `UncertainSubmissionError`
    where it cannot be known now.
    """
    count = wanted.count or 1

    def look(why: str) -> list[str]:
        return _look(wanted, why, ask_timeout_s)

    try:
        answer = call(wanted.argv(script), timeout_s=timeout_s, environ=environ)
    except NoAnswerError as error:
        if found := look(str(error)):
            return found
        raise UncertainSubmissionError(f"{error}, and Flux has no job called {wanted.name}") from error
    ids = find_submitted_ids(answer.stdout)
    if len(ids) >= count:  # more where a site's wrapper tried again
        return _placed(ids[-count:], ask_timeout_s)
    words = one_line(answer.stderr or answer.stdout)
    if answer.returncode > 0 and not ids and is_silence(answer.stderr):
        raise SubmissionError(f"Flux cannot be reached, so nothing was queued: {words}")
    if answer.returncode in (1, 2) and not ids and ("[Errno" in answer.stderr or "flux-submit: ERROR" in answer.stderr):
        raise SubmissionError(f"Flux refused the job: {words}")
    why = f"flux submit failed ({answer.end}): {words}" if answer.returncode else "flux submit named no job"
    if found := look(why):
        return found
    if answer.was_killed:
        raise UncertainSubmissionError(f"{why}, and Flux has no job called {wanted.name}")
    raise SubmissionError(f"{why}; Flux has no job called {wanted.name} (`flux jobs -a --name={wanted.name}`)")


def _placed(ids: list[str], ask_timeout_s: float) -> list[str]:
    """Return *ids*; raise `SubmissionError` where Flux says now that none of them can ever run."""
    time.sleep(_PLACING_S)
    try:
        answer = heard(["flux", "jobs", "--json", ids[0]], ask_timeout_s)
    except NoAnswerError:
        return ids
    for said in (parse_jobs(answer.stdout) or {}).values():
        if (why := why_never_placed(said)) is not None:  # they are all alike
            raise SubmissionError(f"Flux refused the job: {why}")
    return ids


def _look(wanted: FluxAsk, why: str, timeout_s: float) -> list[str]:
    """Return the ids of the jobs that are there in spite of *why*, all or none."""
    try:
        found = find(wanted, timeout_s=timeout_s)
    except HpcmlError as error:
        raise UncertainSubmissionError(
            f"{why}, and Flux cannot be asked whether the job was queued: look with "
            f"`flux jobs -a --name={wanted.name}` before you try again"
        ) from error
    if found:
        log.info("found %s under the name %s although: %s", ", ".join(found), wanted.name, why)
    return found or []


def find(wanted: FluxAsk, *, timeout_s: float) -> list[str] | None:
    """Return the ids of the jobs of *wanted* in their order, the latest of each name; None where there are not all.

    Where there is only a part, that is cancelled: it was a call that was cut short. Raises `NoAnswerError` where Flux
    does not answer.
    """
    jobs = jobs_named(wanted.name, timeout_s=timeout_s, among=wanted.count is not None)
    names = [wanted.name] if wanted.count is None else [f"{wanted.name}.{number}" for number in range(wanted.count)]
    in_order = sorted(jobs.items(), key=lambda item: (float(item[1].get("t_submit") or 0.0), item[0]))
    latest = {str(said["name"]): job for job, said in in_order}
    found = [latest[name] for name in names if name in latest]
    if len(found) == len(names):
        return found
    if found:
        cancel(found, timeout_s=timeout_s)
    return None


def cancel(ids: Collection[str], *, timeout_s: float = ASK_TIMEOUT_S) -> None:
    """Cancel jobs; what has ended, or is forgotten, is left as it is.

    Flux sends SIGTERM, and SIGKILL five seconds later. Raises `NoAnswerError` where it does not answer, and
    `HpcmlError` with its words where it refuses.
    """
    answer = heard(["flux", "cancel", *ids], timeout_s)
    if refusals := refusals_of_cancel(answer.stderr):
        raise HpcmlError(f"Flux did not cancel every job: {refusals[0]}")
    if answer.returncode == 2:
        raise HpcmlError(f"Flux did not cancel: {one_line(answer.stderr)}")
    log.info("cancelled %s", ", ".join(ids))
