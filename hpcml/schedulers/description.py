"""What a scheduler is to hpcml: its commands, the patterns of its answers, and what it has no word for.

One `Scheduler` for each of them (`slurm`, `pbs`, `lsf`, `flux`); `driver` submits, asks and cancels by it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from operator import attrgetter
from pathlib import Path

from hpcml.schedulers.batches import name_of, plain_label
from hpcml.schedulers.commands import Answer, telling_lines
from hpcml.schedulers.contract import Batch, Known, Ticket
from hpcml.schedulers.rehearsal import Rehearsal
from hpcml.schedulers.request import Request
from hpcml.schedulers.script import body


@dataclass(frozen=True, slots=True, kw_only=True)
class JobDraft:
    """A job, or an array of *array_size* jobs, before its scheduler's words are found for it."""

    request: Request
    name: str  # in the queue; the job is found again by it
    token: str  # with which the name ends
    remark: str  # one line for who opens the script
    folder: Path  # where the job starts
    logs: Path
    script: Path  # where the script lies, or will
    command: Sequence[str]  # starts the agent
    requeue: Sequence[str] = ()  # what the agent runs to go back into the queue
    time_limit: Sequence[str] = ()  # what it runs to hear how long the job may run
    array_size: int | None = None
    log_suffix: str = ""  # of the log of a job that carries on another

    def start(self, *, launcher: Sequence[str] = ()) -> list[str]:
        """Return the lines of the script that load modules and start the agent, on each node by *launcher*."""
        return body(self.request, self.command, requeue=self.requeue, time_limit=self.time_limit, launcher=launcher)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRow:
    """What a scheduler's program says of a job, or of an element of an array."""

    number: str  # the job's id without index and server, as `Scheduler.job_id` finds it
    index: int | None = None
    name: str = ""  # empty: not said
    known: Known | None  # None: a state that is not known here
    is_partial: bool = False  # the history has more to say of it
    is_range: bool = False  # one of several that are told of together
    is_brief: bool = False  # its name may be cut, and it has no reasons
    limit_s: int | None = None  # the walltime that the job has now
    left_s: int | None = None  # and what is left of it, where time in suspension does not count
    never_placed: str | None = None  # why it can never run, of a scheduler that says so only after it has taken it


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusCommand:
    """A program that tells of jobs."""

    argv: Callable[[Sequence[str]], list[str]]  # asks for the jobs that these words name
    rows: Callable[[str], list[JobRow] | None]  # what it printed; None: that is no answer
    word: Callable[[Ticket], str] = attrgetter("job_id")
    unknown: re.Pattern[str] | None = None  # an id that it says it does not know; None: it leaves such out
    needs_success: bool = False  # with another exit status than 0 it told nothing
    tolerated: str = "\0"  # but for an error with these words
    per_call: int = 500
    most: int | None = None  # jobs asked for at once: the others wait for the next time


@dataclass(frozen=True, slots=True, kw_only=True)
class NameSearch:
    """A program that finds a job by its name."""

    argv: Callable[[str, str, bool], list[str]]  # of a name, its token, and whether names are numbered
    found: Callable[[Answer, str], Mapping[str, str] | None]  # ids by name, the latest of each; None: no answer


@dataclass(frozen=True, slots=True, kw_only=True)
class Backend:
    """What commands need to know of a scheduler, or of this machine in its place."""

    title: str  # as people call it
    programs: Sequence[str] = ()  # that hpcml calls to submit, ask and cancel
    untried: str | None = None  # what was never met of the real one, for `hpcml doctor`
    gpu_request: str | None = None  # how GPUs are asked for: a template of `Cluster.gpu_request`
    typed_gpu_request: str | None = None  # the same with their type; None: it has no word for it
    rehearse: Callable[[Batch, str], Rehearsal] | None = None  # asks before a submission; never raises for silence
    avoids_nodes: bool = False  # whether it can be told where a job must not run
    limits_arrays: bool = True  # whether it can be told how many jobs of an array may run at once
    job: re.Pattern[str] | None = None  # an id as resources.dependency may name it
    waits_for_elements: bool = True  # whether a job can wait for one element of an array
    alternatives: str | None = None  # what parts of a dependency of which one is enough: Slurm's ?
    contract: int | None = None  # a package's: the version of hpcml's contract (plugins.CONTRACT) that it keeps


