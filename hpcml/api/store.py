"""The store from Python, for notebooks and scripts: ``hpcml.open_store().runs("precision=tf32")``.

Each question first reads what is new in the run directories, as the commands do. Frames need pandas or polars, which
are imported when one is asked for. Errors that a user can cause are `hpcml.errors.HpcmlError`, with a message of one
line.

A typical notebook:

    import hpcml

    store = hpcml.open_store()
    runs = store.runs("precision=tf32", experiment="mnist", limit=20)
    runs.values("seed", "val_accuracy")          # [(0, 0.991), (1, 0.989), ...]
    runs.to_pandas()                             # a row for each run
    store.curves(runs, "train_loss").to_polars() # a row for each point
"""

from __future__ import annotations

import importlib
import logging
import os
import time
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal, TypeVar, overload

from hpcml.analysis.compare.result import Comparison, ComparisonRequest, Percent
from hpcml.commands.cancel import cancel_planned, plan_cancel
from hpcml.commands.collect import opened
from hpcml.commands.runs import ask_in_sql, best_runs, list_runs
from hpcml.commands.selection import Selection
from hpcml.commands.show import curves_of, events_of
from hpcml.commands.status import poll_interval_s, standings
from hpcml.commands.submit.backends import Backends
from hpcml.commands.wait import TimeIsUpError, wait
from hpcml.errors import ConfigError, require
from hpcml.model import query_results
from hpcml.model.record_keys import value_of
from hpcml.model.records import Point, RunRecord, StoredEvent
from hpcml.paths import Places, locate
from hpcml.report.comparison import comparison_document
from hpcml.report.document import Document
from hpcml.report.render.markdown import as_markdown
from hpcml.report.runs import flat_runs
from hpcml.report.status import Standing

log = logging.getLogger(__name__)

T = TypeVar("T")
Named = str | RunRecord | Iterable[str | RunRecord]  # runs, as records, ids, unique ends of ids, or names


class _Frame:
    """What can be made a frame."""

    @abstractmethod
    def columns(self) -> dict[str, list[Any]]:
        """Return the columns of the frame by name, each as long as this list; a missing value is None."""

    def to_pandas(self) -> Any:  # noqa: ANN401 - pandas.DataFrame, where it is installed
        """Return a `pandas.DataFrame` with a row for each element; raise `ConfigError` where pandas is not installed.

        Pandas chooses the types of the columns: numbers with missing values become floats with NaN.
        """
        return _library("pandas").DataFrame(self.columns())

    def to_polars(self) -> Any:  # noqa: ANN401
        """Return a `polars.DataFrame`; a column that holds values of several kinds has them as text.

        A column of integers and floats stays a column of numbers. Missing values are null. Raises `ConfigError` where
        polars is not installed.
        """
        polars = _library("polars")
        return polars.DataFrame({name: _of_one_kind(column) for name, column in self.columns().items()}, strict=False)


class _Framed(_Frame, Sequence[T]):
    """A list of things that can be made a frame.

    It behaves like a list: it has a length, can be indexed and sliced (a slice is a plain list), and is equal to a list
    of the same things. It does not change when the store does.
    """

    def __init__(self, items: Sequence[T]) -> None:
        self._items = list(items)

    @overload
    def __getitem__(self, at: int) -> T: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[T]: ...
    def __getitem__(self, at: int | slice) -> T | Sequence[T]:
        return self._items[at]

    def __len__(self) -> int:
        return len(self._items)

    def __eq__(self, other: object) -> bool:
        return self._items == (other._items if isinstance(other, _Framed) else other)

    __hash__ = None  # type: ignore[assignment] # as of any list

    def __repr__(self) -> str:
        return f"<{len(self)} {type(self).__name__.lower()}>"


class Runs(_Framed[RunRecord]):
    """Runs, each a `RunRecord`; as a frame a row each, with all settings, facts and last values of metrics."""

    def columns(self) -> dict[str, list[Any]]:
        """Return what ``hpcml runs --csv`` has: fields, settings, ``facts.*`` and ``metrics.*``.

        Also ``usage.*`` and ``work.*`` where a run measured them. Lists are JSON text, a metric's value is the last one
        (nan where it was not finite), `t_start` and `t_end` are in unix seconds.
        """
        return _columns(Document(data=[flat_runs(self._items)]))

    def values(self, *keys: str) -> list[Any]:
        """Return what each run has under a key of conditions, as a tuple for several keys; None where it has not.

        A key is one that ``hpcml runs --where`` takes: a field of the record, a setting, a fact, or a metric, which
        stands for its last value. A key that no run has is no error here: it gives None for every run.

            store.runs().values("seed")                   # [0, 1, 2]
            store.runs().values("seed", "val_accuracy")   # [(0, 0.991), (1, 0.989), (2, None)]
        """
        now = time.time()
        found = [tuple(value_of(run, key, now=now) for key in keys) for run in self]
        return [one for (one,) in found] if len(keys) == 1 else found


