"""Jobs submitted, asked for and cancelled by the description of their scheduler: one way for all of them.

A run is submitted at least once and carried out at most once. An answer that got lost is looked for by the job's name,
which ends in a token; what is not there may be submitted again, since the claim in the run's directory lets one job
execute (`hpcml.agent`), and any other leaves.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from hpcml.errors import HpcmlError, SubmissionError
from hpcml.model.state import State
from hpcml.runs.atomic import write_text
from hpcml.schedulers import batches
from hpcml.schedulers.commands import Answer, NoAnswerError, UncertainSubmissionError, advised, call
from hpcml.schedulers.contract import Answers, Batch, Job, Known, Preview, Ticket
from hpcml.schedulers.description import JobDraft, JobRow, Scheduler, StatusCommand
from hpcml.schedulers.request import request_for_batch
from hpcml.schedulers.script import requeue_command, time_limit_command

log = logging.getLogger(__name__)

SUBMIT_TIMEOUT_S = 120.0  # a busy server, or a hook of the site, may take a minute
ASK_TIMEOUT_S = 60.0  # a server that hangs never answers
_TRIES = 3  # of a submission that was not heard
_Key = tuple[str, int | None]  # the number of a job, and its index in an array
_NEVER_BEGAN = Known(
    state=State.CANCELLED,
    raw="no record",
    reason="cancelled before it began, as far as is known",
    is_live=False,
    never_began=True,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Driver:
    """A scheduler by its command line programs; *submissions* is on a file system that the nodes share."""

    scheduler: Scheduler
    submissions: Path
    submit_timeout_s: float = SUBMIT_TIMEOUT_S  # for each call of a program
    ask_timeout_s: float = ASK_TIMEOUT_S
    pause_s: float = 3.0  # before a submission is repeated

    def script_for(self, job: Job) -> str:
        """Return the run's own script, which can be submitted again by hand."""
        return self.scheduler.render(self._draft(batches.own_batch(job)))

    def preview(self, batch: Batch) -> Preview:
        """Return what `submit` would send."""
        draft = self._draft(batch)
        by_stdin = ["<", str(draft.script)] if self.scheduler.reads_script(draft.request) else []
        return Preview(command=[*self.scheduler.submit(draft), *by_stdin], script=self.scheduler.render(draft))

    def submit(self, batch: Batch) -> list[Ticket]:
        """Queue *batch* by one call, and return the tickets of its runs.

        Raises `SubmissionError` with the scheduler's words where nothing was queued, and `UncertainSubmissionError`
        where that cannot be known now: `find` tells it later.
        """
        draft = self._draft(batch)
        text = self.scheduler.render(draft)
        batches.write_down(self.submissions, batch, text)
        ids = self.send(draft, text, os.environ)
        log.info("submitted %s as %s", draft.script, ", ".join(ids))
        return tickets_of(self.scheduler, batch, ids)

    def find(self, batch: Batch) -> list[Ticket] | None:
        """Return the tickets of *batch* where the scheduler has a job of its name, None where it surely has none.

        Raises `NoAnswerError` where that cannot be known now. The process that submitted it must have been dead for
        some seconds.
        """
        draft = self._draft(batch)
        sent = draft.script.read_text(encoding="utf-8") if draft.script.is_file() else ""
        ids = self._find(draft, self.scheduler.clusters(sent), is_recent=False)
        return None if ids is None else tickets_of(self.scheduler, batch, ids)

    def query(self, tickets: Collection[Ticket]) -> Answers:
        """Ask for *tickets* in as few calls as possible.

        A ticket in neither part of the answer is forgotten by the scheduler, or its id is that of another job by now.
        Raises `HpcmlError` for an id that is none of this scheduler.
        """
        together = Answers(known={})
        for cluster in dict.fromkeys(ticket.job_cluster for ticket in tickets):
            some = [ticket for ticket in tickets if ticket.job_cluster == cluster]
            answers = _Inquiry(self.scheduler, self.ask_timeout_s, cluster).query(some)
            together = Answers(
                known={**together.known, **answers.known},
                unanswered={**together.unanswered, **answers.unanswered},
                calls=together.calls + answers.calls,
                has_queue=answers.has_queue and (together.has_queue or not together.calls),
                silence=together.silence or answers.silence,
            )
        return together

    def cancel(self, tickets: Collection[Ticket]) -> None:
        """Take the jobs out of the queue or end them, many by one call; a ticket without an index is a whole array.

        Every job is told before a refusal is raised, as `HpcmlError`; `NoAnswerError` comes at once.
        """
        refusals: list[str] = []
        for cluster in dict.fromkeys(ticket.job_cluster for ticket in tickets):
            some = [ticket for ticket in tickets if ticket.job_cluster == cluster]
            for ticket in some:
                key_of(self.scheduler, ticket)
            inquiry = _Inquiry(self.scheduler, self.ask_timeout_s, cluster)
            words = dict.fromkeys(map(self.scheduler.cancel_word, some))
            for ids in chunks(list(words), self.scheduler.cancels_at_once):
                answer = inquiry.call(self.scheduler.cancel(ids))
                refusals += self.scheduler.refusals(answer)
                log.info("cancelled %s", ", ".join(ids))
        if refusals:
            more = f" (and {len(refusals) - 1} more)" if len(refusals) > 1 else ""
            raise HpcmlError(f"{self.scheduler.title} did not cancel every job: {refusals[0]}{more}")

    def _draft(self, batch: Batch) -> JobDraft:
        scheduler, request = self.scheduler, request_for_batch(batch)
        own = batch.jobs[0].run_dir if batch.is_single else None
        folder = batches.folder_of(self.submissions, batch) if own is None else own.path
        return JobDraft(
            request=request,
            name=scheduler.job_name(batches.label_of(batch), batch.token),
            token=batch.token,
            remark=batches.remark_of(batch, by=f"{scheduler.by_hand}{' <' * scheduler.reads_script(request)}"),
            folder=folder,
            logs=folder if own is None else own.logs,
            script=batches.script_of(self.submissions, batch),
            command=batches.agent_of(self.submissions, batch),
            requeue=requeue_command(scheduler.name, is_shared=batches.is_shared(batch)),
            time_limit=time_limit_command(scheduler.name),
            array_size=batches.size_of(batch),
        )

    def put_back(self, job: Job, environ: Mapping[str, str], *, is_alone: bool) -> Ticket | None:
        """Put the run of *job* back into the queue from inside its job, whose variables are *environ*.

        Returns None where the scheduler runs this job once more under its id. Where it cannot, or the job runs others
        too (*is_alone*), the run is submitted as another job, whose name ends in the number of this one. Raises
        `HpcmlError` outside of a job, and `SubmissionError` where the scheduler refuses.
        """
        scheduler, own = self.scheduler, _own_job(self.scheduler, environ)
        if scheduler.requeue is not None and not is_alone:
            answer = call(
                scheduler.requeue(own), timeout_s=self.ask_timeout_s, environ=scheduler.asking_environ(environ, None)
            )
            has_failed = scheduler.requeued not in answer.stdout if scheduler.requeued else answer.returncode
            if has_failed:
                raise SubmissionError(f"{scheduler.title} did not requeue job {own}: {scheduler.words(answer)}")
            return None
        mark, batch = f"-q{scheduler.number_of(own)}", batches.own_batch(job)
        draft = self._draft(batch)
        draft = replace(
            draft,
            request=replace(draft.request, dependency=None),  # what it waited for has come true, or is forgotten
            name=scheduler.job_name(batches.label_of(batch), f"{batch.token}{mark}"),
            script=draft.script.with_name(f"{draft.script.stem}{mark}.sh"),
            log_suffix=mark,
        )
        text = scheduler.render(draft)
        write_text(draft.script, text)
        (job_id,) = self.send(draft, text, environ)
        return replace(tickets_of(scheduler, batch, [job_id])[0], job_name=draft.name)

    def time_limit(self, environ: Mapping[str, str]) -> tuple[int | None, int | None]:
        """Return the walltime that the job with these variables has now, and what is left of it, in seconds.

        None: without a limit, and for what is left also where time in suspension counts. Raises `HpcmlError` outside of
        a job, and `NoAnswerError` where the scheduler does not answer.
        """
        scheduler, own = self.scheduler, _own_job(self.scheduler, environ)
        answer = call(
            scheduler.own_question(own), timeout_s=self.ask_timeout_s, environ=scheduler.asking_environ(environ, None)
        )
        rows = scheduler.queue.rows(answer.stdout)
        if not rows:
            raise NoAnswerError(f"{scheduler.title} did not answer for job {own}: {scheduler.words(answer)}")
        return rows[0].limit_s, rows[0].left_s

    # Submission.

    def send(self, draft: JobDraft, text: str, environ: Mapping[str, str]) -> list[str]:
        """Submit the script *text*, and return the ids of its jobs; what nobody heard, or may not have, is repeated."""
        scheduler, clusters = self.scheduler, self.scheduler.clusters(text)
        argv, sees = scheduler.submit(draft), scheduler.environ(environ, draft.request)
        program = argv[0]
        given = text if scheduler.reads_script(draft.request) else None
        count = len(_names(scheduler, draft))
        error: SubmissionError
        for left in reversed(range(_TRIES)):
            try:
                answer = call(argv, timeout_s=self.submit_timeout_s, input=given, environ=sees)
            except NoAnswerError as silence:
                if found := self._look(draft, str(silence), clusters):
                    return found
                raise _doubt(draft, str(silence)) from silence
            ids = scheduler.submitted(answer.stdout)
            if len(ids) >= count:  # more where a site's wrapper tried again
                for line in answer.own_words(program):
                    log.warning("%s said: %s", program, line)
                return self._placed(ids[-count:])
            words = scheduler.words(answer)
            if scheduler.unheard.search(answer.stderr):
                error = SubmissionError(f"{scheduler.title} cannot be reached, so nothing was queued: {words}")
            elif found := self._found_after_all(draft, answer, clusters, sees):
                return found
            else:
                error = _doubt(draft, words)
            if not left or answer.was_cut_short:
                raise error
            log.warning("%s said %r, which may pass: trying once more", program, words)
            time.sleep(self.pause_s)
        raise AssertionError("the last try returns or raises")

    def _found_after_all(
        self, draft: JobDraft, answer: Answer, clusters: Sequence[str | None], sees: Mapping[str, str]
    ) -> list[str]:
        """Return the ids of the jobs that *answer* does not name; none where they may be submitted again.

        Only the scheduler's own words are a refusal. Whatever else was said, or left unsaid, it is asked for a job of
        that name. Raises `SubmissionError` where nothing was queued.
        """
        scheduler, words, is_silence = self.scheduler, self.scheduler.words(answer), self.scheduler.is_silence(answer)
        if not is_silence and scheduler.refused.search(f"{answer.stderr}\n{answer.stdout}"):
            told = scheduler.explain(advised(words, scheduler.advice), sees)
            raise SubmissionError(f"{scheduler.title} refused the job: {told}")
        what = f"failed ({answer.end})" if answer.returncode else "named no job"
        why = f"{scheduler.submit(draft)[0]} {what}: {words}"
        found = self._look(draft, why, clusters)
        if not found and not is_silence:
            raise SubmissionError(f"{why}; {scheduler.title} has no job called {draft.name}")
        return found

    def _look(self, draft: JobDraft, why: str, clusters: Sequence[str | None]) -> list[str]:
        """Return the ids of the jobs that are there in spite of *why*."""
        try:
            found = self._find(draft, clusters, is_recent=True)
        except HpcmlError as error:
            raise UncertainSubmissionError(
                f"{why}; whether the job was queued is not known ({error}): look for the name {draft.name!r} before "
                "submitting again"
            ) from error
        if found:
            log.info("found %s under the name %s although: %s", ", ".join(found), draft.name, why)
        return found or []

    def _placed(self, ids: list[str]) -> list[str]:
        """Return *ids*; raise `SubmissionError` where the scheduler says now that they can never run."""
        if not self.scheduler.settles_s:
            return ids
        time.sleep(self.scheduler.settles_s)
        inquiry = _Inquiry(self.scheduler, self.ask_timeout_s, None)
        ticket = Ticket(scheduler=self.scheduler.name, job_id=ids[0])
        for row in inquiry.ask(self.scheduler.queue, [ticket]).rows:
            if row.never_placed is not None:  # they are all alike
                raise SubmissionError(f"{self.scheduler.title} refused the job: {row.never_placed}")
        return ids

    def _find(self, draft: JobDraft, clusters: Sequence[str | None], *, is_recent: bool) -> list[str] | None:
        """Return the ids of the jobs of *draft*, None where there are not all of them.

        A name that is found proves that there is a job. That there is none, all searches have to say; of a submission
        of this moment (*is_recent*) the first of them. Raises `NoAnswerError` where that is not known.
        """
        names, silence = _names(self.scheduler, draft), list[str]()
        for cluster in clusters:
            inquiry = _Inquiry(self.scheduler, self.ask_timeout_s, cluster)
            for number, search in enumerate(self.scheduler.searches):
                found = inquiry.search(search.argv(draft.name, draft.token, len(names) > 1), search.found, draft.name)
                if found is None:
                    silence.append(inquiry.silence or "")
                elif all(name in found for name in names):
                    return [f"{found[name]};{cluster}" if cluster else found[name] for name in names]
                elif is_recent and number == 0:  # the queue is of this moment, and what comes behind it is late
                    break
        if silence:
            raise NoAnswerError("; ".join(dict.fromkeys(silence)))
        return None


