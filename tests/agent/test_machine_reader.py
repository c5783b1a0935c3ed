"""What a whole machine does, in the place of a run's host."""

import os
import time

import psutil

from hpcml.agent.telemetry.gpus import FoundGpus
from hpcml.agent.telemetry.host import MachineReader
from hpcml.agent.telemetry.node import NodeReader


def test_time_and_memory_are_those_of_all_processes() -> None:
    own_s = sum(os.times()[:2])
    before, after = (MachineReader().read(0.0) for _ in range(2))

    assert after["cpu_s"] >= before["cpu_s"] > own_s
    assert before["cpu_s"] <= (time.time() - psutil.boot_time() + 10) * psutil.cpu_count()
    assert 0 < after["memory_mb"] <= psutil.virtual_memory().total / 2**20
    assert after["load1"] >= 0


def test_it_stands_where_the_host_of_a_run_does() -> None:
    node = NodeReader(found=FoundGpus(gpus=(), source="none"), host=MachineReader(), tell=lambda *_: None)

    values = node.read()

    assert {"host.cpu_s", "host.memory_mb", "host.load1", "host.at_s"} == values.keys()
    assert node.describe()["host"] == {"cpu_from": "machine", "memory_from": "machine", "refused": {}}
