"""Slurm asked about jobs: one squeue and one sacct for all of them."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence

from hpcml.schedulers.commands import Answer, NoAnswerError, call
from hpcml.schedulers.slurm_answers import SACCT_FIELDS, SEPARATOR, SQUEUE_FORMAT, merge, parse_sacct, parse_squeue
from hpcml.schedulers.submitter import Known, Ticket

_IDS_IN_A_CALL = 5000  # Linux takes 128 KiB in one word of a command line


def query(tickets: Collection[Ticket], *, patience_s: float) -> dict[Ticket, Known]:
    """Return what Slurm knows of *tickets*; raise `NoAnswerError` where it did not say enough to know."""
    if not tickets:
        return {}
    problems: list[str] = []
    queue = _ask(queue_command(SQUEUE_FORMAT), patience_s, problems)
    accounting = _accounting(sorted({ticket.job_id for ticket in tickets}), patience_s, problems)
    found = merge(
        tickets,
        None if queue is None else parse_squeue(queue),
        None if accounting is None else parse_sacct(accounting),
    )
    if len(found) < len(tickets) and (queue is None or accounting is None):
        raise NoAnswerError("; ".join(problems))
    return found


def queue_command(columns: str) -> list[str]:
    """Return the squeue that shows all jobs of this user, ended ones too while Slurm remembers them (MinJobAge)."""
    shown = ["--noheader", "--array", "--states=all", f"--user={os.getuid()}", f"--format={columns}"]
    return ["squeue", *shown]


def find_by_name(name: str, *, patience_s: float) -> str | None:
    """Return the id of this user's job *name*, if there is one; raise `NoAnswerError` where that cannot be known."""
    problems: list[str] = []
    text = _ask(queue_command(SEPARATOR.join(["%F", "%j"])), patience_s, problems)
    if text is not None:
        return _id_of(name, text)
    recent = [*_sacct("JobID,JobName"), "--starttime=now-1hour"]
    found = _id_of(name, _ask(recent, patience_s, problems) or "")
    if found is None:  # the accounting hears of a job from the controller, so its silence proves nothing
        raise NoAnswerError("; ".join(problems))
    return found


def reading_environ(environ: Mapping[str, str]) -> dict[str, str]:
    """Return *environ* without what changes which jobs are shown, or how."""
    kept = {name: value for name, value in environ.items() if not name.startswith(("SQUEUE_", "SACCT_"))}
    return {
        **kept,
        "LC_ALL": "C",
        "SLURM_TIME_FORMAT": "standard",
        "SLURM_BITSTR_LEN": "0",  # by default a list of array indices is cut after 64 characters
    }


def _accounting(job_ids: Sequence[str], patience_s: float, problems: list[str]) -> str | None:
    answers: list[str] = []
    for first in range(0, len(job_ids), _IDS_IN_A_CALL):
        ids = ",".join(job_ids[first : first + _IDS_IN_A_CALL])
        # Without --duplicates: of a requeued job, and of an id used twice, the last row is the one that holds
        text = _ask([*_sacct(SACCT_FIELDS), f"--jobs={ids}"], patience_s, problems)
        if text is None:
            return None
        answers.append(text)
    return "\n".join(answers)


def _sacct(fields: str) -> list[str]:
    shown = ["--noheader", "--allocations", "--parsable2", f"--delimiter={SEPARATOR}", f"--format={fields}"]
    return ["sacct", *shown]


def _ask(argv: Sequence[str], patience_s: float, problems: list[str]) -> str | None:
    try:
        answer = call(argv, timeout_s=patience_s, environ=reading_environ(os.environ))
    except NoAnswerError as error:
        problems.append(str(error))
        return None
    if answer.returncode == 0 or "accounting storage is disabled" in answer.stderr:
        return answer.stdout
    problems.append(f"{argv[0]}: {one_line(answer)}")
    return None


def one_line(answer: Answer) -> str:
    """Return the program's own words without its name; banners, which do not begin with a name, are left out."""
    lines = [line.strip() for line in (answer.stderr or answer.stdout).splitlines() if line.strip()]
    own = [line.partition(": ")[2] for line in lines if line.startswith(("sbatch:", "squeue:", "sacct:", "scancel:"))]
    words = [line.removeprefix("error: ").removeprefix("fatal: ") for line in own or lines]
    return "; ".join(words) or f"exit status {answer.returncode} and not a word"


def _id_of(name: str, text: str) -> str | None:
    rows = (line.split(SEPARATOR) for line in text.splitlines())
    ids = [row[0].strip().partition("_")[0] for row in rows if len(row) == 2 and row[1].strip() == name.strip()]
    return max(ids, key=int, default=None)
