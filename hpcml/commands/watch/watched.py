"""A report of runs that is made anew while they go, and handed out as a page, for ``hpcml watch``."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple, NoReturn

from hpcml.commands.collect import collect, opened
from hpcml.commands.report import Wish, gather
from hpcml.commands.selection import Selection, select
from hpcml.commands.status import SchedulersAsked, standing_of, with_waits
from hpcml.commands.submit.backends import Backends
from hpcml.commands.top.live_runs import RunTop
from hpcml.commands.watch.server import Page, Shelf, serving
from hpcml.errors import HpcmlError
from hpcml.model.live import RunNow
from hpcml.model.publication import LiveLook, Publication
from hpcml.model.records import RunRecord
from hpcml.model.state import State
from hpcml.paths import Places
from hpcml.report.publication import publication_document
from hpcml.report.render.html.page import as_live_page, as_news
from hpcml.report.status import why_words
from hpcml.runs.layout import RunDir
from hpcml.store.database import Database

_SHARE = 4.0  # so many times longer than a look computes is waited before the next, and as long as it took in all
_SHOWN = 50  # running runs whose files are read, and as many that wait


@dataclass(frozen=True, slots=True, kw_only=True)
class Watch:
    """What is watched, where, and how often: *interval_s* between two looks, *poll_s* between two to a scheduler."""

    places: Places
    selection: Selection
    wish: Wish
    backends: Backends
    interval_s: float
    poll_s: float


def watch(asked: Watch, *, port: int | None, ready: Callable[[str], None]) -> None:
    """Hand out the report of the selected runs until interrupted, made anew where something changed.

    *ready* is called with the link, once it can be opened. Looks are made only while somebody has the page open. Raises
    `ConfigError` where no run is selected, and where *port* is taken.
    """
    with opened(asked.places) as store, _until_told():
        watched = WatchedExperiment(asked, store)
        shelf = Shelf(watched.page())
        with serving(shelf, port=port) as link:
            ready(link)
            while True:
                shelf.asked.wait()
                shelf.asked.clear()
                began, computed = time.monotonic(), time.thread_time()
                shelf.page = watched.page()
                took_s, own_s = time.monotonic() - began, time.thread_time() - computed
                time.sleep(max(asked.interval_s, took_s, _SHARE * own_s))  # of a store that was locked: no minute more


@contextmanager
def _until_told() -> Iterator[None]:
    """End the block at Ctrl-C, and at the signals that end a session, without an error."""
    before = {number: signal.signal(number, _interrupt) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        with suppress(KeyboardInterrupt):
            yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _interrupt(*_: object) -> NoReturn:
    raise KeyboardInterrupt


class _Seen(NamedTuple):
    """What one look found: a page is made anew where it differs from the one before."""

    runs: Sequence[RunRecord]
    live: LiveLook


@dataclass(slots=True)
class WatchedExperiment:
    """The report, which is looked at again and again: only what changed since the last look is read."""

    asked: Watch
    store: Database
    _schedulers: SchedulersAsked = field(init=False)
    _tops: dict[str, RunTop] = field(default_factory=dict)  # by uid
    _seen: _Seen | None = None
    _publication: Publication | None = None
    _problem: str | None = None  # of the latest look, which is told on the page
    _page: Page | None = None
    _count: int = 0

    def __post_init__(self) -> None:
        asked = self.asked
        self._schedulers = SchedulersAsked(store=self.store, backends=asked.backends, interval_s=asked.poll_s)

    def page(self) -> Page:
        """Return the page as things stand; the very same one where nothing has changed.

        An error after the first look is told on the page, which stays as it was: a store that does not answer, a run
        directory that went away while it was read.
        """
        try:
            seen = self._look()
            if any(run.state.is_final for run in seen.live.running):  # it ended meanwhile, which the store has not read
                seen = self._look()
            if self._page is None or seen != self._seen or self._problem is not None:
                self._publication = gather(self.store, seen.runs, self.asked.wish, seen.live)
                self._seen, self._problem = seen, None
                self._page = self._made(self._publication)
        except (HpcmlError, OSError) as error:
            if self._page is None or self._publication is None:
                raise
            if str(error) != self._problem:
                self._problem = str(error)
                self._page = self._made(_with_problem(self._publication, self._problem))
        return self._page

    def _look(self) -> _Seen:
        places, store = self.asked.places, self.store
        collect(store, places, None if store.is_read_only else self._schedulers)
        nothing = "no run matches: nothing to watch; hpcml runs lists those that there are"
        runs = select(store, self.asked.selection, refusal=nothing)
        running = [run for run in runs if run.state is State.RUNNING]
        waiting = [run for run in runs if run.state is State.PENDING]
        live = LiveLook(
            running=self._running(running[:_SHOWN]),
            waiting=self._waiting(waiting[:_SHOWN]),
            n_running=len(running),
            n_waiting=len(waiting),
            problems=list(self._schedulers.problems),
        )
        return _Seen(runs, live)

    def _running(self, records: Sequence[RunRecord]) -> list[RunNow]:
        self._tops = {run.uid: self._tops.get(run.uid) or RunTop(RunDir(Path(run.path))) for run in records}
        return [top.look(time.time())[0] for top in self._tops.values()]

    def _waiting(self, records: Sequence[RunRecord]) -> list[RunNow]:
        standings = with_waits(standing_of(self.store, records), self.asked.places)
        return [_waits(one.record, why_words(one.record, one.known)) for one in standings]

    def _made(self, publication: Publication) -> Page:
        document = publication_document(publication)
        self._count += 1
        version = str(self._count)
        return Page(
            version=version,
            whole=as_live_page(document, period_s=self.asked.interval_s, version=version).encode(),
            news=as_news(document, period_s=self.asked.interval_s, version=version).encode(),
        )


def _with_problem(publication: Publication, problem: str) -> Publication:
    live = publication.live
    return publication if live is None else replace(publication, live=replace(live, problems=[problem]))


def _waits(record: RunRecord, why: str) -> RunNow:
    params: Mapping[str, object] = record.params
    return RunNow(
        uid=record.uid,
        experiment=record.experiment,
        name=record.name or str(params.get("model.name") or "") or None,
        state=record.state,
        is_settled=record.is_settled,
        attempt=record.attempt,
        reason=record.reason,
        job=record.job_id,
        started_at=None,
        ended_at=None,
        notes=[why] if why else [],
    )
