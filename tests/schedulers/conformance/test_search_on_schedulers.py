"""A search on Slurm and on PBS: as many runs in flight as wanted, each point once, and compared afterwards."""

from __future__ import annotations

import json

import pytest

from tests.effort import times
from tests.schedulers.conformance.kit import Site
from tests.schedulers.conformance.test_functions import place_of, run_on

RUNS, IN_FLIGHT = times(12, 60), times(4, 8)
PROGRAM = "import sys; x = float(sys.argv[2]); print('val_loss', (x - 3) ** 2)"


@pytest.mark.parametrize(
    "served",
    [
        pytest.param("slurm", marks=[pytest.mark.slurm, pytest.mark.nightly("slurm")]),
        pytest.param("pbs", marks=pytest.mark.nightly("pbs")),
    ],
    indirect=True,
)
def test_a_search_keeps_the_queue_full_and_tries_each_point_once(served: Site) -> None:
    conf, cluster = place_of(served)
    (served.folder / "t.py").write_text(PROGRAM)
    settings = (f"cluster={cluster}", "--config-dir", str(conf), "experiment=s", "telemetry.enabled=false")
    limits = ("--metric", "val_loss", "--runs", str(RUNS), "--in-flight", str(IN_FLIGHT))
    words = (*settings, "resources.walltime=5m", "resources.cpus_per_task=1", "--", served.python, "t.py")

    run_on(served, "-m", "hpcml", "tune", *limits, *words, "--x", "0.0..10.0")

    found = json.loads(run_on(served, "-m", "hpcml", "tune", "--again", "s", "--json"))
    assert [point["state"] for point in found["points"]] == ["COMPLETED"] * RUNS
    assert len({point["point"]["x"] for point in found["points"]}) == RUNS
    assert all(point["value"] is not None for point in found["points"])
