"""The contents of a report (`hpcml report`): the runs, the analyses of them, and how they came about.

hpcml/report turns a `Publication` into HTML, LaTeX and figures. Nothing is computed from it any more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from hpcml.analysis.attained import Attainment
from hpcml.analysis.compare.result import Band, Comparison, ReportGroup
from hpcml.analysis.scaling.result import Scaling
from hpcml.analysis.search import Tried
from hpcml.model.hours import Hours
from hpcml.model.live import RunNow
from hpcml.model.query_results import Curves, Timeline
from hpcml.model.records import RunRecord
from hpcml.model.search import Axis as SearchAxis
from hpcml.model.search import Search

Axis = Literal["step", "time"]  # seconds since the run's start


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupCurves:
    """One metric of the runs of one group."""

    group: int  # of `Publication.groups`
    curves: Curves
    bands: Mapping[str, Mapping[Axis, Band]]  # by level; one that has no band is left out


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """How some of the runs were made: command line, directory, version and commit, read from their run.json files."""

    command_line: tuple[str, ...]
    cwd: str
    hpcml_version: str
    git_commit: str | None
    git_dirty: bool | None
    n_runs: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveLook:
    """What a report that is followed while its runs go shows besides: those that have not ended, as they are now.

    `running` and `waiting` are the first of each; their `notes` say what they wait for, as far as it is known.
    """

    running: Sequence[RunNow]
    waiting: Sequence[RunNow]
    n_running: int
    n_waiting: int
    problems: Sequence[str] = ()  # who was not able to answer, one line each


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyContents:
    """A search whose points are runs of the report; `importances` are shares by the name of each axis."""

    search: Search
    axes: Sequence[SearchAxis]
    tried: Sequence[Tried]
    runs: Mapping[str, RunRecord]  # by uid
    importances: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Publication:
    """Everything that a report shows."""

    title: str
    made_at: str  # ISO 8601
    hpcml_version: str
    command_line: tuple[str, ...]  # that makes this report again
    runs: Sequence[RunRecord]
    by: str
    groups: tuple[ReportGroup, ...]
    comparison: Comparison | None
    not_compared: str | None = None  # why there is no comparison
    hours: tuple[Hours, Hours] | None = None  # of the compared runs, and of all runs of their experiments
    curves: tuple[GroupCurves, ...] = ()
    timelines: Mapping[str, Sequence[Timeline]] = field(default_factory=dict)  # by uid
    scaling: Scaling | None = None
    study: StudyContents | None = None
    attainment: Attainment | None = None
    origins: tuple[Origin, ...] = ()
    left_out: Mapping[str, str] = field(default_factory=dict)  # what the report could have had, and why it has not
    without_origin: Mapping[str, int] = field(default_factory=dict)  # runs by the reason why their origin is not known
    live: LiveLook | None = None  # of a report that is followed while its runs go
