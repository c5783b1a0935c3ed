"""The precision study of ResNet-50, a transformer and matrix products on one GPU, through hpcml itself, as Markdown.

Four precisions, three seeds, of each: rate, speed-up over FP32 (paired by seed, 95 %), MFU, power, energy, memory, and
what the probe at the start of each run showed. Then the step with the sampler over the step without. Whoever has a GPU
runs this by itself, on a GPU that nobody else uses, with hpcml[torch] for CUDA installed:

python benchmarks/gpu_precision_study.py > study.md

It takes a while: 36 trainings of some minutes each at most, and 20 short ones. `--on-cpu` goes the whole way with tiny
sizes where there is no GPU: it shows that the script works, and its figures say nothing.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from hpcml_command import Hpcml
from scipy.stats import t as student

from hpcml.model import hardware
from hpcml.model.precision import PrecisionName

PRECISIONS = ("fp32", "tf32", "amp_fp16", "amp_bf16")


# title of a column -> what `rows` calls it
COLUMNS = {
    "model": "model",
    "precision": "precision",
    "measured": "measured",
    "n": "n",
    "result": "result",
    "step ms": "step_ms",
    "samples/s": "samples_per_s",
    "speed-up (95 %)": "speedup",
    "TFLOP/s": "tflops",
    "MFU": "mfu",
    "W": "power_w",
    "J a sample": "energy_per_sample_j",
    "peak MiB": "peak_memory_mb",
    "error of a product": "error_matmul",
    "of a convolution": "error_conv",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What is run in each precision."""

    name: str  # of the experiment, too
    settings: Sequence[str]
    precisions: Sequence[str] = PRECISIONS
    seeds: int | None = None  # None: as many as the study's


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """All that is run, and how often."""

    settings: Sequence[str]  # of all
    seeds: int
    workloads: Sequence[Workload]
    watched: Workload  # with the sampler and without
    watched_seeds: int


def steps(count: int) -> tuple[str, str]:
    return f"training.steps={count}", f"training.eval_every={count}"


ON_GPU = Study(
    settings=("devices=gpus_1", "training.deterministic=false"),  # what torch does for it keeps the host busy
    seeds=3,
    workloads=(
        Workload(
            name="resnet50",
            settings=("model=resnet50", "model.options.image_size=224", "training.batch_size=64", *steps(200)),
        ),
        Workload(name="transformer", settings=("model=transformer_base", *steps(200))),
        Workload(
            name="gemm",
            settings=("model=gemm", "model.options.sizes=[1024,2048,4096,8192,16384]"),
            precisions=("fp64", *PRECISIONS),
        ),
    ),
    watched=Workload(
        name="sampler",
        settings=("model=resnet50", "model.options.image_size=224", "training.batch_size=64", *steps(200)),
    ),
    watched_seeds=10,
)
ON_CPU = Study(
    settings=("devices=cpu", "resources.cpus_per_task=1"),
    seeds=2,
    workloads=(
        Workload(
            name="resnet18",
            settings=("model=resnet18", "model.options.image_size=32", "training.batch_size=4", *steps(16)),
        ),
        Workload(name="transformer", settings=("model=transformer_tiny", "training.batch_size=4", *steps(16))),
        Workload(name="gemm", settings=("model=gemm", "model.options.sizes=[64,128]")),
    ),
    watched=Workload(name="sampler", settings=("model=mnist_mlp", *steps(200))),
    watched_seeds=2,
)


