"""What the sampler of a node costs: its CPU time with eight GPUs, what it writes, and what a program feels of it.

The GPUs are those of the fake NVML of tests/cluster/nvml, whose calls cost next to nothing: the figures are those of
hpcml's own work, and say nothing of what a driver adds. CPU time is the sampler's own, from its samples: that from the
first to the last, over the time between them. The program does steps of a fixed amount of work, in windows of a few
seconds in which the sampler runs or is stopped (SIGSTOP), in the order ABBA; of each such block the ratio of the times
of a step counts, and the interval is that of the mean of their logarithms, by Student's t. The mean step by the clock
has in it what else the machine does. The median step leaves that out, and with it the few steps that a sample falls
into: it shows what the sampler does to all steps. CPU time shows what it does to caches and clocks, not that it takes a
core.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from scipy import stats

from hpcml.agent.summary import NodeSummary
from hpcml.journal import Metrics, read_journal

GPUS = 8
FAKE = Path(__file__).resolve().parent.parent / "tests" / "cluster" / "nvml" / "fake_nvml.c"
WORK = 100_000  # additions of a step: a few milliseconds


def build(folder: Path) -> Path:
    compiler = shutil.which("cc")
    if compiler is None:
        raise SystemExit("no C compiler (cc)")
    library = folder / "libnvidia-ml.so.1"
    subprocess.run([compiler, "-O2", "-shared", "-fPIC", "-o", str(library), str(FAKE), "-lm"], check=True)
    return library


@contextmanager
def sampling(
    folder: Path, library: Path, interval_s: float, **variables: str
) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """Have a sampler run; yield it and its file."""
    argv = [sys.executable, "-P", "-m", "hpcml.agent.sampler", str(folder), "--run", "benchmark", "--attempt", "0"]
    argv += ["--node", "0", "--agent", str(os.getpid()), "--interval-s", str(interval_s)]
    environ = {**os.environ, "HPCML_NVML_LIBRARY": str(library), "FAKE_NVML_GPUS": str(GPUS), **variables}
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environ) as process:
        said, control = process.stdout, process.stdin
        if said is None or control is None:
            raise RuntimeError("asked for pipes, got none")
        yield process, Path(json.loads(said.readline())["telemetry"])
        control.write(b"stop\n")
        control.flush()
        process.wait()


def cost(folder: Path, library: Path, interval_s: float, seconds: float) -> None:
    with sampling(folder, library, interval_s) as (_, file):
        time.sleep(seconds)
    ticks = [record.values for record in read_journal(file).records if isinstance(record, Metrics)]
    wall_s = ticks[-1]["host.at_s"] - ticks[0]["host.at_s"]
    cpu_s = ticks[-1]["sampler.cpu_s"] - ticks[0]["sampler.cpu_s"]
    took_us = sorted(tick["sampler.tick_us"] for tick in ticks[1:])
    bytes_per_tick = file.stat().st_size / len(ticks)
    print(
        f"| {interval_s:g} | {cpu_s / wall_s:.2%} | {statistics.median(took_us):.0f} "
        f"| {took_us[int(0.99 * len(took_us))]:.0f} | {bytes_per_tick / 1024:.1f} |"
    )


def integration(folder: Path, library: Path, seconds: float) -> None:
    """Compare the integral of power with the counter, which the fake computes exactly, for each kind of reading."""
    folder.mkdir()
    wave = "mean_w 400\nswing_w 250\nperiod_s 0.73\n"
    kinds = {
        "readings of the driver's, every 20 ms": "",
        "average of 1 s": "ring 0\n",
        "instant": "ring 0\naverage 0\n",
    }
    config = folder / "gpus.txt"
    config.write_text("".join(f"gpu\n{wave}{kind}" for kind in kinds.values()), encoding="ascii")
    with sampling(folder, library, 1.0, FAKE_NVML_CONFIG=str(config)) as (_, file):
        time.sleep(seconds)
    records = read_journal(file).records
    first, *_, last = [record.values["host.at_s"] for record in records if isinstance(record, Metrics)]
    summary = NodeSummary(first)
    summary.end(last)
    summary.add(records)
    found = summary.details()
    for number, kind in enumerate(kinds):
        error, energy_j = found[f"gpu{number}_energy_disagreement"], found[f"gpu{number}_energy_counter_j"]
        print(f"| {kind} | {energy_j:.0f} | {error:+.3%} |")


def step_s(seconds: float) -> tuple[float, float, float]:
    """Return what a step takes in a window of *seconds*: mean and median by the clock, mean of CPU time."""
    began, began_cpu = time.perf_counter(), time.thread_time()
    ends = [began]
    while ends[-1] < began + seconds:
        sum(range(WORK))
        ends.append(time.perf_counter())
    steps = [end - begin for begin, end in itertools.pairwise(ends)]
    return statistics.mean(steps), statistics.median(steps), (time.thread_time() - began_cpu) / len(steps)


def effect(folder: Path, library: Path, interval_s: float, blocks: int, seconds: float) -> None:
    logs: dict[str, list[float]] = {"mean step by the clock": [], "median step by the clock": [], "CPU time": []}
    with sampling(folder, library, interval_s) as (sampler, _):
        for block in range(blocks):
            sums = [0.0] * len(logs)
            for runs in (True, False, False, True) if block % 2 else (False, True, True, False):
                sampler.send_signal(signal.SIGCONT if runs else signal.SIGSTOP)
                for at, took_s in enumerate(step_s(seconds)):
                    sums[at] += math.log(took_s) / (2 if runs else -2)
            for values, value in zip(logs.values(), sums, strict=True):
                values.append(value)
        sampler.send_signal(signal.SIGCONT)
    for name, values in logs.items():
        mean = statistics.mean(values)
        half = stats.t.ppf(0.975, blocks - 1) * statistics.stdev(values) / math.sqrt(blocks)
        low, high, middle = (math.expm1(value) for value in (mean - half, mean + half, statistics.median(values)))
        title = f"{1 / interval_s:g} Hz, {name}, {blocks} blocks of 4 x {seconds:g} s"
        print(f"| {title} | {math.expm1(mean):+.2%} | {low:+.2%} to {high:+.2%} | {middle:+.2%} |", flush=True)


def own_cost(folder: Path, library: Path, seconds: float) -> None:
    print(f"| interval s, {GPUS} GPUs | CPU of one core | tick, median us | p99 us | KiB a tick |")
    print("|---:|---:|---:|---:|---:|")
    for number, interval_s in enumerate((1.0, 0.1)):
        cost(folder / f"cost{number}", library, interval_s, seconds)
    print("\n| integral at 1 Hz of | exact J | integral / exact - 1 |")
    print("|---|---:|---:|")
    integration(folder / "integration", library, seconds)
    print()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--blocks", type=int, default=60)
    parser.add_argument("--window-seconds", type=float, default=1.0)
    parser.add_argument("--effect-only", action="store_true", help="leave out what the sampler itself costs")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        library = build(folder)
        if not options.effect_only:
            own_cost(folder, library, options.seconds)
        print("| steps with the sampler over steps without | ratio - 1 | 95 % interval | median |")
        print("|---|---:|---:|---:|")
        for number, interval_s in enumerate((1.0, 0.1)):
            effect(folder / f"effect{number}", library, interval_s, options.blocks, options.window_seconds)


if __name__ == "__main__":
    main()
