"""Posts a message at the end of a run, or of the last run of a submission (`schedule.notify`), to the user's webhook.

Its URL is in a private file, is a secret, and appears nowhere else.
"""

from __future__ import annotations

import json
import os
import stat
import threading
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from hpcml.agent.assignment import Turn
from hpcml.errors import HpcmlError, require
from hpcml.model.run import Notify
from hpcml.model.state import State
from hpcml.runs.atomic import create_text, write_text
from hpcml.runs.private import make_folder

_RUNS = "runs"  # HOME/runs/EXPERIMENT/UID
_LONGEST_URL = 4096


def tell_of_end(
    turn: Turn, state: State, *, reason: str | None, cause: str | None, wall_s: float | None, tell: Callable[..., None]
) -> None:
    """Post the message that the run's schedule asks for; *tell* journals whether that worked.

    Whatever goes wrong with it (file, network, server) is only journalled, as the event "notify_failed".
    """
    schedule = turn.run.schedule
    if schedule.notify is Notify.never or schedule.webhook_file is None:
        return
    what = schedule.notify.name
    try:
        message = (
            _sweep_message(turn, state)
            if schedule.notify is Notify.sweep
            else run_message(turn, state, reason=reason, cause=cause, wall_s=wall_s)
        )
        if message is None:
            return
        post(Path(schedule.webhook_file).expanduser(), message)
    except (HpcmlError, OSError, RuntimeError) as error:  # the last: `~` of a user without a home
        tell("notify_failed", what=what, error=str(error))
    else:
        tell("notified", what=what)


def run_message(
    turn: Turn, state: State, *, reason: str | None, cause: str | None, wall_s: float | None
) -> dict[str, Any]:
    """Return the JSON message for the end of a run; Slack, Mattermost and Teams show its "text"."""
    run, took = turn.run, ""
    about = {
        "uid": turn.uid,
        "name": run.name or run.model.name,
        "experiment": run.experiment,
        "cluster": run.cluster.name,
    }
    if wall_s is not None:
        minutes, second = divmod(round(wall_s), 60)
        took = f" after {minutes // 60}:{minutes % 60:02d}:{second:02d}"
    why = f": {reason}" if reason else ""
    return {
        "text": f"hpcml: {about['name']} ({turn.uid}) on {about['cluster']}: {state.value}{took}{why}",
        "event": "run_ended",
        "run": about,
        "state": state.value,
        "reason": reason,
        "cause": cause,
        "wall_s": wall_s,
    }


def _sweep_message(turn: Turn, state: State) -> dict[str, Any] | None:
    """Record the end, and return the message if it is the last of its submission; else None.

    None also where the run does not lie in a home's ``runs`` folder, or was not submitted by `hpcml run`.
    """
    origin, parents = turn.manifest.provenance, turn.run_dir.path.parents
    is_in_home = len(parents) > 2 and parents[1].name == _RUNS
    if not is_in_home or origin.submission is None or origin.submission_size is None:
        return None
    folder = parents[2] / "submissions" / "ended" / origin.submission
    counts = record_end(folder, turn.uid, state, size=origin.submission_size)
    if counts is None:
        return None
    shown = ", ".join(f"{count} {word}" for word, count in sorted(counts.items()))
    ended = f"all {counts.total()} runs of {origin.submission} ({turn.run.experiment}) have ended"
    return {
        "text": f"hpcml: {ended}: {shown}",
        "event": "sweep_ended",
        "submission": origin.submission,
        "experiment": turn.run.experiment,
        "states": dict(counts),
    }


def record_end(folder: Path, uid: str, state: State, *, size: int) -> Counter[str] | None:
    """Note the end of a run in *folder*; return the counts by state if it completes those of *size* runs, else None.

    Each end is a file of its own: of lines that several nodes append to one, a network file system loses some. Whoever
    is the first to see all of them sends the message; a run that ends again later does not.
    """
    make_folder(folder, parents=True)
    write_text(folder / uid, state.value)
    ended = [path for path in folder.iterdir() if not path.name.startswith(".")]
    if len(ended) < size:
        return None
    try:
        create_text(folder / ".told", "")
    except FileExistsError:
        return None
    return Counter(path.read_text(encoding="ascii", errors="replace") for path in ended)


def post(url_file: Path, message: Mapping[str, Any], *, timeout_s: float = 10.0) -> None:
    """Post *message* as JSON to the URL in the first line of *url_file*.

    Raises `HpcmlError`, never with a part of the URL, where the file is not private (mode 600), the server does not
    answer within *timeout_s* seconds or with an error. Redirects are refused.
    """
    request = urllib.request.Request(  # noqa: S310 - the scheme was looked at
        _read_url(url_file),
        data=json.dumps(message).encode("utf-8"),
        headers={"Content-Type": "application/json", "User-Agent": "hpcml"},
        method="POST",
    )
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


def _read_url(url_file: Path) -> str:
    """Return the URL; `HpcmlError` where the file is not regular, not this user's, or others may read or write it."""
    what = f"schedule.webhook_file={url_file}"
    try:
        with url_file.open(encoding="utf-8") as file:
            facts = os.fstat(file.fileno())
            is_private = stat.S_ISREG(facts.st_mode) and facts.st_uid == os.getuid() and not facts.st_mode & 0o077
            require(is_private, f"{what} must be yours alone, the URL is a secret: chmod 600 it")
            url = file.readline(_LONGEST_URL).strip()
    except OSError as error:
        raise HpcmlError(f"{what} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise HpcmlError(f"{what} cannot be read: it is no text") from None
    require(_is_good(url), f"{what} holds no https:// or http:// URL in its first line")
    return url


def _is_good(url: str) -> bool:
    try:
        parts = urlsplit(url)
        has_place = bool(parts.hostname) and parts.port != 0
    except ValueError:  # no port, no address
        return False
    return parts.scheme in ("https", "http") and has_place and url.isascii() and url.isprintable() and " " not in url


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
        return f"the webhook cannot be reached: {type(inner).__name__}"
