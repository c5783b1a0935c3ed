"""Everything put right that can be: interrupted submissions finished, ends found out, retries made."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hpcml.operations import recover
from hpcml.operations.backends import Backends
from hpcml.operations.collect import collect, opened
from hpcml.operations.retry import to_retry
from hpcml.operations.wait import Waiting, retry_all
from hpcml.places import Places
from hpcml.store.ingest import IngestReport


@dataclass(frozen=True, slots=True, kw_only=True)
class Synchronised:
    """What was done, a line each; `waiting` are submissions that can be finished only once their scheduler answers."""

    report: IngestReport
    lines: Sequence[str]
    warnings: Sequence[str]
    waiting: int


def synchronise(places: Places, backends: Backends, interval_s: float) -> Synchronised:
    """Finish interrupted submissions, then read and ask once, then retry what the cluster failed."""
    recovered = recover.recover(places, backends)
    with opened(places) as store:
        waiting = Waiting(store=store, places=places, backends=backends, interval_s=interval_s)
        asked = waiting.asked()
        collected = collect(store, places, asked)
        retried, _ = retry_all(waiting, to_retry(store))
    lines = [_counted(recovered.finished, "finished"), _counted(recovered.removed, "never began and removed")]
    return Synchronised(
        report=collected.report,
        lines=[*filter(None, lines), *retried],
        warnings=[*recovered.waiting, *asked.problems],
        waiting=len(recovered.waiting),
    )


def _counted(count: int, what: str) -> str | None:
    return f"{count} interrupted submission{'s' if count != 1 else ''} {what}" if count else None
