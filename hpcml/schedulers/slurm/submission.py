"""A script handed to sbatch through submitit: once, or again after an error that passes.

submitit's `SlurmExecutor` forms the command, reads the answer and gives the job; `ScriptExecutor` has all that is
changed of it. Around it is what submitit lacks: a time limit, an environment for sbatch alone, that repetition, and the
search for a job whose answer was lost.

Loading submitit takes 0.2 s, so `submitter` imports this module when something is submitted and not before.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from submitit import SlurmExecutor
from submitit.core.utils import FailedSubmissionError
from submitit.slurm.slurm import SlurmJob

from hpcml.errors import SubmissionError
from hpcml.model.image import without_login
from hpcml.schedulers.commands import (
    FEWER_JOBS,
    Answer,
    NoAnswerError,
    UncertainSubmissionError,
    advised,
    call,
)
from hpcml.schedulers.request import Request
from hpcml.schedulers.slurm.query import find_by_name, one_line, spell

log = logging.getLogger(__name__)

_NOT_SENT = ("Unable to contact slurm controller", "Unable to resolve", "Temporary failure in name resolution")
_PERHAPS_SENT = (
    "Socket timed out",
    "Zero Bytes were transmitted",
    "Unexpected message received",
    "Transport endpoint is not connected",
    "Connection reset",
    "Connection timed out",
    "Broken pipe",
    "essage receive failure",
    "essage send failure",
)
# What sbatch says where it takes, or slurmctld took, no job. Other errors of its own may come after the job was queued
_REFUSED = re.compile(
    r"^sbatch: (error: Batch job submission failed: |fatal: |unrecognized option|invalid option|option '.*' )",
    re.MULTILINE,
)
_NAMED = re.compile(r"^\s*Submitted batch job (\d+)(?: on cluster (\S+))?", re.MULTILINE)
# Words of Slurm's refusals, and what to set
_ADVICE = {
    "Invalid account": "set resources.account",
    "nvalid partition": "set resources.partition",
    "Invalid qos": "set resources.qos",
    "time limit is invalid": "set resources.walltime to what the partition allows",
    "Invalid job array specification": "the array is larger than the site allows: set cluster.max_array_size to "
    "the MaxArraySize that scontrol show config tells",
    "SubmitJob": FEWER_JOBS,  # AssocMaxSubmitJobLimit, QOSMaxSubmitJobPerUserLimit, AssocGrpSubmitJobsLimit ...
}
_SETTINGS = {  # sbatch prefers these variables to the directives of a script
    "SBATCH_ACCOUNT": "account",
    "SBATCH_PARTITION": "partition",
    "SBATCH_QOS": "qos",
    "SBATCH_CONSTRAINT": "constraint",
    "SBATCH_RESERVATION": "reservation",
    "SBATCH_TIMELIMIT": "walltime_s",
}
_OUTER = ("SLURM_", "SBATCH_", "SUBMITIT_", "HPCML_JOB_CLUSTER")
_KEPT = ("SLURM_CONF", "SBATCH_EXPORT", "SLURM_JWT")


def submission_environ(environ: Mapping[str, str], request: Request) -> dict[str, str]:
    """Return what sbatch gets and the job inherits: nothing of an outer job, and nothing that outvotes the script.

    A site's or a user's SBATCH_ACCOUNT and the like stay where the request leaves the choice open. To which of a site's
    clusters the job is sent is in its script (`clusters_of`). The login of a
    registry is for a job that builds an image, and for no other.
    """
    inherited = environ if request.needs_login else without_login(environ)
    kept = {name: value for name, value in inherited.items() if not name.startswith(_OUTER)}
    kept |= {name: environ[name] for name in _KEPT if name in environ}
    defaults = [name for name, field in _SETTINGS.items() if getattr(request, field) is None]
    return kept | {name: environ[name] for name in defaults if name in environ}


def explained(words: str, environ: Mapping[str, str]) -> str:
    """Return sbatch's *words* of a refusal with what to set, and the variable of *environ* that was read for it."""
    said = advised(words, _ADVICE)
    keys = {name: f"set resources.{field.removesuffix('_s')}" for name, field in _SETTINGS.items() if name in environ}
    return said + "".join(f": {name}={environ[name]} was read" for name, key in keys.items() if key in said)


def submit(
    script: Path,
    *,
    name: str,
    request: Request,
    patience_s: float,
    pause_s: float,
    clusters: str | None = None,
    more: Collection[str] = (),
) -> str:
    """Give *script* to sbatch (man sbatch), with *more* options, and return the id of its job, called *name*.

    It is spelled as ``sbatch --parsable`` does: ``4711``, or ``4711;big`` where it was sent to another cluster.

    Only sbatch's own words are a refusal. Whatever else it, or a site's wrapper of it, said or left unsaid, the queue
    is asked for a job of that name. *clusters* are those that *script* may be sent to. *patience_s* is for each program
    that is called, *pause_s* the time before the one repetition; both in seconds. *request* is what *script* was
    rendered from: it decides which variables sbatch may see.

    Raises `SubmissionError` with sbatch's words, or those of a wrapper that ended by itself without a job; and
    `UncertainSubmissionError` where sbatch was killed or silent, or the queue cannot be asked now.
    """
    if ScriptExecutor.affinity() < 0:
        raise SubmissionError("there is no Slurm on this machine: sbatch is not on PATH")
    environ = submission_environ(os.environ, request)
    executor = ScriptExecutor(script.parent, options=more, environ=environ, patience_s=patience_s)
    handed = _Submission(
        executor=executor,
        script=script,
        name=name,
        clusters=clusters,
        patience_s=patience_s,
        pause_s=pause_s,
    )
    return handed.once_or_twice()