def in_c_locale(environ: Mapping[str, str], cluster: str | None) -> dict[str, str]:  # noqa: ARG001
    """Return *environ* with words that can be read."""
    return {**environ, "LC_ALL": "C"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheduler(Backend):
    """How a scheduler is spoken to; everything here is text or a function of text."""

    name: str
    # submission
    render: Callable[[JobDraft], str]  # the script; raises `ConfigError` for what the scheduler has no word for
    submit: Callable[[JobDraft], list[str]]
    by_hand: str  # the program that submits a script by hand
    reads_script: Callable[[Request], bool] = lambda request: False  # noqa: ARG005 - on its standard input
    label: Callable[[str], str] = plain_label
    environ: Callable[[Mapping[str, str], Request], dict[str, str]]  # what the submission, and so the job, sees
    submitted: Callable[[str], list[str]]  # the ids in what was printed
    first_index: int | None = 0  # of an array; None: it has none, and makes a job for each pack
    array_id: str = "{}"
    refused: re.Pattern[str]  # its own words for a job that it does not take
    unheard: re.Pattern[str]  # its own words where it reached nobody: nothing was sent
    silent: Sequence[str]  # words of a client that got no answer: nothing follows of any job
    speaks: re.Pattern[str] = re.compile(r"(?!)")  # what stands before words of its own, not of a site's wrapper
    advice: Mapping[str, str] = field(default_factory=dict)  # what to set after which words of a refusal
    explain: Callable[[str, Mapping[str, str]], str] = lambda words, environ: words  # noqa: ARG005
    settles_s: float = 0.0  # after which it says that a job can never be placed
    # questions
    job_id: re.Pattern[str]  # an id; its first group is the number
    queue: StatusCommand
    history: StatusCommand | None = None
    overview: StatusCommand | None = None  # asked first where there are more jobs than the queue is asked for at once
    searches: Sequence[NameSearch]
    optional: tuple[str, str] | None = None  # a word that is left out where the answer has these words
    elements_vanish: bool = False  # of an element that was cancelled before it began nothing is known
    # what its programs see when they are asked about a cluster of the site; None: it is not known which
    asking_environ: Callable[[Mapping[str, str], str | None], dict[str, str]] = in_c_locale
    has_clusters: bool = False  # whether a site may have several
    clusters: Callable[[str], Sequence[str | None]] = lambda script: [None]  # noqa: ARG005 - to which a script may go
    # cancellation
    cancel: Callable[[Sequence[str]], list[str]]
    cancels_at_once: int = 500
    cancel_word: Callable[[Ticket], str] = attrgetter("spelled")
    refusals: Callable[[Answer], Sequence[str]]  # why jobs could not be cancelled; that one has ended is none
    # inside a job
    own_job: Callable[[Mapping[str, str]], str | None]  # its id by its variables, an element's with its index
    own_variable: str
    own_question: Callable[[str], list[str]]
    requeue: Callable[[str], list[str]] | None = None  # None: the script is submitted again, as another job
    requeued: str = ""  # what it prints then

    def words(self, answer: Answer) -> str:
        """Return the scheduler's own words on one line, without its name, usage and rulers."""
        text = answer.stderr if answer.stderr.strip() else answer.stdout
        lines = list(takewhile(lambda line: not line.lower().startswith("usage:"), telling_lines(text)))
        own = [self.speaks.sub("", line, count=1) for line in lines if self.speaks.match(line)]
        return "; ".join(telling_lines("\n".join(own or lines))) or f"{answer.end} and not a word"

    def is_silence(self, answer: Answer) -> bool:
        """Tell whether the answer is that of a program that was ended from outside, or reached no server."""
        text = f"{answer.stderr}\n{answer.stdout}" if answer.returncode else answer.stderr
        return answer.was_cut_short or any(word in text for word in self.silent)

    def number_of(self, job_id: str) -> str | None:
        """Return the number in an id of this scheduler, which is the same for an array and its elements."""
        match = self.job_id.fullmatch(job_id.strip())
        return None if match is None else match[1]

    def job_name(self, label: str, token: str) -> str:
        """Return the name of a job in the queue."""
        return name_of(self.label(label), token)
