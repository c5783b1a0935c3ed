"""The store in a browser, by Datasette over a copy of it, for ``hpcml ui``."""

from __future__ import annotations

import importlib.util
import json
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NoReturn

from hpcml.commands.collect import collect, opened
from hpcml.errors import ConfigError
from hpcml.paths import Places
from hpcml.store.admin import copy_into, inner_tables

_HOST = "127.0.0.1"
_NAME = "hpcml"
_STATEMENT_MS = 30_000
_PAGE = 100  # rows
_OUR_USER = "root"  # Datasette's word for whoever has the link that it prints


def serve(places: Places, *, port: int, is_opening: bool) -> int:
    """Serve a copy of the store, as it is now, in a browser on this machine until interrupted.

    Only whoever has the link that Datasette prints may read it, since other users of this machine can reach its ports.
    *port* 0 takes any free one; *is_opening* opens a browser. Return Datasette's exit status; raises `ConfigError`
    where Datasette is not installed.
    """
    if importlib.util.find_spec("datasette") is None:
        raise ConfigError("hpcml ui needs Datasette: pip install 'hpcml[ui]'")
    # a copy: Datasette can take for granted that nothing changes it, wherever the store lies
    with tempfile.TemporaryDirectory(prefix="hpcml-ui-") as folder:
        copy, metadata = Path(folder) / f"{_NAME}.db", Path(folder) / "metadata.json"
        with opened(places) as store:
            collect(store, places)
            copy_into(store, copy)
        metadata.write_text(json.dumps(_metadata(copy)), encoding="utf-8")
        words = [
            sys.executable,
            "-P",
            "-m",
            "datasette",
            "serve",
            "--immutable",
            str(copy),
            "--metadata",
            str(metadata),
        ]
        # the link with a secret in it: others who work on this machine can reach its ports
        words += ["--host", _HOST, "--port", str(port or _free_port()), "--root"]
        words += ["--setting", "sql_time_limit_ms", str(_STATEMENT_MS), "--setting", "default_page_size", str(_PAGE)]
        return _run_until_told([*words, *(["--open"] if is_opening else [])])


def _run_until_told(words: list[str]) -> int:
    """Run a program until it ends or we are told to; it never outlives us."""
    before = {number: signal.signal(number, _interrupt) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        process = subprocess.Popen(words)
        try:
            return process.wait()
        except KeyboardInterrupt:
            process.terminate()
            return process.wait()
        finally:
            process.kill()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _interrupt(*_: object) -> NoReturn:
    raise KeyboardInterrupt


def _free_port() -> int:
    with socket.socket() as one:  # Datasette would take any free one itself, but print the link with 0 in it
        one.bind((_HOST, 0))
        return int(one.getsockname()[1])


def _metadata(copy: Path) -> dict[str, object]:
    hidden = {name: {"hidden": True} for name in inner_tables(copy)}
    return {"title": "hpcml", "allow": {"id": _OUR_USER}, "databases": {_NAME: {"tables": hidden}}}