class SbatchFailedError(FailedSubmissionError):
    """sbatch ended with an error, or named no job; *answer* is all that it said.

    It does not leave this module: `submit` turns it into a `SubmissionError`, or finds the job.
    """

    def __init__(self, answer: Answer) -> None:
        super().__init__(one_line(answer))
        self.answer = answer


class ScriptExecutor(SlurmExecutor):
    """submitit's Slurm executor for a script that exists, with *options* of sbatch beside it; nothing is pickled.

    sbatch sees *environ* and nothing else, and may take *patience_s* seconds.
    """

    def __init__(
        self, folder: Path, *, options: Collection[str], environ: Mapping[str, str], patience_s: float
    ) -> None:
        super().__init__(folder)
        self._options = list(options)
        self.environ = environ
        self._patience_s = patience_s

    @classmethod
    def affinity(cls) -> int:
        """Tell submitit whether jobs can be submitted here; its own looks for srun, which a script may do without."""
        return -1 if shutil.which("sbatch") is None else 2

    def submit_script(self, script: Path) -> SlurmJob[None]:
        """Call sbatch once and return submitit's job.

        Raises `SbatchFailedError` where sbatch says that it failed, or names no job, and `NoAnswerError` where it says
        nothing in time.
        """
        return self._submit_command(str(script))

    def _submit_command(self, command: str) -> SlurmJob[None]:
        # submitit's own would submit a copy of the script, and wait for sbatch without end
        argv = self._make_submission_command(Path(command))
        answer = call(argv, timeout_s=self._patience_s, environ=self.environ)
        if (job_id := _named(answer)) is None:  # whatever its status: a wrapper may fail after sbatch did not
            raise SbatchFailedError(answer)
        for words in answer.own_words("sbatch"):
            log.warning("sbatch said: %s", words)
        # The job registers with submitit's watcher, a global of that library, which asks nothing until it is asked
        return SlurmJob(folder=self.folder, job_id=job_id, tasks=[0])

    def _make_submission_command(self, submission_file_path: Path) -> list[str]:
        *program, script = super()._make_submission_command(submission_file_path)
        return [*program, *self._options, script]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Submission:
    """One script on its way to Slurm; *name* is its job's alone."""

    executor: ScriptExecutor
    script: Path
    name: str
    clusters: str | None  # that it may be sent to
    patience_s: float
    pause_s: float

    def once_or_twice(self) -> str:
        answer = self._sbatch()
        if isinstance(answer, Answer) and (words := _may_pass(answer)):
            log.warning("sbatch said %r, which may pass: trying once more in %g s", words, self.pause_s)
            time.sleep(self.pause_s)
            if words in _PERHAPS_SENT and (found := self._find(one_line(answer))):
                return found
            answer = self._sbatch()
        return answer if isinstance(answer, str) else self._judge(answer)

    def _sbatch(self) -> str | Answer:
        """Return the job's id, or the answer where sbatch named none."""
        try:
            return str(self.executor.submit_script(self.script).job_id)
        except NoAnswerError as error:
            if found := self._find(str(error)):
                return found
            raise self._doubt(str(error)) from error
        except SbatchFailedError as error:
            return error.answer

    def _judge(self, answer: Answer) -> str:
        """Return the id of a job that is there although sbatch failed or named none; raise what follows, if not."""
        may_pass = _may_pass(answer)
        is_refused = answer.returncode > 0 and _REFUSED.search(answer.stderr) and may_pass not in _PERHAPS_SENT
        if may_pass in _NOT_SENT:
            raise SubmissionError(f"{_words(answer)}: nothing was queued; hpcml retry submits it once that is over")
        if is_refused:
            raise SubmissionError(f"sbatch refused the job: {explained(_words(answer), self.executor.environ)}")
        words = one_line(answer)
        why = f"sbatch failed ({answer.end}): {words}" if answer.returncode else "sbatch named no job"
        if found := self._find(why):
            return found
        if answer.was_killed or may_pass:
            raise self._doubt(why)
        if answer.returncode:
            raise SubmissionError(why)
        why = f"sbatch succeeded but named no job: {answer.stdout.strip()!r}"
        raise SubmissionError(f"{why}; Slurm has no job called {self.name} (squeue --me)")

    def _find(self, problem: str) -> str | None:
        """Return the id of our job if it is in the queue in spite of *problem*; refuse to guess where none answers."""
        try:
            found = find_by_name(self.name, clusters=self.clusters, patience_s=self.patience_s)
        except NoAnswerError as error:
            raise UncertainSubmissionError(
                f"{problem}; whether the job was queued is not known ({error}): look for the name {self.name!r} "
                "before submitting again"
            ) from error
        if found is not None:
            log.warning("found job %s under its name %r although: %s", found, self.name, problem)
        return found

    def _doubt(self, problem: str) -> UncertainSubmissionError:
        return UncertainSubmissionError(
            f"{problem}, and there is no job named {self.name!r} (squeue --me shows if one still comes)"
        )


def _named(answer: Answer) -> str | None:
    """Return the id of the last job that sbatch named in a line of its own: a banner may speak of others."""
    return next((spell(*named) for named in reversed(_NAMED.findall(answer.stdout))), None)


def _may_pass(answer: Answer) -> str | None:
    """Return the words by which sbatch itself says that the controller did not answer; another time it may."""
    own = "\n".join(answer.own_words("sbatch"))
    if answer.returncode <= 0:
        return None
    return next((words for words in (*_NOT_SENT, *_PERHAPS_SENT) if words in own), None)


def _words(answer: Answer) -> str:
    return one_line(answer).replace("Batch job submission failed: ", "")
