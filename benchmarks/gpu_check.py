"""Everything that only a GPU can show, in one go of ten minutes: `make gpu-check` (docs/gpus.md).

The tests marked gpu; the precision study of ResNet-50, a transformer and matrix products, through hpcml itself, without
a container; what hpcml's agent wrote down of such a run; the probe of every precision; how products round their inputs,
and products of 8-bit numbers, against the emulation; products of matrices against torch's best; the sampler on the real
NVML. Writes gpu-check.json and gpu-check.md, and ends with status 1 where something is not as it should be. What the
machine does not tell is unknown, and listed. `--on-cpu` goes the whole way with tiny sizes: it shows that the script
works, and its figures say nothing.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib.util
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import gpu_precision_study as study
import gpu_products
import sampler
import torch
from hpcml_command import Hpcml

from hpcml.agent.nvml.inventory import list_gpus
from hpcml.agent.nvml.session import started
from hpcml.agent.telemetry.gpus import gpu_facts
from hpcml.model.hardware import GpuModel, gpu_of
from hpcml.model.precision import (
    CAPABILITIES,
    INFERENCE,
    Device,
    PrecisionName,
    capability,
    why_refused,
)
from hpcml_client.journal import VERSION
from hpcml_train.precision import proof
from hpcml_train.torch import scaled_products

ROOT = Path(__file__).resolve().parent.parent
FRAMEWORKS = ("torch", "jax")
LEAST_OF_TORCHS_BEST = 0.8  # of the largest product; what a GPU at its power limit varies by is in it
FARTHEST_FROM_EMULATION = 0.1  # of the error: what a tensor core's sums may be off by (14 bits on Hopper)
LARGEST_ENERGY_DISAGREEMENT = 0.05  # between the counter and the integral of power
# of a run on a GPU: what must be known of it, and where `hpcml show` has it
WANTED = {
    "facts": ("gpu_model", "gpu_driver", "cuda", "cudnn", "gpu_mapping", "gpu_sm_count", "gpu_power_limit_w"),
    "usage": (
        *("energy_j", "energy_method", "energy_scope", "mean_power_w", "sm_mhz", "throttled_power_share"),
        *("util_percent", "tensor_percent", "dram_percent", "max_memory_mb", "max_temperature_c"),
    ),
}
# of the samples under load, what the Markdown has; the JSON has all
OF_LOAD = (
    *("energy_counter_j", "energy_integral_j", "energy_disagreement", "mean_power_w", "max_power_w", "power_field"),
    *("median_sm_mhz", "median_mem_mhz", "throttle_from", "throttle_power_s", "throttle_hw_thermal_s"),
    *("throttle_sw_thermal_s", "mean_util_percent", "mean_sm_active_percent", "mean_tensor_percent"),
    *("mean_dram_percent", "max_memory_mb", "max_temperature_c", "ecc_corrected", "ecc_uncorrected"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How much of everything."""

    study: study.Study
    sizes: gpu_products.Sizes
    load_s: float  # under which power, clocks and counters are read
    load_interval_s: float
    blocks: int
    windows_s: dict[float, float]  # interval of the sampler -> how long a window is
    rest_s: float  # what all but the tests and the study takes


@dataclass(slots=True, kw_only=True)
class Part:
    """What one part found."""

    title: str
    text: list[str] = field(default_factory=list)  # Markdown
    answer: Any = None  # the same for programs
    faults: list[str] = field(default_factory=list)  # what is not as it should be
    unknown: list[str] = field(default_factory=list)  # what this machine does not tell
    took_s: float = 0.0


ON_GPU = Plan(
    study=dataclasses.replace(
        study.ON_GPU,
        workloads=(
            study.Workload(
                name="resnet50",
                settings=(
                    "model=resnet50",
                    "model.options.image_size=224",
                    "training.batch_size=128",
                    *study.steps(40),
                ),
            ),
            study.Workload(
                name="transformer", settings=("model=transformer_base", "training.batch_size=128", *study.steps(24))
            ),
            study.Workload(
                name="gemm",
                settings=("model=gemm", "model.options.sizes=[1024,2048,4096,8192]"),
                precisions=("fp64", *study.PRECISIONS),
                seeds=1,
            ),
        ),
        watched_seeds=0,
    ),
    sizes=gpu_products.Sizes(matrix=(512, 1024, 512), images=(16, 128, 28)),
    load_s=16.0,
    load_interval_s=1.0,
    blocks=10,
    windows_s={1.0: 1.0, 0.1: 0.5},
    rest_s=140.0,
)
ON_CPU = Plan(
    study=dataclasses.replace(
        study.ON_CPU,
        seeds=1,
        workloads=(
            study.Workload(
                name="transformer",
                settings=("model=transformer_tiny", "training.batch_size=2", *study.steps(8)),
                precisions=("fp32", "tf32"),
            ),
            study.Workload(
                name="gemm", settings=("model=gemm", "model.options.sizes=[64]"), precisions=("fp32", "fp64")
            ),
        ),
        watched_seeds=0,
    ),
    sizes=gpu_products.Sizes(matrix=(16, 32, 16), images=(1, 8, 8)),
    load_s=0.5,
    load_interval_s=0.1,
    blocks=2,
    windows_s={0.1: 0.1},
    rest_s=10.0,
)


