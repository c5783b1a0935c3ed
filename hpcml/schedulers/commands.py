"""The one place where a scheduler's programs are started: argv lists, no input to wait for, and a time limit."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from hpcml.errors import HpcmlError, SubmissionError

log = logging.getLogger(__name__)


class NoAnswerError(HpcmlError):
    """The scheduler did not answer in time: nothing is known, neither that a job exists nor that it does not."""

    exit_code = 3


class UncertainSubmissionError(SubmissionError, NoAnswerError):
    """A submission was sent, and whether the scheduler has it cannot be known now: `hpcml sync` asks once more."""


# What to do where a scheduler lets nobody have so many jobs
FEWER_JOBS = (
    "more jobs than the site lets you have queued: wait, submit fewer, or put several runs into each with schedule.pack"
)
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
    def was_cut_short(self) -> bool:
        """Whether the program, or the one that it is a wrapper of, was ended from outside: it did not say all.

        A status like a shell's of a signal may be an error of its own, of which it says something (PBS has many).
        """
        is_like_a_signal = self.returncode == _OF_TIMEOUT or self.returncode in _OF_A_SHELL
        return self.returncode < 0 or (is_like_a_signal and not self.stderr.strip())

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
) -> Answer:
    r"""Run *argv* in the C locale and return its answer, whatever its exit status.

    *environ* replaces the whole environment, locale included: for programs that hand theirs on to the job. Raises
    `SubmissionError` where there is no such program, and `NoAnswerError` after *timeout_s*; the program and all that it
    started are dead by then.

    >>> call(["echo", "hello"], timeout_s=5.0).stdout
    'hello\n'
    """
    variables = {**os.environ, "LC_ALL": "C"} if environ is None else dict(environ)
    try:
        process = subprocess.Popen(
            argv,
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
        stdout, stderr = process.communicate(input, timeout=timeout_s)
    except BaseException as error:
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


def _kill_group(process: subprocess.Popen[str]) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
