"""The store from Python, for notebooks and scripts: ``hpcml.open_store().runs("precision=tf32")``.

Each question first reads what is new in the run directories, as the commands do. Frames need pandas or polars, which
are imported when one is asked for.
"""

from __future__ import annotations

import importlib
import os
import time
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar, overload

from hpcml import answers
from hpcml.comparison import Comparison
from hpcml.errors import ConfigError
from hpcml.operations import consult, questions
from hpcml.operations.collect import opened
from hpcml.places import Places, locate
from hpcml.record_keys import value_of
from hpcml.records import Point, RunRecord, StoredEvent
from hpcml.report.runs_table import run_columns

T = TypeVar("T")


class _Framed(Sequence[T]):
    """A list of things that can be made a frame."""

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

    @abstractmethod
    def columns(self) -> dict[str, list[Any]]:
        """Return the columns of the frame by name, each as long as this."""

    def to_pandas(self) -> Any:  # noqa: ANN401 - pandas.DataFrame, where it is installed
        """Return a `pandas.DataFrame`."""
        return _library("pandas").DataFrame(self.columns())

    def to_polars(self) -> Any:  # noqa: ANN401
        """Return a `polars.DataFrame`; a column that holds values of several kinds has them as text."""
        polars = _library("polars")
        return polars.DataFrame({name: _of_one_kind(column) for name, column in self.columns().items()}, strict=False)


class Runs(_Framed[RunRecord]):
    """Runs, each a `RunRecord`; as a frame a row each, with all settings, facts and last values of metrics."""

    def columns(self) -> dict[str, list[Any]]:
        """Return what ``hpcml runs --csv`` has: fields, settings, ``facts.*`` and ``metrics.*``."""
        headings, rows = run_columns(self._items)
        return _transposed(headings, rows)

    def values(self, *keys: str) -> list[Any]:
        """Return what each run has under a key of conditions, as a tuple for several keys; None where it has not."""
        now = time.time()
        found = [tuple(value_of(run, key, now=now) for key in keys) for run in self]
        return [one for (one,) in found] if len(keys) == 1 else found


class Curves(Mapping[str, Sequence[Point]]):
    """Curves of one metric, by the uid of the run; as a frame a row for each point."""

    def __init__(self, found: answers.Curves) -> None:
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

    def _rows(self) -> Rows:
        listed = [(uid, p.step, p.t_s, p.value) for uid, points in self.items() for p in points]
        return Rows(answers.Rows(columns=("uid", "step", "t_s", self.metric), rows=listed))

    def to_pandas(self) -> Any:  # noqa: ANN401
        """Return a `pandas.DataFrame` with the columns uid, step, t_s and the metric."""
        return self._rows().to_pandas()

    def to_polars(self) -> Any:  # noqa: ANN401
        """Return a `polars.DataFrame` with the columns uid, step, t_s and the metric."""
        return self._rows().to_polars()


class Rows(_Framed[dict[str, Any]]):
    """What a statement in SQL gave: a dict for each row."""

    def __init__(self, found: answers.Rows) -> None:
        super().__init__(found.records())
        self._found = found

    def columns(self) -> dict[str, list[Any]]:
        """Return the columns by name."""
        return _transposed(self._found.columns, self._found.rows)


class Store:
    """The runs of one home, or whatever a store has."""

    def __init__(self, places: Places) -> None:
        self._places = places

    def __repr__(self) -> str:
        return f"<hpcml store of {self._places.home}>"

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
        """Return the runs that meet *where*, in the words of ``hpcml runs --where``; of several all hold."""
        chosen = _selection(
            where,
            experiment=experiment,
            states=states,
            submission=submission,
            sort=sort,
            descending=descending,
            limit=limit,
        )
        return Runs(consult.list_runs(self._places, chosen))

    def run(self, reference: str) -> RunRecord:
        """Return the run with this id, unique end of an id, or name."""
        return self._named([reference])[0]

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
        """Return the runs that did best, as ``hpcml best`` lists them."""
        keys = [by] if isinstance(by, str) else list(by)
        chosen = _selection(where)
        found = questions.best_runs(self._places, chosen, metric=metric, goal=goal, at=at, by=keys, count=count)
        return Runs([each.run for each in found.ranked])

    def curves(
        self, runs: str | RunRecord | Iterable[str | RunRecord], metric: str | None = None, *, points: int | None = None
    ) -> Curves:
        """Return the curves of *runs* (records, ids or names), by default of their objective."""
        listed = [runs] if isinstance(runs, str | RunRecord) else list(runs)
        words = [run.uid if isinstance(run, RunRecord) else run for run in listed]
        if not words:
            return Curves(answers.Curves(metric=metric or "", runs=[], points={}))
        chosen = consult.Selection(references=words)
        return Curves(questions.curves_of(self._places, chosen, metric=metric, points=points))

    def events(self, run: str | RunRecord) -> list[StoredEvent]:
        """Return everything that happened in a run, by time."""
        return questions.events_of(self._places, run.uid if isinstance(run, RunRecord) else run)

    def query(self, sql: str, *, timeout_s: float = 60.0) -> Rows:
        """Return what one SELECT over the views gives; nothing can be written so."""
        return Rows(questions.ask_in_sql(self._places, sql, limit_s=timeout_s))

    def compare(  # noqa: PLR0913 - as the command
        self,
        where: str | Iterable[str] = (),
        *,
        by: str = "precision",
        reference: str | None = None,
        metric: str | None = None,
        goal: Literal["max", "min"] | None = None,
        margin: float | None = None,
        target: float | None = None,
        score: Literal["mlperf"] | None = None,
        allow: Sequence[str] = (),
        allow_mixed: bool = False,
    ) -> Comparison:
        """Return the comparison of the runs that meet *where* along *by*, as ``hpcml compare`` makes it."""
        from hpcml.operations import confront  # noqa: PLC0415 - loads the statistics

        return confront.compare_runs(
            self._places,
            _selection(where),
            by=by,
            reference=reference,
            metric=metric,
            goal=goal,
            margin=margin,
            target=target,
            score=score,
            allow=allow,
            allow_mixed=allow_mixed,
        )

    def _named(self, references: Sequence[str]) -> list[RunRecord]:
        return consult.list_runs(self._places, consult.Selection(references=references))


def open_store(store: str | Path | None = None, *, home: str | Path | None = None) -> Store:
    """Return the store at *store*, a file or a URL, with the run directories below *home*.

    Left out, they are what ``hpcml`` itself would use: HPCML_STORE, HPCML_HOME. What cannot be used raises an
    `hpcml.errors.HpcmlError` with one line.
    """
    places = locate(os.environ, home=None if home is None else str(home), store=None if store is None else str(store))
    with opened(places):
        return Store(places)


def _selection(where: str | Iterable[str], **more: Any) -> consult.Selection:  # noqa: ANN401 - Selection's own
    return consult.Selection(where=(where,) if isinstance(where, str) else tuple(where), **more)


def _transposed(headings: Sequence[str], rows: Sequence[Sequence[Any]]) -> dict[str, list[Any]]:
    return {heading: [row[at] for row in rows] for at, heading in enumerate(headings)}


def _of_one_kind(column: Sequence[Any]) -> list[Any]:
    kinds = {type(value) for value in column if value is not None}
    if len(kinds) <= 1 or kinds == {int, float}:
        return list(column)
    return [None if value is None else str(value) for value in column]


def _library(name: str) -> Any:  # noqa: ANN401 - a module that may not be there
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ConfigError(f"this needs {name}: pip install 'hpcml[{name}]'") from error
