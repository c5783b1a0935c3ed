"""Slurm asked about jobs: one squeue for all of them, and one sacct for those that squeue does not show."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from hpcml.errors import HpcmlError
from hpcml.schedulers.commands import Answer, NoAnswerError, call, telling_lines
from hpcml.schedulers.contract import Answers, Ticket
from hpcml.schedulers.slurm.answers import (
    LONGEST_NAME,
    SACCT_FIELDS,
    SEPARATOR,
    SQUEUE_FORMAT,
    merge,
    needs_accounting,
    parse_sacct,
    parse_squeue,
    parse_time_s,
    pick,
    token_in,
)
from hpcml.schedulers.slurm.script import clusters_of

_LIMIT_PATIENCE_S = 40.0  # of an agent, to which the answer is worth less later
_IDS_IN_A_CALL = 5000  # Linux takes 128 KiB in one word of a command line
_MOST_NAMED = 3  # of jobs, in a line
_NO_ACCOUNTING = "accounting storage is disabled"
# What Slurm's programs say of the way to their daemons: behind it an empty answer is none
_UNREACHED = (
    "Unable to contact",
    "Problem talking to",
    "Socket timed out",
    "Zero Bytes",
    "onnection refused",
    "failure",
)
_TOKEN_TIME = re.compile(r"\d{8}-\d{6}")
# Named one by one, jobs are chosen by when they were in one of them. Without, by when they became eligible, which one
# that was held, or waited for another, and was cancelled then never did (measured, 22.05: such are left out).
_EVERY_STATE = "--state=BF,CA,CD,DL,F,NF,OOM,PD,PR,R,RQ,TO"
_OF_THE_USERS_TASTE = ("SQUEUE_", "SACCT_", "SCANCEL_", "SINFO_", "SCONTROL_")
_OTHER_CLUSTER = ("SLURM_CLUSTERS", "SBATCH_CLUSTERS", "SLURM_WORKING_CLUSTER")
_NAMES = SEPARATOR.join(["%F", "%j", "%k"])  # last the comment, which says the token, too


@dataclass(slots=True)
class _Questions:
    """Calls of the programs that tell of *cluster*, counted; what went wrong with them is kept."""

    patience_s: float
    cluster: str | None  # as `Ticket.job_cluster` has it
    calls: int = 0
    problems: list[str] = field(default_factory=list)

    def ask(self, argv: Sequence[str]) -> str | None:
        """Return what the program printed, or None where it did not answer.

        A site's wrapper may end with status 0 whatever happens: words without a row, and nothing but an error, are no
        answer.
        """
        self.calls += 1
        try:
            answer = ask_cluster(argv, self.cluster, patience_s=self.patience_s)
        except NoAnswerError as error:
            self.problems.append(str(error))
            return None
        if _NO_ACCOUNTING in answer.stderr or (answer.returncode == 0 and not _hides_a_failure(answer)):
            return answer.stdout
        self.problems.append(f"{argv[0]}: {one_line(answer)}")
        return None


def _hides_a_failure(answer: Answer) -> bool:
    if SEPARATOR in answer.stdout:
        return False
    return bool(answer.stdout.strip()) or any(word in answer.stderr for word in _UNREACHED)


def query(tickets: Collection[Ticket], *, patience_s: float) -> Answers:
    """Return what Slurm knows of *tickets*; while all of them wait or run, this is one call of squeue for each cluster.

    *patience_s* is for each call. The queue is asked first (see `merge` in `answers`); where one of the two does not
    answer, tickets that the other does not settle are unanswered with the reason. Raises `SubmissionError` where there
    is no squeue.
    """
    together = Answers(known={})
    for cluster in dict.fromkeys(ticket.job_cluster for ticket in tickets):
        answers = _query([ticket for ticket in tickets if ticket.job_cluster == cluster], cluster, patience_s)
        together = Answers(
            known={**together.known, **answers.known},
            unanswered={**together.unanswered, **answers.unanswered},
            calls=together.calls + answers.calls,
            has_queue=answers.has_queue and (together.has_queue or not together.calls),
            silence=together.silence or answers.silence,
        )
    return together


def _query(tickets: Collection[Ticket], cluster: str | None, patience_s: float) -> Answers:
    questions = _Questions(patience_s, cluster)
    text = questions.ask(queue_command(SQUEUE_FORMAT))
    queue = None if text is None else parse_squeue(text)
    live = pick(tickets, queue or [])
    left = sorted({ticket.job_id for ticket in tickets if needs_accounting(ticket, live)})
    told = _accounting(left, questions) if left else ""
    accounting = None if told is None else parse_sacct(told)
    answers = merge(tickets, queue, accounting)
    unanswered: dict[Ticket, str] = {}
    silence = ""
    if queue is None or accounting is None:
        why = "; ".join(questions.problems)
        silent = [ticket for ticket in tickets if ticket not in answers.known]
        if queue is not None:
            named = ", ".join(ticket.spelled for ticket in silent[:_MOST_NAMED])
            more = len(silent) - _MOST_NAMED
            which = f"job{'s' if len(silent) > 1 else ''} {named}{f' and {more} more' if more > 0 else ''}"
            why = f"the queue has no {which} any more, and the accounting, which knows the end, does not answer: {why}"
        unanswered = dict.fromkeys(silent, why)
        if queue is None and not silent:
            silence = f"{why}; only the accounting, which is late, tells of jobs"
    return replace(answers, unanswered=unanswered, calls=questions.calls, has_queue=queue is not None, silence=silence)


def queue_command(columns: str) -> list[str]:
    """Return the squeue that shows all jobs of this user, ended ones too while Slurm remembers them (MinJobAge).

    *columns* is the format of a line (man squeue, --format).
    """
    shown = ["--noheader", "--array", "--states=all", f"--user={os.getuid()}", f"--format={columns}"]
    return ["squeue", *shown]


def find_by_name(name: str, *, clusters: str | None = None, patience_s: float) -> str | None:
    """Return the id of this user's job *name* right after it was submitted; `NoAnswerError` where that is not known.

    A job of this moment is in the queue, or was not taken. None where the queue of each of *clusters* (`clusters_in`)
    surely has no such job.
    """
    return _anywhere(clusters, patience_s, lambda questions: _find_new(name, questions))


def _find_new(name: str, questions: _Questions) -> str | None:
    text = questions.ask(queue_command(_NAMES))
    if text is not None:
        return _id_of(name, text)
    found = _id_of(name, questions.ask(_past_command("now-1hour")) or "")
    if found is None:  # the accounting hears of a job from the controller, so its silence proves nothing
        raise NoAnswerError("; ".join(questions.problems))
    return found


def find_job(name: str, *, clusters: str | None = None, token: str, patience_s: float) -> str | None:
    """Return the id of the job *name* that was, or was not, submitted some time ago by a process that is dead.

    The rule. A name in the queue or in the accounting proves that there is a job: each knows only what slurmctld took.
    That there is none needs both. The queue's answer says that no such job waits or runs, or has just ended; the
    accounting's says that none did in the past: it may lack one that ended while slurmdbd was away, but such a job
    has run, and the journals, which the caller reads first, tell of it. A site without accounting has only the queue
    and the journals. Where either gives no answer now, this is not known now: `NoAnswerError`. A submission of this
    very moment may not be seen: its process must have been dead for some seconds.
    """
    return _anywhere(clusters, patience_s, lambda questions: _find_old(name, token, questions))


def _find_old(name: str, token: str, questions: _Questions) -> str | None:
    queue = questions.ask(queue_command(_NAMES))
    found = _id_of(name, queue or "")
    if found is None:
        past = questions.ask(_past_command(_day_before(token)))
        found = _id_of(name, past or "")
        if found is None and (queue is None or past is None):
            raise NoAnswerError("; ".join(questions.problems))
    return found


def _anywhere(clusters: str | None, patience_s: float, find: Callable[[_Questions], str | None]) -> str | None:
    """Return the job that *find* finds on one of *clusters*; raise `NoAnswerError` where it is on none that answers."""
    silent: list[str] = []
    for cluster in _each(clusters, patience_s):
        try:
            found = find(_Questions(patience_s, cluster))
        except NoAnswerError as error:
            silent.append(str(error))
        else:
            if found is not None:
                return spell(found, cluster)
    if silent:
        raise NoAnswerError("; ".join(silent))
    return None


def _each(clusters: str | None, patience_s: float) -> list[str]:
    """Return the names in *clusters*, as sbatch takes them; an empty one is that of this machine's configuration."""
    if clusters != "all":
        return (clusters or "").split(",")
    answer = call(["sacctmgr", "--noheader", "--parsable2", "list", "clusters", "format=cluster"], timeout_s=patience_s)
    if answer.returncode != 0 or not answer.stdout.split():
        raise NoAnswerError(f"sacctmgr did not say which clusters there are: {one_line(answer)}")
    return answer.stdout.split()


