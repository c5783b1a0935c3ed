"""Posts messages to a webhook whose URL is in a private file; the URL is a secret and appears nowhere else.

hpcml/agent/notify decides when a message is sent.
"""

from __future__ import annotations

import json
import os
import ssl
import stat
import threading
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any
from urllib.parse import urlsplit

from hpcml.errors import HpcmlError
from hpcml.model.state import State

_LONGEST_URL = 4096


def run_message(
    *,
    uid: str,
    name: str,
    experiment: str,
    cluster: str,
    state: State,
    reason: str | None,
    cause: str | None,
    wall_s: float | None,
) -> dict[str, Any]:
    """Return the JSON message for the end of a run; Slack, Mattermost and Teams show its "text".

    *reason* and *cause* are None for a run that completed; *wall_s* None where nobody knows how long it ran.
    """
    took = "" if wall_s is None else f" after {_clock(wall_s)}"
    why = f": {reason}" if reason else ""
    return {
        "text": f"hpcml: {name} ({uid}) on {cluster}: {state.value}{took}{why}",
        "event": "run_ended",
        "run": {"uid": uid, "name": name, "experiment": experiment, "cluster": cluster},
        "state": state.value,
        "reason": reason,
        "cause": cause,
        "wall_s": wall_s,
    }


def sweep_message(*, submission: str, experiment: str, counts: Mapping[str, int]) -> dict[str, Any]:
    """Return the JSON message for the end of the last run of a submission; *counts* are its runs by state."""
    shown = ", ".join(f"{count} {state}" for state, count in sorted(counts.items()))
    return {
        "text": f"hpcml: all {sum(counts.values())} runs of {submission} ({experiment}) have ended: {shown}",
        "event": "sweep_ended",
        "submission": submission,
        "experiment": experiment,
        "states": dict(counts),
    }


def post(url_file: Path, message: Mapping[str, Any], *, timeout_s: float = 10.0) -> None:
    """Post *message* as JSON to the URL in the first line of *url_file*.

    Raises `HpcmlError`, never with a part of the URL, where the file is not private (mode 600), the server does not
    answer within *timeout_s* seconds or with an error. Redirects are refused.
    """
    request = _request(url_file, json.dumps(message).encode("utf-8"))
    problem: list[str | None] = [f"the webhook gave no answer within {timeout_s:g} s"]
    # A time limit of urllib's is for each step of the exchange, and the resolver of names has none at all.
    thread = threading.Thread(target=lambda: problem.__setitem__(0, _send(request, timeout_s)), daemon=True)
    thread.start()
    thread.join(timeout_s)
    if problem[0] is not None:
        raise HpcmlError(problem[0])


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Follows none: the message would go to somebody else, or become a GET without it."""

    def redirect_request(self, *_: object) -> None:
        return None


def _request(url_file: Path, body: bytes) -> urllib.request.Request:
    url = _read_url(url_file)
    if not _is_good(url):
        raise HpcmlError(f"schedule.webhook_file={url_file} holds no https:// or http:// URL in its first line")
    return urllib.request.Request(  # noqa: S310 - the scheme was looked at
        url, data=body, headers={"Content-Type": "application/json", "User-Agent": "hpcml"}, method="POST"
    )


def _is_good(url: str) -> bool:
    try:
        parts = urlsplit(url)
        has_place = bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:  # no port, no address
        return False
    return parts.scheme in ("https", "http") and has_place and url.isascii() and url.isprintable() and " " not in url


def _read_url(url_file: Path) -> str:
    try:
        with url_file.open(encoding="utf-8") as file:
            return _first_line(url_file, file)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no text"
        raise HpcmlError(f"schedule.webhook_file={url_file} cannot be read: {why}") from None


def _first_line(url_file: Path, file: IO[str]) -> str:
    """Return the URL; `HpcmlError` where the file is not regular, not this user's, or others may read or write it."""
    facts = os.fstat(file.fileno())
    if not stat.S_ISREG(facts.st_mode) or facts.st_uid != os.getuid() or stat.S_IMODE(facts.st_mode) & 0o077:
        raise HpcmlError(f"schedule.webhook_file={url_file} must be yours alone, the URL is a secret: chmod 600 it")
    return file.readline(_LONGEST_URL).strip()


def _send(request: urllib.request.Request, timeout_s: float) -> str | None:
    """Return what went wrong, in words that hold nothing of the URL, as those of the exceptions may."""
    try:
        with urllib.request.build_opener(_NoRedirects).open(request, timeout=timeout_s):
            return None
    except urllib.error.HTTPError as error:
        error.close()
        return f"the webhook answered {error.code}"  # with a redirect, say, which is not followed
    except Exception as error:  # noqa: BLE001 - whatever it is, its words are not shown
        inner = error.reason if isinstance(error, urllib.error.URLError) else error
        number = inner.errno if isinstance(inner, OSError) and not isinstance(inner, ssl.SSLError) else None
        why = os.strerror(number) if number is not None and number > 0 else type(inner).__name__
        return f"the webhook cannot be reached: {why}"


def _clock(seconds: float) -> str:
    minutes, second = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{second:02d}"
