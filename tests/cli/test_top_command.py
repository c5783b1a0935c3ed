"""``hpcml top``: runs and this machine, on a terminal and without one."""

from __future__ import annotations

import json
from pathlib import Path

from tests.agent.node import wait_for
from tests.cli.command_line import Hpcml, program
from tests.cli.terminal import OnTerminal
from tests.cli.test_wait import submit
from tests.cluster.nvml.building import build_library

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


def test_this_machine_is_shown_without_nvml_and_with_it(hpcml: Hpcml, tmp_path: Path) -> None:
    without = hpcml("top", "--local", "--once", HPCML_NVML_LIBRARY=str(tmp_path / "nothing.so"))
    library = build_library(tmp_path)
    having = hpcml(
        "top", "--local", "--json", "--interval", "200ms", HPCML_NVML_LIBRARY=str(library), FAKE_NVML_GPUS="1"
    )

    assert (without.returncode, having.returncode) == (0, 0)
    assert "load " in without.stdout
    assert "nothing.so" in without.stdout.splitlines()[-1]
    node = json.loads(having.stdout)
    (gpu,) = node["gpus"]
    assert gpu["values"]["util_percent"] == 93.0
    assert node["memory_mb"] > 0
    assert not (hpcml.home / "runs").exists()


def test_ctrl_c_ends_the_watch_of_a_machine_and_is_no_failure(hpcml: Hpcml) -> None:
    screen = OnTerminal(hpcml, "top", "--local", "--interval", "100ms")
    screen.until("sample 0.")
    screen.until("cores busy")
    screen.ctrl_c()

    assert screen.end() == 0


def test_what_cannot_be_watched_is_refused_in_one_line(hpcml: Hpcml) -> None:
    for words, said in (
        (("top", "x", "--local"), "--local is this machine, without a run"),
        (("top", "nothing"), "no run is called"),
        (("top", "--local", "--interval", "1ms"), "100ms at least"),
        (("top", "--local", "--interval", "soon"), "--interval='soon'"),
    ):
        done = hpcml(*words)

        assert (done.returncode, done.stdout) == (2, "")
        assert said in done.stderr
        assert done.stderr.count("\n") == 1