def spell(job_id: str, cluster: str | None) -> str:
    """Return the id of a job as ``sbatch --parsable`` does: ``4711``, or ``4711;big`` on another cluster."""
    return f"{job_id};{cluster}" if cluster else job_id


def ask_cluster(argv: Sequence[str], cluster: str | None, *, patience_s: float) -> Answer:
    """Run one of Slurm's programs for *cluster*, whatever the shell's environment says; raise as `call` does.

    Empty: the one of this machine's configuration. None: not known, so it is the one that the environment names.
    """
    environ = reading_environ(os.environ)
    if cluster is not None:
        for name in _OTHER_CLUSTER:
            environ.pop(name, None)
    program, *words = argv
    return call(
        [program, *([f"--clusters={cluster}"] if cluster else []), *words], timeout_s=patience_s, environ=environ
    )


def time_limit(environ: Mapping[str, str]) -> tuple[int | None, int | None]:
    """Return the time limit that the job with these variables has now, and what is left of it, in seconds.

    Slurm does not count the time for which a job was suspended. None: without a limit. Raises `HpcmlError` outside of a
    job, and `NoAnswerError` where Slurm does not answer.
    """
    array, index = environ.get("SLURM_ARRAY_JOB_ID"), environ.get("SLURM_ARRAY_TASK_ID")
    job_id = f"{array}_{index}" if array and index else environ.get("SLURM_JOB_ID")
    if not job_id:
        raise HpcmlError("this is no job of Slurm: SLURM_JOB_ID is not set")
    ask = ["squeue", "--noheader", f"--jobs={job_id}", "--format=%l %L"]
    answer = call(ask, timeout_s=_LIMIT_PATIENCE_S, environ=reading_environ(environ))
    if answer.returncode != 0:
        raise NoAnswerError(f"squeue did not answer for job {job_id}: {one_line(answer)}")
    limit, _, left = answer.stdout.strip().partition(" ")
    return parse_time_s(limit), parse_time_s(left)


