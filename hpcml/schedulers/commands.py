"""The one place where a scheduler's programs are started: argv lists, no input to wait for, and a time limit."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hpcml.errors import HpcmlError, SubmissionError


class NoAnswerError(HpcmlError):
    """The scheduler did not answer in time: nothing is known, neither that a job exists nor that it does not."""

    exit_code = 3


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
    it started are dead by then.
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
