"""A publication as the other rooms would hand it over, for the tests of reports."""

from __future__ import annotations

import math
import random
from typing import Any

from hpcml.analysis.attained import Attained, Attainment, Published
from hpcml.analysis.compare.result import Band, Cost, Level, Load, ReportGroup, ToTarget
from hpcml.analysis.scaling.result import Scaling, ScalingCell, ScalingPoint, SerialShare
from hpcml.model.query_results import Curves, TelemetrySpan, Timeline
from hpcml.model.records import Point, RunRecord, Usage
from hpcml.model.state import State
from hpcml.report.contents import GroupCurves, Origin, Publication
from tests.report.report_values import ci, comparison, difference, flag, row, run, speed, summary

HOSTILE = (
    "</script><script>alert(1)</script>",
    "<img src=x onerror=alert(2)>",
    '" onmouseover="alert(3)',
    "<a href='javascript:alert(4)'>x</a>",
    "{{ 7*7 }} %{x} $\\input{/etc/passwd}$",
    "\u2028\u2029\x1b[31m\u202e\ud800 a\nb",
)
LEVELS = ("fp32", "amp_bf16", "tf32")


def cost(ratio: float | None) -> Cost:
    return Cost(
        gpu_hours=1.25,
        energy_kj=812.5,
        energy_method="counter",
        energy_scope="board",
        energy_per_sample_j=0.42 * (ratio or 1),
        energy_ratio=ratio,
        energy_ratio_ci95=None if ratio is None else ci(ratio - 0.02, ratio + 0.02),
        co2_g=93.1,
        co2_source="an operator's word",
        n=5,
    )


def load(mfu: float) -> Load:
    return Load(
        mean_power_w=310.0,
        power_limit_w=400.0,
        throttled_power_share=0.12,
        throttled_thermal_share=0.0,
        sm_mhz=1395.0,
        util_percent=97.0,
        tensor_percent=41.0,
        peak_memory_mb=18_432.0,
        achieved_tflops=mfu * 312,
        peak_tflops=312.0,
        peak_basis="data sheet",
        mfu=mfu,
        data_share=0.03,
        communication_share=0.08,
        skipped_steps=2.0,
        limited_by="power",
    )


def to_target(ratio: float | None) -> ToTarget:
    return ToTarget(
        target=0.9,
        reached=4,
        n=5,
        median_s=612.0,
        restricted_mean_s=640.0,
        budget_s=900.0,
        saved_s=None if ratio is None else 30.0 * (1 - ratio),
        saved_ci95=None if ratio is None else ci(1.0, 29.0),
        median_kj=512.0,
    )


def full_comparison(**fields: Any) -> Any:  # noqa: ANN401
    rows = (
        row("fp32", 0.9108, speed=speed(19.97), cost=cost(None), load=load(0.31), to_target=to_target(None)),
        row(
            "amp_bf16",
            0.9098,
            difference=difference(-0.001, 0.0008),
            verdict="equivalent",
            speed=speed(8.979, 2.22),
            cost=cost(0.61),
            load=load(0.44),
            to_target=to_target(0.52),
            p_adjusted=0.041,
        ),
        row(
            "tf32",
            0.8783,
            numerics="emulated",
            precision_effective=("fp32", "tf32"),
            n_ok=3,
            n_nan=1,
            n_failed=1,
            seeds=(0, 1, 2),
            difference=difference(-0.0325, 0.0125, rho=None),
            verdict="worse",
            flags=(flag("3 seeds: indicative only, take 5"), flag("tf32 asked for in 1 of 3 runs, measured fp32")),
        ),
    )
    return comparison(**{"rows": rows, **fields})


def runs_of(levels: tuple[str, ...] = LEVELS, *, seeds: int = 5, **fields: Any) -> list[RunRecord]:  # noqa: ANN401
    return [
        run(
            uid=f"20261121-08{at:02d}{seed:02d}-{at:03x}{seed:05x}",
            seed=seed,
            precision=level,
            precision_effective=level,
            tags=(),
            metrics={"val_accuracy": summary("val_accuracy", 0.91 - 0.01 * at + 0.001 * seed)},
            usage=Usage(gpus=1, energy_j=812_500.0, mean_power_w=310.0),
            **fields,
        )
        for at, level in enumerate(levels)
        for seed in range(seeds)
    ]


def curve(seed: int, *, points: int, slope: float = 1.0) -> list[Point]:
    noise = random.Random(seed)  # noqa: S311
    return [
        Point(step=10 * at, t_s=4.2 * at, value=0.92 * (1 - math.exp(-slope * at / 30)) + noise.gauss(0, 0.01))
        for at in range(points)
    ]


