"""The one place where a scheduler's programs are started: argv lists, no input to wait for, and a time limit."""

from __future__ import annotations

import logging
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from hpcml.errors import HpcmlError, SubmissionError

log = logging.getLogger(__name__)


class NoAnswerError(HpcmlError):
    """The scheduler did not answer in time: nothing is known, neither that a job exists nor that it does not."""

    exit_code = 3


class UncertainSubmissionError(SubmissionError, NoAnswerError):
    """A submission was sent, and whether the scheduler has it cannot be known now: never make it again blindly."""


class UnseenSubmissionError(SubmissionError):
    """A submission ended well, and its job is not there: a site's wrapper that took it may make it later."""


# What to do where a scheduler lets nobody have so many jobs
FEWER_JOBS = (
    "more jobs than the site lets you have queued: wait, submit fewer, or put several runs into each with schedule.pack"
)
_GUARD = Path(__file__).with_name("guard.py")
_GUARD_ENDS_S = 10.0
_LOOK_S = 1.0  # whether a process that still has readers was killed
_OF_TIMEOUT = 124  # coreutils' timeout, which a site's wrapper may use
_OF_A_SHELL = range(129, 193)  # 128 and the number of the signal that ended a command


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a program said, and with which exit status.

    Bytes that are no UTF-8 are replaced, so that reading an answer never fails.
    """

    returncode: int
    stdout: str
    stderr: str

    @property
    def was_killed(self) -> bool:
        """Whether the program, or the one that it is a wrapper of, was ended from outside: it did not say all."""
        return self.returncode < 0 or self.returncode == _OF_TIMEOUT or self.returncode in _OF_A_SHELL

    def own_words(self, program: str) -> list[str]:
        r"""Return what *program* said on standard error, by lines and without its name; a wrapper's words are left out.

        >>> Answer(returncode=0, stdout="", stderr="welcome\nqsub: -l is deprecated\n").own_words("qsub")
        ['-l is deprecated']
        """
        name = f"{program}: "
        own = (line.removeprefix(name) for line in self.stderr.splitlines() if line.startswith(name))
        return [line for line in own if _tells(line)]

    @property
    def end(self) -> str:
        """How it ended, for messages."""
        return f"signal {-self.returncode}" if self.returncode < 0 else f"exit status {self.returncode}"


def telling_lines(text: str) -> list[str]:
    """Return the lines of what a scheduler or a site said, without blank ones and the rulers around a site's words."""
    return [line.strip() for line in text.splitlines() if _tells(line)]


def _tells(line: str) -> bool:
    behind_a_name = line.partition(": ")[2].strip()  # qsub: *****
    return any(map(str.isalnum, behind_a_name or line))


def call(
    argv: Sequence[str],
    *,
    timeout_s: float,
    input: str | None = None,  # noqa: A002 - the word that subprocess has for it
    environ: Mapping[str, str] | None = None,
    is_submission: bool = False,
) -> Answer:
    r"""Run *argv* in the C locale and return its answer, whatever its exit status.

    *environ* replaces the whole environment, locale included: for programs that hand theirs on to the job. Raises
    `SubmissionError` where there is no such program, and `NoAnswerError` after *timeout_s*; the program and all that it
    started are dead by then.

    With *is_submission* they die with this process too, however that ends, and nothing that a failed program left
    behind lives on (`guard`): a submission that nobody waits for must not be made later, behind the back of who looks
    whether it was.

    >>> call(["echo", "hello"], timeout_s=5.0).stdout
    'hello\n'
    """
    variables = {**os.environ, "LC_ALL": "C"} if environ is None else dict(environ)
    try:
        process = subprocess.Popen(
            _guarded(argv, variables) if is_submission else argv,
            stdin=subprocess.DEVNULL if input is None else subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=variables,
            encoding="utf-8",
            errors="replace",
            start_new_session=True,  # a site's wrapper has children, which would keep our pipes open
        )
    except OSError as error:
        raise SubmissionError(f"{argv[0]} cannot be started: {error.strerror} (is this a login node?)") from error
    try:
        stdout, stderr = _outputs(process, input, timeout_s)
    except BaseException as error:
        if is_submission:
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(_GUARD_ENDS_S)
        _kill_group(process)
        _, told = process.communicate()
        if isinstance(error, subprocess.TimeoutExpired):
            # as sbatch and bsub do, which wait by themselves until there is room in the queue
            words = f", and said: {told.strip().splitlines()[-1]}" if told.strip() else ""
            raise NoAnswerError(f"{argv[0]} gave no answer within {timeout_s:g} s{words}") from error
        raise
    return Answer(returncode=process.returncode, stdout=stdout, stderr=stderr)


