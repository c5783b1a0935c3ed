"""Waiting: what is said, when it ends, and that the runs go on without us."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import time
from pathlib import Path

from tests.cli.command_line import HPCML, Hpcml, program
from tests.cli.test_run import wait_for
from tests.cluster.disk.building import build_failing_disk

UNTIL_TOLD = "import os, time; open('started', 'a').write('x')\nwhile not os.path.exists('finish'): time.sleep(0.05)"


def submit(hpcml: Hpcml, *words: str) -> list[str]:
    done = hpcml("run", *words, "--json")
    assert done.returncode == 0, done.stderr
    return [entry["uid"] for entry in json.loads(done.stdout)]


def test_every_end_is_one_line_and_the_exit_code_sums_them_up(hpcml: Hpcml) -> None:
    fails = "import os, sys; sys.exit(3 if os.environ['FAIL'] == '1' else 0)"
    good, bad = submit(hpcml, "-m", program(fails), "+workload.env.FAIL=0,1")

    done = hpcml("wait", good, bad)

    assert done.returncode == 1
    ends = {line.split()[0]: line for line in done.stdout.splitlines()}
    assert set(ends) == {good, bad}
    assert "COMPLETED" in ends[good]
    assert "exit status 3" in ends[bad]
    assert hpcml("wait", good).returncode == 0
    assert hpcml("wait", "--where", "state=COMPLETED").returncode == 0


def test_with_nothing_under_way_there_is_nothing_to_wait_for(hpcml: Hpcml) -> None:
    done = hpcml("wait")

    assert (done.returncode, done.stdout) == (0, "")
    assert "no run is waiting or running" in done.stderr


def test_waiting_ends_after_the_time_given_and_the_runs_go_on(hpcml: Hpcml) -> None:
    (uid,) = submit(hpcml, program(UNTIL_TOLD))

    started = time.monotonic()
    done = hpcml("wait", uid, "--timeout", "2")

    assert done.returncode == 124
    assert time.monotonic() - started < 20
    assert "1 run has not ended within 2 s; it goes on" in done.stderr
    (hpcml.cwd / "finish").touch()
    assert hpcml("wait", uid, "--timeout", "1m").returncode == 0
    assert "--timeout='soon' is no time" in hpcml("wait", uid, "--timeout", "soon").stderr


def test_a_store_that_takes_nothing_for_a_while_does_not_end_the_waiting(hpcml: Hpcml, tmp_path: Path) -> None:
    until_told = "import os, sys, time\nwhile not os.path.exists('finish' + sys.argv[1]): time.sleep(0.05)"
    first, second = submit(hpcml, "-m", program(until_told, "{seed}"), "seed=1,2", "cluster.max_parallel=2")
    over = tmp_path / "over"
    fails = {"LD_PRELOAD": str(build_failing_disk(tmp_path)), "FAILS_WRITE": str(hpcml.home), "FAILS_WHILE": str(over)}

    waiting = subprocess.Popen(
        [*HPCML, "wait", first, second],
        env={**hpcml.environ, **fails},
        cwd=hpcml.cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert waiting.stdout is not None
    (hpcml.cwd / "finish1").touch()
    lines = iter(waiting.stdout.readline, "")
    assert any(first in line and "COMPLETED" in line for line in lines)
    over.touch()
    (hpcml.cwd / "finish2").touch()
    assert any("it is tried again for ten minutes" in line for line in lines)
    over.unlink()
    told, _ = waiting.communicate(timeout=300)

    assert waiting.returncode == 0, told
    assert second in told
    assert "COMPLETED" in told


def test_the_waiting_ends_at_once_where_a_run_was_taken_out_of_the_store(hpcml: Hpcml) -> None:
    until_told = "import os, sys, time\nwhile not os.path.exists('finish' + sys.argv[1]): time.sleep(0.05)"
    first, second = submit(hpcml, "-m", program(until_told, "{seed}"), "seed=1,2", "cluster.max_parallel=2")
    waiting = subprocess.Popen(
        [*HPCML, "wait", first, second],
        env=hpcml.environ,
        cwd=hpcml.cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert waiting.stdout is not None
    (hpcml.cwd / "finish1").touch()
    assert any(first in line and "COMPLETED" in line for line in iter(waiting.stdout.readline, ""))
    waiting.send_signal(signal.SIGSTOP)
    (hpcml.cwd / "finish2").touch()
    assert hpcml("wait", second).returncode == 0
    assert hpcml("rm", "-y", second).returncode == 0

    waiting.send_signal(signal.SIGCONT)
    told, _ = waiting.communicate(timeout=120)

    assert waiting.returncode == 2, told
    assert f"hpcml: no run is called '{second}'" in told


def test_a_run_whose_directory_is_removed_is_waited_for_no_longer(hpcml: Hpcml) -> None:
    first, second = submit(hpcml, "-m", program(UNTIL_TOLD), "seed=1,2", "cluster.max_parallel=2")
    wait_for(hpcml.cwd / "started")
    waiting = hpcml.start("wait", first)
    time.sleep(3.0)

    shutil.rmtree(hpcml.home / "runs" / "default" / first)

    said, errors = waiting.communicate(timeout=300)
    assert waiting.returncode == 1, errors
    assert said.startswith(f"{first}  ")
    assert "LOST" in said
    assert f"{first} was removed while it ran" in said
    assert f"the directory of run {first}, which had not ended, is gone: hpcml rm --gone takes it" in errors
    shown = hpcml("status")
    assert first[-8:] not in shown.stdout
    assert second[-8:] in shown.stdout
    assert f"the directory of run {first}, which had not ended, is gone" in shown.stderr
    (hpcml.cwd / "finish").touch()
    assert hpcml("wait", second, "--timeout", "1m").returncode == 0
    assert not (hpcml.home / "runs" / "default" / first).exists()  # nobody has written an end into it
    assert hpcml("rm", "--gone", "-y").returncode == 0
    assert "gone" not in hpcml("runs").stderr


def test_ctrl_c_stops_waiting_and_the_runs_go_on(hpcml: Hpcml) -> None:
    (ended,) = submit(hpcml, program("pass"))
    (uid,) = submit(hpcml, program(UNTIL_TOLD))
    waiting = hpcml.start("wait", uid, ended)
    assert waiting.stdout is not None
    assert ended in waiting.stdout.readline()  # so it waits by now

    waiting.send_signal(signal.SIGINT)
    _, said = waiting.communicate(timeout=300)

    assert waiting.returncode == 130
    assert "the runs go on" in said
    (hpcml.cwd / "finish").touch()
    assert hpcml("wait", uid, "--timeout", "1m").returncode == 0