class Curves(_Frame, Mapping[str, Sequence[Point]]):
    """Curves of one metric, by the uid of the run; as a frame a row for each point.

    The points of a run are ordered by step; there are none for a run that did not report the metric. `metric` is the
    name of the metric, `runs` has the records of the runs in the order of the selection.
    """

    def __init__(self, found: query_results.Curves) -> None:
        self._found = found
        self.metric = found.metric
        self.runs = Runs(found.runs)

    def __getitem__(self, uid: str) -> Sequence[Point]:
        return self._found.points[uid]

    def __iter__(self) -> Iterator[str]:
        return iter(self._found.points)

    def __len__(self) -> int:
        return len(self._found.points)

    def __repr__(self) -> str:
        return f"<{self.metric} of {len(self)} runs>"

    def columns(self) -> dict[str, list[Any]]:
        """Return uid, step, t_s (seconds since the start of the run) and the metric, a row for each point."""
        listed = [(uid, p.step, p.t_s, p.value) for uid, points in self.items() for p in points]
        return _transposed(("uid", "step", "t_s", self.metric), listed)


class Rows(_Framed[dict[str, Any]]):
    """What a statement in SQL gave: a dict for each row, by the names of the columns."""

    def __init__(self, found: query_results.SqlRows) -> None:
        super().__init__(found.records())
        self._found = found

    def columns(self) -> dict[str, list[Any]]:
        """Return the columns by name, in the order of the statement."""
        return _transposed(self._found.columns, self._found.rows)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ShownComparison(_Frame, Comparison):
    """A comparison, whose text is what ``hpcml compare --md`` prints; a notebook shows it so."""

    def __repr__(self) -> str:
        return f"<comparison of {self.n_runs} runs by {self.by}: {self.metric}>"

    def __str__(self) -> str:
        return as_markdown(comparison_document(self))

    def _repr_markdown_(self) -> str:
        return str(self)

    def columns(self) -> dict[str, list[Any]]:
        """Return the columns of ``hpcml compare --csv``, a row for each arm of each table."""
        return _columns(comparison_document(self))