def said(argv: Sequence[str], ask: Callable[[Sequence[str]], Answer]) -> str:
    """Return what *argv*, started by *ask*, printed; raise `NoAnswerError` with its words where it failed.

    For questions whose answer is worthless where the program failed; where a status other than 0 means something, look
    at the `Answer` of `call`.
    """
    answer = ask(argv)
    if answer.returncode:
        words = " ".join((answer.stderr or answer.stdout).split())
        raise NoAnswerError(f"{argv[0]} did not answer (exit status {answer.returncode}): {words}")
    return answer.stdout


def advised(words: str, advice: Mapping[str, str]) -> str:
    """Return a scheduler's *words* of a refusal, with the first of *advice* whose key is in them.

    >>> advised("qsub: Unknown queue", {"Unknown queue": "set resources.partition"})
    'qsub: Unknown queue (set resources.partition)'
    """
    found = next((text for sign, text in advice.items() if sign in words), None)
    return words + (f" ({found})" if found else "")


def look_twice(find: Callable[[], str | None], *, pause_s: float, patience_s: float = 0.0) -> str | None:
    """Return the job that *find* finds, asked at once and, where there is none yet, once more after *pause_s*.

    What one client sent is in front of what another asks later, but for what a site's wrapper does in the background.
    A `NoAnswerError` of *find* is raised, after *patience_s* in which it is asked again; all in seconds.
    """
    until = time.monotonic() + patience_s
    looked = 0
    while True:
        found: str | None = None
        try:
            found = find()
            looked += 1
        except NoAnswerError:
            if time.monotonic() >= until:
                raise
        if found is not None or looked == 2:
            return found
        time.sleep(pause_s)


def none_seen(answer: Answer, why: str, *, name: str, by: str, look: str) -> SubmissionError:
    """Return the error of a submission that ended by itself, and of which *by*, the scheduler, has no job *name*.

    *why* is how it ended. Where that was well, a site's wrapper may have taken the script and submit it later; *look*
    is the command that shows such a job.
    """
    if answer.returncode:
        return SubmissionError(f"{why}; {by} has no job called {name}, so nothing was queued")
    later = f"should a job called {name} still come (`{look}`), hpcml status finds it"
    return UnseenSubmissionError(f"{why}; {later}: look before you submit again")


def keep_one(
    named: Sequence[str],
    *,
    by: str,
    find: Callable[[], Collection[str]],
    cancel: Callable[[Sequence[str]], object],
) -> str:
    """Return the job of *named*, those that *by* named in one call, that is the run's; cancel what was made besides it.

    A site's wrapper that tries again may have submitted several. Each would start the run, one that waits still after
    the run was cancelled, too. Only what *find* returns, the jobs of our name, is cancelled: a banner may speak of
    other jobs. Where that cannot be known now, or is refused, this is said in the log.
    """
    try:
        ours = find()
        kept, *others = [job for job in named if job in ours] or named[-1:]
        if others:
            cancel(others)
            log.warning("%s submitted job %s more than once: %s was cancelled", by, kept, ", ".join(others))
    except HpcmlError as error:
        doubt = "%s named the jobs %s; that only one is the run's could not be seen to: %s"
        log.warning(doubt, by, ", ".join(named), error)
        return named[-1]
    return kept


def _outputs(process: subprocess.Popen[str], text: str | None, timeout_s: float) -> tuple[str, str]:
    """Return what the process printed; raise `subprocess.TimeoutExpired` where it, or who has its pipes, is not done.

    Where it was killed, a guard perhaps and not the program, the rest of its group is killed, too.
    """
    until = time.monotonic() + timeout_s
    while True:
        left_s = until - time.monotonic()
        try:
            stdout, stderr = process.communicate(text, timeout=min(_LOOK_S, left_s))
        except subprocess.TimeoutExpired:
            if left_s <= _LOOK_S:
                raise
            if (process.poll() or 0) < 0:
                _kill_group(process)
            text = None  # it was taken, and what the program has not read yet is still sent
            continue
        if process.returncode < 0:
            _kill_group(process)
        return stdout, stderr


def _guarded(argv: Sequence[str], environ: Mapping[str, str]) -> list[str]:
    """Return the words that start *argv* under guard; raise `FileNotFoundError` where there is no such program."""
    program = shutil.which(argv[0], path=environ.get("PATH"))
    if program is None:
        raise FileNotFoundError(2, os.strerror(2), argv[0])
    # Neither the user's variables nor the folder where they stand decide what the guard imports
    return [sys.executable, "-I", "-S", str(_GUARD), str(os.getpid()), program, *argv]


def _kill_group(process: subprocess.Popen[str]) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
