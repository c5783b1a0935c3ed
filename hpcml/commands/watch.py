"""The report of an experiment as a page that is made anew while its runs go, for ``hpcml watch``.

Everybody on this machine can reach its ports, and so can any page that is open in the user's browser. So the address
has a secret in it, and a request under another host's name (DNS rebinding) is refused.
"""

from __future__ import annotations

import hmac
import re
import secrets
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import ThreadingTCPServer
from threading import Lock

from hpcml.commands.collect import collect, opened
from hpcml.commands.report import Wish, gather
from hpcml.commands.selection import Selection, select
from hpcml.commands.status import SchedulersAsked, standing_of, with_waits
from hpcml.commands.submit.backends import Backends
from hpcml.commands.top import look_once
from hpcml.errors import ConfigError, HpcmlError
from hpcml.model.live import RunNow
from hpcml.model.records import RunRecord
from hpcml.model.state import State
from hpcml.paths import Places
from hpcml.report.contents import LiveLook
from hpcml.report.publication import publication_document
from hpcml.report.render.html.page import as_page
from hpcml.report.status import why_words
from hpcml.runs.layout import RunDir

HOST = "127.0.0.1"
FIRST_PORT = 8010
_TRIED = 20  # ports from the first on
_OWN_NAME = re.compile(r"(?:127\.0\.0\.1|localhost|\[::1\])(?::[0-9]+)?", re.IGNORECASE)  # a tunnel's end has any port
_PATIENCE_S = 30  # with who is slow to ask, or to read
_SHOWN = 50  # running runs whose files are read, and as many that wait
_HEADERS: Mapping[str, str] = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "frame-ancestors 'none'",  # the rest stands in the page, with its scripts' digests
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Watch:
    """What is watched, where, and how often: *interval_s* between two pages, *poll_s* between two to a scheduler."""

    places: Places
    selection: Selection
    wish: Wish
    backends: Backends
    interval_s: float
    poll_s: float


def watch(asked: Watch, *, port: int | None, ready: Callable[[str], None]) -> None:
    """Serve the report of the selected runs until interrupted; *ready* is called with the link, which has a secret.

    *port* None takes the first free one from `FIRST_PORT` on, 0 any. Raises `ConfigError` where it is taken, and where
    no run is selected.
    """
    page = LivePage(asked)
    page.html()
    for number in (signal.SIGTERM, signal.SIGHUP):  # which end a session
        signal.signal(number, signal.default_int_handler)
    token = secrets.token_urlsafe(24)
    with suppress(KeyboardInterrupt), _bound(page, f"/{token}/", port) as server:
        ready(f"http://{HOST}:{server.server_address[1]}/{token}/")
        server.serve_forever(poll_interval=0.1)


@dataclass(slots=True)
class LivePage:
    """The page, which is made when it is asked for, and not again within the interval."""

    asked: Watch
    _lock: Lock = field(default_factory=Lock)
    _html: bytes = b""
    _made_at: float = float("-inf")

    def html(self) -> bytes:
        """Return the page as things stand; raise `HpcmlError` where the store does not answer, or no run matches."""
        with self._lock:
            if time.monotonic() - self._made_at >= self.asked.interval_s:
                self._html = self._made()
                self._made_at = time.monotonic()
            return self._html

    def _made(self) -> bytes:
        asked = self.asked
        with opened(asked.places) as store:
            schedulers = SchedulersAsked(backends=asked.backends, interval_s=asked.poll_s)
            collect(store, asked.places, None if store.is_read_only else schedulers)
            nothing = "no run matches: nothing to watch; hpcml runs lists those that there are"
            runs = select(store, asked.selection, refusal=nothing)
            running = [run for run in runs if run.state is State.RUNNING]
            waiting = [run for run in runs if run.state is State.PENDING]
            live = LiveLook(
                running=look_once([RunDir(Path(run.path)) for run in running[:_SHOWN]]),
                waiting=_waiting(waiting[:_SHOWN], asked.places),
                n_running=len(running),
                n_waiting=len(waiting),
                problems=list(schedulers.problems),
            )
            return as_page(publication_document(gather(store, runs, asked.wish, live))).encode()


def _waiting(records: Sequence[RunRecord], places: Places) -> list[RunNow]:
    standings = with_waits(standing_of(places.home, records), places)
    return [_waits(one.record, why_words(one.record, one.known)) for one in standings]


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


class _Server(ThreadingTCPServer):
    """A server that, unlike http.server's own, asks no resolver for this machine's name."""

    daemon_threads = allow_reuse_address = True

    def __init__(self, page: LivePage, path: str, port: int) -> None:
        self.page, self.path = page, path
        super().__init__((HOST, port), _Handler)

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing: who hung up, or was slow, is no error of ours."""


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = _PATIENCE_S

    def log_message(self, *_: object) -> None:
        """Print nothing: a line for each question would bury the link."""

    def do_GET(self) -> None:
        """Send the page, which its browser asks for again after the interval."""
        hosts = self.headers.get_all("Host", [])
        if len(hosts) != 1 or _OWN_NAME.fullmatch(hosts[0]) is None:
            self._answer(HTTPStatus.FORBIDDEN, b"asked for under another host's name\n")
        elif not hmac.compare_digest(self.path.encode("utf-8", "replace"), self.server.path.encode()):
            self._answer(HTTPStatus.NOT_FOUND, b"nothing here: open the link that hpcml watch printed\n")
        else:
            try:
                self._answer(HTTPStatus.OK, self.server.page.html(), kind="html")
            except (HpcmlError, OSError) as error:
                self._answer(HTTPStatus.SERVICE_UNAVAILABLE, f"{error}\n".encode())

    def _answer(self, status: HTTPStatus, body: bytes, *, kind: str = "plain") -> None:
        self.send_response(status)
        again = {"Refresh": f"{self.server.page.asked.interval_s:g}"}
        about = {"Content-Type": f"text/{kind}; charset=utf-8", "Content-Length": str(len(body))}
        for name, value in {**_HEADERS, **about, **again}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)


def _bound(page: LivePage, path: str, port: int | None) -> _Server:
    trouble = ""
    for tried in [port] if port is not None else range(FIRST_PORT, FIRST_PORT + _TRIED):
        try:
            return _Server(page, path, tried)
        except OSError as error:
            trouble = error.strerror or str(error)
    if port is not None:
        raise ConfigError(f"--port {port}: {trouble} (leave it out, and a free one is taken)")
    raise ConfigError(f"no port from {FIRST_PORT} to {FIRST_PORT + _TRIED - 1} is free: give one with --port")