class Store:
    """The runs of one home, or whatever a store has.

    No connection is kept open: each question opens the store, brings it up to date with the run directories, answers
    and closes it. A store that this user can only read is answered from as it is, with a warning in the log.
    `open_store` makes one.
    """

    def __init__(self, places: Places) -> None:
        self._places = places

    def __repr__(self) -> str:
        return f"<hpcml store of {self._places.home}>"

    @property
    def places(self) -> Places:
        """Where the runs and the store are."""
        return self._places

    def runs(
        self,
        where: str | Iterable[str] = (),
        *,
        experiment: str | None = None,
        states: Sequence[str] = (),
        submission: str | None = None,
        sort: str | None = None,
        descending: bool = False,
        limit: int | None = None,
    ) -> Runs:
        """Return the runs that meet *where*, in the words of ``hpcml runs --where``; of several all hold.

        Without conditions these are all runs, the oldest first. *states* are names of states (``"COMPLETED"``, in upper
        or lower case), of which a run must have one; *submission* is the id that runs submitted together share; *sort*
        is a key as in *where*; *limit* counts after sorting (without *sort* the newest are kept), None means all.
        Raises an `HpcmlError` for a condition that cannot be read or a word that is no state.

            store.runs("precision=tf32")
            store.runs(["val_accuracy>0.9", "seed=0"], states=["COMPLETED"], sort="val_accuracy", limit=5)
        """
        chosen = _selection(
            where,
            experiment=experiment,
            states=states,
            submission=submission,
            sort=sort,
            descending=descending,
            limit=limit,
        )
        return Runs(list_runs(self._places, chosen))

    def run(self, reference: str) -> RunRecord:
        """Return the run with this id, unique end of an id (four characters or more), or name.

        Raises an `HpcmlError` where no run or more than one is meant.
        """
        return self.runs_named([reference])[0]

    def runs_named(self, references: Sequence[str]) -> Runs:
        """Return the runs with these ids, unique ends of ids, or names, in their order; for no names none.

        Raises an `HpcmlError` where a name means no run or several.
        """
        return Runs(list_runs(self._places, Selection(references=references)) if references else [])

    def best(
        self,
        where: str | Iterable[str] = (),
        *,
        metric: str | None = None,
        goal: Literal["max", "min"] | None = None,
        at: Literal["last", "best"] = "last",
        by: str | Sequence[str] = (),
        count: int | None = None,
    ) -> Runs:
        """Return the runs that did best, as ``hpcml runs --best`` lists them: the best first, group by group.

        *metric* and *goal* are by default those of the runs' objective. *at* says which value of a run counts: the one
        that it ended with, or the best that it ever had. *by* is one or several settings that make groups; *count* is
        the number of runs, or of runs in each group: by default 10, and 1 with *by*. Runs without a finite value are
        left out.
        """
        keys = [by] if isinstance(by, str) else list(by)
        chosen = _selection(where)
        found = best_runs(self._places, chosen, metric=metric, goal=goal, at=at, by=keys, count=count)
        return Runs([each.run for each in found.ranked])

    def curves(self, runs: Named, metric: str | None = None, *, points: int | None = None) -> Curves:
        """Return the curves of *runs* (records, ids or names), by default of their objective.

        *points* is the largest number of points that a curve may have: they are chosen evenly among the recorded ones,
        and the last always stays; None means all of them. No runs give no curves. Raises an `HpcmlError` for a run that
        does not exist, or where no metric was named and the runs do not agree on an objective.
        """
        words = _references(runs)
        if not words:
            return Curves(query_results.Curves(metric=metric or "", runs=[], points={}))
        chosen = Selection(references=words)
        return Curves(curves_of(self._places, chosen, metric=metric, points=points))

    def events(self, run: str | RunRecord) -> list[StoredEvent]:
        """Return everything that happened in a run, by time; the times are in seconds since its start."""
        return events_of(self._places, run.uid if isinstance(run, RunRecord) else run)

    def query(self, sql: str, *, timeout_s: float = 60.0) -> Rows:
        """Return what one SELECT over the views gives; nothing can be written so.

        ``hpcml query`` without a statement lists the views and their columns. A statement that needs longer than
        *timeout_s* seconds is broken off. Raises an `HpcmlError` where it is, and for a statement that is wrong or does
        not only read.

            store.query("SELECT precision, count(*) AS n FROM runs GROUP BY precision").to_pandas()
        """
        return Rows(ask_in_sql(self._places, sql, limit_s=timeout_s))

    def compare(  # noqa: PLR0913 - as the command
        self,
        where: str | Iterable[str] = (),
        *,
        by: str = "precision",
        reference: str | None = None,
        metric: str | None = None,
        goal: Literal["max", "min"] | None = None,
        margin: float | str | None = None,
        target: float | None = None,
        allow: Sequence[str] = (),
        allow_mixed: bool = False,
        seed: str | None = None,
    ) -> ShownComparison:
        """Return the comparison of the runs that meet *where* along *by*, as ``hpcml compare`` makes it.

        *by* is the setting whose effect is asked for (several are joined by commas), *reference* the value of it that
        the others are compared with. *metric* and *goal* are by default the objective that the runs were configured
        with. *margin* is in the metric's unit, or "10%" of the reference: a smaller difference does not matter.
        *target* is a value of the metric: the time and energy until it was reached are compared, too. *allow* names
        settings and facts that may differ within a table, *allow_mixed* allows any. *seed* is the setting that is the
        program's seed, where it was swept as a setting of its own. Raises an `HpcmlError` where no comparison can be
        made.
        """
        from hpcml.commands.compare import compare_runs  # noqa: PLC0415 - loads the statistics

        found = compare_runs(
            self._places,
            _selection(where),
            ComparisonRequest(
                by=by,
                reference=reference,
                metric=metric,
                goal=goal,
                margin=Percent.parse(margin) if isinstance(margin, str) else margin,
                target=target,
                allow=tuple(allow),
                allow_mixed=allow_mixed,
                seed=seed,
            ),
        )
        return ShownComparison(**{one.name: getattr(found, one.name) for one in fields(found)})

    def status(self, runs: Named = ()) -> list[Standing]:
        """Return where *runs* stand, as ``hpcml status`` says; without *runs* all that have not ended.

        The schedulers are asked, each once a minute at most (HPCML_POLL_INTERVAL_S); one that does not answer is told
        of in the log. *runs* are records, ids, unique ends of ids, or names.
        """
        chosen = Selection(references=_references(runs))
        found, lines = standings(self._places, chosen, self._backends(), poll_interval_s(os.environ))
        for line in lines:
            log.warning("%s", line)
        return found

    def as_completed(self, runs: Named = (), *, timeout_s: float | None = None) -> Iterator[RunRecord]:
        """Yield the record of each of *runs* once it has ended, whether well or not; as ``hpcml wait``.

        Without *runs* these are all that have not ended now. Raises `TimeoutError` where some have not ended after
        *timeout_s* seconds; they go on, as they do where this is left early. *runs* are as for `status`.
        """
        chosen, interval_s = Selection(references=_references(runs)), poll_interval_s(os.environ)
        try:
            with opened(self._places) as store:
                for news in wait(store, self._backends(), chosen, interval_s=interval_s, timeout_s=timeout_s):
                    if isinstance(news, str):
                        log.warning("%s", news)
                    else:
                        yield news
        except TimeIsUpError as error:
            raise TimeoutError(f"{error} in time; {error.they} on") from None

    def wait(self, runs: Named = (), *, timeout_s: float | None = None) -> Runs:
        """Wait until *runs* have ended, as `as_completed`, and return their records in the order of their ends."""
        return Runs(list(self.as_completed(runs, timeout_s=timeout_s)))

    def cancel(self, runs: Named) -> dict[str, str]:
        """Stop *runs*, as ``hpcml cancel -y``; return by uid what became of each: "cancelling", "had ended already".

        "not cancelled" is what could not be asked to stop, for a reason that the log tells. Raises an `HpcmlError`
        where *runs*, which are as for `status`, name none, or one of another home.
        """
        references = _references(runs)
        require(bool(references), "cancel() without runs: say which are to be stopped")
        told = {}
        for stopped in cancel_planned(plan_cancel(self._places, Selection(references=references)), self._backends()):
            told[stopped.uid] = stopped.word
            if stopped.trouble is not None:
                log.warning("%s %s: %s", stopped.uid, stopped.word, stopped.trouble)
        return told

    def _backends(self) -> Backends:
        return Backends.here(self._places, os.environ)