def _doubt(draft: JobDraft, why: str) -> UncertainSubmissionError:
    return UncertainSubmissionError(
        f"{why}, and there is no job called {draft.name} yet: hpcml sync looks for it again"
    )


def _names(scheduler: Scheduler, draft: JobDraft) -> list[str]:
    """Return the names of the jobs of *draft*: one, but where there are no arrays one for each pack."""
    if scheduler.first_index is not None or draft.array_size is None:
        return [draft.name]
    return [f"{draft.name}.{number}" for number in range(draft.array_size)]


def tickets_of(scheduler: Scheduler, batch: Batch, ids: Sequence[str]) -> list[Ticket]:
    """Return the tickets of the runs of *batch*, whose job, or jobs where there are no arrays, are *ids*.

    An id may have the cluster that it was sent to behind it, as sbatch --parsable says it: ``4711;big``.
    """
    name = scheduler.job_name(batches.label_of(batch), batch.token)
    size, first = batches.size_of(batch), scheduler.first_index
    tickets: list[Ticket] = []
    for number, pack in enumerate(batch.packs):
        job_id, _, cluster = ids[number if first is None else 0].partition(";")
        is_element = size is not None and first is not None
        ticket = Ticket(
            scheduler=scheduler.name,
            job_id=scheduler.array_id.format(job_id.removesuffix("[]")) if is_element else job_id,
            array_index=number + (first or 0) if is_element else None,
            job_name=f"{name}.{number}" if size is not None and first is None else name,
            job_cluster=cluster if scheduler.has_clusters else None,
            is_shared=len(pack) > 1,
        )
        tickets += [ticket] * len(pack)
    return tickets


