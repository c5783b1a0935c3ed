"""The file of the user's that a failed run looked for in vain, since its working directory is a copy without it."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path

from hpcml.commands.logs import last_printed
from hpcml.commands.submit.launch import Launched
from hpcml.errors import HpcmlError
from hpcml.runs.working_directory import was_there

_WORDS = "No such file or directory"
_MISSED = re.compile(rf"{_WORDS}: '([^'\n]+)'|([^\s:'\"]+)['\"]?: {_WORDS}")


def not_copied(item: Launched) -> str | None:
    """Return in words the file of the user's that the run of *item* said last that it did not find; None for none."""
    staging, cwd, run_dir = item.manifest.plan.staging, item.manifest.plan.cwd, item.run_dir
    if staging is None or staging.original is None:
        return None
    with suppress(OSError, ValueError, HpcmlError):  # it is advice: what cannot be read gives none
        if found := _MISSED.findall(last_printed(run_dir)):
            path = Path(os.path.normpath(Path(cwd) / (found[-1][0] or found[-1][1])))
            theirs = os.path.normpath(Path(staging.original) / os.path.relpath(path, run_dir.work / staging.project))
            is_ours = path.is_relative_to(run_dir.work)
            if is_ours and os.path.lexists(theirs) and not was_there(run_dir, os.path.relpath(path, run_dir.work)):
                return f"{theirs}, which is no part of the copy that a run starts in: give its absolute path"
    return None
