"""Refuses a command of the user's own that cannot start: its program or script is not there, or is no Python.

What else is wrong with it the program says itself, in its first second.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path, PurePath

from hpcml.errors import ConfigError
from hpcml.model.cluster import SchedulerName
from hpcml.model.container import ContainerKind
from hpcml.model.run import Run
from hpcml.schedulers.registry import SUBMITS

_PYTHON = re.compile(r"python[\d.]*")
_SUFFIXES: Mapping[str, tuple[str, ...]] = {  # of the scripts that a program runs
    **dict.fromkeys(("python", "torchrun", "deepspeed", "accelerate"), (".py",)),
    **dict.fromkeys(("bash", "sh", "zsh"), (".sh",)),
    "Rscript": (".R", ".r"),
    "julia": (".jl",),
    "perl": (".pl",),
}
# python -m, and what reads its program from a word or standard input: bash -lc, perl -ne, python -
_RUNS_NO_SCRIPT = re.compile(r"-|-[A-Za-z]*[cesm]|--module|--no[-_]python")
_COMPILE = r"""
import sys
source = open(sys.argv[1], "rb").read()
try:
    b"\0" in source or compile(source, sys.argv[1], "exec")  # an archive, which Python runs too, has zeros
except SyntaxError as error:
    print(("line %d: " % error.lineno if error.lineno else "") + error.msg)
"""
_PATIENCE_S = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramStart:
    """What a command starts in *cwd*: a program, and the script that this runs."""

    program: str
    cwd: Path
    script: str | None = None
    only_submits: bool = False  # sbatch and the like, which end at once

    @property
    def files(self) -> list[str]:
        """The files that are executed, as the command names them."""
        return [name for name in (self.program if os.sep in self.program else None, self.script) if name is not None]


def start_of(words: Sequence[str], cwd: Path) -> ProgramStart:
    """Return what the command *words* starts in *cwd*."""
    program, name = words[0], PurePath(words[0]).name
    waits = any(word in ("--wait", "-W") or word.startswith("-Wblock") for word in words)
    start = ProgramStart(program=program, cwd=cwd, only_submits=name in SUBMITS and not waits)
    suffixes = _SUFFIXES.get("python" if _PYTHON.fullmatch(name) else name)
    if suffixes is None or (name == "accelerate" and words[1:2] != ["launch"]):
        return start
    rest = words[2:] if name == "accelerate" else words[1:]
    for before, word in pairwise(["", *rest]):
        if _RUNS_NO_SCRIPT.fullmatch(word):
            break
        is_value = before.startswith(("-", "+")) and not os.path.lexists(cwd / word)  # of an option, maybe
        if word.endswith(suffixes) or not (word.startswith(("-", "+")) or is_value):
            return ProgramStart(program=program, cwd=cwd, script=word)
    return start


def check_startable(start: ProgramStart, run: Run) -> None:
    """Raise `ConfigError` where *run*'s own command could not start as planned.

    Of the files in an image only those below the working directory are known. On a cluster the PATH is that of the job,
    so that only paths are looked at.
    """
    for problem in _problems(start, run):
        raise ConfigError(problem)


def _problems(start: ProgramStart, run: Run) -> Iterator[str]:
    program, site = start.program, run.cluster
    is_inside, is_here = run.container.kind is not ContainerKind.none, site.scheduler is SchedulerName.local
    if start.only_submits:
        yield (
            f"{program} submits another job and ends, and the run would be over before that begins: hpcml submits by "
            "itself: hpcml run +cluster=NAME -- bash job.sh"
        )
    path = start.cwd / program
    if not is_inside and os.sep in program and os.path.lexists(path):
        if _is_dir(path):
            yield f"{program} is a folder, not a program: name the file to start"
        elif not os.access(path, os.X_OK):
            yield f"{program} is there, and may not be executed: chmod +x, or name the program that reads it"
    elif not is_inside and (is_here or os.sep in program):
        is_known = is_here or _is_dir(path.parent) or not PurePath(program).is_absolute()
        if is_known and (os.sep in program or shutil.which(program, path=run.workload.env.get("PATH")) is None):
            yield f"there is no program {program!r} here{_hint(start)}"
    yield from _no_script(start, is_inside=is_inside)
    if not (is_inside or site.modules or site.prelude or "PATH" in run.workload.env):
        yield from _no_python(start)


def _hint(start: ProgramStart) -> str:
    """Return what to do about a program that is not there."""
    if re.search(r"\s", start.program):
        return ": it is one word; leave out the quotes around the whole command, or write bash -c '...'"
    if start.program.startswith("-") or re.fullmatch(r"\+?[\w.]+=.*", start.program, re.DOTALL):
        return ": settings stand in front of the --, variables of the program too (workload.env.NAME=VALUE)"
    return "; activate the environment that has it before hpcml run, or write its path; a shell's own is bash -c '...'"


def _no_script(start: ProgramStart, *, is_inside: bool) -> Iterator[str]:
    if start.script is None or os.path.lexists(start.cwd / start.script):
        return
    if shutil.which(start.script, mode=os.F_OK) is not None:
        return  # where shells look for scripts, too
    folder = (start.cwd / start.script).parent
    if not PurePath(start.script).is_absolute() or (not is_inside and _is_dir(folder)):
        yield f"{start.script!r} is not there, seen from {start.cwd}: mend its name, or start in the folder where it is"


def _no_python(start: ProgramStart) -> Iterator[str]:
    """Yield what is wrong with a script that the Python of the command cannot compile; nothing is said without one."""
    if start.script is None or not start.script.endswith(".py"):
        return
    program = shutil.which(str(start.cwd / start.program) if os.sep in start.program else start.program)
    if program is None:
        return
    python = program if _PYTHON.fullmatch(Path(program).name) else str(Path(program).with_name("python"))
    with suppress(OSError, subprocess.TimeoutExpired):
        asked = subprocess.run(
            [python, "-I", "-c", _COMPILE, start.script],  # -I: nothing of the user's folder is loaded
            cwd=start.cwd,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            encoding="utf-8",
            errors="replace",
            timeout=_PATIENCE_S,
            check=False,
        )
        if problem := asked.stdout.strip():
            yield f"{start.script}: {problem}, says the Python of the command, which cannot compile it"


def _is_dir(path: Path) -> bool:
    return os.path.isdir(path)  # noqa: PTH112 - Path's own raises where a name is longer than a file's may be
