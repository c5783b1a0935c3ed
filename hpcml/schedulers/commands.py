"""The one place where a scheduler's programs are started: argv lists, no input to wait for, and a time limit."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from hpcml.errors import HpcmlError, SubmissionError


class NoAnswerError(HpcmlError):
    """The scheduler did not answer in time: nothing is known, neither that a job exists nor that it does not."""

    exit_code = 3


class UncertainSubmissionError(SubmissionError, NoAnswerError):
    """A submission was sent, and whether the scheduler has it cannot be known now: never make it again blindly."""


_PR_SET_PDEATHSIG = 1  # linux/prctl.h


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a program said, and with which exit status."""

    returncode: int
    stdout: str
    stderr: str


def call(
    argv: Sequence[str],
    *,
    timeout_s: float,
    input: str | None = None,  # noqa: A002 - the word that subprocess has for it
    environ: Mapping[str, str] | None = None,
) -> Answer:
    """Run *argv* in the C locale and return its answer, whatever its exit status.

    *environ* replaces the whole environment, locale included: for programs that hand theirs on to the job. Raises
    `SubmissionError` where there is no such program, and `NoAnswerError` after *timeout_s*; the program and all that
    it started are dead by then. The program dies with this process too, however that ends: a submission that nobody
    waits for must not be made later, behind the back of who looks whether it was. (A child of a site's wrapper is not
    reached so; it is quicker than anybody who looks.)
    """
    try:
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL if input is None else subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "LC_ALL": "C"} if environ is None else dict(environ),
            encoding="utf-8",
            errors="replace",
            start_new_session=True,  # a site's wrapper has children, which would keep our pipes open
            preexec_fn=_die_with_this_process(),  # noqa: PLW1509 - it says itself why it may
        )
    except OSError as error:
        raise SubmissionError(f"{argv[0]} cannot be started: {error.strerror} (is this a login node?)") from error
    try:
        stdout, stderr = process.communicate(input, timeout=timeout_s)
    except BaseException as error:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        if isinstance(error, subprocess.TimeoutExpired):
            raise NoAnswerError(f"{argv[0]} gave no answer within {timeout_s:g} s") from error
        raise
    return Answer(returncode=process.returncode, stdout=stdout, stderr=stderr)


def _die_with_this_process() -> Callable[[], None]:
    """Return what a child does before it becomes another program, so that the kernel kills it when we die.

    Python warns of code between fork and exec, since a lock that another thread held would never be released. This
    code takes none: the function of the C library is found before the fork, and PyDLL calls it without letting go of
    Python's own lock. What the kernel watches is the calling thread; that one waits in `call` for as long as the child
    lives.
    """
    parent, prctl = os.getpid(), ctypes.PyDLL(None).prctl

    def in_child() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL.value)
        if os.getppid() != parent:  # it died before the kernel was told
            os._exit(1)

    return in_child
