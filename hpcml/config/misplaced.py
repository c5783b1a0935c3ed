"""Words in front of the ``--`` that are no settings, and what somebody meant who wrote them there."""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Collection, Sequence
from pathlib import Path

from hpcml.config.guess import KEYS, nearest

_GENERAL = "write key=value (hpcml run --help lists the keys)"
_DASHES = "\u2010\u2011\u2012\u2013\u2014\u2015\u2212"  # what a PDF or a word processor makes of "-"
_SHORT = {  # of sbatch and qsub; -n, -p, -c and -i are Hydra's or hpcml's own
    "-t": "resources.walltime",
    "-A": "resources.account",
    "-q": "resources.queue",
    "-N": "resources.nodes",
    "-C": "resources.constraint",
    "-w": "resources.nodelist",
    "-x": "resources.exclude",
    "-G": "resources.gpus_per_node",
    "-J": "name",
    "-d": "resources.dependency",
    "-D": "workload.cwd",
    "-M": "resources.mail_user",
}
_LOGS = "leave it out: hpcml logs RUN shows what a run printed, and with --err its errors"
_AGAIN = (
    "leave it out: a run that leaves with exit status 75 is queued again (schedule.max_requeues), and schedule.retry "
    "tries those again that the cluster failed"
)
_DIRECTIVE = "write 'resources.extra_directives=[\"{}\"]'"  # the option as it is typed
_WITHOUT = {
    **dict.fromkeys(("-j", "-k", "-o", "-e"), _LOGS),
    "-r": _AGAIN,
    "-S": "leave it out: the program behind the -- is started without a shell",
    "-I": "hpcml submits no interactive jobs: leave it out",
    "-V": "leave it out; write workload.env.NAME=VALUE for a variable of the program",
}
_LONG = {  # of sbatch, where no key is named nearly so, or a wrong one is
    "array": "the elements of an array are the runs of a sweep: write -m and the values, as in -m seed=0,1,2",
    "gpus_per_task": "write resources.gpus_per_node=..., those of all processes of a node",
    "mem_per_cpu": "write resources.mem=..., that of a node",
    "mem_per_gpu": "write resources.mem=..., that of a node",
    "job_name": "write name={}",
    **dict.fromkeys(("output", "error", "open_mode"), _LOGS),
    **dict.fromkeys(("requeue", "no_requeue"), _AGAIN),
    "exclusive": "write resources.exclusive=true",
    "wrap": "a program stands behind two dashes: hpcml run -- {}",
    "export": "for a variable of the program write workload.env.NAME=VALUE",
    "chdir": "write workload.cwd={}",
    "signal": "write schedule.notice=..., how long before the end of its walltime a program is warned",
    "test_only": "write -n",
    "wait": "leave it out: hpcml wait waits for the ends",
    "parsable": "write --json",
    **dict.fromkeys(("begin", "comment", "contiguous", "cpu_bind", "gpu_bind"), _DIRECTIVE),
    **dict.fromkeys(("hint", "hold", "licenses", "nice", "tmp"), _DIRECTIVE),
}
_OF_JOBS = ("resources.", "strategy.", "schedule.")  # settings that other programs have as flags of theirs


def what_was_meant(word: str, before: str, behind: Sequence[str], *, project: Path, known: Collection[str]) -> str:
    """Return what to write instead of *word*, which no ``=`` makes a setting.

    *before* is the word in front of it and *behind* those that follow, up to the ``--``. *known* are the keys.
    """
    if word.startswith(tuple(_DASHES)):
        return f"its first sign is no '-', though it looks like one: write it as {_with_dashes(word)}"
    if (meant := _value_of(before, word, known)) is not None:
        return meant
    if word.isdigit():
        return f"for so many processes write strategy=ddp strategy.processes_per_node={word}"
    if shutil.which(word) or os.path.isfile(project / word):  # noqa: PTH113 - it may be any word
        starter = "python " if word.endswith(".py") else ""
        words = shlex.join([word, *behind])
        return f"a program stands behind two dashes: hpcml run -- {starter}{words}"
    return _GENERAL


def _value_of(before: str, word: str, known: Collection[str]) -> str | None:
    """Return what to write where *word* is the value of the word *before* it; None where that takes none."""
    if before.endswith("="):
        return f"no blank stands behind a =: write {before}{word}"
    if before in _SHORT:
        key = "name" if before == "-N" and not word.isdigit() else _SHORT[before]  # -N of PBS is a job's name
        return f"for {before} of a scheduler write {key}={word}"
    return of_flag(before, word, known=known) if before.startswith("--") else None


def _with_dashes(word: str) -> str:
    """Return *word* with plain dashes; two where one long sign stands for both, or a long name follows."""
    bare = word.lstrip(_DASHES + "-")
    return ("--" if len(bare) != 1 else "-") + bare


def of_scheduler(word: str, behind: Sequence[str]) -> str | None:
    """Return what to write instead of a flag of sbatch or qsub that is no flag of Hydra, nor like a key; else None.

    *behind* are the words that follow, of which the first may be the flag's value.
    """
    if (meant := _of_qsub(word, behind[0] if behind else "")) is not None:
        return f"a flag of qsub, and none of hpcml: {meant}"
    meant = _of_sbatch(word, behind)
    return None if meant is None else f"a flag of sbatch, and none of hpcml: {meant}"


def _of_qsub(flag: str, value: str) -> str | None:
    name, _, amount = value.partition("=")
    if flag == "-l":
        if name == "walltime":
            return f"write resources.walltime={amount}"
        return (
            "of qsub's -l write resources.nodes=..., resources.cpus_per_task=..., resources.gpus_per_node=..., "
            "resources.mem=... and resources.walltime=..."
        )
    if flag == "-W":
        is_dependency = name == "depend" and amount
        return f"write resources.dependency={amount}" if is_dependency else _DIRECTIVE.format(f"-W {value}")
    if flag == "-v" and amount:
        return f"for a variable of the program write workload.env.{value}"
    return _WITHOUT.get(flag)


def _of_sbatch(word: str, behind: Sequence[str]) -> str | None:
    flag, sign, joined = word.partition("=")
    name = flag.lstrip("-").replace("-", "_").lower()
    if not word.startswith("--") or name not in _LONG:
        return None
    value = joined if sign else next((each for each in behind[:1] if not each.startswith("-")), "")
    return _LONG[name].format(word if _LONG[name] is _DIRECTIVE else value or "...")


def of_flag(flag: str, value: str, *, known: Collection[str]) -> str:
    """Return what to write instead of the *flag* of another program with its *value*."""
    name = flag.lstrip("-").replace("-", "_").lower()
    count = value.rpartition(":")[2]
    if name == "gres" and value.startswith("gpu"):
        return f"write resources.gpus_per_node={count if count.isdecimal() else 1}"
    near = [key for key in nearest(name, known, KEYS) if key.startswith(_OF_JOBS)]
    write = f"settings of a run have no dashes: write {near[0] if near else name}={value}"
    if near:
        return write
    program = f"hpcml run -- PROGRAM {flag} {value}"
    if name in known:
        return f"{write}; a flag of the program stands behind it: {program}"
    return f"settings of a run have no dashes, and flags of the program stand behind it: {program}"
