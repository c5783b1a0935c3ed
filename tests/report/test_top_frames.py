"""Frames of what runs do now: every width, and what is not there."""

from __future__ import annotations

import io
import json
import math
from dataclasses import replace

from rich.console import Console

from hpcml.model.live import GpuNow, Latest, NodeNow, RunNow
from hpcml.model.records import Point
from hpcml.model.state import State
from hpcml.report.top import curve, runs_frame, runs_json

GPU = GpuNow(
    gpu="gpu0",
    uuid="GPU-1",
    model="NVIDIA H100 80GB HBM3",
    scope="gpu",
    values={"util_percent": 93.0, "tensor_percent": 37.0, "memory_mb": 20480.0, "power_w": 250.4, "sm_mhz": 1755.0},
    memory_total_mb=81_559,
    power_limit_w=700.0,
    max_sm_mhz=1980.0,
    throttled=("hw_thermal", "power"),
    energy_j=1500.0,
    xids=(),
    lost=None,
    sampled_at=1000.0,
    util_percent=[Point(step, float(step), 10.0 * step) for step in range(11)],
)
NODE = NodeNow(
    node=0,
    host="node7",
    gpus=[GPU, replace(GPU, gpu="gpu1", throttled=(), xids=(79,), lost="GPU is lost")],
    cores_busy=12.34,
    memory_mb=2048.0,
    load1=15.0,
    sampled_at=1000.0,
    interval_s=1.0,
    missed_ticks=0,
    ended=None,
    doubt=None,
)
RUN = RunNow(
    uid="20261121-083015-222abcde",
    experiment="demo",
    name="base",
    state=State.RUNNING,
    is_settled=True,
    attempt=2,
    reason=None,
    job="slurm 4711",
    started_at=900.0,
    ended_at=None,
    step=120,
    steps=300,
    steps_per_s=2.0,
    left_s=90.0,
    objective="val_accuracy",
    metrics={"val_accuracy": Latest(value=0.91, step=100), "loss": Latest(value=math.nan, step=120)},
    metrics_at=1001.0,
    curves={"loss": [Point(1, 0.0, 1.0), Point(2, 1.0, math.nan), Point(3, 2.0, 3.0)]},
    nodes=[NODE],
    notes=[],
)


def frame(*runs: RunNow, now: float = 1002.0, width: int = 200) -> list[str]:
    console = Console(file=io.StringIO(), width=width, force_terminal=False)
    with console.capture() as capture:
        console.print(runs_frame(runs, now=now, console=console))
    return [line.rstrip() for line in capture.get().splitlines()]


def test_a_frame_of_one_run_has_everything() -> None:
    title, progress, objective, loss, age, _, host, heading, first, second = frame(RUN)

    assert title == "20261121-083015-222abcde  RUNNING  demo/base  slurm 4711  attempt 2  for 1m42s"
    assert progress == "step 120/300 (40 %)  2.00 steps/s  1m30s left"
    assert objective.split() == ["val_accuracy", "0.9100", "at", "step", "100"]
    assert loss.split() == ["loss", "nan", "▁!█"]
    assert age == "reported 1.0s ago"
    assert host == "node7  12.3 cores busy  2.0 GiB  load 15.0  sample 2.0s old"
    assert heading.split()[:2] == ["GPU", "model"]
    for words in ("93", "37", "20.0/80", "250/700", "1755/1980", "1.500", "hw thermal, power", "▁▁▂▃▄▅▅▆▇██"):
        assert words in first
    assert "LOST: GPU is lost; Xid 79" in second


def test_several_runs_are_a_line_each() -> None:
    ended = replace(RUN, uid="20261121-083015-223xyzzy", state=State.FAILED, reason="exit status 3", nodes=[])

    heading, first, second = frame(RUN, ended)

    assert heading.split()[:3] == ["run", "name", "state"]
    for words in ("222abcde", "RUNNING", "120/300", "1m30s", "val_accuracy 0.9100", "hw_thermal, power", "gpu1 LOST"):
        assert words in first
    assert "FAILED" in second
    assert second.endswith("exit status 3")


def test_old_samples_ends_and_doubts_are_said() -> None:
    node = replace(NODE, gpus=[], ended="the sampler has ended: killed", doubt="NVML: Driver Not Loaded")
    *_, host, doubt = frame(replace(RUN, nodes=[node]), now=1725.0)

    assert host.endswith("the sampler has ended: killed  sample 12m05s old")
    assert doubt == "NVML: Driver Not Loaded"


def test_words_of_others_cannot_move_the_cursor() -> None:
    text = "\n".join(frame(replace(RUN, name="a\x1b[2Jb", notes=["x\x1b[1A"])))

    assert "\x1b" not in text


def test_json_has_every_field_and_no_number_that_json_has_not() -> None:
    (run,) = json.loads(runs_json([RUN]))

    assert (run["state"], run["metrics"]["loss"]["value"], run["nodes"][0]["gpus"][1]["xids"]) == (
        "RUNNING",
        "nan",
        [79],
    )


def test_a_curve_of_one_point_or_of_none_is_nothing() -> None:
    assert curve([]) == curve([Point(1, 0.0, 1.0)]) == ""
