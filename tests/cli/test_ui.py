"""``hpcml ui``: a real Datasette, asked as a browser asks it."""

from __future__ import annotations

import http.cookiejar
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.cli.command_line import HPCML, Hpcml, said_in_one_line
from tests.store.building import Journal, make_run_dir

UID = "20260528-202640-aaaaaaaa"
_PATIENCE_S = 300


@pytest.fixture
def hpcml(hpcml_environ: dict[str, str], tmp_path: Path) -> Hpcml:
    """A user with one run, and a folder of their own for what is temporary."""
    (tmp_path / "tmp").mkdir()
    user = Hpcml(environ={**hpcml_environ, "TMPDIR": str(tmp_path / "tmp")}, cwd=tmp_path)
    Journal(make_run_dir(user.home / "runs", UID)).metrics(1, val_accuracy=0.5)
    return user


@pytest.fixture
def served(hpcml: Hpcml) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The process, and the link that it printed."""
    if "CI" not in os.environ:
        pytest.importorskip("datasette", reason="looks through the store with Datasette")
    process = subprocess.Popen(
        [*HPCML, "ui", "--port", "0"],
        env={**hpcml.environ, "PYTHONUNBUFFERED": "1"},
        cwd=hpcml.cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout is not None
    link, said = "", ""
    for line in process.stdout:
        said += line
        link = link or next(iter(re.findall(r"http://127\.0\.0\.1:\d+/-/auth-token\?token=\w+", line)), "")
        if "running on" in line:
            break
    assert link, said
    reader = threading.Thread(target=process.stdout.read, daemon=True)  # or it would wait for one some day
    reader.start()
    yield process, link
    process.terminate()
    process.wait(_PATIENCE_S)
    reader.join(_PATIENCE_S)
    process.stdout.close()


def test_the_views_are_shown_to_who_has_the_link_and_to_nobody_else(
    served: tuple[subprocess.Popen[str], str], tmp_path: Path
) -> None:
    process, link = served
    base = f"http://{urlsplit(link).netloc}"
    browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(http.cookiejar.CookieJar()))

    with pytest.raises(urllib.error.HTTPError, match="403"):
        urllib.request.urlopen(f"{base}/hpcml/runs.json", timeout=_PATIENCE_S)  # noqa: S310 - this machine's
    browser.open(link, timeout=_PATIENCE_S)
    with browser.open(f"{base}/hpcml/runs.json?_shape=array", timeout=_PATIENCE_S) as answer:
        (run,) = json.load(answer)
    with browser.open(f"{base}/hpcml.json", timeout=_PATIENCE_S) as answer:
        database = json.load(answer)

    assert run["uid"] == UID
    assert {view["name"] for view in database["views"]} >= {"runs", "metrics", "points", "params"}
    assert [table["name"] for table in database["tables"] if not table["hidden"]] == []
    process.send_signal(signal.SIGTERM)
    process.wait(_PATIENCE_S)
    assert list((tmp_path / "tmp").iterdir()) == []
    give_up_at = time.monotonic() + _PATIENCE_S
    while is_answering(base) and time.monotonic() < give_up_at:
        time.sleep(0.1)
    assert not is_answering(base)


def is_answering(base: str) -> bool:
    try:
        urllib.request.urlopen(base, timeout=_PATIENCE_S)  # noqa: S310 - this machine's
    except urllib.error.HTTPError:
        return True
    except OSError:
        return False
    return True


def test_without_datasette_a_line_says_what_to_install(hpcml: Hpcml) -> None:
    hide = "import sys; sys.modules['datasette'] = None; from importlib import util; find = util.find_spec; "
    hide += "util.find_spec = lambda name, *rest: None if name == 'datasette' else find(name, *rest); "
    done = subprocess.run(
        [sys.executable, "-c", f"{hide}from hpcml.cli.main import main; main()", "ui"],
        env=hpcml.environ,
        cwd=hpcml.cwd,
        capture_output=True,
        text=True,
        timeout=_PATIENCE_S,
        check=False,
    )

    assert (done.returncode, done.stdout) == (2, "")
    assert said_in_one_line(done) == "hpcml: hpcml ui needs Datasette: pip install 'hpcml[ui]'"
