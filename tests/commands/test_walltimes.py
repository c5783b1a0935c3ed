from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path

import pytest
from planning import planned_for

from hpcml.commands.estimate import estimate_as_recorded, estimate_runs
from hpcml.commands.submit import advice
from hpcml.commands.submit.backends import Machine
from hpcml.paths import Places
from tests.store.building import T0, Journal, make_run_dir

MACHINE = Machine(cores=2, gpus=[])
STEPS, STEP_S = 400, 10.0  # about 4000 s with the start, of which an hour has 3600
SITE = ("cluster=karolina", "resources.account=OPEN-1-2", f"training.steps={STEPS}")


@pytest.fixture
def places(tmp_path: Path) -> Places:
    home = tmp_path / "home"
    return Places(home=home, store_url=str(home / "store.db"))


def record(places: Places, folder: Path, *words: str, seeds: range = range(4), step_s: float = STEP_S) -> None:
    """Leave the run directories of so many completed runs, which took a little longer each."""
    (item,) = planned_for(folder, *words)
    for seed in seeds:
        uid = f"20260528-202640-seed{seed:04d}"
        changes = {field.name: getattr(item.run, field.name) for field in fields(item.run)}
        run_dir = make_run_dir(places.runs, uid, **{**changes, "seed": seed})
        agent, rank0 = (Journal(run_dir, writer=writer, attempt=0, t0=T0) for writer in ("agent", "rank0"))
        agent.event("attempt_started")
        agent.event("facts", device="cuda", gpu_model="NVIDIA A100-SXM4-40GB")
        for step in range(1, STEPS + 1):
            rank0.metrics(step, 30.0 + step * step_s * (1 + seed / 100), step_time_s=step_s)
        wall_s = 40.0 + STEPS * step_s * (1 + seed / 100)
        agent.event("attempt_ended", wall_s, state="COMPLETED", exit_code=0, wall_s=wall_s)


def remarks(places: Places, folder: Path, *words: str) -> list[str]:
    planned = planned_for(folder, *words)
    ours = ("resources.walltime=", "no recorded run")
    return [line for line in advice.all_warnings(planned, places, MACHINE) if line.startswith(ours)]


def collected(places: Places, folder: Path) -> None:
    estimate_runs(planned_for(folder, *SITE), places, MACHINE)


def test_a_walltime_that_was_never_enough_is_warned_about_with_one_that_is(places: Places, tmp_path: Path) -> None:
    record(places, tmp_path, *SITE)
    collected(places, tmp_path)

    (line,) = remarks(places, tmp_path, *SITE, "resources.walltime=1h")

    assert line == (
        "resources.walltime=1h: 4 recorded runs like it took about 1h09m; resources.walltime=1h30m would do"
    )


def test_a_walltime_with_room_is_not_mentioned(places: Places, tmp_path: Path) -> None:
    record(places, tmp_path, *SITE)
    collected(places, tmp_path)

    assert remarks(places, tmp_path, *SITE, "resources.walltime=2h") == []


def test_a_sweep_gets_one_line_for_its_longest(places: Places, tmp_path: Path) -> None:
    record(places, tmp_path, *SITE)
    collected(places, tmp_path)

    sweep = ("-m", "seed=5,6", *SITE[:2], "training.steps=400,4000,10", "resources.walltime=1h")
    (line,) = remarks(places, tmp_path, *sweep)

    assert line.startswith("resources.walltime=1h: 4 recorded runs like ")
    assert "training.steps=4000" in line


def test_without_a_record_nothing_is_said_and_no_store_is_made(places: Places, tmp_path: Path) -> None:
    assert remarks(places, tmp_path, *SITE, "resources.walltime=1m") == []
    assert not places.home.exists()


def test_what_was_not_read_in_yet_is_not_read_in_by_a_warning(places: Places, tmp_path: Path) -> None:
    record(places, tmp_path, *SITE, seeds=range(1), step_s=STEP_S / 10)
    collected(places, tmp_path)
    record(places, tmp_path, *SITE, seeds=range(1, 5))
    before = (places.home / "store.db").read_bytes()

    assert remarks(places, tmp_path, *SITE, "resources.walltime=1h") == []
    assert (places.home / "store.db").read_bytes() == before


def test_a_store_that_cannot_be_read_is_said_and_refuses_nothing(places: Places, tmp_path: Path) -> None:
    places.home.mkdir()
    (places.home / "store.db").write_text("no database at all, and long enough to have a header of some kind", "utf-8")

    (line,) = remarks(places, tmp_path, *SITE, "resources.walltime=1h")

    assert line.startswith("no recorded run was asked whether the walltime will do: ")


def test_near_runs_warn_only_where_all_of_their_range_is_too_long(places: Places, tmp_path: Path) -> None:
    record(places, tmp_path, *SITE)
    collected(places, tmp_path)
    other = (*SITE, "training.batch_size=128")  # once to twice as long

    assert remarks(places, tmp_path, *other, "resources.walltime=90m") == []
    (line,) = remarks(places, tmp_path, *other, "resources.walltime=30m")
    assert line.startswith("resources.walltime=30m: 4 recorded runs like it took about 1h")


def test_gpu_hours_are_charged_by_the_node_where_the_site_does(places: Places, tmp_path: Path) -> None:
    record(places, tmp_path, *SITE)
    (item,) = planned_for(tmp_path, *SITE)
    site = replace(item.run.cluster, whole_nodes=True)
    whole = replace(item, run=replace(item.run, cluster=site))

    alone = estimate_runs([item], places, MACHINE).total
    charged = estimate_as_recorded([whole], places, MACHINE)

    assert charged is not None
    assert charged.total.gpu_hours == pytest.approx(8 * alone.gpu_hours)
    assert alone.node_hours is None
    assert charged.total.node_hours == pytest.approx(alone.gpu_hours)


@pytest.mark.parametrize("grace", ["10", "300"])
def test_what_an_agent_keeps_is_the_same_before_and_after_a_walltime_is_asked_for(
    places: Places, tmp_path: Path, grace: str
) -> None:
    words = (*SITE, f"workload.stop_grace={grace}s")
    asked, unasked = (
        estimate_runs(planned_for(tmp_path, *words, *walltime), places, MACHINE).forecasts[0].wanted.margin_s
        for walltime in (["resources.walltime=4h"], ["resources.walltime=null"])
    )

    assert asked == unasked == max(60, int(grace) + 30)