def run_tests(part: Part) -> None:
    """Run the tests marked gpu."""
    marked = sorted(path for path in (ROOT / "tests").rglob("test_*.py") if "mark.gpu" in path.read_text("utf-8"))
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        words = ("-q", "-m", "gpu", "-p", "no:cacheprovider", f"--junitxml={report}", *map(str, marked))
        environ = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # what else is installed here is not ours
        subprocess.run(
            [sys.executable, "-m", "pytest", *words], check=False, cwd=ROOT, env=environ, stdout=sys.stderr.fileno()
        )
        cases = list(ET.parse(report).iter("testcase")) if report.exists() else []  # noqa: S314 - pytest's own
    outcomes = {f"{case.get('classname')}.{case.get('name')}": _outcome(case) for case in cases}
    part.answer = outcomes
    part.faults += [f"test {name}: {outcome}" for name, outcome in outcomes.items() if outcome.startswith("failed")]
    part.unknown += [f"test {name}: {outcome}" for name, outcome in outcomes.items() if outcome.startswith("skipped")]
    if not outcomes:
        part.faults.append("pytest ran no test marked gpu: its words are above")
    part.text.append(f"{sum(outcome == 'passed' for outcome in outcomes.values())} of {len(outcomes)} passed.")


def _outcome(case: ET.Element) -> str:
    for verdict, tags in {"failed": ("failure", "error"), "skipped": ("skipped",)}.items():
        for tag in tags:
            if (found := case.find(tag)) is not None:
                return f"{verdict}: {(found.get('message') or '').splitlines()[0]}"
    return "passed"


def run_study(part: Part, hpcml: Hpcml, plan: Plan, *, until_s: float) -> None:
    """Run the study, and see whether its figures can be true."""
    study.run(hpcml, plan.study, until_s=until_s)
    found = [row for workload in plan.study.workloads for row in study.rows(hpcml, workload)]
    part.answer = found
    part.text.append(
        "W, J and MiB are of whole runs, start and validation included; the rest is of their second half.\n"
    )
    part.text.append(study.table(found))
    for row in found:
        arm = f"{row['model']} in {row['precision']}"
        if row["n"] == 0:
            part.faults.append(f"{arm}: no run ended well")
        elif row["measured"] not in (row["precision"], f"{row['precision']}, emulated"):
            part.faults.append(f"{arm}: {row['measured']} was measured")
        elif row["mfu"] is None:
            part.unknown.append(f"{arm}: MFU")
        elif not 0 < row["mfu"] <= 1:
            part.faults.append(f"{arm}: MFU {row['mfu']:.3f}")


def look_at_runs(part: Part, hpcml: Hpcml, *, on_gpu: bool) -> None:
    """See what hpcml's agent wrote down of the runs, which it started without a container."""
    runs = hpcml.asked("runs")
    part.faults += [f"run {run['uid']}: {run['state']}: {run['reason']}" for run in runs if run["state"] != "COMPLETED"]
    shown = hpcml.asked("show", next(run for run in runs if run["experiment"] == "transformer")["uid"])
    told = {name: (shown[group] or {}).get(name) for group, names in WANTED.items() for name in names}
    part.answer = {"runs": len(runs), **told}
    part.text.append(f"{len(runs)} runs. Of one of them, {shown['params']['precision.name']}:\n")
    part.text.append(_listed(told))
    part.unknown += [f"{name} of a run" for name, value in told.items() if value is None]
    if on_gpu and shown["facts"].get("device") != "cuda":
        part.faults.append(f"a run planned for a GPU computed on {shown['facts'].get('device')}")


