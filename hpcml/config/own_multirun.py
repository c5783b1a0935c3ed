"""Recognizes a program whose own Hydra is told to sweep (``python train.py -m lr=0.1,0.01``): trainings within one run.

Its metrics would be one series, its time and energy one number, and no comparison could tell what was which.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from hpcml.runs.files import read_whole

_LONG = "--multirun"  # argparse takes its first letters, too
_SHORTEST = len("--mu")
_MODE = re.compile(r"\+{0,2}hydra\.mode=MULTIRUN", re.IGNORECASE)
_OVERRIDE = re.compile(r"(?s)(?P<key>(?:\+{1,2}|~)?[A-Za-z_][\w./@-]*)=(?P<value>.*)")
_CHOICE = re.compile(r"choice\((?P<values>[^()]+)\)")
_RANGE = re.compile(r"range\((?P<first>\d+),(?P<end>\d+)(?:,(?P<step>\d+))?\)")
_OF_A_SWEEP = re.compile(r"\{[\w.-]+\}")  # of hpcml's, which has taken the list
_OF_HYDRAS_OWN = re.compile(r"\+{0,2}hydra[./]")
_FUNCTION = re.compile(r"(?:choice|range|interval|glob|shuffle|sort|tag)\(")


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnMultirun:
    """What is to be said of it; *is_certain*: it is Hydra's, and a sweep that hpcml can make of runs of their own."""

    said: str
    is_certain: bool


def own_multirun(words: Sequence[str], project: Path, *, is_swept: bool = False) -> OwnMultirun | None:
    """Return what to say where *words*, a program and its arguments, ask the program's own Hydra for several trainings.

    Files among the words, seen from *project*, are looked through for Hydra. None where nothing looks like it.
    *is_swept*: hpcml makes several runs.
    """
    places = [at for at, (word, after) in enumerate(pairwise([*words, ""])) if at and _asks(word, after)]
    if not places:
        return None
    flags, rest = [words[at] for at in places], [word for at, word in enumerate(words) if at not in places]
    given = [found for word in rest[1:] if (found := _OVERRIDE.fullmatch(word)) is not None]
    swept = [found for found in given if _has_several(found["value"])]
    is_said = flags[0] == _LONG or _MODE.fullmatch(flags[0]) is not None  # --mu may be a number of the program's
    is_hydra = is_said or any(map(_OF_HYDRAS_OWN.match, rest)) or _reads_hydra(words, project)
    if not swept and not is_hydra:
        return None
    told = " ".join([flags[0], *(found[0] for found in swept)])
    lists = {found[0]: _as_list(found) for found in swept}
    has_sweeper = any("sweeper" in word for word in rest)
    if is_swept and not lists and not has_sweeper and any(_OF_A_SWEEP.fullmatch(found["value"]) for found in given):
        return OwnMultirun(
            said=f"{told} behind the -- may be left out: hpcml makes a run of each value already, and each would be a "
            "sweep of the program's own besides",
            is_certain=False,
        )
    if not lists or None in lists.values() or has_sweeper:
        return OwnMultirun(
            said=f"{told} behind the -- is the program's own sweep: all its trainings are one run, with one time and "
            "one result. hpcml run -m in front of the --, and lists with commas behind it, makes a run of each",
            is_certain=False,
        )
    line = shlex.join(lists.get(word) or word for word in rest)
    remedy = f"leave that {flags[0]} out and write hpcml run -m -- {line}"
    if not is_hydra:
        return OwnMultirun(
            said=f"{told}: if the program sweeps by it, all its trainings are one run: {remedy}", is_certain=False
        )
    return OwnMultirun(
        said=f"{told} behind the --: the program's own Hydra would train several times in one run, with one time and "
        f"one result: {remedy} for a run of each (--as-is in front of the -- leaves it as it is)",
        is_certain=True,
    )


def _asks(word: str, after: str) -> bool:
    """Whether *word*, in front of *after*, is Hydra's flag: not Python's -m with a module, or another with a value."""
    is_alone = not after or after.startswith("-") or _OVERRIDE.fullmatch(after) is not None
    is_short = word == "-m" or (_SHORTEST <= len(word) < len(_LONG) and _LONG.startswith(word))
    return word == _LONG or _MODE.fullmatch(word) is not None or (is_short and is_alone)


def _has_several(value: str) -> bool:
    return _FUNCTION.match(value) is not None or (
        "," in value and value[:1] not in tuple("[({'\"") and "\\," not in value
    )


def _as_list(found: re.Match[str]) -> str | None:
    """Return the override with its values as hpcml takes them; None for values that only Hydra can name."""
    value = found["value"]
    if choice := _CHOICE.fullmatch(value):
        value = choice["values"].replace(" ", "")
    elif numbers := _RANGE.fullmatch(value):
        step = int(numbers["step"] or 1)
        last = int(numbers["end"]) - 1
        value = f"{numbers['first']}..{last}" + (f"..{step}" if step > 1 else "")
    return None if "(" in value else f"{found['key']}={value}"


def _reads_hydra(words: Sequence[str], project: Path) -> bool:
    """Whether a file among *words*, or the module behind -m, has the word hydra in it."""
    modules = [word.replace(".", "/") for before, word in pairwise(words) if before == "-m"]
    files = [*(f"{name}{end}" for name in modules for end in (".py", "/__main__.py")), *words]
    for name in files:
        with suppress(OSError, ValueError):
            if name.endswith(".py") and b"hydra" in read_whole(project / name):
                return True
    return False