def run(hpcml: Hpcml, study: Study, *, until_s: float = math.inf) -> None:
    """Run all; the arms of a seed follow each other, so that what drifts is in all of them.

    A seed after the first is begun only if it will have ended at *until_s* (monotonic), each part taking as long as in
    the first.
    """
    took_s: dict[str, float] = {}
    for seed in range(study.seeds):
        due = [workload for workload in study.workloads if workload.seeds is None or seed < workload.seeds]
        if seed and time.monotonic() + sum(took_s[workload.name] for workload in due) > until_s:
            break
        for workload in due:
            began_s = time.monotonic()
            arms = f"precision={','.join(workload.precisions)}"
            hpcml.sweep(*study.settings, *workload.settings, f"experiment={workload.name}", arms, f"seed={seed}")
            took_s[workload.name] = time.monotonic() - began_s
    for seed in range(study.watched_seeds):
        arms = "telemetry.enabled=" + ("true,false" if seed % 2 else "false,true")
        words = (*study.settings, *study.watched.settings, f"experiment={study.watched.name}")
        hpcml.sweep(*words, arms, f"seed={seed}")


def rows(hpcml: Hpcml, workload: Workload) -> Iterator[dict[str, Any]]:
    """Yield a row for each precision; what is not known is None."""
    answer = hpcml.asked("compare", "--experiment", workload.name, "--by", "precision")
    for cell in answer["cells"]:
        for row in cell["rows"]:
            speed, load, cost = (row[part] or {} for part in ("speed", "load", "cost"))  # gemm takes no steps
            tflops, mfu = attained(hpcml, answer["metric"], row)
            error_matmul, error_conv = probe(hpcml, workload, row["level"])
            yield {
                "model": cell["where"]["model"],
                "precision": row["level"],
                "measured": "/".join(row["precision_effective"])
                + ("" if row["numerics"] == "native" else f", {row['numerics']}"),
                "n": row["n_ok"],
                "result": None if row["mean"] is None else f"{answer['metric']} {row['mean']:.4g}",
                "step_ms": speed.get("step_ms"),
                "samples_per_s": speed.get("samples_per_s"),
                "speedup": with_interval(speed.get("speedup"), speed.get("speedup_ci95")),
                "tflops": tflops,
                "mfu": mfu,
                "power_w": load.get("mean_power_w"),
                "energy_per_sample_j": cost.get("energy_per_sample_j"),
                "peak_memory_mb": load.get("peak_memory_mb"),
                "error_matmul": error_matmul,
                "error_conv": error_conv,
            }


def attained(hpcml: Hpcml, metric: str, row: Mapping[str, Any]) -> tuple[float | None, float | None]:
    """Return TFLOP/s and the share of the peak: of a training as hpcml found it, of products from their own rate."""
    if metric != "gflops":
        load = row["load"] or {}
        return load.get("achieved_tflops"), load.get("mfu")
    if row["mean"] is None or row["precision_effective"] != row["precision_requested"]:
        return None, None
    tflops = row["mean"] / 1000  # of the largest size
    gpu = hardware.gpu_of(hpcml.asked("runs", "--limit", "1")[0]["facts"])
    peak = gpu.peak(PrecisionName[row["level"]]) if gpu is not None else None
    return tflops, tflops / peak.tflops if peak is not None else None


def line(*cells: object) -> str:
    words = ("" if cell is None else f"{cell:.4g}" if isinstance(cell, float) else str(cell) for cell in cells)
    return f"| {' | '.join(words)} |"


def table(found: Iterable[Mapping[str, Any]], columns: Mapping[str, str] = COLUMNS) -> str:
    """Return *found* as a table of Markdown; *columns* are titles and what the rows call them."""
    head = [line(*columns), f"|{'---|' * len(columns)}"]
    return "\n".join([*head, *(line(*(row.get(name) for name in columns.values())) for row in found)])


def with_interval(value: float | None, between: Mapping[str, float] | None) -> str | None:
    if value is None or between is None:
        return None if value is None else f"{value:.3f}"
    return f"{value:.3f} ({between['low']:.3f} to {between['high']:.3f})"