def prove(part: Part, device: torch.device) -> None:
    """Probe every precision that this device has, with each framework that is here."""
    known = torch.cuda.get_device_capability(device) if device.type == "cuda" else None
    seen = Device(kind=device.type, compute_capability=known)
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # else JAX takes the memory that torch needs
    found = []
    for framework in FRAMEWORKS:
        if importlib.util.find_spec(framework) is None:
            part.unknown.append(f"{framework} is not installed here")
            continue
        for name in CAPABILITIES:
            reason = why_refused(name, seen, framework)
            if not capability(name, framework).trains:
                reason = INFERENCE
            if reason is not None:
                found.append({"framework": framework, "precision": name.name, "measured": f"refused: {reason}"})
                continue
            try:
                found.append(_proven(framework, name.name, device.type))
                if name.value.scaled_products and device.type == "cpu" and framework == "torch":
                    found.append(_proven(framework, name.name, device.type, numerics="native"))  # it has them, slowly
            except (RuntimeError, ValueError) as error:  # NoGpuError is one: this framework sees no GPU
                part.unknown.append(f"{framework}, {name.name}: {' '.join(str(error).split())[:200]}")
    part.answer = found
    titles = {"framework": "framework", "precision": "precision", "measured": "measured", "numerics": "numerics"}
    errors = {"error of a product": "error_matmul", "of a convolution": "error_conv"}
    part.text.append(study.table(found, {**titles, **errors}))
    for row in found:
        if row["measured"] != row["precision"] and "numerics" in row:
            part.faults.append(f"{row['framework']}: the probe names {row['precision']} {row['measured']}")


def _proven(framework: str, precision: str, device: str, *, numerics: str = "auto") -> dict[str, Any]:
    asked = proof.Asked(
        precision=precision, numerics=numerics, device=device, local_rank=0, rounding="rna", loss_scaling=True
    )
    _, facts, proven = proof.apply(framework, asked)
    return {
        "framework": f"{framework} {facts[framework]}",
        "precision": precision,
        "measured": proven["effective"],
        "numerics": proven["numerics"],
        "error_matmul": proven["errors"]["matmul"],
        "error_conv": proven["errors"].get("conv"),  # torch has no convolution of 8-bit numbers
        "flipped": proven["flipped"],
    }


def round_inputs(part: Part, device: torch.device, sizes: gpu_products.Sizes) -> None:
    """See how products round their inputs, and what is left between them and the emulation."""
    found = list(gpu_products.roundings(device, sizes))
    part.answer = [dataclasses.asdict(one) for one in found]
    part.text.append("`rne` to nearest, ties to even; `rna` ties away from zero; `rz` towards zero.\n")
    alike: dict[tuple[str, str], list[gpu_products.Rounding]] = {}
    for one in found:
        alike.setdefault((one.precision, one.rounded), []).append(one)
    rows = (
        {
            "precision": precision,
            "rounded": rounded,
            "products": "; ".join(one.product for one in ones),
            "left": f"{max(one.left for one in ones):.1e}",
            "error": f"{max(one.error for one in ones):.1e}",
        }
        for (precision, rounded), ones in alike.items()
    )
    titles = {"precision": "precision", "inputs rounded": "rounded", "products": "products"}
    errors = {"largest difference from the emulation": "left", "largest error against FP64": "error"}
    part.text.append(study.table(rows, {**titles, **errors}))


def scale_products(part: Part, device: torch.device, sizes: gpu_products.Sizes) -> None:
    """See how far the products of 8-bit numbers are from the emulation, and both from FP64."""
    if (reason := scaled_products.why_not(device)) is not None:
        part.unknown.append(f"products of 8-bit numbers: {reason}")
        return
    found = list(gpu_products.scaled(device, sizes))
    part.answer = [dataclasses.asdict(one) for one in found]
    titles = {"precision": "precision", "product": "product", "error against FP64": "error"}
    emulation = {"error of the emulation": "emulated", "difference from the emulation": "left"}
    part.text.append(study.table(part.answer, {**titles, **emulation}))
    for one in found:
        if not one.left < FARTHEST_FROM_EMULATION * one.error:
            part.faults.append(f"{one.precision}, {one.product}: {one.left:.1e} from the emulation")


