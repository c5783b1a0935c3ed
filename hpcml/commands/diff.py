"""The differences between two runs, in settings, environment, code and outcome, for ``hpcml diff``."""

from __future__ import annotations

from pathlib import Path

from hpcml.analysis.run_diff import RunDiff, contrast
from hpcml.commands.collect import collect, opened
from hpcml.model.records import RunRecord
from hpcml.paths import Places
from hpcml.runs.layout import RunDir
from hpcml.store import query


def diff_runs(places: Places, first: str, second: str, *, everything: bool) -> RunDiff:
    """Return in what two runs differ: settings, environment, code and outcome.

    *first* and *second* are ids, ends of ids or names; `StoreError` where one means no run or several. *everything*
    also lists the settings and facts in which they agree.
    """
    with opened(places) as store:
        collect(store, places)
        left, right = query.get_run(store, first), query.get_run(store, second)
    return contrast(left, right, codes=(_code(left), _code(right)), everything=everything)


def _code(run: RunRecord) -> str | None:
    code = RunDir(Path(run.path)).code
    return str(code.resolve()) if code.exists() else None
