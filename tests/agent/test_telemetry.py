"""The agent with its sampler: one event at the end of an attempt, whatever became of the sampler."""

import os
import signal
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from hpcml.model.precision import Device
from hpcml.runs.journal import read_journal
from hpcml.runs.layout import RunDir
from tests.agent.node import MakeRun, agent, began, is_event, start_agent, told, wait_for

Nvml = Callable[..., dict[str, str]]
H100 = Device(kind="cuda", name="NVIDIA H100", compute_capability=(9, 0))
ROOT = Path(__file__).resolve().parents[2]
FAST = "telemetry.interval=100ms"
# Uses so much CPU time once it is sampled, and goes on until the sampler has written so much more.
WORKS = """
import os, pathlib, time
folder = pathlib.Path(os.environ["HPCML_RUN_DIR"], "telemetry")
def until(ticks):
    while sum(file.read_text().count('"k":"m"') for file in folder.glob("*.jsonl")) < ticks: time.sleep(0.05)
until(min(1, {ticks}))
begun = time.process_time()
while time.process_time() - begun < 0.3: sum(range(1000))
until({ticks})
"""
WAITS = "import os, time; open(os.environ['HPCML_RUN_DIR'] + '/began', 'w').close(); time.sleep({seconds})"


def read_events(paths: Iterable[Path], name: str) -> list[float]:
    """Return when each event called *name* was told, in unix seconds."""
    found = []
    for path in paths:
        chunk = read_journal(path)
        assert chunk.header is not None
        found += [chunk.header.t0 + record.t_s for record in chunk.records if is_event(record, name)]
    return found


def carried_out(run_dir: RunDir, variables: dict[str, str]) -> dict[str, Any]:
    done = agent(str(run_dir.path), **variables)
    assert done.returncode == 0, done.stderr
    assert told(run_dir, "attempt_ended")[0]["state"] == "COMPLETED"
    assert not told(run_dir, "agent_trouble")
    (summary,) = told(run_dir, "telemetry")
    return summary


def test_an_attempt_ends_with_what_its_gpus_and_its_node_did(make_run: MakeRun, nvml: Nvml) -> None:
    run_dir = make_run(WORKS.format(ticks=10), FAST, device=H100)

    summary = carried_out(run_dir, nvml("gpu\nuuid GPU-1\nmean_w 250\nswing_w 0\nused_mib 1000\ngpu\nuuid GPU-2"))

    assert (summary["node"], summary["gpus"]) == (0, 2)
    assert (summary["gpu0_uuid"], summary["gpu0_scope"]) == ("GPU-1", "gpu")
    assert (summary["gpu0_energy_method"], summary["gpu0_energy_disagrees"]) == ("counter", False)
    # Of a constant power any reading gives the energy; between two readings at most a tick's time is uncertain.
    assert summary["gpu0_energy_j"] == pytest.approx(250 * summary["gpu0_energy_covered_s"], abs=250 * 0.1)
    assert 0 < summary["gpu0_energy_covered_s"] <= summary["wall_s"]
    assert summary["energy_j"] == pytest.approx(summary["gpu0_energy_j"] + summary["gpu1_energy_j"])
    assert (summary["gpu0_max_memory_mb"], summary["gpu0_median_sm_mhz"]) == (1000.0, 1755.0)
    assert summary["gpu0_mean_util_percent"] == 93.0
    assert summary["gpu0_ecc_uncorrected"] == 0
    assert summary["gpu0_samples"] >= 2
    assert summary["host_cpu_s"] >= 0.29  # times of ended processes are in hundredths
    assert summary["host_max_memory_mb"] > 1
    assert summary["sampler_cpu_s"] > 0
    assert all(value is None or isinstance(value, bool | int | float | str) for value in summary.values())


def test_all_that_a_run_on_the_cpu_uses_is_counted(make_run: MakeRun) -> None:
    work = "import time\nwhile time.process_time() < 0.3: sum(range(1000))"
    run_dir = make_run(work, FAST)

    summary = carried_out(run_dir, {})

    assert summary["host_cpu_s"] >= 0.25  # between two samples it is taken as linear, also beyond the end
    (started,) = read_events(run_dir.journal_files(), "workload_started")
    (devices,) = read_events(run_dir.telemetry.glob("*.jsonl"), "devices")
    assert devices < started
    assert summary["data_until_s"] == pytest.approx(summary["wall_s"])


def test_memory_that_was_held_between_two_samples_is_counted(make_run: MakeRun) -> None:
    """On a machine without a group of the job, the processes are looked through every five seconds."""
    run_dir = make_run("block = bytearray(b'x') * (300 << 20)", "telemetry.interval=10s")

    summary = carried_out(run_dir, {})

    assert 300 < summary["host_max_memory_mb"] < 600


def test_a_program_that_cannot_be_started_has_its_telemetry_all_the_same(make_run: MakeRun) -> None:
    run_dir = make_run("pass", FAST, argv=["/nowhere/program"])

    assert agent(str(run_dir.path)).returncode == 127

    (summary,) = told(run_dir, "telemetry")
    assert summary["samples"] >= 2
    assert "trouble" not in summary


