"""``hpcml top``: runs, on a terminal and without one."""

from __future__ import annotations

import json
from pathlib import Path

from tests.agent.node import wait_for
from tests.cli.command_line import Hpcml, program
from tests.cli.terminal import OnTerminal
from tests.cli.test_wait import submit

REPORTS = """
import os, time
from hpcml_client import connect
with connect() as run:
    run.event("training", steps=40)
    run.metrics({"loss": 0.5}, 10)
    while not os.path.exists("finish"): time.sleep(0.05)
    run.metrics({"loss": 0.25}, 40)
"""


def began(hpcml: Hpcml, uid: str) -> bool:
    done = hpcml("top", uid, "--json")
    assert done.returncode == 0, done.stderr
    (run,) = json.loads(done.stdout)
    return run["step"] == 10 and bool(run["nodes"]) and run["nodes"][0]["sampled_at"] is not None


def test_a_run_is_watched_to_its_end(hpcml: Hpcml) -> None:
    (uid,) = submit(hpcml, program(REPORTS), "telemetry.interval=100ms", "name=base")
    wait_for(lambda: began(hpcml, uid), "the program's first metrics")
    assert [run["uid"] for run in json.loads(hpcml("top", "--json").stdout)] == [uid]

    screen = OnTerminal(hpcml, "top", "base", "--interval", "200ms")
    screen.until("step 10/40 (25 %)")
    screen.until("cores busy")
    (Path(hpcml.cwd) / "finish").touch()
    screen.until("COMPLETED")
    assert screen.end() == 0

    once = hpcml("top", "base", uid)  # the same run twice is one
    assert once.returncode == 0
    assert f"{uid}  COMPLETED" in once.stdout
    assert "step 40/40 (100 %)" in once.stdout
    assert "sampling has ended" in once.stdout
    assert hpcml("top").stdout.startswith("no run waits or runs: ")


def test_what_cannot_be_watched_is_refused_in_one_line(hpcml: Hpcml) -> None:
    for words, said in (
        (("top", "nothing"), "no run is called"),
        (("top", "--interval", "1ms"), "100ms at least"),
        (("top", "--interval", "soon"), "--interval='soon'"),
    ):
        done = hpcml(*words)

        assert (done.returncode, done.stdout) == (2, "")
        assert said in done.stderr
        assert done.stderr.count("\n") == 1
