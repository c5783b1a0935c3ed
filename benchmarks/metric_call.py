"""What one `run.metric("loss", value)` costs the program that calls it: median and 99th percentile, wall clock.

The client writes to a real journal in a temporary folder, one system call for each record, as in a run. The same loop
around nothing shows what the clock itself costs, and one around `os.write` of a line of equal length shows the floor
that any unbuffered journal has.

The goal: a median of 10 microseconds or less.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import hpcml_client

CALLS = 50_000
WARM_UP = 1_000
GOAL_US = 10.0


def measure(call: Callable[[int], object]) -> tuple[float, float]:
    """Return median and 99th percentile of CALLS calls, in microseconds."""
    took_ns = []
    for step in range(WARM_UP + CALLS):
        began = time.perf_counter_ns()
        call(step)
        took_ns.append(time.perf_counter_ns() - began)
    counted = took_ns[WARM_UP:]
    return statistics.median(counted) / 1000, statistics.quantiles(counted, n=100)[98] / 1000


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        environ = {"HPCML_RUN_DIR": folder, "HPCML_RUN_ID": "20261121-000000-bench2"}
        results = {"nothing (the clock)": measure(lambda _: None)}
        line = b'{"s":12345,"t":123.456789,"k":"m","i":12345,"v":{"loss":0.123456789012345}}\n'
        fd = os.open(Path(folder) / "floor.txt", os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600)
        results["os.write of such a line"] = measure(lambda _: os.write(fd, line))
        os.close(fd)
        with hpcml_client.connect(environ) as run:
            eight = {f"metric_{number}": number / 7 for number in range(8)}
            results["run.metric: one value"] = measure(lambda step: run.metric("loss", step / 7, step))
            results["run.metrics: eight values"] = measure(lambda step: run.metrics(eight, step))
    floor = results["os.write of such a line"][0]
    print("| call | median us | p99 us | median over os.write |")
    print("|---|---:|---:|---:|")
    for name, (median, p99) in results.items():
        print(f"| {name} | {median:.2f} | {p99:.1f} | {median / floor:.2f} |")
    median = results["run.metric: one value"][0]
    print(f"\nOne run.metric: {median:.1f} us; the goal is {GOAL_US:g} us or less.")
    return 0 if median <= GOAL_US else 1


if __name__ == "__main__":
    sys.exit(main())
