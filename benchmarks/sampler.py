"""What the sampler of a node costs: its CPU time with eight GPUs, what it writes, and what a program feels of it.

The GPUs are those of the fake NVML of tests/cluster/nvml, whose calls cost next to nothing: the figures are those of
hpcml's own work, and say nothing of what a driver adds. CPU time is the sampler's own, from its samples: that from the
first to the last, over the time between them. The program does steps of a fixed amount of work, in windows of a few
seconds in which the sampler runs or is stopped (SIGSTOP), in the order ABBA; of each such block the ratio of the times
of a step counts, and the interval is that of the mean of their logarithms, by Student's t. The mean step by the clock
has in it what else the machine does. The median step leaves that out, and with it the few steps that a sample falls
into: it shows what the sampler does to all steps. CPU time shows what it does to caches and clocks, not that it takes a
core.

A machine's own noise from one second to the next is larger than what one sample does. So the effect at 1 Hz is looked
for where it must be, too: the sampler runs all the time, and of each second the quarter that the sample lies in is
compared with the quarters before and after it, which differ by 0.25 s and by the sample alone. A quarter of that excess
is the effect on the whole second. The same is computed of the quarter half a second later, which has no sample in it:
it must be zero but for the noise, and would not be if what a sample does went on for longer than a quarter.
"""

from __future__ import annotations

import argparse
import bisect
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
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scipy import stats

from hpcml.agent.telemetry.summary import NodeSummary
from hpcml.runs.journal import Metrics, read_journal

GPUS = 8
FAKE = Path(__file__).resolve().parent.parent / "tests" / "cluster" / "nvml" / "fake_nvml.c"
EFFECT_HEAD = "| steps with the sampler over steps without | ratio - 1 | 95 % interval | median |\n|---|---:|---:|---:|"
WORK = 100_000  # additions of a step: a few milliseconds
QUARTER_S = 0.25
PLACES = {"mean step by the clock, where the sample is": 0.0, "the same where no sample is": 0.5}


def build(folder: Path) -> Path:
    compiler = shutil.which("cc")
    if compiler is None:
        raise SystemExit("no C compiler (cc)")
    library = folder / "libnvidia-ml.so.1"
    subprocess.run([compiler, "-O2", "-shared", "-fPIC", "-o", str(library), str(FAKE), "-lm"], check=True)
    return library


def faking(library: Path, **variables: str) -> dict[str, str]:
    """Return the environment in which *library* is NVML."""
    return {**os.environ, "HPCML_NVML_LIBRARY": str(library), "FAKE_NVML_GPUS": str(GPUS), **variables}