def open_store(store: str | Path | None = None, *, home: str | Path | None = None) -> Store:
    """Return the store at *store*, a file or a URL, with the run directories below *home*.

    Left out, they are what ``hpcml`` itself would use: HPCML_STORE, HPCML_HOME. The store is opened once, and made if
    it does not exist, so that a wrong place is noticed here. What cannot be used raises an `hpcml.errors.HpcmlError`
    with one line.

        hpcml.open_store()                                         # what the commands use
        hpcml.open_store("postgresql://host/hpcml")                # shared by a group
        hpcml.open_store("/scratch/me/store.db", home="/scratch/me/hpcml")
    """
    places = locate(os.environ, home=None if home is None else str(home), store=None if store is None else str(store))
    with opened(places):
        return Store(places)


def _references(runs: Named) -> list[str]:
    listed = [runs] if isinstance(runs, str | RunRecord) else list(runs)
    return [run.uid if isinstance(run, RunRecord) else run for run in listed]


def _selection(where: str | Iterable[str], **more: Any) -> Selection:  # noqa: ANN401 - Selection's own
    return Selection(where=(where,) if isinstance(where, str) else tuple(where), **more)


def _columns(document: Document) -> dict[str, list[Any]]:
    lines = document.flat
    return {name: [line.get(name) for line in lines] for name in document.fields}


def _transposed(headings: Sequence[str], rows: Sequence[Sequence[Any]]) -> dict[str, list[Any]]:
    return {heading: [row[at] for row in rows] for at, heading in enumerate(headings)}


def _of_one_kind(column: Sequence[Any]) -> list[Any]:
    """Return *column* as it is where its values are of one kind or all numbers, else as text; None stays None."""
    kinds = {type(value) for value in column if value is not None}
    if len(kinds) <= 1 or kinds == {int, float}:
        return list(column)
    return [None if value is None else str(value) for value in column]


def _library(name: str) -> Any:  # noqa: ANN401 - a module that may not be there
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ConfigError(f"this needs {name}: pip install 'hpcml[{name}]'") from error