def test_with_telemetry_off_there_are_facts_and_no_samples(make_run: MakeRun, nvml: Nvml) -> None:
    run_dir = make_run("pass", "telemetry.enabled=false", device=H100)

    assert agent(str(run_dir.path), **nvml("gpu\nuuid GPU-1")).returncode == 0

    assert told(run_dir, "facts")[0]["gpu_uuids"] == "GPU-1"
    assert not told(run_dir, "telemetry")
    assert not run_dir.telemetry.exists()


def test_nvml_that_hangs_at_its_start_holds_no_program_up_and_the_facts_come_later(
    make_run: MakeRun, nvml: Nvml
) -> None:
    run_dir = make_run(WORKS.format(ticks=3), FAST, device=H100)

    summary = carried_out(run_dir, nvml("gpu\nuuid GPU-1", slow="nvmlInitWithFlags=5"))

    first, *later = told(run_dir, "facts")
    assert "gpu_uuids" not in first
    assert [facts["gpu_uuids"] for facts in later] == ["GPU-1"]
    assert summary["gpu0_energy_covered_s"] < summary["wall_s"]


def test_nvml_that_hangs_for_ever_is_left_behind_at_the_end(make_run: MakeRun, nvml: Nvml) -> None:
    run_dir = make_run(WORKS.format(ticks=3), FAST, device=H100)

    summary = carried_out(run_dir, nvml("gpu", slow="nvmlDeviceGetFieldValues=100,after=3"))

    assert "did not answer" in summary["trouble"]
    assert summary["data_until_s"] < summary["wall_s"]
    assert summary["gpu0_energy_method"] == "counter"  # of the time before


def test_a_sampler_that_is_killed_leaves_the_program_alone_and_its_end_on_record(make_run: MakeRun, nvml: Nvml) -> None:
    run_dir = make_run(WAITS.format(seconds=4), FAST, device=H100)
    running = start_agent(str(run_dir.path), **nvml("gpu"))
    wait_for(lambda: began(run_dir), "the program")
    wait_for(lambda: _samples(run_dir) >= 3, "samples")
    os.kill(_sampler_pid(run_dir), signal.SIGKILL)

    assert running.wait(300) == 0
    (lost,) = told(run_dir, "telemetry_lost")
    assert "SIGKILL" in lost["reason"]
    (summary,) = told(run_dir, "telemetry")
    assert "SIGKILL" in summary["trouble"]
    assert 0 < summary["data_until_s"] < summary["wall_s"]
    assert 0 < summary["gpu0_energy_covered_s"] < summary["wall_s"]


def test_a_lost_gpu_and_its_xid_are_in_the_summary(make_run: MakeRun, nvml: Nvml) -> None:
    run_dir = make_run(WORKS.format(ticks=30), FAST, device=H100)

    summary = carried_out(run_dir, nvml("gpu\nxid_after_s 1\nlost_after_s 1.5\ngpu"))

    assert (summary["gpu0_xids"], summary["gpu0_lost"]) == ("79", "GPU is lost")
    assert summary["gpu0_energy_covered_s"] < summary["gpu1_energy_covered_s"]


def test_a_counter_that_is_reset_is_told(make_run: MakeRun, nvml: Nvml) -> None:
    run_dir = make_run(WORKS.format(ticks=30), FAST, device=H100)

    summary = carried_out(run_dir, nvml("gpu\nmean_w 250\nswing_w 0\nreset_after_s 1"))

    assert (summary["gpu0_energy_method"], summary["gpu0_energy_counter_resets"]) == ("counter+integral", 1)
    assert summary["gpu0_energy_j"] == pytest.approx(250 * summary["gpu0_energy_covered_s"], rel=0.3)


def test_the_energy_of_instances_is_their_boards_and_counts_once(make_run: MakeRun, nvml: Nvml) -> None:
    run_dir = make_run(WORKS.format(ticks=5), FAST, device=H100)
    variables = nvml("gpu\nuuid GPU-1\nmig\nuuid MIG-1\nmig\nuuid MIG-2")

    summary = carried_out(run_dir, {**variables, "CUDA_VISIBLE_DEVICES": "MIG-1,MIG-2"})

    assert (summary["gpu0_scope"], summary["energy_scope"]) == ("board", "board")
    assert summary["energy_j"] == pytest.approx(summary["gpu0_energy_j"], rel=0.05)


def test_a_gpu_without_counter_and_power_has_no_energy_and_the_reason(make_run: MakeRun, nvml: Nvml) -> None:
    run_dir = make_run(WORKS.format(ticks=2), FAST, device=H100)
    config = "gpu\nenergy 0\naverage 0\ninstant 0"

    summary = carried_out(run_dir, nvml(config, fail="nvmlDeviceGetPowerUsage=3"))

    assert summary["gpu0_energy_j"] is None
    assert summary["energy_j"] is None
    assert "Not Supported" in summary["gpu0_energy_reason"]


def _samples(run_dir: RunDir) -> int:
    return sum(file.read_text().count('"k":"m"') for file in run_dir.telemetry.glob("*.jsonl"))


def _sampler_pid(run_dir: RunDir) -> int:
    (file,) = run_dir.telemetry.glob("*.jsonl")
    return int(Path(file).name.rsplit("-", 2)[1])