def reading_environ(environ: Mapping[str, str]) -> dict[str, str]:
    """Return *environ* without what changes which jobs are shown, and how, or which are cancelled.

    Users set SQUEUE_FORMAT and the like for their own eyes, SCANCEL_INTERACTIVE or SCANCEL_PARTITION for their
    own hands (man squeue, man scancel). What sends jobs to another cluster, SBATCH_CLUSTERS, says
    where to look for those of which nothing else does.
    """
    sent_to = clusters_of(environ)
    kept = {name: value for name, value in environ.items() if not name.startswith(_OF_THE_USERS_TASTE)}
    return {
        **kept,
        **({"SLURM_CLUSTERS": sent_to} if sent_to else {}),
        "LC_ALL": "C",
        "SLURM_TIME_FORMAT": "standard",
        "SLURM_BITSTR_LEN": "0",  # by default a list of array indices is cut after 64 characters
    }


def _accounting(job_ids: Sequence[str], questions: _Questions) -> str | None:
    answers: list[str] = []
    for first in range(0, len(job_ids), _IDS_IN_A_CALL):
        ids = ",".join(job_ids[first : first + _IDS_IN_A_CALL])
        # Without --duplicates: of a requeued job, and of an id used twice, the last row is the one that holds
        # With the steps: what was used is counted of them
        text = questions.ask([*_sacct(SACCT_FIELDS), f"--jobs={ids}"])
        if text is None:
            return None
        answers.append(text)
    return "\n".join(answers)


def _sacct(fields: str) -> list[str]:
    shown = ["--noheader", "--parsable2", f"--delimiter={SEPARATOR}", f"--format={fields}"]
    return ["sacct", *shown]


def _past_command(since: str) -> list[str]:
    """Return the sacct that shows this user's jobs since a time; a clock that is late by a day hides none."""
    return [
        *_sacct("JobID,JobName,Comment"),
        "--allocations",
        f"--user={os.getuid()}",
        _EVERY_STATE,
        f"--starttime={since}",
        "--endtime=now+1day",
    ]


def _day_before(token: str) -> str:
    """Return a time before anything was submitted under *token*, which begins with one; a day is for the zones."""
    match = _TOKEN_TIME.match(token)
    if match is None:
        return "now-1year"
    try:
        return (datetime.strptime(match[0], "%Y%m%d-%H%M%S") - timedelta(days=1)).isoformat()  # noqa: DTZ007
    except ValueError:
        return "now-1year"


def one_line(answer: Answer) -> str:
    """Return the program's own words without its name, and without banners, which do not begin with one, and rulers.

    Of several lines all are kept, joined with semicolons. Without any, the exit status is told.
    """
    lines = telling_lines(answer.stderr or answer.stdout)
    programs = ("sbatch:", "allocation failure:", "squeue:", "sacct:", "scancel:", "scontrol:", "sacctmgr:")
    own = [line.partition(": ")[2] for line in lines if line.startswith(programs)]
    words = "\n".join(line.removeprefix("error: ").removeprefix("fatal: ") for line in own or lines)
    return "; ".join(telling_lines(words)) or f"exit status {answer.returncode} and not a word"


def _id_of(name: str, text: str) -> str | None:
    return max(_ids_of(name, text), key=int, default=None)


def _ids_of(name: str, text: str) -> list[str]:
    """Return the ids of the jobs called *name*, and of those that were renamed, by a plugin of the site or by hand."""
    rows = (line.split(SEPARATOR) for line in text.split("\n"))
    wanted, token = name.strip().encode()[:LONGEST_NAME], token_in(name)
    remark = None if token is None else f"hpcml:{token}"
    ids = (
        job_id.strip().partition("_")[0]
        for job_id, called, *rest in (row for row in rows if len(row) > 1)
        if called.strip().encode() == wanted or (rest and rest[-1].strip() == remark)
    )
    return [job_id for job_id in ids if job_id.isdigit()]
