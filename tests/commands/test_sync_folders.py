"""What `hpcml sync` looks at in the folders of runs: each is listed once, and what dead processes left is found."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import pytest

from hpcml.commands.submit.backends import Backends, Machine
from hpcml.commands.sync import synchronise
from hpcml.paths import Places
from hpcml.runs.atomic import draft_of
from hpcml.runs.private import make_home
from tests.store.building import Journal, make_run_dir


def leave_a_draft(path: Path) -> None:
    """Leave what a process that died while it wrote *path* has left."""
    draft = draft_of(path)
    draft.touch()
    os.utime(draft, (0, 0))


def test_each_folder_of_a_run_is_listed_once_and_cleared_of_what_dead_processes_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    places = Places(home=tmp_path / "home", store_url=str(tmp_path / "home" / "store.db"))
    make_home(places.home)
    run_dirs = [make_run_dir(places.runs, f"20260528-202640-{number:06d}") for number in range(5)]
    for run_dir in run_dirs:
        Journal(run_dir, writer="launch").event("submission_failed", reason="no such account")
    retries = run_dirs[3].path / "retries"
    retries.mkdir()
    leave_a_draft(run_dirs[1].path / "job.sh")
    leave_a_draft(retries / "1.json")
    listed: Counter[str] = Counter()
    really = os.listdir

    def note(folder: str) -> list[str]:
        listed[str(folder)] += 1
        return really(folder)

    monkeypatch.setattr(os, "listdir", note)
    backends = Backends(places=places, machine=lambda: Machine(cores=1, gpus=[]))

    done = synchronise(places, backends, 60.0)

    assert "2 unfinished files of killed processes removed" in done.lines
    assert {listed[str(run_dir.path)] for run_dir in run_dirs} == {1}
    assert listed[str(retries)] == 1
    assert list(retries.iterdir()) == []
