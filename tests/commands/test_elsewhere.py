"""Folders of runs that lie elsewhere: given, remembered without a store, let go."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcml.commands import external_runs
from hpcml.errors import ConfigError
from hpcml.paths import Places
from tests.store.building import make_run_dir


@pytest.fixture
def places(tmp_path: Path) -> Places:
    home = tmp_path / "home"
    (home / "runs").mkdir(parents=True)
    return Places(home=home, store_url=str(home / "store.db"))


def give(places: Places, path: Path) -> external_runs.Given:
    given = external_runs.look_at(places, path)
    if given.is_new:
        external_runs.note_down(places, given.folder)
    return given


def test_folders_are_read_in_the_order_in_which_they_were_given_after_ones_own(places: Places, tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("zebra", "ant", "with space\u00e4")]
    for folder in folders:
        make_run_dir(folder)
        assert give(places, folder) == external_runs.Given(folder=folder, runs=1, is_new=True)

    assert external_runs.roots(places) == [places.runs, *folders]


def test_what_is_read_already_is_not_noted_down_again(places: Places, tmp_path: Path) -> None:
    run_dir = make_run_dir(tmp_path / "other")
    own = make_run_dir(places.runs)
    give(places, tmp_path / "other")

    again = [give(places, path).is_new for path in (tmp_path / "other", run_dir.path, own.path, places.home)]

    assert again == [False] * 4
    assert external_runs.folders(places) == [tmp_path / "other"]


def test_of_another_home_the_runs_are_read(places: Places, tmp_path: Path) -> None:
    make_run_dir(tmp_path / "colleague" / "runs")

    assert give(places, tmp_path / "colleague").folder == tmp_path / "colleague" / "runs"
    assert external_runs.let_go(places, tmp_path / "colleague") == (tmp_path / "colleague" / "runs", True)
    assert external_runs.folders(places) == []


@pytest.mark.parametrize(
    ("name", "problem"), [("absent", "is no folder"), ("file", "is no folder"), ("empty", "run.json")]
)
def test_what_holds_no_run_is_refused_in_one_line(places: Places, tmp_path: Path, name: str, problem: str) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "empty").mkdir()

    with pytest.raises(ConfigError, match=problem) as raised:
        external_runs.look_at(places, tmp_path / name)

    assert "\n" not in str(raised.value)
    assert not places.elsewhere.exists()


def test_where_nothing_was_given_there_are_ones_own_runs_alone(places: Places) -> None:
    assert external_runs.roots(places) == [places.runs]
