"""``hpcml watch`` asked as programs ask it: who gets the page, who does not, how it is renewed and how it ends."""

from __future__ import annotations

import http.client
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from html import unescape
from http.client import HTTPResponse
from urllib.parse import urlsplit

import pytest

from hpcml.commands.watch import FIRST_PORT
from tests.cli.command_line import Hpcml, said_in_one_line
from tests.cli.watching_pages import PATIENCE_S, Served, watching
from tests.cluster.postgres.server import missing, running
from tests.store.building import Journal, make_run_dir

UID = "20260528-202640-aaaaaaaa"
HOSTILE = "<script>alert(1)</script>"


@pytest.fixture(scope="module")
def user(tmp_path_factory: pytest.TempPathFactory) -> Hpcml:
    """A user with one run, which seems to go on another machine."""
    folder = tmp_path_factory.mktemp("user")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("HPCML_", "XDG_"))}
    user = Hpcml(environ={**kept, "HOME": str(folder), "HPCML_HOME": str(folder / "hpcml")}, cwd=folder)
    journal = Journal(make_run_dir(user.home / "runs", UID, experiment="looks", name=HOSTILE))
    journal.metrics(1, val_accuracy=0.5)
    return user


@pytest.fixture(scope="module")
def served(user: Hpcml) -> Iterator[Served]:
    with watching(user, "looks", "--port", "0", "--interval", "500ms") as one:
        yield one


def ask(link: str, path: str = "", method: str = "GET", **headers: str) -> tuple[HTTPResponse, str]:
    """Return the answer and its body; *headers* have _ for -."""
    parts = urlsplit(link)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=PATIENCE_S)
    given = {name.replace("_", "-"): value for name, value in headers.items()}
    connection.request(method, path or parts.path, headers=given)
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return answer, body.decode()


def test_who_has_the_link_gets_the_page_and_nothing_that_a_run_brought_along_is_raw(served: Served) -> None:
    answer, body = ask(served.link)

    assert answer.status == 200
    assert "6 runs" not in body
    assert "1 run (" in body
    assert HOSTILE not in body
    assert "&lt;script&gt;alert(1)" in body
    headers = answer.headers
    assert headers["Cache-Control"] == "no-store"
    assert headers["Referrer-Policy"] == "no-referrer"
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Content-Security-Policy"] == "frame-ancestors 'none'"
    policy = unescape(body.partition('Content-Security-Policy" content="')[2].partition('"')[0])
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "base-uri 'none'; form-action 'none'" in policy


def test_without_the_secret_there_is_nothing(served: Served) -> None:
    secret = urlsplit(served.link).path
    other = f"{secret[:-2]}{'y' if secret[-2] == 'x' else 'x'}/"

    for path in ("/", secret[:-1], secret[:-2], other, f"{secret}../etc/passwd", f"/x{secret}", "/%00/"):
        answer, body = ask(served.link, path)
        assert (answer.status, "val_accuracy" in body, secret.strip("/") in body) == (404, False, False), path


def test_a_request_under_another_hosts_name_is_refused(served: Served) -> None:
    for host in ("localhost:9000", "127.0.0.1:1", "LOCALHOST", "[::1]:80", "[::1]"):  # the far end of a tunnel, say
        assert ask(served.link, Host=host)[0].status == 200, host
    for host in ("evil.example:8010", "127.0.0.1.evil.example", "localhost:evil", "localhost:", "::1", ""):
        assert ask(served.link, Host=host)[0].status == 403, host


def test_the_page_is_made_anew_while_runs_come(user: Hpcml, served: Served) -> None:
    answer, body = ask(served.link)
    assert answer.headers["Refresh"] == "0.5"
    assert "1 run (" in body

    journal = Journal(make_run_dir(user.home / "runs", f"{UID[:-1]}b", experiment="looks"))
    journal.metrics(1, val_accuracy=0.75)

    assert "val_accuracy" in once(served.link, "2 runs (")


def test_a_slow_asker_is_hung_up_on_and_many_of_them_do_not_stop_the_page(served: Served) -> None:
    address = (urlsplit(served.link).hostname or "", urlsplit(served.link).port or 0)
    idle = [socket.create_connection(address, timeout=PATIENCE_S) for _ in range(20)]

    assert ask(served.link)[0].status == 200
    for one in idle:
        one.close()


def test_a_port_that_is_taken_is_one_line_and_without_a_wish_the_next_is_taken(user: Hpcml) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        done = user("watch", "looks", "--port", str(port))
    assert (done.returncode, done.stdout) == (2, "")
    assert said_in_one_line(done).startswith(f"hpcml: --port {port}: Address already in use")

    with watching(user, "looks") as first, watching(user, "looks") as second:
        ports = [urlsplit(one.link).port or 0 for one in (first, second)]
        assert FIRST_PORT <= ports[0] < ports[1]
        assert ask(second.link)[0].status == 200


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_says_how_to_open_it_from_elsewhere_and_ends_with_ctrl_c_and_with_the_session(
    user: Hpcml, number: int
) -> None:
    with watching(user, "looks", "--port", "0") as served:
        port = urlsplit(served.link).port
        assert served.end(number) == 0
        with pytest.raises(ConnectionRefusedError):
            ask(served.link)

    tunnel, _, last = served.said.splitlines()[-3:]
    assert tunnel.startswith(f"from another machine, there: ssh -N -L {port}:127.0.0.1:{port} ")
    assert last == "ended; the runs go on"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nothing"], "no run matches: nothing to watch; hpcml runs lists those that there are"),
        (["looks", "--interval", "1ms"], "--interval 1ms is too short: 500ms at least"),
        (["looks", "--port", "70000"], "Invalid value for '--port'"),
        ([], "Missing argument 'EXPERIMENT'"),
    ],
)
def test_what_cannot_be_watched_is_one_line_and_nothing_is_served(user: Hpcml, words: list[str], said: str) -> None:
    done: subprocess.CompletedProcess[str] = user("watch", *words)

    assert (done.returncode, done.stdout) == (2, "")
    assert said in said_in_one_line(done)


@pytest.mark.skipif(missing() is not None and os.environ.get("CI") != "true", reason=str(missing()))
def test_a_store_that_went_away_is_told_until_it_is_back(user: Hpcml) -> None:
    with running() as server:
        server.sql("CREATE DATABASE watched")
        of_postgres = Hpcml(environ={**user.environ, "HPCML_STORE": server.url("watched")}, cwd=user.cwd)
        with watching(of_postgres, "looks", "--port", "0", "--interval", "500ms") as served:
            assert "val_accuracy" in ask(served.link)[1]

            server.stop()
            once(served.link, "cannot be used: ")

            server.start()
            once(served.link, "val_accuracy", but_not="cannot be used: ")
            assert served.end(signal.SIGINT) == 0


def once(link: str, text: str, *, but_not: str = "") -> str:
    """Return the first page that has *text*, without *but_not*."""
    give_up_at = time.monotonic() + PATIENCE_S
    while text not in (page := ask(link)[1]) or (but_not and but_not in page):
        assert time.monotonic() < give_up_at, page
        time.sleep(0.2)
    return page
