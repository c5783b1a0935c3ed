"""A script handed to sbatch through submitit's executor: once, or a second time where the first surely was lost."""

from __future__ import annotations

import logging
import os
import re
import time
from collections.abc import Collection, Mapping
from pathlib import Path

from submitit import SlurmExecutor
from submitit.core.utils import FailedSubmissionError
from submitit.slurm.slurm import SlurmJob

from hpcml.errors import SubmissionError
from hpcml.image import without_login
from hpcml.schedulers.commands import Answer, NoAnswerError, UncertainSubmissionError, call
from hpcml.schedulers.request import Request
from hpcml.schedulers.slurm_query import find_by_name, one_line

log = logging.getLogger(__name__)

_NOT_SENT = ("Unable to contact slurm controller", "Unable to resolve", "Temporary failure in name resolution")
_PERHAPS_SENT = (
    "Socket timed out",
    "Zero Bytes were transmitted",
    "Unexpected message received",
    "Transport endpoint is not connected",
    "Connection reset",
)
_ADVICE = {
    "Invalid account": "set resources.account",
    "nvalid partition": "set resources.partition",
    "Invalid qos": "set resources.qos",
    "time limit is invalid": "set resources.walltime to what the partition allows",
    "Invalid job array specification": "the array is larger than the site allows: set cluster.max_array_size",
}
_SETTINGS = {  # sbatch prefers these variables to the directives of a script
    "SBATCH_ACCOUNT": "account",
    "SBATCH_PARTITION": "partition",
    "SBATCH_QOS": "qos",
    "SBATCH_CONSTRAINT": "constraint",
    "SBATCH_RESERVATION": "reservation",
    "SBATCH_TIMELIMIT": "walltime_s",
}
_KEPT = ("SLURM_CONF", "SLURM_CLUSTERS", "SBATCH_CLUSTERS", "SBATCH_EXPORT", "SLURM_JWT")


def submission_environ(environ: Mapping[str, str], request: Request) -> dict[str, str]:
    """Return what sbatch gets and the job inherits: nothing of an outer job, and nothing that outvotes the script.

    A site's or a user's SBATCH_ACCOUNT and the like stay where the request leaves the choice open. The login of a
    registry is for a job that builds an image, and for no other.
    """
    inherited = environ if request.needs_login else without_login(environ)
    kept = {name: value for name, value in inherited.items() if not name.startswith(("SLURM_", "SBATCH_", "SUBMITIT_"))}
    kept |= {name: environ[name] for name in _KEPT if name in environ}
    defaults = [name for name, field in _SETTINGS.items() if getattr(request, field) is None]
    return kept | {name: environ[name] for name in defaults if name in environ}


class Sbatch(SlurmExecutor):
    """submitit's Slurm executor for a script that exists, named *name* in the queue; nothing is pickled."""

    def __init__(
        self,
        script: Path,
        *,
        name: str,
        request: Request,
        patience_s: float,
        pause_s: float,
        more: Collection[str] = (),
    ) -> None:
        super().__init__(script.parent)
        self._script = script
        self._more = list(more)
        self._name = name
        self._environ = submission_environ(os.environ, request)
        self._patience_s = patience_s
        self._pause_s = pause_s

    def submit_script(self) -> str:
        """Submit and return the job's id; raise `SubmissionError` with sbatch's words if nothing was queued."""
        return str(self._submit_command(str(self._script)).job_id)

    def _make_submission_file_text(self, command: str, uid: str) -> str:  # noqa: ARG002 - submitit's signature
        return self._script.read_text(encoding="utf-8")

    def _submit_command(self, command: str) -> SlurmJob[object]:
        # submitit's own would write a second copy of the script, wait for ever and print what it does not understand
        words = self._make_submission_command(Path(command))
        argv = [*words[:-1], *self._more, words[-1]]
        # The job registers with submitit's watcher, a global of that library, which asks nothing until it is asked
        return SlurmJob(folder=self.folder, job_id=self._submit_once_or_twice(argv), tasks=[0])

    def _submit_once_or_twice(self, argv: list[str]) -> str:
        answer = self._sbatch(argv)
        if isinstance(answer, str):
            return answer
        transient = [words for words in (*_NOT_SENT, *_PERHAPS_SENT) if words in answer.stderr]
        if not transient:
            raise _refusal(answer)
        log.warning("sbatch said %r, which may pass: trying once more in %g s", transient[0], self._pause_s)
        time.sleep(self._pause_s)
        if transient[0] not in _NOT_SENT and (found := self._find(one_line(answer))):
            return found
        again = self._sbatch(argv)
        if isinstance(again, str):
            return again
        if any(words in again.stderr for words in _PERHAPS_SENT) and (found := self._find(one_line(again))):
            return found
        raise _refusal(again)

    def _sbatch(self, argv: list[str]) -> str | Answer:
        """Return the job's id, or the answer where sbatch failed."""
        try:
            answer = call(argv, timeout_s=self._patience_s, environ=self._environ)
        except NoAnswerError as error:
            if found := self._find(str(error)):
                return found
            raise UncertainSubmissionError(
                f"{error}, and there is no job named {self._name!r} (squeue --me shows if one still comes)"
            ) from error
        if answer.returncode != 0:
            return answer
        # A site's banner may speak of a "job 5" too: the line is found first, submitit reads the number
        lines = re.findall(r"^\s*Submitted batch job \d+.*$", answer.stdout, flags=re.MULTILINE)
        try:
            return str(self._get_job_id_from_submission_command("\n".join(lines[-1:]) or answer.stdout))
        except FailedSubmissionError as error:
            if found := self._find("sbatch named no job"):
                return found
            raise SubmissionError(f"sbatch succeeded but named no job: {answer.stdout.strip()!r}") from error

    def _find(self, problem: str) -> str | None:
        """Return the id of our job if it is in the queue in spite of *problem*; refuse to guess where none answers."""
        try:
            found = find_by_name(self._name, patience_s=self._patience_s)
        except NoAnswerError as error:
            raise UncertainSubmissionError(
                f"{problem}; whether the job was queued is not known ({error}): look for the name {self._name!r} "
                "before submitting again"
            ) from error
        if found is not None:
            log.warning("found job %s under its name %r although: %s", found, self._name, problem)
        return found


def _refusal(answer: Answer) -> SubmissionError:
    words = one_line(answer).replace("Batch job submission failed: ", "")
    advice = next((text for sign, text in _ADVICE.items() if sign in words), None)
    return SubmissionError(f"sbatch refused the job: {words}" + (f" ({advice})" if advice else ""))
