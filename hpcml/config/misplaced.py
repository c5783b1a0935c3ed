"""Words in front of the ``--`` that are no settings, and what somebody meant who wrote them there."""

from __future__ import annotations

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
}
_WITHOUT = {
    "-I": "hpcml submits no interactive jobs: leave it out",
    "-V": "leave it out; write workload.env.NAME=VALUE for a variable of the program",
}
_LONG = {  # of sbatch, where no key is named nearly so, or a wrong one is
    "array": "the elements of an array are the runs of a sweep: write -m and the values, as in -m seed=0,1,2",
    "gpus_per_task": "write resources.gpus_per_node=..., those of all processes of a node",
    "mem_per_cpu": "write resources.mem=..., that of a node",
    "mem_per_gpu": "write resources.mem=..., that of a node",
    "job_name": "write name={}",
    "output": "leave it out: hpcml logs RUN shows what a run printed",
    "error": "leave it out: hpcml logs RUN --err shows it",
}
_OF_JOBS = ("resources.", "strategy.", "schedule.")  # settings that other programs have as flags of theirs


def what_was_meant(word: str, before: str, behind: Sequence[str], *, project: Path, known: Collection[str]) -> str:
    """Return what to write instead of *word*, which no ``=`` makes a setting.

    *before* is the word in front of it and *behind* those that follow, up to the ``--``. *known* are the keys.
    """
    if word.startswith(tuple(_DASHES)):
        return f"its first sign is no '-', though it looks like one: write it as {_with_dashes(word)}"
    if before in _SHORT:
        key = "name" if before == "-N" and not word.isdigit() else _SHORT[before]  # -N of PBS is a job's name
        return f"for {before} of a scheduler write {key}={word}"
    if before.startswith("--"):
        return of_flag(before, word, known=known)
    if word.isdigit():
        return f"for so many processes write strategy=ddp strategy.processes_per_node={word}"
    if shutil.which(word) or (project / word).is_file():
        starter = "python " if word.endswith(".py") else ""
        words = shlex.join([word, *behind])
        return f"a program stands behind two dashes: hpcml run -- {starter}{words}"
    return _GENERAL


def _with_dashes(word: str) -> str:
    """Return *word* with plain dashes; two where one long sign stands for both, or a long name follows."""
    bare = word.lstrip(_DASHES + "-")
    return ("--" if len(bare) != 1 else "-") + bare


def of_qsub(flag: str, value: str) -> str | None:
    """Return what to write instead of a flag of qsub that Hydra has not, before *value*; None for other flags."""
    name, _, amount = value.partition("=")
    if flag == "-l":
        if name == "walltime":
            return f"write resources.walltime={amount}"
        return (
            "of qsub's -l write resources.nodes=..., resources.cpus_per_task=..., resources.gpus_per_node=..., "
            "resources.mem=... and resources.walltime=..."
        )
    if flag == "-v" and amount:
        return f"for a variable of the program write workload.env.{value}"
    return _WITHOUT.get(flag)


def of_flag(flag: str, value: str, *, known: Collection[str]) -> str:
    """Return what to write instead of the *flag* of another program with its *value*."""
    name = flag.lstrip("-").replace("-", "_").lower()
    if name in _LONG:
        return _LONG[name].format(value)
    count = value.rpartition(":")[2]
    if name == "gres" and value.startswith("gpu"):
        return f"write resources.gpus_per_node={count if count.isdecimal() else 1}"
    near = [key for key in nearest(name, known, KEYS) if key.startswith(_OF_JOBS)]
    if near:
        return f"settings of a run have no dashes: write {near[0]}={value}"
    program = f"hpcml run -- PROGRAM {flag} {value}"
    return f"settings of a run have no dashes, and flags of the program stand behind it: {program}"
