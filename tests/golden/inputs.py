"""The recorded runs that the golden answers are about: an experiment for each study, and no chance in anything."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hpcml.model.choices import Goal, Numerics
from hpcml.model.precision import PrecisionName
from hpcml.model.run import Data, Model, Objective, Precision, Resources, Workload
from hpcml.model.strategy import Strategy, StrategyName
from hpcml.model.training import Training
from hpcml.runs.layout import RunDir
from tests.store.building import Journal, make_run_dir

A100 = {"device": "cuda", "gpu_model": "NVIDIA A100-SXM4-40GB", "hostname": "n1", "torch": "2.13.0"}
V100 = {**A100, "gpu_model": "Tesla V100-SXM2-32GB"}
CPU = {"device": "cpu", "cpu_model": "AMD EPYC 7763", "hostname": "n1", "numpy": "2.3.5", "threads": 8}
STEPS = 60
PARAMETERS = {"bf16": "bfloat16", "fp16": "float16"}
GPU = {
    "uuid": "GPU-1",
    "scope": "gpu",
    "energy_method": "counter",
    "energy_uncertainty_j": 25.0,
    "energy_disagrees": False,
    "max_power_w": 390.0,
    "mean_util_percent": 91.0,
    "median_sm_mhz": 1395.0,
    "max_memory_mb": 18_432.0,
    "max_temperature_c": 61.0,
    "throttle_power_s": 0.0,
    "samples": 600,
}
AT_MOST = Objective(goal=Goal.max, margin=0.01)
Curve = Callable[[int], float]


def noise(seed: int, arm: int | str = -1) -> float:
    """Return a number between -1 and 1 that looks like chance, and is the same at each call."""
    return random.Random(f"{seed} of {arm}").uniform(-1, 1)  # noqa: S311 - no secret


class Study:
    """Runs of one experiment, numbered as they come."""

    def __init__(self, home: Path, experiment: str) -> None:
        self._home, self._experiment, self._n = home, experiment, 0

    def new(self, *, precision: str = "fp32", seed: int = 0, numerics: str = "native", **changes: Any) -> RunDir:  # noqa: ANN401
        """Write down what was submitted, and nothing of what became of it."""
        uid = f"20260528-{200_000 + self._n:06}-{self._experiment}{self._n:02}"
        self._n += 1
        return make_run_dir(
            self._home / "runs",
            uid,
            planned=Numerics[numerics],
            experiment=self._experiment,
            precision=Precision(name=PrecisionName[precision]),
            seed=seed,
            **changes,
        )

    def run(  # noqa: PLR0913 - what runs differ in
        self,
        value: float,
        *,
        precision: str = "fp32",
        measured: str | None = None,
        numerics: str = "native",
        facts: Mapping[str, Any] = A100,
        step_s: float = 0.1,
        metric: str = "val_accuracy",
        curve: Curve | None = None,
        energy_j: float | None = None,
        work: Mapping[str, Any] | None = None,
        end: Mapping[str, Any] | None = None,
        **changes: Any,  # noqa: ANN401
    ) -> RunDir:
        """Write down a run that ended with *value*, or as *end* says, as agent and program leave it."""
        run_dir = self.new(precision=precision, numerics=numerics, **changes)
        agent, rank0 = (Journal(run_dir, writer=writer, attempt=0) for writer in ("agent", "rank0"))
        agent.event("submitted", scheduler="slurm", job_id=str(4700 + self._n))
        agent.event("attempt_started", 1.0)
        agent.event("facts", 1.0, **facts)
        done = measured or precision
        if precision != "own":
            products, is_other = {"matmul": done, "conv": done}, done != precision
            told = {"requested": precision, "products": products, "mismatch": is_other, "numerics": numerics}
            rank0.event("precision", 1.5, parameters=PARAMETERS.get(done, "float32"), **told)
        if work is not None:
            rank0.event("work", 1.6, **work)
            rank0.event("memory", 1.7, peak_allocated_mb=8192.0, peak_reserved_mb=9216.0)
        own, at_s = noise(self._n, self._experiment), 2.0
        for step in range(1, STEPS + 1):
            took_s = step_s * (4.0 if step <= 3 else 1 + 0.01 * (step % 3) + 0.005 * own)
            at_s += took_s
            rank0.metrics(step, at_s, step_time_s=took_s, loss=(2 + 0.02 * own) / step)
            if curve is not None and step % 10 == 0:
                rank0.metrics(step, at_s, **{metric: curve(step)})
        rank0.metrics(STEPS, at_s, **{metric: value})
        wall_s = at_s - 1.0
        if energy_j is not None:
            agent.event("telemetry", at_s, **_telemetry(wall_s, energy_j))
        agent.event("attempt_ended", at_s, **{"state": "COMPLETED", "exit_code": 0, "wall_s": wall_s, **(end or {})})
        return run_dir

    def arm(self, values: Sequence[float], **more: Any) -> None:  # noqa: ANN401
        """Write down a run for each of *values*, with seeds from 0 on."""
        for seed, value in enumerate(values):
            self.run(value, seed=seed, **more)


def _telemetry(wall_s: float, energy_j: float) -> dict[str, Any]:
    """Return what an agent says at the end of a node with one GPU."""
    gpu = {**GPU, "energy_j": energy_j, "energy_covered_s": wall_s, "mean_power_w": energy_j / wall_s}
    node = {"node": 0, "gpus": 1, "mapping": "CUDA_VISIBLE_DEVICES", "wall_s": wall_s, "data_until_s": wall_s}
    return {**node, "host_cpu_s": wall_s, "energy_j": energy_j, **{f"gpu0_{name}": gpu[name] for name in gpu}}


def accuracies(n: int, mean: float = 0.9, spread: float = 0.003, arm: int = 0) -> list[float]:
    """Return what *n* seeds reached: what they share with other arms is larger than what they do not."""
    return [round(mean + spread * (noise(seed) + noise(seed, arm)), 6) for seed in range(n)]


def precisions(home: Path) -> None:
    """Record arms of precisions: sound, few, lost, mislabelled, emulated, confounded, equal by a margin, unfinished."""
    three = Study(home, "three")
    for arm, (name, step_s) in enumerate({"fp32": 0.1, "tf32": 0.05, "bf16": 0.04}.items()):
        three.arm(accuracies(3, arm=arm), precision=name, step_s=step_s, objective=AT_MOST)
    five = Study(home, "five")
    for arm, (name, mean) in enumerate({"fp32": 0.9, "tf32": 0.9003, "bf16": 0.889, "fp16": 0.86}.items()):
        step_s = 0.1 / (arm + 1)
        five.arm(accuracies(5, mean, arm=arm), precision=name, step_s=step_s, objective=AT_MOST)
    lost = Study(home, "lost")
    lost.arm(accuracies(8), objective=AT_MOST)
    values = [math.nan] * 5 + accuracies(8, arm=1)[5:]
    lost.arm(values, precision="fp16", step_s=0.05, objective=AT_MOST)
    memory = {"state": "FAILED", "exit_code": 1, "reason": "CUDA out of memory", "cause": "gpu_memory"}
    lost.run(0.5, precision="fp16", seed=8, end=memory, objective=AT_MOST)
    late = {"state": "TIMEOUT", "exit_code": None, "reason": "walltime"}
    lost.run(0.5, precision="fp32", seed=8, end=late, objective=AT_MOST)
    other = Study(home, "mislabelled")
    other.arm(accuracies(5), objective=AT_MOST)
    other.arm(accuracies(5, arm=1), precision="tf32", measured="fp32", objective=AT_MOST)
    other.arm(accuracies(5, arm=2), precision="bf16", step_s=0.05, objective=AT_MOST)
    emulated = Study(home, "emulated")
    emulated.arm(accuracies(5), facts=CPU, objective=AT_MOST)
    emulated.arm(accuracies(5, arm=1), precision="tf32", numerics="emulated", facts=CPU, step_s=0.9, objective=AT_MOST)
    single = Study(home, "single")
    single.arm(accuracies(1), objective=AT_MOST)
    single.arm(accuracies(1, arm=1), precision="tf32", step_s=0.05, objective=AT_MOST)
    hardware = Study(home, "hardware")
    hardware.arm(accuracies(5), objective=AT_MOST)
    hardware.arm(accuracies(5, arm=1), precision="tf32", facts=V100, step_s=0.08, objective=AT_MOST)
    margin = Study(home, "margin")
    margin.arm(accuracies(8))
    margin.arm(accuracies(8, 0.8985, arm=1), precision="tf32")
    unfinished = Study(home, "unfinished")
    unfinished.arm(accuracies(4))
    unfinished.arm(accuracies(3, arm=1), precision="tf32")
    unfinished.run(0.4, precision="tf32", seed=3, end={"state": "FAILED", "exit_code": 2, "reason": "exit code 2"})
    running = unfinished.new(precision="tf32", seed=4)
    Journal(running, writer="agent", attempt=0).event("attempt_started", 1.0)
    Journal(running, attempt=0).metrics(1, 2.0, val_accuracy=0.3)
    unfinished.new(precision="fp32", seed=4, tags=["late"])


def others(home: Path) -> None:
    """Record what other questions are about: devices, targets, energy, programs, rates."""
    strong, weak = Study(home, "strong"), Study(home, "weak")
    for gpus in (1, 2, 4, 8):
        devices = {
            "resources": Resources(gpus_per_node=gpus),
            "strategy": Strategy(name=StrategyName.single if gpus == 1 else StrategyName.ddp),
        }
        strong.arm([0.9, 0.91, 0.92], step_s=0.1 * (0.08 + 0.92 / gpus), **devices)
        batch = Training(batch_size=64 * gpus)
        weak.arm([0.9, 0.91, 0.92], step_s=0.1 * (1 + 0.03 * math.log2(gpus)), training=batch, **devices)
    target = Study(home, "target")
    for name, step_s, rate in (("fp32", 0.1, 12.0), ("tf32", 0.05, 14.0)):
        for seed in range(5):
            speed, asked = rate * (1 + 0.05 * noise(seed)), Objective(goal=Goal.max, margin=0.02, target=0.85)
            reached = [0.95 * (1 - math.exp(-step / speed)) for step in range(STEPS + 1)]
            known = {"curve": reached.__getitem__, "energy_j": 9000.0 * step_s + seed, "objective": asked}
            target.run(reached[STEPS], precision=name, seed=seed, step_s=step_s, **known)
    energy = Study(home, "energy")
    for arm, (name, step_s, watts) in enumerate((("fp32", 0.1, 350.0), ("tf32", 0.06, 320.0))):
        for seed, value in enumerate(accuracies(5, arm=arm)):
            joules = STEPS * step_s * watts * (1 + 0.02 * noise(seed))
            energy.run(value, precision=name, seed=seed, step_s=step_s, energy_j=joules)
    program = Study(home, "program")
    for rate in ("0.01", "0.1"):
        command = Workload(command="python train.py --lr {lr}", args={"lr": rate})
        for seed in range(4):
            value = 0.5 - 0.4 * float(rate) + 0.01 * noise(seed) + 0.004 * noise(seed, rate)
            objective = Objective(metric="error", goal=Goal.min, margin=0.05)
            more = {"workload": command, "model": Model(name="custom", recipe=None), "objective": objective}
            program.run(value, precision="own", seed=seed, metric="error", name=f"lr{rate}-{seed}", **more)
    gemm = Study(home, "gemm")
    for name, step_s in (("fp32", 0.01), ("tf32", 0.002), ("bf16", 0.001)):
        work = {"devices": 1, "model_flops": 2.0 * 4096**3, "samples": 1.0}
        fixed = {"model": Model(name="gemm", recipe="gemm", framework="torch"), "data": Data(name="none")}
        rate = Objective(metric="gflops", goal=Goal.max)
        values = [2 * 4096**3 / step_s / 1e9 * (1 + 0.01 * noise(seed)) for seed in range(3)]
        gemm.arm(values, precision=name, step_s=step_s, metric="gflops", work=work, objective=rate, **fixed)
    batches = Study(home, "batches")
    for at, (size, model) in enumerate([(32, "mnist_cnn"), (64, "mnist_cnn"), (32, "mnist_mlp"), (64, "mnist_mlp")]):
        fixed = {"model": Model(name=model, recipe="image_classification", framework="torch")}
        batches.arm(accuracies(4, 0.9 + at / 500, arm=at), training=Training(batch_size=size), tags=[model], **fixed)


def journals(home: Path) -> dict[str, RunDir]:
    """Write a run for each entry of journals.json: attempt, writer, time, event and details of what happened to it."""
    study, found = Study(home, "journals"), {}
    for name, told in json.loads(Path(__file__).with_name("journals.json").read_text(encoding="utf-8")).items():
        found[name] = run_dir = study.new(name=name)
        files: dict[tuple[int, str], Journal] = {}
        for attempt, writer, at_s, event, details in told:
            if (attempt, writer) not in files:
                files[attempt, writer] = Journal(run_dir, writer=writer, attempt=attempt)
            files[attempt, writer].event(event, at_s, **details)
    return found
