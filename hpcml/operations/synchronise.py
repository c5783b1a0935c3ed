"""Everything put right that can be: interrupted submissions finished, ends found out, retries made, journals read."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from hpcml.operations import elsewhere, recover
from hpcml.operations.backends import Backends
from hpcml.operations.collect import collect, opened
from hpcml.operations.remove import finish_removals
from hpcml.operations.retry import to_retry
from hpcml.operations.wait import Waiting, retry_all
from hpcml.places import Places
from hpcml.store.engine import Store
from hpcml.store.ingest import IngestReport
from hpcml.store.missing import Damage, damage, runs_below, without_directory

_WATCH_PERIOD_S = 5.0
_SHARE = 4.0  # so many times longer than looking takes is slept
_SHOWN = 3  # runs in one line


@dataclass(frozen=True, slots=True, kw_only=True)
class Synchronised:
    """What was done, a line each; `waiting` are submissions that can be finished only once their scheduler answers."""

    report: IngestReport
    lines: Sequence[str]
    warnings: Sequence[str]
    waiting: int


def synchronise(places: Places, backends: Backends, interval_s: float, *, is_anew: bool = False) -> Synchronised:
    """Finish interrupted submissions, then read and ask once, then retry what the cluster failed.

    *is_anew* reads every journal from its beginning, as a store that was deleted would.
    """
    recovered = recover.recover(places, backends)
    with opened(places) as store:
        removed = finish_removals(places, store)
        waiting = Waiting(store=store, places=places, backends=backends, interval_s=interval_s)
        asked = waiting.asked()
        collected = collect(store, places, asked, is_anew=is_anew)
        retried, _ = retry_all(waiting, to_retry(store, places))
        missing = [_in_words(damage(store)), *_gone(store, places)]
    lines = [_counted(recovered.finished, "finished"), _counted(recovered.removed, "never began and removed")]
    lines += [f"{removed} interrupted removal{'s' if removed != 1 else ''} finished"] if removed else []
    return Synchronised(
        report=collected.report,
        lines=[*filter(None, lines), *retried],
        warnings=[*recovered.waiting, *asked.problems, *filter(None, missing)],
        waiting=len(recovered.waiting),
    )


def keep_synchronised(
    places: Places, backends: Backends, interval_s: float, *, is_anew: bool = False
) -> Iterator[Synchronised]:
    """Do it again and again, and yield what was done each time; it ends only with the caller."""
    while True:
        began = time.monotonic()
        yield synchronise(places, backends, interval_s, is_anew=is_anew)
        is_anew = False
        time.sleep(max(_WATCH_PERIOD_S, _SHARE * (time.monotonic() - began)))


def _counted(count: int, what: str) -> str | None:
    return f"{count} interrupted submission{'s' if count != 1 else ''} {what}" if count else None


def _in_words(missing: Damage) -> str | None:
    if not missing.uids:
        return None
    what = f"lost records: {missing.lost_records}, unreadable lines: {missing.bad_lines}"
    return f"{what}, in all journals of {_named(missing.uids)}"


def _gone(store: Store, places: Places) -> Iterator[str]:
    """Yield what there is to say of runs whose directories were not found."""
    gone = without_directory(store, elsewhere.roots(places))
    if gone:
        yield f"the directories of {_named(gone)} are gone: hpcml rm --gone takes them out of the store, too"
    for folder in elsewhere.folders(places):
        if not folder.is_dir():
            runs = len(runs_below(store, folder))
            yield f"{folder} is not there: its {runs} runs are kept as they were; hpcml ingest --forget drops them"


def _named(uids: Sequence[str]) -> str:
    runs = f"{len(uids)} run{'s' if len(uids) != 1 else ''}"
    return f"{runs} ({', '.join(uids[:_SHOWN])}{', ...' if len(uids) > _SHOWN else ''})"
