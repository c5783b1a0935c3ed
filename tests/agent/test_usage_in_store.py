"""What a real sampler wrote and a real agent told, as the store has it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from hpcml.store.ingest import ingest_all
from hpcml.store.opening import open_store
from hpcml.store.query import get_run
from hpcml.store.telemetry import timelines
from tests.agent.node import MakeRun, agent, told
from tests.agent.test_telemetry import FAST, H100, WORKS

CARBON = ("cluster.co2_g_per_kwh=360", "cluster.co2_source='the site, 2026'")


def test_energy_co2_and_timelines_are_those_of_the_sampler(
    make_run: MakeRun, nvml: Callable[..., dict[str, str]], tmp_path: Path
) -> None:
    run_dir = make_run(WORKS.format(ticks=10), FAST, *CARBON, device=H100)
    gpus = "gpu\nuuid GPU-1\nmean_w 250\nswing_w 0\npower_limit_w 350\ngpu\nuuid GPU-2\nmean_w 100\nswing_w 0"
    assert agent(str(run_dir.path), **nvml(gpus)).returncode == 0
    store = open_store(str(tmp_path / "store.db"))
    ingest_all(store, run_dir.path)

    run = get_run(store, run_dir.uid)
    (summary,) = told(run_dir, "telemetry")
    assert run.usage is not None
    assert (run.usage.gpus, run.usage.energy_method, run.usage.energy_scope) == (2, "counter", "gpu")
    assert run.usage.energy_j == pytest.approx(summary["energy_j"])
    assert run.usage.gpu_s == pytest.approx(2 * summary["wall_s"])
    assert run.usage.mean_power_w == pytest.approx(175, abs=40)  # the counter is read with a jitter of its own
    assert (run.usage.power_limit_w, run.usage.util_percent, run.usage.incomplete) == (350.0, 93.0, None)
    assert run.usage.co2_g == pytest.approx(summary["energy_j"] / 1e4)
    assert run.usage.co2_source == "GPU boards only, 360 g/kWh: the site, 2026"
    lines = timelines(store, run_dir.uid)
    assert [(line.device, line.uuid) for line in lines] == [("gpu0", "GPU-1"), ("gpu1", "GPU-2"), ("host", None)]
    sampled_j = sum(span.energy_j or 0.0 for line in lines for span in line.spans)
    assert sampled_j >= summary["energy_j"] * 0.99  # sampling begins before the program and ends after it
    store.close()
