"""What the page of ``hpcml watch`` says of runs that end while they are looked at."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hpcml.commands.collect import collect, opened
from hpcml.commands.report import Wish
from hpcml.commands.selection import Selection
from hpcml.commands.submit.backends import Backends
from hpcml.commands.watch import watched
from hpcml.model.comparison import ComparisonRequest
from hpcml.paths import Places
from tests.store.building import Journal, make_run_dir


def test_a_run_that_ends_during_a_look_is_not_shown_as_one_that_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    places = Places(home=tmp_path / "home", store_url=f"sqlite:///{tmp_path}/home/store.db")
    run_dir = make_run_dir(places.home / "runs", "20260528-202640-aaaaaaaa", experiment="looks")
    Journal(run_dir).metrics(1, val_accuracy=0.5)
    agent = Journal(run_dir, writer="agent")
    agent.event("attempt_started", 0.0)
    collects = []

    def ends_after_the_first(*asked: object) -> object:
        found = collect(*asked)  # type: ignore[arg-type]
        if not collects:
            agent.event("attempt_ended", 2.0, state="COMPLETED", exit_code=0, wall_s=2.0)
        collects.append(asked)
        return found

    monkeypatch.setattr(watched, "collect", ends_after_the_first)
    asked = watched.Watch(
        places=places,
        selection=Selection(experiment="looks"),
        wish=Wish(title=None, comparison=ComparisonRequest(), curves=(), command_line=()),
        backends=Backends.here(places, os.environ),
        interval_s=1.0,
        poll_s=60.0,
    )
    with opened(places) as store:
        page = watched.WatchedExperiment(asked, store).page().whole.decode()

    assert len(collects) == 2
    assert "The run has ended" in page
    assert "Right now" not in page
