from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path

import pytest
from planning import planned_for

from hpcml.commands.estimate import estimate_runs
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


def test_gpu_hours_are_charged_by_the_node_where_the_site_does(places: Places, tmp_path: Path) -> None:
    record(places, tmp_path, *SITE)
    (item,) = planned_for(tmp_path, *SITE)
    site = replace(item.run.cluster, whole_nodes=True)
    whole = replace(item, run=replace(item.run, cluster=site))

    alone = estimate_runs([item], places, MACHINE).total
    charged = estimate_runs([whole], places, MACHINE)

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