def _own_job(scheduler: Scheduler, environ: Mapping[str, str]) -> str:
    job = scheduler.own_job(environ)
    if not job:
        raise HpcmlError(f"this is no job of {scheduler.title}: {scheduler.own_variable} is not set")
    return job


# Questions.


def key_of(scheduler: Scheduler, ticket: Ticket) -> _Key:
    """Return the number and index of *ticket*; raise `HpcmlError` where its id is none of *scheduler*."""
    number = scheduler.number_of(ticket.job_id)
    if number is None:
        raise HpcmlError(f"{ticket.job_id!r} is no job id of {scheduler.title}")
    return number, ticket.array_index


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What a program told of jobs, and why it did not answer for others."""

    rows: Sequence[JobRow] = ()
    unsaid: Mapping[Ticket, str] = field(default_factory=dict)


@dataclass(slots=True)
class _Inquiry:
    """Questions to one scheduler, counted; a program that gave no answer is not asked again."""

    scheduler: Scheduler
    timeout_s: float
    cluster: str | None
    calls: int = 0
    silence: str | None = None  # why there was no answer
    left_out: str | None = None  # the optional word that this site does not take

    def call(self, argv: list[str]) -> Answer:
        """Return what a program answered; raise `NoAnswerError` where it reached no server."""
        scheduler = self.scheduler
        self.calls += 1
        words = [word for word in argv if word != self.left_out]
        there = [*words[:1], f"--clusters={self.cluster}", *words[1:]] if self.cluster else words
        answer = call(there, timeout_s=self.timeout_s, environ=scheduler.asking_environ(os.environ, self.cluster))
        if scheduler.is_silence(answer):
            raise NoAnswerError(self.trouble(argv, answer))
        if scheduler.optional is not None and self.left_out is None:
            word, sign = scheduler.optional
            if sign in answer.stderr:
                self.left_out = word
                return self.call(argv)
        return answer

    def trouble(self, argv: Sequence[str], answer: Answer) -> str:
        """Return in one line that *answer* is none."""
        return f"{self.scheduler.title} cannot be asked: {argv[0]}: {self.scheduler.words(answer)}"

    def search(
        self, argv: list[str], found: Callable[[Answer, str], Mapping[str, str] | None], name: str
    ) -> Mapping[str, str] | None:
        """Return the ids that a program found by *name*; None where it gave no answer, for the reason in `silence`."""
        try:
            answer = self.call(argv)
        except NoAnswerError as error:
            self.silence = str(error)
            return None
        if (ids := found(answer, name)) is None:
            self.silence = self.trouble(argv, answer)
        return ids

    def ask(self, question: StatusCommand, tickets: Collection[Ticket]) -> Told:
        """Return what a program says of *tickets*, and why it did not answer for some of them."""
        self.silence = None
        by_word: dict[str, list[Ticket]] = {}
        for ticket in tickets:
            by_word.setdefault(question.word(ticket), []).append(ticket)
        words, rows, unsaid = list(by_word), list[JobRow](), dict[str, str]()
        for some in _calls(words[: question.most], question.per_call):
            found, why = self._ask_once(question, some)
            rows += found
            unsaid |= why
        if left := words[question.most :] if question.most is not None else []:
            later = f"{len(words)} jobs are gone from the list: the others are asked about first"
            unsaid |= dict.fromkeys(left, later)
        return Told(rows=rows, unsaid={ticket: why for word, why in unsaid.items() for ticket in by_word[word]})

    def _ask_once(self, question: StatusCommand, words: Sequence[str]) -> tuple[list[JobRow], dict[str, str]]:
        if self.silence is not None:
            return [], dict.fromkeys(words, self.silence)
        argv = question.argv(words)
        try:
            answer = self.call(argv)
        except NoAnswerError as error:
            self.silence = str(error)
            return [], dict.fromkeys(words, self.silence)
        has_failed = question.needs_success and answer.returncode != 0 and question.tolerated not in answer.stderr
        rows = None if has_failed else question.rows(answer.stdout)
        if question.unknown is None:
            if rows is None:
                self.silence = self.trouble(argv, answer)
                return [], dict.fromkeys(words, self.silence)
            return rows, {}
        number_of, text = self.scheduler.number_of, f"{answer.stderr}\n{answer.stdout}"
        unknown = [next(filter(None, match.groups())) for match in question.unknown.finditer(text)]
        told = {row.number for row in rows or ()} | {number_of(word) for word in unknown}
        said = self.scheduler.words(answer)
        return rows or [], {
            word: f"{self.scheduler.title} did not answer for {word}: {said}"
            for word in words
            if number_of(word) not in told
        }

    def query(self, tickets: Collection[Ticket]) -> Answers:
        """Ask the queue for *tickets*, and the history for those that have ended."""
        scheduler = self.scheduler
        if not tickets:
            return Answers(known={})
        keys = {ticket: key_of(scheduler, ticket) for ticket in tickets}
        close, brief = self._overview(keys)
        queue = self.ask(scheduler.queue, close)
        queue = Told(rows=[*brief, *queue.rows], unsaid=queue.unsaid)
        queue_silence = self.silence
        live = _pick(keys, queue.rows)
        gone = [ticket for ticket in tickets if ticket not in live or live[ticket].is_partial]
        history = Told() if scheduler.history is None or not gone else self.ask(scheduler.history, gone)
        known, unanswered = merge(scheduler, keys, queue, history)
        is_late = queue_silence is not None and not unanswered
        return Answers(
            known=known,
            unanswered=unanswered,
            calls=self.calls,
            has_queue=queue_silence is None,
            silence=f"{queue_silence}; only the accounting, which is late, tells of jobs" if is_late else "",
        )

    def _overview(self, keys: Mapping[Ticket, _Key]) -> tuple[list[Ticket], Sequence[JobRow]]:
        """Return which jobs have to be looked at closely, and the rows of a list that shows the others.

        Looked at are arrays, those that the list does not show, and some of those that wait, for their reasons.
        """
        question, at_once = self.scheduler.overview, self.scheduler.queue.per_call
        plain = {ticket: key for ticket, key in keys.items() if key[1] is None and "[" not in ticket.job_id}
        if question is None or len(set(plain.values())) <= at_once:
            return list(keys), []
        rows = self.ask(question, plain).rows
        alive = _pick(plain, rows)
        waiting = [ticket for ticket, row in alive.items() if row.known and row.known.state is State.PENDING]
        arrays = [ticket for ticket in keys if ticket not in plain]
        gone = [ticket for ticket in plain if ticket not in alive]
        return [*arrays, *waiting[:at_once], *gone], rows


def _calls(words: Sequence[str], per_call: int) -> Iterator[Sequence[str]]:
    """Yield the words of each call: an array alone, which may have thousands of elements, and others together."""
    together = [word for word in words if "[" not in word]
    yield from ([word] for word in words if "[" in word)
    yield from chunks(together, per_call)


def chunks(words: Sequence[str], size: int) -> Iterator[Sequence[str]]:
    """Yield *words* in parts of *size* at most."""
    return (words[first : first + size] for first in range(0, len(words), size))


def merge(
    scheduler: Scheduler, keys: Mapping[Ticket, _Key], queue: Told, history: Told
) -> tuple[dict[Ticket, Known], dict[Ticket, str]]:
    """Return what *queue* and *history* say together of each ticket, and why nothing is known of others."""
    live, past = _pick(keys, queue.rows), _pick(keys, history.rows)
    arrays = {row.number for row in (*queue.rows, *history.rows) if row.index is not None}
    known: dict[Ticket, Known] = {}
    unanswered: dict[Ticket, str] = {}
    for ticket, (number, index) in keys.items():
        now, then, why = live.get(ticket), past.get(ticket), queue.unsaid.get(ticket)
        is_gone = now is None and why is None and ticket not in history.unsaid
        if is_gone and scheduler.elements_vanish and index is not None and number in arrays and _is_none(then):
            known[ticket] = _NEVER_BEGAN
        elif (word := _together(now, then, has_queue=why is None)) is not None:
            known[ticket] = word
        elif now is None and why is not None:
            unanswered[ticket] = why
        elif now is None and ticket in history.unsaid:
            of_history = history.unsaid[ticket]
            unanswered[ticket] = f"gone from the queue, and the history, which knows the end, is silent: {of_history}"
    return known, unanswered


def _pick(keys: Mapping[Ticket, _Key], rows: Iterable[JobRow]) -> dict[Ticket, JobRow]:
    """Return the row of each ticket, the last of several; of one whose id is another job's by now there is none."""
    by_key: dict[_Key, list[JobRow]] = {}
    for row in rows:
        by_key.setdefault((row.number, row.index), []).append(row)
    picked: dict[Ticket, JobRow] = {}
    for ticket, key in keys.items():
        for row in reversed(by_key.get(key, ())):
            if _fits(row.name, ticket.job_name, is_cut=row.is_brief):
                picked[ticket] = row
                break
    return picked


def _fits(name: str, wanted: str | None, *, is_cut: bool) -> bool:
    if wanted is None or not name:
        return True
    return wanted.startswith(name) if is_cut else wanted.strip() == name


def _is_none(then: JobRow | None) -> bool:
    return then is None or then.known is None or (then.is_range and then.known.state is State.PENDING)


def _together(now: JobRow | None, then: JobRow | None, *, has_queue: bool) -> Known | None:
    """Return what queue and history say together of a job.

    The queue was asked first, and is of this moment; the history is late by seconds or, after trouble, by any time. So
    its word that a job waits or runs is worth nothing once the queue has answered without that job: it is LOST then,
    unless more is told another time.
    """
    late = None if then is None or then.known is None else replace(then.known, is_live=False)
    if now is not None:
        if now.known is not None and late is not None and late.state.is_final and now.known.state.is_final:
            return replace(late, reason=now.known.reason)
        return now.known
    if late is None or late.state.is_final or not has_queue:
        return late
    reason = "the queue has no such job any more, and the accounting has not been told of its end"
    return Known(state=State.LOST, raw=late.raw, reason=reason, is_live=False)
