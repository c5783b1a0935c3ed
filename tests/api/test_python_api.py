from __future__ import annotations

import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

import hpcml
from hpcml.api.store import Store
from hpcml.errors import ConfigError, HpcmlError, StoreError
from hpcml.model.precision import PrecisionName
from hpcml.model.records import Point
from hpcml.model.run import Precision
from tests.store.building import T0, Journal, make_run_dir

UIDS = {letter: f"20260528-202640-{letter * 8}" for letter in "abc"}


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Three runs: of fp32, of tf32, and one that has not begun."""
    home = tmp_path / "home"
    for at, (letter, uid) in enumerate(UIDS.items()):
        name = PrecisionName.fp32 if letter == "a" else PrecisionName.tf32
        run_dir = make_run_dir(home / "runs", uid, seed=at, precision=Precision(name=name), tags=["paper"])
        if letter != "c":
            agent, rank0 = Journal(run_dir, writer="agent"), Journal(run_dir, t0=T0 + 1)
            agent.event("attempt_started")
            agent.event("facts", cores=8, mixed="text" if at else 3)
            for step in range(4):
                rank0.metrics(step, step, val_accuracy=step / 10 + at, loss=math.inf if step == 3 else 1.0)
            agent.event("attempt_ended", 10.0, state="COMPLETED", exit_code=0, wall_s=10.0)
    return home


@pytest.fixture
def store(home: Path) -> Store:
    return hpcml.open_store(home=home)


def test_runs_are_found_as_on_the_command_line(store: Store) -> None:
    runs = store.runs("precision=tf32 and val_accuracy>0.9")

    assert [run.uid for run in runs] == [UIDS["b"]]
    assert runs[0] == store.run("bbbbbbbb")
    assert runs == store.runs(["precision=tf32", "val_accuracy>0.9"])
    assert len(store.runs()) == 3
    assert store.runs(sort="seed", descending=True, limit=2).values("seed") == [2, 1]
    assert store.runs().values("seed", "val_accuracy.max", "tag")[1:] == [(1, 1.3, ["paper"]), (2, None, ["paper"])]
    assert repr(runs) == "<1 runs>"


def test_what_comes_later_is_in_the_next_answer(store: Store, home: Path) -> None:
    assert len(store.runs("seed=7")) == 0

    make_run_dir(home / "runs", UIDS["a"][:-1] + "z", seed=7)

    assert len(store.runs("seed=7")) == 1


def test_the_store_is_found_as_the_commands_find_it(
    home: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HPCML_HOME", str(home))
    monkeypatch.setenv("HPCML_STORE", str(tmp_path / "elsewhere.db"))

    assert len(hpcml.open_store().runs()) == 3
    assert (tmp_path / "elsewhere.db").exists()
    assert len(hpcml.open_store(tmp_path / "third.db").runs()) == 3


def test_curves_events_rankings_comparisons_and_sql(store: Store) -> None:
    curves = store.curves(store.runs("state=completed"), points=2)

    assert curves.metric == "val_accuracy"
    assert curves[UIDS["b"]] == [Point(step=0, t_s=1.0, value=1.0), Point(step=3, t_s=4.0, value=1.3)]
    assert list(curves) == [UIDS["a"], UIDS["b"]]
    assert len(store.curves("aaaaaaaa", "loss")[UIDS["a"]]) == 4
    assert len(store.curves([])) == 0
    assert store.events("aaaaaaaa")[0].name == "attempt_started"
    assert [run.uid for run in store.best()] == [UIDS["b"], UIDS["a"]]
    assert [run.uid for run in store.best(by="precision", where="seed<1")] == [UIDS["a"]]
    assert store.query("SELECT uid, count(*) AS n FROM points GROUP BY uid ORDER BY uid")[0] == {
        "uid": UIDS["a"],
        "n": 8,
    }
    assert [row.level for row in store.compare("state=completed", allow_mixed=True).cells[0].rows] == ["fp32", "tf32"]


@pytest.mark.parametrize("where", ["presicion=tf32", "precision=", "precision tf32", "seed>x"])
def test_a_slip_raises_with_one_line(store: Store, where: str) -> None:
    with pytest.raises(StoreError) as refusal:
        store.runs(where)
    assert "\n" not in str(refusal.value)


def test_a_store_that_cannot_be_used_is_refused_when_it_is_opened(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("no database")

    with pytest.raises(HpcmlError, match="no database"):
        hpcml.open_store(tmp_path / "notes.txt", home=tmp_path)


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_runs_points_and_rows_become_frames(store: Store, library: str) -> None:
    if "CI" not in os.environ:
        pytest.importorskip(library, reason="makes frames of it")
    make = f"to_{library}"

    runs = getattr(store.runs(), make)()
    points = getattr(store.curves(["aaaaaaaa", "bbbbbbbb"], "loss"), make)()
    rows = getattr(store.query("SELECT uid, value FROM params WHERE key = 'seed' ORDER BY uid"), make)()
    none = getattr(store.runs("seed=99"), make)()

    assert list(runs["uid"]) == list(UIDS.values())
    assert list(runs["training.batch_size"]) == [64, 64, 64]
    assert list(runs["metrics.val_accuracy"])[:2] == [0.3, 1.3]
    assert list(runs["facts.cores"])[:2] == [8, 8]
    assert [str(value) for value in runs["facts.mixed"]][:2] == ["3", "text"]
    assert list(points.columns) == ["uid", "step", "t_s", "loss"]
    assert list(points["loss"]) == [1.0, 1.0, 1.0, math.inf] * 2
    assert list(rows["value"]) == ["0", "1", "2"]
    assert len(none) == 0


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_a_frame_without_its_library_is_refused_with_what_to_install(
    store: Store, library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, library, None)

    with pytest.raises(ConfigError, match=rf"this needs {library}: pip install 'hpcml\[{library}\]'"):
        getattr(store.runs(), f"to_{library}")()


def test_importing_hpcml_loads_nothing_foreign() -> None:
    code = "import sys; before = set(sys.modules); import hpcml; print(*sorted(set(sys.modules) - before))"

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=True)

    assert {name.partition(".")[0] for name in done.stdout.split()} <= sys.stdlib_module_names | {"hpcml"}
    assert "open_store" in hpcml.__all__
    with pytest.raises(AttributeError, match="nothing_of_ours"):
        hpcml.nothing_of_ours  # noqa: B018


def test_a_comparison_is_shown_as_the_command_prints_it(store: Store, home: Path) -> None:
    compared = store.compare(allow_mixed=True, margin=0.1)

    printed = subprocess.run(
        [sys.executable, "-m", "hpcml", "--home", str(home), "compare", "--allow-mixed", "--margin", "0.1", "--md"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert str(compared) == compared._repr_markdown_() == printed
    assert repr(compared) == "<comparison of 3 runs by precision: val_accuracy>"
    pytest.importorskip("pandas")
    assert list(compared.to_pandas()["level"]) == ["fp32", "tf32"]
