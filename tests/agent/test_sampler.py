"""The sampler as the agent starts it, on the fake NVML: what it writes, and what it survives."""

import json
import math
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from hpcml.runs.journal import Event, Metrics, read_journal
from hpcml.runs.layout import RunDir
from tests.agent.node import is_gone, wait_for

Nvml = Callable[..., dict[str, str]]


@dataclass
class Started:
    """A sampler that this test is the agent of."""

    process: subprocess.Popen[bytes]
    run_dir: RunDir
    said: dict[str, Any] = field(default_factory=dict)

    def hear(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        self.said = json.loads(self.process.stdout.readline())
        return self.said["facts"]

    def records(self) -> list[Metrics | Event]:
        (path,) = self.run_dir.telemetry.glob("*.jsonl")
        chunk = read_journal(path)
        assert chunk.bad_lines == 0
        return list(chunk.records)

    def ticks(self) -> list[dict[str, float]]:
        return [record.values for record in self.records() if isinstance(record, Metrics)]

    def events(self, name: str) -> list[dict[str, Any]]:
        return [record.details for record in self.records() if isinstance(record, Event) and record.name == name]

    def wait_for_ticks(self, count: int) -> None:
        wait_for(lambda: len(self.ticks()) >= count, f"{count} ticks")

    def stop(self) -> int:
        assert self.process.stdin is not None
        self.process.stdin.write(b"stop\n")
        self.process.stdin.flush()
        return self.process.wait(300)


Start = Callable[..., Started]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    began: list[Started] = []

    def begin(*words: str, interval_s: float = 0.1) -> Started:
        argv = [
            sys.executable,
            "-P",
            "-m",
            "hpcml.agent.telemetry.sampler",
            str(tmp_path),
            "--run",
            "r",
            "--attempt",
            "0",
        ]
        argv += ["--node", "0", "--agent", str(os.getpid()), "--interval-s", str(interval_s), *words]
        process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        began.append(Started(process, RunDir(tmp_path)))
        return began[-1]

    yield begin
    for sampler in began:
        sampler.process.kill()
        sampler.process.wait()
        for pipe in (sampler.process.stdin, sampler.process.stdout):
            assert pipe is not None
            pipe.close()


def test_it_tells_what_it_reads_and_then_reads_it(nvml: Nvml, start: Start) -> None:
    nvml("gpu\nuuid GPU-1\ngpu\nuuid GPU-2")
    sampler = start()

    facts = sampler.hear()
    sampler.wait_for_ticks(4)
    assert sampler.stop() == 0

    assert facts["gpu_uuids"] == "GPU-1,GPU-2"
    assert facts["gpu_mapping"] == "no job: all shown"
    first = sampler.records()[0]
    assert isinstance(first, Event)
    assert first.name == "devices"
    about = first.details["gpus"][0]
    assert (about["uuid"], about["scope"], about["power_field"]) == ("GPU-1", "gpu", "average_1s")
    ticks = sampler.ticks()
    assert {"gpu0.power_w", "gpu1.energy_j", "host.cpu_s", "host.load1", "sampler.cpu_s"} <= ticks[0].keys()
    assert any("gpu0.tensor_percent" in tick for tick in ticks)
    assert [record.step for record in sampler.records() if isinstance(record, Metrics)] == list(range(len(ticks)))
    assert sampler.events("sampler_ended") == [{"ticks": len(ticks), "missed_ticks": ticks[-1]["sampler.missed_ticks"]}]


def test_the_counter_it_writes_is_the_exact_energy_at_the_times_it_writes(nvml: Nvml, start: Start) -> None:
    nvml("gpu\nmean_w 250\nswing_w 50\nperiod_s 4")
    sampler = start()
    sampler.hear()
    sampler.wait_for_ticks(5)
    sampler.stop()

    def exact_j(at_s: float) -> float:
        return 250 * at_s - 50 * 4 / (2 * math.pi) * math.cos(2 * math.pi * at_s / 4)

    # The counter is read a moment after the time is taken, never before: the energy of that moment bounds the error.
    ticks = sampler.ticks()
    base_j = ticks[0]["gpu0.energy_j"] - exact_j(ticks[0]["gpu0.at_s"])
    for tick in ticks[1:]:
        error_j = tick["gpu0.energy_j"] - exact_j(tick["gpu0.at_s"]) - base_j
        assert abs(error_j) <= 300 * (tick["sampler.tick_us"] + ticks[0]["sampler.tick_us"]) / 1e6


def test_only_the_gpus_of_the_job_are_read(nvml: Nvml, start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    nvml("gpu\nuuid GPU-1\ngpu\nuuid GPU-2")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-2")
    sampler = start()

    assert sampler.hear()["gpu_uuids"] == "GPU-2"
    assert not [name for name in sampler.ticks()[0] if name.startswith("gpu1.")]


def test_gpus_that_nobody_gave_to_the_job_are_read_as_shared_and_are_no_facts_of_it(
    nvml: Nvml, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    nvml("gpu\ngpu")
    monkeypatch.setenv("PBS_JOBID", "12.server")
    sampler = start("--gpus", "1")

    facts = sampler.hear()

    assert facts["gpu_mapping"] == "shared/unknown"
    assert "n_gpus" not in facts
    assert [gpu["scope"] for gpu in sampler.events("devices")[0]["gpus"]] == ["shared", "shared"]


def test_a_gpu_that_falls_off_the_bus_is_told_and_the_others_are_read_on(nvml: Nvml, start: Start) -> None:
    nvml("gpu\nuuid GPU-1\nxid_after_s 0.3\nlost_after_s 0.6\ngpu\nuuid GPU-2")
    sampler = start()
    sampler.hear()
    wait_for(lambda: sampler.events("gpu_lost"), "the loss of a GPU")
    sampler.wait_for_ticks(len(sampler.ticks()) + 3)
    assert sampler.stop() == 0

    assert sampler.events("gpu_lost") == [{"gpu": "gpu0", "uuid": "GPU-1", "reason": "GPU is lost"}]
    assert sampler.events("xid") == [{"gpu": "gpu0", "code": 79}]
    assert "gpu0.power_w" not in sampler.ticks()[-1]
    assert "gpu1.power_w" in sampler.ticks()[-1]


def test_throttling_that_no_driver_counts_is_told_once_and_said_to_be_sampled(nvml: Nvml, start: Start) -> None:
    nvml("gpu\ncounters 0\nreasons 4")
    sampler = start()
    facts = sampler.hear()
    sampler.wait_for_ticks(3)
    sampler.stop()

    assert sampler.events("throttle") == [{"of": "gpu0", "what": "power"}]
    about = sampler.events("devices")[0]["gpus"][0]
    assert (about["throttle_from"], about["max_sm_mhz"], about["memory_total_mb"]) == ("samples", 1980, 81_559)
    assert all(tick["gpu0.throttled_power_percent"] == 100.0 for tick in sampler.ticks())
    assert (facts["gpu_pcie"], facts["gpu_nvlinks"], facts["gpu_applications_sm_mhz"]) == ("gen5 x16", 18, 1830)


def test_throttling_and_refusals_are_told_once(nvml: Nvml, start: Start) -> None:
    nvml("gpu\nthrottle_share 0.5", fail="nvmlGpmSampleGet=4,after=2")
    sampler = start()
    sampler.hear()
    sampler.wait_for_ticks(6)
    sampler.stop()

    assert sampler.events("throttle") == [{"of": "gpu0", "what": "power"}]
    assert sampler.events("refused") == [{"of": "gpu0", "what": "activity", "reason": "Insufficient Permissions"}]


@pytest.mark.parametrize(
    ("fail", "reason"),
    [("nvmlInitWithFlags=18", "version mismatch"), ("nvmlInitWithFlags=9", "Driver Not Loaded")],
)
def test_without_a_driver_that_works_the_host_is_still_read(nvml: Nvml, start: Start, fail: str, reason: str) -> None:
    nvml("gpu", fail=fail)
    sampler = start()

    facts = sampler.hear()
    sampler.wait_for_ticks(2)
    assert sampler.stop() == 0

    assert reason in facts["gpu_mapping_reason"]
    assert reason in sampler.events("devices")[0]["refused"]["nvml"]
    assert "host.cpu_s" in sampler.ticks()[0]


def test_the_fake_is_found_as_the_systems_library_is(
    nvml: Nvml, nvml_library: Path, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    nvml("gpu\nuuid GPU-1")
    monkeypatch.delenv("HPCML_NVML_LIBRARY")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(nvml_library.parent))

    assert start("--facts-only").hear()["gpu_uuids"] == "GPU-1"


def test_a_run_without_gpus_asks_nvml_for_nothing_of_them(nvml: Nvml, start: Start) -> None:
    nvml("gpu")
    sampler = start("--without-gpus")

    assert sampler.hear() == {}
    assert not [name for name in sampler.ticks()[0] if name.startswith("gpu")]


def test_ticks_that_a_hanging_call_made_impossible_are_counted(nvml: Nvml, start: Start) -> None:
    nvml("gpu", slow="nvmlDeviceGetFieldValues=1.5,after=2")
    sampler = start()
    sampler.hear()
    wait_for(lambda: sampler.ticks()[-1]["sampler.missed_ticks"] >= 10, "ticks that are missed")

    assert [event["what"] for event in sampler.events("slow") if event["what"] == "fields"] == ["fields"]


def test_signals_to_the_whole_job_do_not_end_it(nvml: Nvml, start: Start) -> None:
    nvml("gpu")
    sampler = start()
    sampler.hear()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP):
        sampler.process.send_signal(number)
    sampler.wait_for_ticks(len(sampler.ticks()) + 2)

    assert sampler.stop() == 0


def test_it_ends_when_its_input_ends(nvml: Nvml, start: Start) -> None:
    nvml("gpu")
    sampler = start()
    sampler.hear()
    assert sampler.process.stdin is not None
    sampler.process.stdin.close()

    assert sampler.process.wait(300) == 0


_AGENT = """
import os, subprocess, sys
sampler = [sys.executable, "-P", "-m", "hpcml.agent.telemetry.sampler"]
words = [*sampler, sys.argv[1], "--run", "r", "--attempt", "0", "--node", "0"]
sampler = subprocess.Popen([*words, "--agent", str(os.getpid())], stdin=int(sys.argv[2]), stdout=subprocess.PIPE)
sampler.stdout.readline()
print(sampler.pid, flush=True)
sampler.wait()
"""


def test_it_dies_with_the_agent_even_while_it_hangs_and_its_input_is_open(nvml: Nvml, tmp_path: Path) -> None:
    nvml("gpu", slow="nvmlDeviceGetFieldValues=60,after=1")
    reader, writer = os.pipe()
    agent = subprocess.Popen(
        [sys.executable, "-c", _AGENT, str(tmp_path), str(reader)], pass_fds=[reader], stdout=subprocess.PIPE, text=True
    )
    assert agent.stdout is not None
    pid = int(agent.stdout.readline())
    agent.kill()
    agent.communicate()

    wait_for(lambda: is_gone(pid), "the end of the sampler")
    os.close(reader)
    os.close(writer)


def test_with_facts_only_it_says_them_and_ends(nvml: Nvml, start: Start) -> None:
    nvml("gpu\nuuid GPU-1")
    sampler = start("--facts-only")

    assert sampler.hear()["gpu_uuids"] == "GPU-1"
    assert sampler.process.wait(300) == 0
    assert not sampler.run_dir.telemetry.exists()
