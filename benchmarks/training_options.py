"""What channels last, torch.compile and a second thread do to a training step on a CPU, as hpcml itself measures it.

All through `hpcml run` and `hpcml compare`: the median step of the last half of each run, the speed-up paired by seed,
with Student's 95 % interval. A seed's arms run one after the other, seed by seed; one thread, but where threads are
compared. Compilation is the first step less a steady one; torch's caches are off, so that every run compiles.

On the two free cores of a small machine about seven minutes; `--quick` shows in two that it works.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hpcml_command import Hpcml

QUICK_STEPS = 16  # the fewest of which hpcml takes a steady state


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A model, with so many steps that a run computes for some three seconds."""

    name: str
    steps: int
    settings: Sequence[str] = ()


CNN = Model(name="mnist_cnn", steps=120)
MLP = Model(name="mnist_mlp", steps=2000)
RESNET = Model(name="resnet18", steps=20, settings=("training.batch_size=8",))
TRANSFORMER = Model(name="transformer_tiny", steps=80, settings=("training.batch_size=16",))
UNET = Model(name="unet", steps=40)


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """A setting of two values, the first of which is the reference."""

    key: str
    values: tuple[str, str]
    models: Sequence[Model]
    settings: Sequence[str] = ("resources.cpus_per_task=1",)


OPTIONS = (
    Option(key="layout", values=("nchw", "nhwc"), models=(RESNET, UNET, CNN)),
    Option(
        key="training.compile",
        values=("false", "true"),
        models=(CNN, MLP, TRANSFORMER),
        settings=("resources.cpus_per_task=1", "+workload.env.TORCHINDUCTOR_FORCE_DISABLE_CACHES=1"),
    ),
    Option(
        key="resources.cpus_per_task",
        values=("1", "2"),
        models=(CNN, RESNET, TRANSFORMER),
        settings=("strategy=cpu_threads",),
    ),
)


def run(hpcml: Hpcml, option: Option, model: Model, seeds: int) -> None:
    words = [f"model={model.name}", *model.settings, *option.settings, f"experiment={option.key}"]
    words += [f"training.steps={model.steps}", f"training.eval_every={model.steps}"]
    for seed in range(seeds):  # a command each: runs that ask for other resources would wait for all of the first
        values = option.values if seed % 2 == 0 else option.values[::-1]
        hpcml.sweep(*words, f"{option.key}={','.join(values)}", f"seed={seed}")


def rows(hpcml: Hpcml, option: Option) -> list[str]:
    words = ("--experiment", option.key, "--by", option.key, "--reference", option.values[0])
    found = []
    for cell in hpcml.asked("compare", *words)["cells"]:
        first, other = (next(row for row in cell["rows"] if row["level"] == value) for value in option.values)
        compiling = compile_s(hpcml, cell["where"]["model"], other) if option.key == "training.compile" else ""
        found.append(
            f"| {cell['where']['model']} | {option.key} {' -> '.join(option.values)} "
            f"| {first['speed']['step_ms']:.3g} | {other['speed']['step_ms']:.3g} | {faster(other['speed'])} "
            f"| {compiling} | {other['difference']['value']:+.2g} |"
        )
    return found


def faster(speed: dict[str, Any]) -> str:
    between = speed["speedup_ci95"]
    return f"{speed['speedup']:.2f} ({between['low']:.2f} to {between['high']:.2f})"


def compile_s(hpcml: Hpcml, model: str, row: dict[str, Any]) -> str:
    """Return the range of what the first steps took longer than a steady one."""
    runs = hpcml.asked("runs", "--where", f"model={model} and training.compile=true")
    first_s = sorted(found["metrics"]["step_time_s"]["first"] - row["speed"]["step_ms"] / 1000 for found in runs)
    return f"{first_s[0]:.1f} to {first_s[-1]:.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3, help="at least two, else there is no interval")
    parser.add_argument("--quick", action="store_true", help="one model of each option, two seeds, few steps")
    options = parser.parse_args()
    began, seeds = time.perf_counter(), 2 if options.quick else options.seeds
    found: list[str] = []
    with tempfile.TemporaryDirectory() as home:
        hpcml = Hpcml(home=Path(home))
        for option in OPTIONS:
            for model in option.models[-1:] if options.quick else option.models:
                run(hpcml, option, replace(model, steps=QUICK_STEPS) if options.quick else model, seeds)
            found += rows(hpcml, option)
    print("| model | setting | step before, ms | after, ms | speed-up (95 %) | compiling, s | metric, difference |")
    print("|---|---|---:|---:|---:|---:|---:|")
    print("\n".join(found))
    print(f"\n{seeds} seeds, {time.perf_counter() - began:.0f} s")


if __name__ == "__main__":
    main()
