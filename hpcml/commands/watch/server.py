"""A page on the loopback interface that only who has its link can read, for ``hpcml watch``.

Everybody who works on this machine can reach its ports, and so can any page that is open in the user's browser. So the
address has a secret in it, which is compared in constant time, and a request that was made under another host's name
is refused: a name that its owner lets point to this machine (DNS rebinding) opens nothing.
"""

from __future__ import annotations

import gzip
import hmac
import re
import secrets
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar

from hpcml.errors import ConfigError

HOST = "127.0.0.1"
FIRST_PORT = 8010
_TRIED = 20  # ports from the first on
_OWN_NAME = re.compile(r"(?:127\.0\.0\.1|localhost|\[::1\])(?::[0-9]+)?", re.IGNORECASE)  # a tunnel's end has any port
_MOST_ASKING = 32  # at once: more threads are not started
_PATIENCE_S = 30  # with who is slow to ask, or to read
_SMALL = 1024  # bytes that are not worth packing


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """One state of the page: *whole* as it is opened, *news* as it follows itself; *version* tells it from others."""

    version: str
    whole: bytes
    news: bytes


@dataclass(slots=True)
class Shelf:
    """The newest page, between the thread that makes it and those that hand it out; `asked` is set by each of these."""

    page: Page
    asked: threading.Event = field(default_factory=threading.Event)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = _MOST_ASKING

    def __init__(self, port: int, shelf: Shelf, token: str) -> None:
        self.shelf, self.token = shelf, token
        self._free = threading.BoundedSemaphore(_MOST_ASKING)
        super().__init__((HOST, port), _Handler)

    def server_bind(self) -> None:
        """Bind without asking for this machine's name, which HTTPServer does: resolvers may be slow, or away."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = HOST, int(self.server_address[1])

    def process_request(self, request: socket.socket | tuple[bytes, socket.socket], client_address: object) -> None:
        """Answer in a thread of its own, unless too many are asking: then this one is hung up on."""
        if self._free.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(
        self, request: socket.socket | tuple[bytes, socket.socket], client_address: object
    ) -> None:
        """Answer, and make room for another."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing: who hung up, or was slow, is no error of ours."""


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = _PATIENCE_S
    protocol_version = "HTTP/1.0"  # a connection for each question: nobody keeps a thread
    _HEADERS: ClassVar[dict[str, str]] = {
        "Cache-Control": "no-store",
        "Content-Security-Policy": "frame-ancestors 'none'",  # the rest stands in the page, with its scripts' digests
        "Cross-Origin-Opener-Policy": "same-origin",
        "Cross-Origin-Resource-Policy": "same-origin",
        "Referrer-Policy": "no-referrer",
        "X-Content-Type-Options": "nosniff",
        "X-Frame-Options": "DENY",
    }

    def version_string(self) -> str:
        """Return what the header ``Server`` says: nothing that helps a stranger."""
        return "hpcml"

    def log_message(self, *_: object) -> None:
        """Print nothing: a line for each question would bury the link."""

    def do_GET(self) -> None:
        """Hand out the page, or what is new of it."""
        if not _is_own(self.headers.get_all("Host", [])):
            self._answer(HTTPStatus.FORBIDDEN, b"asked for under another host's name\n")
            return
        secret, slash, rest = self.path.removeprefix("/").partition("/")
        is_known = hmac.compare_digest(secret.encode("utf-8", "replace"), self.server.token.encode())
        if not is_known or rest not in ("", "now"):
            self._answer(HTTPStatus.NOT_FOUND, b"nothing here: open the link that hpcml watch printed\n")
            return
        if not slash:  # cut off in copying: what the page asks for lies below
            self._answer(HTTPStatus.PERMANENT_REDIRECT, b"", {"Location": f"/{self.server.token}/"})
            return
        page = self.server.shelf.page
        self.server.shelf.asked.set()
        if rest == "now" and self.headers.get("If-None-Match") == f'"{page.version}"':
            self._answer(HTTPStatus.NOT_MODIFIED, b"", version=page.version)
            return
        self._answer(HTTPStatus.OK, page.news if rest else page.whole, version=page.version)

    def __getattr__(self, name: str) -> Callable[[], None]:
        """Return what answers any other method: http.server looks for ``do_POST`` and the like."""
        if name.startswith("do_"):
            return self._refuse
        raise AttributeError(name)

    def _refuse(self) -> None:
        self._answer(HTTPStatus.METHOD_NOT_ALLOWED, b"only GET\n", {"Allow": "GET"})

    def _answer(
        self, status: HTTPStatus, body: bytes, more: dict[str, str] | None = None, *, version: str | None = None
    ) -> None:
        headers = {**self._HEADERS, **(more or {})}
        headers["Content-Type"] = f"text/{'plain' if version is None else 'html'}; charset=utf-8"
        if version is not None:
            headers["ETag"] = f'"{version}"'
        if len(body) > _SMALL and "gzip" in self.headers.get("Accept-Encoding", ""):
            body, headers["Content-Encoding"] = gzip.compress(body, 4), "gzip"  # a tunnel may be narrow
        headers["Content-Length"] = str(len(body))
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


def _is_own(hosts: list[str]) -> bool:
    """Tell whether a request was made under a name of the loopback interface, whatever the port."""
    return len(hosts) == 1 and _OWN_NAME.fullmatch(hosts[0]) is not None


@contextmanager
def serving(shelf: Shelf, *, port: int | None) -> Iterator[str]:
    """Hand out what is on *shelf* until the end of the block; yield the link, with its secret.

    *port* None takes the first free one from `FIRST_PORT` on, 0 any. Raises `ConfigError` where it is taken.
    """
    token = secrets.token_urlsafe(24)
    server = _bound(shelf, token, port)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True)
    thread.start()
    try:
        yield f"http://{HOST}:{server.server_port}/{token}/"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _bound(shelf: Shelf, token: str, port: int | None) -> _Server:
    for tried in [port] if port is not None else range(FIRST_PORT, FIRST_PORT + _TRIED):
        try:
            return _Server(tried, shelf, token)
        except OSError as error:
            trouble = error.strerror or str(error)
    if port is not None:
        raise ConfigError(f"--port {port}: {trouble} (leave it out, and a free one is taken)")
    raise ConfigError(f"no port from {FIRST_PORT} to {FIRST_PORT + _TRIED - 1} is free: give one with --port")