def multiply(part: Part, hpcml: Hpcml, plan: Plan, device: torch.device, gpu: GpuModel | None) -> None:
    """Compare the products of the recipe with torch's best, and both with the peak."""
    (gemm,) = (workload for workload in plan.study.workloads if workload.name == "gemm")
    points = hpcml.asked(
        "query",
        "SELECT precision, step, value FROM points JOIN runs USING (uid)"
        " WHERE metric = 'gflops' AND experiment = 'gemm' ORDER BY step",
    )
    recipe = {(point["precision"], int(point["step"])): point["value"] / 1000 for point in points}
    sizes = sorted({size for _, size in recipe})
    if device.type == "cpu":
        part.unknown.append("torch's best: its clock is a GPU's")
        return
    for rate in gpu_products.rates(device, gemm.precisions, sizes):
        peak = gpu.peak(PrecisionName[rate.precision]) if gpu is not None else None
        ours = recipe.get((rate.precision, rate.size))
        row = {
            **dataclasses.asdict(rate),
            "recipe_tflops": ours,
            "recipe_over_torch": None if ours is None else ours / rate.tflops,
            "peak_tflops": None if peak is None else peak.tflops,
            "of_peak": None if peak is None else rate.tflops / peak.tflops,
        }
        part.answer = [*(part.answer or []), row]
        arm = f"product of {rate.size} in {rate.precision}"
        if ours is None:
            part.faults.append(f"{arm}: no run measured it")
        elif rate.size == sizes[-1] and ours < LEAST_OF_TORCHS_BEST * rate.tflops:
            part.faults.append(f"{arm}: the recipe has {ours / rate.tflops:.2f} of torch's best")
        if peak is None:
            part.unknown.append(f"{arm}: the peak of this GPU")
        elif max(rate.tflops, ours or 0.0) > peak.tflops:
            part.faults.append(f"{arm}: faster than the peak of {peak.tflops:g} TFLOP/s")
    titles = {"precision": "precision", "N": "size", "torch's best, TFLOP/s": "tflops", "recipe": "recipe_tflops"}
    ratios = {"recipe / torch": "recipe_over_torch", "peak": "peak_tflops", "torch / peak": "of_peak"}
    part.text.append(study.table(part.answer or [], {**titles, **ratios}))


def watch(part: Part, plan: Plan, device: torch.device) -> None:
    """Read the real NVML under load, and see what the sampler does to a step."""
    with started(os.environ) as obstacle:
        if obstacle:
            part.unknown.append(obstacle)
    facts = gpu_facts(list_gpus(os.environ))
    a = torch.randn(4096 if device.type == "cuda" else 64, 4096, device=device).bfloat16()

    def step() -> None:
        for _ in range(10):
            torch.matmul(a, a.T)
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    effects: list[sampler.Effect] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with sampler.sampling(folder / "load", plan.load_interval_s, os.environ) as (_, file):
            ends_s = time.monotonic() + plan.load_s
            while time.monotonic() < ends_s:
                step()
        told, cost = sampler.summed_up(file), sampler.cost_of(file)
        for interval_s, window_s in plan.windows_s.items():
            place = folder / f"{interval_s}"
            effects += sampler.effect(place, os.environ, interval_s, blocks=plan.blocks, seconds=window_s, step=step)
    kept = {name: value for name, value in told.items() if name.startswith("gpu0_") and not name.endswith("_uuid")}
    part.answer = {
        "facts": {name: value for name, value in facts.items() if name != "gpu_uuids"},
        "under_load": kept,
        "cost_of_the_sampler": dataclasses.asdict(cost),
        "effects": [dataclasses.asdict(one) for one in effects],
    }
    part.text.append(f"Sampled every {plan.load_interval_s:g} s over {plan.load_s:g} s of products in BF16:\n")
    part.text.append(_listed({name: kept.get(f"gpu0_{name}") for name in OF_LOAD}))
    part.text.append(
        f"\nThe sampler took {cost.cpu_share:.2%} of a core; a sample {cost.tick_median_us / 1000:.1f} ms (median).\n"
    )
    part.text += [sampler.EFFECT_HEAD, *map(sampler.effect_line, effects)]
    _judge(part, kept)


def _listed(values: Mapping[str, Any]) -> str:
    rows = ({"what": name, "value": value} for name, value in values.items())
    return study.table(rows, {"what": "what", "value": "value"})


def _judge(part: Part, kept: dict[str, Any]) -> None:
    part.unknown += [f"NVML: {name}" for name in OF_LOAD if kept.get(f"gpu0_{name}") is None]
    disagreement = kept.get("gpu0_energy_disagreement")
    if disagreement is not None and abs(disagreement) > LARGEST_ENERGY_DISAGREEMENT:
        part.faults.append(f"the energy counter and the integral of power disagree by {disagreement:.1%}")
    part.faults += [f"{name} is no number" for name, value in kept.items() if value != value]  # noqa: PLR0124 - nan