def band_of(curves: list[list[Point]], *, over: str) -> Band:
    thinned = [each[:: max(1, len(each) // 100)] for each in curves]  # as many as a band has at most
    listed = thinned[0]
    mean = [sum(each[at].value for each in thinned) / len(thinned) for at in range(len(listed))]
    return Band(
        x=tuple(float(point.step if over == "step" else point.t_s) for point in listed),
        mean=tuple(mean),
        low=tuple(value - 0.01 for value in mean),
        high=tuple(value + 0.01 for value in mean),
        confidence=0.95,
        seeds=len(curves),
    )


def timeline(at: int, device: str = "gpu0") -> Timeline:
    known: dict[str, Any] = {
        "samples": 10,
        "covered_s": 10.0,
        "energy_j": 3100.0,
        "energy_covered_s": 10.0,
        "memory_util_percent": 40.0,
        "sm_active_percent": None,
        "tensor_percent": None,
        "dram_percent": None,
        "max_memory_mb": 18_432.0,
        "throttled_power_s": 0.5,
        "throttled_thermal_s": 0.0,
        "cpu_s": None,
        "cpu_covered_s": None,
    }
    spans = [
        TelemetrySpan(
            t_s=10.0 * step,
            mean_power_w=300 + 20 * math.sin(step / 3 + at),
            util_percent=95 + 3 * math.cos(step + at),
            sm_mhz=1395.0 - at,
            max_temperature_c=50 + step / 4,
            **known,
        )
        for step in range(40)
    ]
    return Timeline(attempt=1, node=0, host="acn01", device=device, uuid="GPU-1", spans=spans)


def scaling() -> Scaling:
    measured = ((1, 1.0, 1.0), (2, 1.91, 0.955), (4, 3.3, 0.825), (8, 3.6, 0.45))
    points = tuple(
        ScalingPoint(
            devices=n,
            n=5,
            n_failed=0,
            batch_size=256,
            step_ms=100 / speedup,
            samples_per_s=2560 * speedup,
            speedup=speedup,
            speedup_ci95=None if n == 1 else ci(speedup - 0.1, speedup + 0.1),
            efficiency=efficiency,
            efficiency_ci95=None,
            cost=1 / efficiency,
            gpu_hours=n / speedup,
            energy_kj=800.0,
            energy_per_sample_j=0.4,
            communication_share=None,
        )
        for n, speedup, efficiency in measured
    )
    cell = ScalingCell(
        kind="strong",
        over="GPUs",
        where={"model": "resnet50", "precision": "amp_bf16"},
        device="cuda (A100)",
        points=points,
        reference=1,
        fit=SerialShare(law="Amdahl", share=0.06, ci95=ci(0.03, 0.09), most_speedup=16.7),
        no_help_beyond=4,
        sentences=("resnet50 in amp_bf16: more GPUs do not help beyond 4",),
    )
    return Scaling(over="GPUs", n_runs=20, cells=(cell,), pays_from=("4 GPUs pay from batch size 256",))


def attainment() -> Attainment:
    attained = tuple(
        Attained(
            where={"model": "resnet50"},
            precision=precision,
            device="A100",
            devices=1,
            n=5,
            step_ms=100.0,
            samples_per_s=2560.0,
            tokens_per_s=None,
            model_gflops_per_step=3000.0,
            achieved_tflops=achieved,
            peak_tflops=peak,
            peak_basis="data sheet",
            mfu=achieved / peak,
            bandwidth_gbs=1555.0,
            dram_percent=61.0,
            intensity_flop_per_byte=achieved * 1000 / (0.61 * 1555.0),
            roof_tflops=min(peak, achieved / 0.61),
            limits=("launches of small kernels",),
        )
        for precision, achieved, peak in (("fp32", 12.1, 19.5), ("amp_bf16", 96.0, 312.0))
    )
    published = Published(
        workload="ResNet-50 training", device="V100", precision="amp", value=1325.0, unit="images/s", source="a paper"
    )
    return Attainment(n_runs=10, attained=attained, published=(published,))


def publication(
    levels: tuple[str, ...] = LEVELS,
    *,
    seeds: int = 5,
    points: int = 100,
    **fields: Any,  # noqa: ANN401
) -> Publication:
    """Return one group of runs with everything that a report can show."""
    runs = runs_of(levels, seeds=seeds)
    if len(runs) > 12:
        lost = {"state": State.FAILED, "cause": "out_of_memory", "exit_code": 1, "reason": "CUDA out of memory"}
        runs[-1] = run(**{**{name: getattr(runs[-1], name) for name in ("uid", "seed", "precision")}, **lost})
    found = {each.uid: curve(at, points=points) for at, each in enumerate(runs)}
    uids = {level: tuple(each.uid for each in runs if each.precision == level) for level in levels}
    counted = {level: tuple(u for u in uids[level] if u != runs[-1].uid) or uids[level] for level in levels}
    group = ReportGroup(
        where={"model": "digits_cnn", "data": "digits", "cluster": "karolina"},
        levels=tuple(Level(name=level, uids=uids[level], counted=counted[level]) for level in levels),
    )
    bands: dict[str, Any] = {
        level: {over: band_of([found[uid] for uid in counted[level]], over=over) for over in ("step", "time")}
        for level in levels
    }
    drawn = GroupCurves(group=0, curves=Curves(metric="val_accuracy", runs=runs, points=found), bands=bands)
    origin = Origin(
        command_line=("hpcml", "run", "-m", "precision=fp32,amp,tf32", "seed=range(5)", "name=it's; rm -rf ~"),
        cwd="/home/me/study",
        hpcml_version="0.1.0",
        git_commit="abc1234",
        git_dirty=True,
        n_runs=len(runs),
    )
    known: dict[str, Any] = {
        "title": "study: runs by precision",
        "made_at": "2026-11-21 10:00:00+00:00",
        "hpcml_version": "0.1.0",
        "command_line": ("hpcml", "report", "--experiment", "study"),
        "runs": runs,
        "by": "precision",
        "groups": (group,),
        "comparison": full_comparison(),
        "curves": (drawn,),
        "timelines": {each.uid: [timeline(at)] for at, each in enumerate(runs[:6])},
        "scaling": scaling(),
        "attainment": attainment(),
        "origins": (origin,),
    }
    return Publication(**{**known, **fields})