def probe(hpcml: Hpcml, workload: Workload, precision: str) -> tuple[float | None, float | None]:
    """Return the errors that one run measured before it began: of a product, and of a convolution."""
    runs = hpcml.asked("runs", "--experiment", workload.name, "--where", f"precision={precision}")
    events = hpcml.asked("show", runs[0]["uid"])["events"]
    errors: dict[str, float] = next(
        (event["details"]["errors"] for event in events if event["name"] == "precision"), {}
    )
    return errors.get("matmul"), errors.get("conv")


def sampler_rows(hpcml: Hpcml, watched: Workload) -> Iterator[str]:
    """Yield what the sampler does to the steps of the last half of each run, paired by seed: their mean, and median.

    The mean has in it the few steps that a sample falls into; the median shows what happens to all of them.
    """
    steps_s = hpcml.asked(
        "query",
        "SELECT uid, avg(value) AS mean_s FROM points JOIN metrics USING (uid, metric)"  # noqa: S608 - our own name
        " JOIN runs USING (uid) WHERE metric = 'step_time_s' AND 2 * step > last_step"
        f" AND experiment = '{watched.name}' GROUP BY uid",
    )
    mean_s = {row["uid"]: row["mean_s"] for row in steps_s}
    runs = hpcml.asked("runs", "--experiment", watched.name)
    arms: dict[bool, dict[int, float]] = {True: {}, False: {}}
    for found in runs:
        arms[found["params"]["telemetry.enabled"]][found["seed"]] = mean_s[found["uid"]]
    logs = [math.log(arms[True][seed] / arms[False][seed]) for seed in arms[True]]
    mean = statistics.fmean(logs)
    reach = float(student.ppf(0.975, len(logs) - 1)) * statistics.stdev(logs) / math.sqrt(len(logs))
    low, middle, high = (math.exp(mean + sign * reach) for sign in (-1, 0, 1))
    yield line("mean step", len(logs), with_interval(middle, {"low": low, "high": high}))
    (cell,) = hpcml.asked("compare", "--experiment", watched.name, "--by", "telemetry.enabled", "--reference", "true")[
        "cells"
    ]
    speed = next(row for row in cell["rows"] if row["level"] == "false")["speed"]  # without over with: with / without
    yield line("median step", speed["n"], with_interval(speed["speedup"], speed["speedup_ci95"]))


def machine(hpcml: Hpcml) -> str:
    facts = hpcml.asked("runs", "--limit", "1")[0]["facts"]
    names = ("gpu_model", "gpu_driver", "gpu_power_limit_w", "gpu_max_sm_mhz", "cpu_model", "torch", "cuda", "cudnn")
    return ", ".join(f"{name} {facts[name]}" for name in names if facts.get(name) is not None)


def write_up(hpcml: Hpcml, study: Study) -> None:
    print(f"{datetime.now(UTC):%Y-%m-%d}, {machine(hpcml)}\n")
    print(table(row for workload in study.workloads for row in rows(hpcml, workload)))
    print("\n| step with the sampler over the step without | n | ratio (95 %) |\n|---|---:|---:|")
    print("\n".join(sampler_rows(hpcml, study.watched)))
    print(f"\n{hpcml.said('peak', '--where', 'model!=gemm', '--md')}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--on-cpu", action="store_true", help="tiny sizes without a GPU: shows only that it works")
    parser.add_argument("--home", type=Path, help="keep the runs there; default: they are thrown away")
    options = parser.parse_args()
    if not options.on_cpu and not torch.cuda.is_available():
        print("gpu_precision_study: torch sees no GPU here: use a machine that has one, or --on-cpu", file=sys.stderr)
        return 2
    study, began = ON_CPU if options.on_cpu else ON_GPU, time.perf_counter()
    with tempfile.TemporaryDirectory() as thrown_away:
        hpcml = Hpcml(home=options.home or Path(thrown_away))
        run(hpcml, study)
        if options.on_cpu:
            print("**On a CPU, with tiny sizes: these figures say nothing but that the script works.**\n")
        write_up(hpcml, study)
    print(f"\n{time.perf_counter() - began:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