def check(options: argparse.Namespace, device: torch.device, home: Path) -> Iterator[Part]:
    """Yield the parts as they are done. Nothing computes on the GPU in this process while runs of hpcml do."""
    plan, began_s = ON_CPU if options.on_cpu else ON_GPU, time.monotonic()
    until_s = began_s + 60 * options.minutes - plan.rest_s
    hpcml = Hpcml(home=home)
    gpu = None if options.on_cpu else gpu_of(gpu_facts(list_gpus(os.environ)))
    parts: Sequence[tuple[str, Callable[[Part], None]]] = (
        ("Tests marked gpu", run_tests),
        ("Precision study", lambda part: run_study(part, hpcml, plan, until_s=until_s)),
        ("hpcml's runs, without a container", lambda part: look_at_runs(part, hpcml, on_gpu=not options.on_cpu)),
        ("Probe of every precision", lambda part: prove(part, device)),
        ("Rounding of inputs, against the emulation", lambda part: round_inputs(part, device, plan.sizes)),
        ("FP8, against the emulation", lambda part: scale_products(part, device, plan.sizes)),
        ("Products of matrices, against torch's best", lambda part: multiply(part, hpcml, plan, device, gpu)),
        ("NVML and the sampler", lambda part: watch(part, plan, device)),
    )
    for title, do in parts:
        part, begins_s = Part(title=title), time.monotonic()
        print(f"gpu-check: {title}", file=sys.stderr, flush=True)
        try:
            do(part)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever ends a part is a finding, and others follow
            traceback.print_exc()
            part.faults.append(f"{title}: {type(error).__name__}: {' '.join(str(error).split())}")
        part.took_s = time.monotonic() - begins_s
        yield part


def write(folder: Path, parts: Sequence[Part], head: dict[str, Any], *, on_cpu: bool) -> None:
    """Write gpu-check.json and gpu-check.md."""
    folder.mkdir(parents=True, exist_ok=True)
    answer = {**head, "parts": [dataclasses.asdict(part) for part in parts]}
    (folder / "gpu-check.json").write_text(json.dumps(answer, indent=1) + "\n", encoding="utf-8")
    words = ["**On a CPU, with tiny sizes: these figures say nothing but that the script works.**\n"] if on_cpu else []
    words.append(", ".join(f"{name} {value}" for name, value in head.items() if value is not None) + "\n")
    for title, found in (
        ("Not as it should be", [fault for part in parts for fault in part.faults]),
        ("Unknown", [what for part in parts for what in part.unknown]),
    ):
        words += [
            f"{title}: {'nothing.' if not found else ''}\n",
            *(f"- {one}" for one in found),
            *([""] * bool(found)),
        ]
    for part in parts:
        words += [f"### {part.title}\n", *part.text, ""]
    (folder / "gpu-check.md").write_text("\n".join(words), encoding="utf-8")


def describe(*, on_cpu: bool) -> dict[str, Any]:
    facts = {} if on_cpu else gpu_facts(list_gpus(os.environ))
    return {
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "gpu": facts.get("gpu_model"),
        "driver": facts.get("gpu_driver"),
        "power_limit_w": facts.get("gpu_power_limit_w"),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "python": platform.python_version(),
        "cores": os.cpu_count(),
        "hpcml": VERSION,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--on-cpu", action="store_true", help="tiny sizes without a GPU: shows only that it works")
    parser.add_argument(
        "--minutes", type=float, default=9.5, help="how long it may take; seeds that do not fit are left"
    )
    parser.add_argument("--out", type=Path, default=Path(), help="where gpu-check.json and gpu-check.md are written")
    parser.add_argument("--home", type=Path, help="keep the runs there; default: they are thrown away")
    options = parser.parse_args()
    if not options.on_cpu and not torch.cuda.is_available():
        print("gpu_check: torch sees no GPU here: use a machine that has one, or --on-cpu", file=sys.stderr)
        return 2
    device = torch.device("cpu") if options.on_cpu else torch.device("cuda", 0)
    head, parts, began_s = describe(on_cpu=options.on_cpu), [], time.monotonic()
    with tempfile.TemporaryDirectory() as thrown_away:
        for part in check(options, device, options.home or Path(thrown_away)):
            parts.append(part)
            took = {"minutes": round((time.monotonic() - began_s) / 60, 1)}
            write(options.out, parts, {**head, **took}, on_cpu=options.on_cpu)  # after each: what was found is kept
    faults = [fault for part in parts for fault in part.faults]
    print("\n".join(faults) or "gpu-check: all is as it should be", file=sys.stderr)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
