"""One state of a run, whichever command is asked."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.command_line import Hpcml
from tests.store.building import Journal, make_run_dir


@pytest.fixture
def hpcml(hpcml_environ: dict[str, str], tmp_path: Path) -> Hpcml:
    return Hpcml(environ=hpcml_environ, cwd=tmp_path)


def test_every_command_calls_a_run_failed_of_which_one_node_failed(hpcml: Hpcml) -> None:
    run_dir = make_run_dir(hpcml.home / "runs")
    first, second = Journal(run_dir, writer="agent"), Journal(run_dir, writer="agent1")
    for node, agent in enumerate((first, second)):
        agent.event("attempt_started", 1.0 + node, node=node)
    first.event("attempt_ended", 10.0, state="COMPLETED", exit_code=0)
    second.event("attempt_ended", 11.0, state="FAILED", exit_code=1, reason="exit status 1")

    commands = (("runs",), ("top", run_dir.uid, "--once"), ("status", run_dir.uid), ("show", run_dir.uid))
    said = {words[0]: json.loads(hpcml(*words, "--json").stdout) for words in commands}
    report = hpcml("report", run_dir.uid, "-o", "page.html")

    states = {name: (told[0] if isinstance(told, list) else told)["state"] for name, told in said.items()}
    assert states == dict.fromkeys(("runs", "top", "status", "show"), "FAILED")
    assert said["show"]["attempts"][-1]["state"] == "FAILED"
    assert report.returncode == 0, report.stderr
    page = (hpcml.cwd / "page.html").read_text()
    assert "FAILED" in page
    assert "COMPLETED" not in page
