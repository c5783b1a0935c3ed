"""The webhook of a run whose agent could not call it any more."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from hpcml.runs.journal import events, read_journal
from hpcml.runs.layout import RunDir
from tests.cli.command_line import Hpcml, program
from tests.cli.test_run import SLEEPS, wait_for


@pytest.fixture
def webhook(tmp_path: Path) -> Iterator[tuple[Path, list[dict[str, Any]]]]:
    """A file with the URL of a server of this machine, and what was posted there."""
    posted: list[dict[str, Any]] = []

    class Hook(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            posted.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            return

    server = HTTPServer(("127.0.0.1", 0), Hook)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    file = tmp_path / "webhook"
    file.write_text(f"http://127.0.0.1:{server.server_port}/secret\n")
    file.chmod(0o600)
    yield file, posted
    server.shutdown()
    server.server_close()


def test_whoever_finds_out_that_an_agent_died_tells_it(
    hpcml: Hpcml, webhook: tuple[Path, list[dict[str, Any]]]
) -> None:
    file, posted = webhook
    words = ["schedule.notify=run", f"schedule.webhook_file={file}", "--json"]
    (submitted,) = json.loads(hpcml("run", program(SLEEPS), *words).stdout)
    wait_for(hpcml.cwd / "started")
    run_dir = RunDir(Path(submitted["path"]))
    journals = [read_journal(path) for path in run_dir.journal_files()]
    (started,) = events(journals, "attempt_started")

    os.kill(int(started.details["pid"]), signal.SIGKILL)
    assert hpcml("wait", submitted["uid"]).returncode == 1
    hpcml("status", submitted["uid"])

    (message,) = posted
    assert (message["event"], message["state"], message["run"]["uid"]) == ("run_ended", "LOST", submitted["uid"])
    told = list(events([read_journal(path) for path in run_dir.journal_files()], "notified"))
    assert [event.details for event in told] == [{"what": "run"}]


def test_what_is_passed_over_counts_as_an_end_of_its_sweep(
    hpcml: Hpcml, webhook: tuple[Path, list[dict[str, Any]]]
) -> None:
    file, posted = webhook
    words = ["schedule.notify=sweep", f"schedule.webhook_file={file}", "cluster.max_parallel=1", "--detach"]
    hpcml("run", "-m", program(SLEEPS), "seed=0,1,2", *words)
    wait_for(hpcml.cwd / "started")

    hpcml("cancel", "--experiment", "default", "-y")
    hpcml("wait", "--experiment", "default")

    (message,) = posted
    assert (message["event"], message["states"]) == ("sweep_ended", {"CANCELLED": 3})


def test_a_webhook_that_others_may_read_is_found_by_the_doctor(hpcml: Hpcml, tmp_path: Path) -> None:
    file = tmp_path / "webhook"
    file.write_text("http://127.0.0.1:9/\n")
    file.chmod(0o644)
    (hpcml.cwd / "conf" / "cluster").mkdir(parents=True)
    (hpcml.cwd / "conf" / "cluster" / "mine.yaml").write_text(
        f"# @package _global_\ncluster: {{name: mine, scheduler: local}}\nschedule: {{webhook_file: {file}}}\n"
    )

    done = hpcml("doctor", "--cluster", "mine", "--json")

    found = {entry["check"]: entry for entry in json.loads(done.stdout)}
    assert done.returncode == 1
    assert "chmod 600" in found["webhook"]["found"]