@contextmanager
def sampling(
    folder: Path, interval_s: float, environ: Mapping[str, str]
) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """Have a sampler run; yield it and its file."""
    argv = [
        sys.executable,
        "-P",
        "-m",
        "hpcml.agent.telemetry.sampler",
        str(folder),
        "--run",
        "benchmark",
        "--attempt",
        "0",
    ]
    argv += ["--node", "0", "--agent", str(os.getpid()), "--interval-s", str(interval_s)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environ) as process:
        said, control = process.stdout, process.stdin
        if said is None or control is None:
            raise RuntimeError("asked for pipes, got none")
        yield process, Path(json.loads(said.readline())["telemetry"])
        control.write(b"stop\n")
        control.flush()
        process.wait()


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What a sampler took."""

    cpu_share: float  # of one core
    tick_median_us: float
    tick_p99_us: float
    tick_kib: float


def cost_of(file: Path) -> Cost:
    """Return what the sampler that wrote *file* took, but for its first sample."""
    ticks = [record.values for record in read_journal(file).records if isinstance(record, Metrics)]
    wall_s = ticks[-1]["host.at_s"] - ticks[0]["host.at_s"]
    took_us = sorted(tick["sampler.tick_us"] for tick in ticks[1:])
    return Cost(
        cpu_share=(ticks[-1]["sampler.cpu_s"] - ticks[0]["sampler.cpu_s"]) / wall_s,
        tick_median_us=statistics.median(took_us),
        tick_p99_us=took_us[int(0.99 * len(took_us))],
        tick_kib=file.stat().st_size / len(ticks) / 1024,
    )


def cost(folder: Path, library: Path, interval_s: float, seconds: float) -> None:
    with sampling(folder, interval_s, faking(library)) as (_, file):
        time.sleep(seconds)
    found = cost_of(file)
    print(
        f"| {interval_s:g} | {found.cpu_share:.2%} | {found.tick_median_us:.0f} "
        f"| {found.tick_p99_us:.0f} | {found.tick_kib:.1f} |"
    )


def summed_up(file: Path) -> Mapping[str, Any]:
    """Return what the agent would say of a program that ran as long as the sampler that wrote *file*."""
    records = read_journal(file).records
    first, *_, last = [record.values["host.at_s"] for record in records if isinstance(record, Metrics)]
    summary = NodeSummary(first)
    summary.end(last)
    summary.add(records)
    return summary.details()


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
    with sampling(folder, 1.0, faking(library, FAKE_NVML_CONFIG=str(config))) as (_, file):
        time.sleep(seconds)
    found = summed_up(file)
    for number, kind in enumerate(kinds):
        error, energy_j = found[f"gpu{number}_energy_disagreement"], found[f"gpu{number}_energy_counter_j"]
        print(f"| {kind} | {energy_j:.0f} | {error:+.3%} |")


def count_up() -> None:
    """Do a step of fixed work on the CPU."""
    sum(range(WORK))


def step_s(seconds: float, step: Callable[[], object]) -> tuple[float, float, float]:
    """Return what *step* takes in a window of *seconds*: mean and median by the clock, mean of CPU time."""
    began, began_cpu = time.perf_counter(), time.thread_time()
    ends = [began]
    while ends[-1] < began + seconds:
        step()
        ends.append(time.perf_counter())
    steps = [end - begin for begin, end in itertools.pairwise(ends)]
    return statistics.mean(steps), statistics.median(steps), (time.thread_time() - began_cpu) / len(steps)


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """What the sampler does to a step: mean of the ratio less 1 over the blocks, its 95 % interval, and the median."""

    of: str
    interval_s: float
    blocks: int
    window_s: float
    mean: float
    low: float
    high: float
    median: float


def effect(
    folder: Path,
    environ: Mapping[str, str],
    interval_s: float,
    *,
    blocks: int,
    seconds: float,
    step: Callable[[], object] = count_up,
) -> list[Effect]:
    """Return what a sampler does to *step*, by the clock and in CPU time."""
    logs: dict[str, list[float]] = {"mean step by the clock": [], "median step by the clock": [], "CPU time": []}
    with sampling(folder, interval_s, environ) as (sampler, _):
        for block in range(blocks):
            sums = [0.0] * len(logs)
            for runs in (True, False, False, True) if block % 2 else (False, True, True, False):
                sampler.send_signal(signal.SIGCONT if runs else signal.SIGSTOP)
                for at, took_s in enumerate(step_s(seconds, step)):
                    sums[at] += math.log(took_s) / (2 if runs else -2)
            for values, value in zip(logs.values(), sums, strict=True):
                values.append(value)
        sampler.send_signal(signal.SIGCONT)
    return [effect_of(name, values, interval_s, seconds) for name, values in logs.items()]


def effect_of(name: str, logs: Sequence[float], interval_s: float, window_s: float) -> Effect:
    """Return the mean of the ratios whose logarithms are *logs*, with its interval."""
    mean = statistics.mean(logs)
    half = float(stats.t.ppf(0.975, len(logs) - 1)) * statistics.stdev(logs) / math.sqrt(len(logs))
    return Effect(
        of=name,
        interval_s=interval_s,
        blocks=len(logs),
        window_s=window_s,
        mean=math.expm1(mean),
        low=math.expm1(mean - half),
        high=math.expm1(mean + half),
        median=math.expm1(statistics.median(logs)),
    )


def effect_of_each_sample(folder: Path, environ: Mapping[str, str], seconds: float) -> list[Effect]:
    """Return what one sample a second does to a step, from the quarter of each second that it lies in."""
    ends = [time.monotonic()]
    with sampling(folder, 1.0, environ) as (_, file):
        while ends[-1] < ends[0] + seconds:
            count_up()
            ends.append(time.monotonic())
    samples = [record.values["host.at_s"] for record in read_journal(file).records if isinstance(record, Metrics)]
    means = {name: list(_excesses(ends, [at_s + shift_s for at_s in samples])) for name, shift_s in PLACES.items()}
    return [effect_of(name, values, 1.0, QUARTER_S) for name, values in means.items()]


def _excesses(ends: Sequence[float], places: Sequence[float]) -> Iterator[float]:
    """Yield, of each of *places*, a quarter of how much longer the steps around it are than before and after.

    As logarithms of ratios: of the mean step of the quarter of a second that begins 0.1 s before the place, over that
    of the quarters at its sides, taken together.
    """
    for at_s in places:
        borders = [bisect.bisect(ends, at_s - 0.1 + number * QUARTER_S) for number in (-1, 0, 1, 2)]
        if borders[0] == 0 or borders[-1] == len(ends):
            continue  # not all of it was measured
        before, around, after = (
            (ends[last - 1] - ends[first - 1]) / (last - first) for first, last in itertools.pairwise(borders)
        )
        yield math.log(around / ((before + after) / 2)) / 4


def effect_line(found: Effect) -> str:
    title = f"{1 / found.interval_s:g} Hz, {found.of}, {found.blocks} blocks of 4 x {found.window_s:g} s"
    return f"| {title} | {found.mean:+.2%} | {found.low:+.2%} to {found.high:+.2%} | {found.median:+.2%} |"


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
    parser.add_argument(
        "--each-sample-seconds", type=float, default=300.0, help="how long the effect of each is looked for"
    )
    parser.add_argument("--effect-only", action="store_true", help="leave out what the sampler itself costs")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        library = build(folder)
        if not options.effect_only:
            own_cost(folder, library, options.seconds)
        print(EFFECT_HEAD)
        for number, interval_s in enumerate((1.0, 0.1)):
            for found in effect(
                folder / f"effect{number}",
                faking(library),
                interval_s,
                blocks=options.blocks,
                seconds=options.window_seconds,
            ):
                print(effect_line(found), flush=True)
        for found in effect_of_each_sample(folder / "each", faking(library), options.each_sample_seconds):
            print(effect_line(found))


if __name__ == "__main__":
    main()
