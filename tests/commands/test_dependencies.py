"""Runs that wait for other runs on this machine: by id, name, experiment or `@1`."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from hpcml_client.journal import JournalWriter
from tests.cli.command_line import Hpcml, program

WAITS = program("import pathlib, time\nwhile not pathlib.Path('go').exists(): time.sleep(0.05)")
FAILS = program(
    "import pathlib, time\n"
    "while not pathlib.Path('go').exists(): time.sleep(0.05)\n"
    "raise SystemExit(not pathlib.Path('good').exists())"
)
SMALL = ("resources.cpus_per_task=1",)


@pytest.fixture
def hpcml(hpcml_environ: dict[str, str], tmp_path: Path) -> Hpcml:
    cwd = tmp_path / "project"
    cwd.mkdir()
    return Hpcml(environ=hpcml_environ, cwd=cwd)


def submit(hpcml: Hpcml, *words: str, size: tuple[str, ...] = SMALL) -> list[str]:
    """Return the uids."""
    done = hpcml("run", *words, *size, "--detach", "--json")
    assert done.returncode == 0, done.stderr
    return [entry["uid"] for entry in json.loads(done.stdout)]


def run_of(hpcml: Hpcml, uid: str) -> dict[str, Any]:
    return next(run for run in hpcml.runs() if run["uid"] == uid)


def until(hpcml: Hpcml, uid: str, state: str) -> dict[str, Any]:
    end = time.monotonic() + 300
    while (run := run_of(hpcml, uid))["state"] != state:
        assert time.monotonic() < end, run
        time.sleep(0.2)
    return run


def test_a_run_begins_when_what_it_waits_for_has_completed(hpcml: Hpcml) -> None:
    (first,) = submit(hpcml, WAITS, "experiment=first", "name=base")
    waiting = [
        submit(hpcml, program("pass"), f"resources.dependency=afterok:{reference}")[0]
        for reference in (first, first[-6:], "base", "first")
    ]
    (newest,) = submit(hpcml, program("pass"), "resources.dependency=afterany:@1")
    until(hpcml, first, "RUNNING")
    time.sleep(1)
    assert {run_of(hpcml, uid)["state"] for uid in (*waiting, newest)} == {"PENDING"}

    (hpcml.cwd / "go").touch()

    for uid in (*waiting, newest):
        until(hpcml, uid, "COMPLETED")
    ends = {run["uid"]: (run["t_start"], run["t_end"]) for run in hpcml.runs()}
    assert all(ends[uid][0] >= ends[first][1] for uid in waiting)
    assert ends[newest][0] >= ends[waiting[-1]][1]
    assert run_of(hpcml, waiting[1])["params"]["resources.dependency"] == f"afterok:{first}"


def test_a_run_waits_for_all_of_the_last_submission(hpcml: Hpcml) -> None:
    both = submit(hpcml, WAITS, "-m", "seed=1,2")

    (after,) = submit(hpcml, program("pass"), "seed=3", "resources.dependency=afterok:@-1")
    (hpcml.cwd / "go").touch()

    until(hpcml, after, "COMPLETED")
    assert run_of(hpcml, after)["params"]["resources.dependency"] == f"afterok:{both[0]}:{both[1]}"
    assert hpcml("logs", "@-1").returncode == hpcml("show", "@-1").returncode == 0
    newest, last = hpcml("top", "--once", "@1").stdout, hpcml("top", "--once", "--json", "@-2").stdout
    assert newest.split()[0] == after
    assert [run["uid"] for run in json.loads(last)] == both
    assert "@-2 is a submission of 2 runs" in hpcml("show", "@-2").stderr


def test_who_waits_is_told_for_what_and_in_which_order(hpcml: Hpcml) -> None:
    all_cores = (f"resources.cpus_per_task={len(os.sched_getaffinity(0))}",)
    (first,) = submit(hpcml, WAITS, size=all_cores)
    until(hpcml, first, "RUNNING")

    (second,) = submit(hpcml, program("pass"), size=all_cores)
    alone = hpcml("top", "--once", second).stdout
    time.sleep(1.1)  # ids, and with them the order of arrival, go by seconds
    (third,) = submit(hpcml, program("pass"), "seed=3", size=all_cores)
    said, listed = hpcml("top", "--once", third).stdout, hpcml("status", third).stdout
    (hpcml.cwd / "go").touch()

    assert "waiting for" in " ".join(alone.split()), alone
    assert "no. 1 of" not in alone
    assert "no. 2 of 2 that wait on this machine" in " ".join(said.split()), said
    assert "no. 2 of 2 that wait on this machine" in " ".join(listed.split()), listed
    until(hpcml, third, "COMPLETED")


def test_a_dependency_that_cannot_come_true_ends_the_run_with_the_reason(hpcml: Hpcml) -> None:
    (first,) = submit(hpcml, FAILS)
    (good,) = submit(hpcml, program("pass"), f"resources.dependency=afterok:{first}")
    (bad,) = submit(hpcml, program("pass"), f"resources.dependency=afternotok:{first}")
    (after_that,) = submit(hpcml, program("pass"), f"resources.dependency=afterok:{good}")

    (hpcml.cwd / "go").touch()

    ended = until(hpcml, good, "CANCELLED")
    assert (ended["cause"], ended["reason"]) == (
        "dependency", f"never ran: it waits for run {first} (afterok), which is FAILED",
    )  # fmt: skip
    until(hpcml, bad, "COMPLETED")
    assert f"run {good} (afterok), which is CANCELLED" in until(hpcml, after_that, "CANCELLED")["reason"]


def test_a_run_that_was_ended_while_it_waited_does_not_begin_after_all(hpcml: Hpcml) -> None:
    (first,) = submit(hpcml, WAITS)
    (second,) = submit(hpcml, program("pass"), f"resources.dependency=afterok:{first}")
    (third,) = submit(hpcml, program("pass"), f"resources.dependency=afterok:{first}")
    with JournalWriter.open(f"{run_of(hpcml, second)['path']}/journal", run=second, writer="collect") as journal:
        journal.event("ended_by_scheduler", {"state": "CANCELLED", "reason": "never ran", "cause": "dependency"})

    (hpcml.cwd / "go").touch()

    until(hpcml, third, "COMPLETED")
    time.sleep(2)  # its queue has looked
    assert run_of(hpcml, second)["state"] == "CANCELLED"
    assert not list(Path(run_of(hpcml, second)["path"]).glob("journal/*-agent.jsonl"))


def test_it_is_retried_once_what_it_waits_for_is_good(hpcml: Hpcml) -> None:
    (first,) = submit(hpcml, FAILS)
    (second,) = submit(hpcml, program("pass"), f"resources.dependency=afterok:{first}")
    (hpcml.cwd / "go").touch()
    until(hpcml, second, "CANCELLED")

    (hpcml.cwd / "good").touch()
    assert hpcml("retry", "--cause", "program", "-y").returncode == 0
    until(hpcml, first, "COMPLETED")
    assert hpcml("retry", second, "-y").returncode == 0

    until(hpcml, second, "COMPLETED")


@pytest.mark.parametrize(
    ("dependency", "said"),
    [
        ("afterok:nobody", "no experiment is called 'nobody'"),
        ("before:default", "write WORD:RUN[:RUN], where WORD is after, afterany, afterok, afternotok"),
        ("afterok", "write WORD:RUN[:RUN]"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_written(hpcml: Hpcml, dependency: str, said: str) -> None:
    (first,) = submit(hpcml, program("pass"))
    until(hpcml, first, "COMPLETED")

    for more in ((), ("--dry-run",)):
        refused = hpcml("run", program("pass"), "seed=1", f"resources.dependency={dependency}", *more)

        assert refused.returncode == 2
        assert refused.stderr.startswith(f"hpcml: resources.dependency={dependency}: ")
        assert said in refused.stderr
        assert refused.stderr.count("\n") == 1
    assert [run["uid"] for run in hpcml.runs()] == [first]


def test_what_has_come_true_already_is_not_waited_for(hpcml: Hpcml) -> None:
    (first,) = submit(hpcml, program("pass"))
    until(hpcml, first, "COMPLETED")

    (second,) = submit(hpcml, program("pass"), f"resources.dependency=afterok:{first}")

    until(hpcml, second, "COMPLETED")
