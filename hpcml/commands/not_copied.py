"""What a run looked for in vain although its user has it: files that are no part of its working directory."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from hpcml.commands.logs import last_printed
from hpcml.commands.submit.launch import Launched
from hpcml.errors import HpcmlError
from hpcml.model.failure_causes import printed_lines
from hpcml.paths import home_of_user
from hpcml.runs.plan import Staging
from hpcml.runs.working_directory import was_there

_LONGEST = 1000  # characters of a line, the last ones
_BY_THE_SYSTEM = re.compile(r"No such file or directory")
_BY_PROGRAMS = re.compile(
    r"(?:can't|cannot|couldn't|could not|unable to) (?:open|find|load|read)|not (?:found|exist|appear to have)",
    re.IGNORECASE,
)
_REMOVED = re.compile(r"\b(?:remove|removing|unlink|delete)\b")  # what is not there need not be
_PLACES = re.compile(r"""'([^'\n]{1,300})'|"([^"\n]{1,300})"|((?:[\w.+=@%-]*/)*[\w.+=@%-]*\w)""", re.ASCII)


def not_copied(item: Launched, *, has_completed: bool) -> str | None:
    """Return in words the first file of the user's that the run of *item* said it did not find, and why; None for none.

    Of one that *has_completed*, only the system's own words count: a program that begins anew without a checkpoint
    says so as well.
    """
    plan = item.manifest.plan
    if plan.staging is None or plan.staging.original is None:
        return None
    with suppress(OSError, ValueError, HpcmlError):  # it is advice: what cannot be read gives none
        missed = _missed(last_printed(item.run_dir), has_completed=has_completed)
        for word in dict.fromkeys(missed):  # each once: a program may say the same in a thousand lines
            path = os.path.normpath(os.path.join(plan.cwd, word))  # noqa: PTH118 - may be absolute
            if word.startswith("/") and not Path(path).is_relative_to(item.run_dir.path):
                continue  # it is the user's own, or anybody's
            place = os.path.relpath(path, item.run_dir.work)
            theirs = _original_of(place, plan.staging)
            if theirs is not None and os.path.lexists(theirs) and not was_there(item.run_dir, place):
                return f"{theirs}, which is yours: {_why(place, theirs, plan.staging)}"
    return None


def _missed(printed: str, *, has_completed: bool) -> Iterator[str]:
    """Yield the words of *printed* that may be a path, of lines that say that something is not there."""
    for line in printed_lines(printed):
        said = line[-_LONGEST:]
        is_missed = _BY_THE_SYSTEM.search(said) or (not has_completed and _BY_PROGRAMS.search(said))
        if is_missed and _REMOVED.search(said) is None:
            yield from (next(filter(None, found)) for found in _PLACES.findall(said))


def _original_of(place: str, staging: Staging) -> Path | None:
    """Return where *place*, relative to the working directory, is in the user's folders; None where in none of them."""
    assert staging.original is not None
    first, _, rest = place.partition("/")
    original = Path(staging.original)
    if first == staging.project:
        return original / rest if rest else None
    beside = Path(os.path.normpath(original.parent / place))
    return None if original.is_relative_to(beside) or len(beside.parts) < len(original.parts) - 2 else beside


def _why(place: str, theirs: Path, staging: Staging) -> str:
    empty = next((folder for folder in staging.empty if Path(place).is_relative_to(folder)), None)
    if empty is not None:
        return f"{Path(empty).name}/, a folder of outputs, begins empty in each run: give its absolute path"
    original = Path(str(staging.original))
    if theirs.is_relative_to(original):
        return "it is no part of the copy that a run starts in: give its absolute path"
    both = Path(os.path.commonpath([original, theirs]))
    is_project = (original / ".git").exists() or both in (Path("/"), home_of_user())
    together = "" if is_project else f", or make one project of both (git init {shlex.quote(str(both))})"
    return f"a run starts in a copy of {original} alone: give its absolute path{together}"
