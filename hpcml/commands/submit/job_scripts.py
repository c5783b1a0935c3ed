"""A job script of the user's own behind ``--``: what its #SBATCH lines ask for in vain, and what its shell cannot read.

The lines are comments where hpcml starts it: without a word, a program for eight ranks is one process, and an index of
an array empty.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice, pairwise
from pathlib import Path, PurePath

from hpcml.commands.submit.planned import Planned
from hpcml.commands.submit.startable import start_of
from hpcml.model.cluster import SchedulerName
from hpcml.model.run import Run
from hpcml.runs.files import read_whole

_SHELLS = ("bash", "sh", "dash")
_STARTS_SHELLS = ("BASH_ENV", "ENV")  # variables that have a shell read a file before
_PATIENCE_S = 10.0
# A line that ends the shell: exec with a program, which takes its place, and exit; exec >log goes on
_HANDS_ON = re.compile(rb"^(?:'{4}|\"|eval ')?(?:exec\"?[ \t]+(?![0-9&{]*[<>])|exit\b).*", re.MULTILINE)
_MOST_HANDED_ON = 20  # of such lines that are looked at
_MOST_READ = 1 << 20  # bytes of a script
_DIRECTIVE = re.compile(r"#(SBATCH|PBS)\s+(.*)")
_COMMENT = re.compile(r"\s*(?:#.*)?")
_OPTION = re.compile(r"--([a-z-]+)(?:=(.*))?|-([A-Za-z])=?(.*)")
_LONG = {
    "SBATCH": {"a": "array", "N": "nodes", "n": "ntasks", "c": "cpus-per-task", "G": "gpus"},
    "PBS": {"J": "array", "t": "array"},  # the latter is Torque's
}
_NAMES_INDEX = re.compile(r"^(?:[^#\n]|(?<=\S)#)*?(SLURM_ARRAY_TASK|PBS_ARRAY)", re.MULTILINE)  # in no comment
_GPUS = ("gres", "gpus", "gpus-per-node", "gpus-per-task")
_MEMORY = ("mem", "mem-per-cpu", "mem-per-gpu")
_INDEX = "values in place of the array's index are a list behind the --, with -m"
_RANKS = "strategy=mpi strategy.processes_per_node=... workload.launcher=none"
_INSTEAD = {
    "array": _INDEX,
    "nodes": "resources.nodes",
    "ntasks": _RANKS,
    "ntasks-per-node": _RANKS,
    "cpus-per-task": "resources.cpus_per_task",
    **dict.fromkeys(_GPUS, "resources.gpus_per_node"),
    **dict.fromkeys(_MEMORY, "resources.mem"),
}


def unread_directives(item: Planned) -> Iterator[str]:
    """Yield a line for each job script that *item* starts which asks for more than the run does.

    Only what changes what the program does or needs counts; an array does on this machine, too.
    """
    if item.run.workload.command is None:
        return
    for name in start_of(item.plan.argv, Path(item.plan.cwd)).files:
        with suppress(OSError, ValueError):
            text = read_whole(Path(item.plan.cwd) / name, most=_MOST_READ).decode("utf-8", "replace")
            unmet = {
                option: value for option, value in _asked(text).items() if not _is_met(option, value, text, item.run)
            }
            if unmet:
                words = " ".join(f"--{option}={value}" for option, value in unmet.items())
                instead = ", ".join(dict.fromkeys(_INSTEAD[option] for option in unmet))
                yield f"{name} asks for {words} in lines that are comments here, and this run does not: {instead}"


def syntax_errors(words: Sequence[str], cwd: Path) -> Iterator[str]:
    """Yield what the shell of a script that *words* start says of its syntax; it executes nothing of it.

    A shell reads on as it goes: one that comes to a wrong line ends there, after what may have been hours of work.
    """
    for name in start_of(words, cwd).files:
        with suppress(OSError, subprocess.TimeoutExpired):
            text = read_whole(cwd / name, most=_MOST_READ)
            shell = _shell_of(text, words[0])
            if shell is None or b"\0" in text:  # an archive behind a script
                continue
            options = ["-O", "extglob"] if b"extglob" in text and PurePath(shell).name == "bash" else []
            said = _complaints([shell, *options, "-n", name], cwd)
            if said and not _hands_on(text, [shell, *options, "-n"], cwd):
                yield f"{said[0]}: {PurePath(shell).name} ends there, once what stands before has run"


def _complaints(command: Sequence[str], cwd: Path, text: bytes = b"") -> list[str]:
    """Return what a shell that executes nothing says of its script, or of *text*; nothing where it reads all."""
    read = subprocess.run(
        command,
        cwd=cwd,
        env={**{key: value for key, value in os.environ.items() if key not in _STARTS_SHELLS}, "LC_ALL": "C"},
        input=text,
        capture_output=True,
        timeout=_PATIENCE_S,
        check=False,
    )
    return read.stderr.decode(errors="replace").splitlines() if read.returncode else []


def _hands_on(text: bytes, command: Sequence[str], cwd: Path) -> bool:
    """Tell whether a shell never comes to the wrong line: before it, another program takes the script, or it ends.

    So do scripts of Julia, Python and Tcl that a shell starts, and those with an archive behind them.
    """
    ends = (found.end() for found in islice(_HANDS_ON.finditer(text), _MOST_HANDED_ON))
    return any(not _complaints(command, cwd, text[:end] + b"\n") for end in ends)


def _shell_of(text: bytes, program: str) -> str | None:
    """Return the shell that reads a script, by the first word of its command, or its own first line."""
    first = re.match(rb"#!\s*(?:/usr/bin/env\s+(?:-S\s+)?)?(\S+)", text)
    named = [PurePath(program).name, *([PurePath(os.fsdecode(first[1])).name] if first else [])]
    return next((shutil.which(name) for name in named if name in _SHELLS), None)


def _asked(text: str) -> Mapping[str, str]:
    """Return what the lines before a script's first command ask for, as schedulers read them: the last of each."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        if not _COMMENT.fullmatch(line):
            break
        if directive := _DIRECTIVE.match(line):
            words = shlex.split(directive[2], comments=True)
            for word, following in pairwise([*words, ""]):
                if option := _OPTION.fullmatch(word):
                    name = option[1] or _LONG[directive[1]].get(option[3], "")
                    if name in _INSTEAD:
                        found[name] = option[2] or option[4] or following
    return found


def _is_met(option: str, value: str, text: str, run: Run) -> bool:
    if option == "array":  # its values may have become a list behind the --
        is_swept = bool(run.workload.args) or "{seed}" in (run.workload.command or "")
        return is_swept and _NAMES_INDEX.search(text) is None
    if run.cluster.scheduler is SchedulerName.local:
        return True
    wanted, each = run.resources, run.strategy.processes_per_node or 1
    count = int(number[0]) if (number := re.match(r"\d+", value)) else 0
    has = {
        "nodes": wanted.nodes >= count,
        "ntasks": each * wanted.nodes >= count,
        "ntasks-per-node": each >= count,
        "cpus-per-task": wanted.cpus_per_task is not None or count == 1,
        **dict.fromkeys(_GPUS, bool(wanted.gpus_per_node) or (option == "gres" and "gpu" not in value)),
        **dict.fromkeys(_MEMORY, wanted.mem is not None),
    }
    return has[option]
