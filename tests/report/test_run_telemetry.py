"""What a run used, as `hpcml show` and `hpcml runs` tell it."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from typing import Any

from report_values import event, run

from hpcml.model.query_results import TelemetrySpan, Timeline
from hpcml.model.records import RunRecord, Usage, Work
from hpcml.report.charts import level_styles
from hpcml.report.document import Figure, Listing
from hpcml.report.render.data import as_csv, as_json
from hpcml.report.render.terminal import as_text
from hpcml.report.runs import runs_document
from hpcml.report.show import Asked, ShownRun, run_document
from hpcml.report.telemetry import cores_busy, telemetry_section
from tests.report.publication_values import publication

USAGE = Usage(
    gpus=2,
    gpu_s=7200.0,
    energy_j=1.8e6,
    energy_method="counter",
    energy_scope="gpu",
    energy_uncertainty_j=50.0,
    mean_power_w=250.0,
    max_power_w=400.0,
    power_limit_w=400.0,
    throttled_power_share=0.125,
    throttled_thermal_share=0.0,
    sm_mhz=1755.0,
    util_percent=93.0,
    max_memory_mb=20480.0,
    cpu_s=812.0,
    co2_g=200.0,
    co2_source="GPU boards only, 400 g/kWh: the site, 2025",
)
WORK = Work(devices=2, model_flops=1.5e12, flops_doubt="1 custom op", samples=128.0, peak_allocated_mb=812.5)


def span(t_s: float, power_w: float | None) -> TelemetrySpan:
    known: dict[str, Any] = dict.fromkeys(TelemetrySpan.__slots__)
    known |= {"t_s": t_s, "samples": 10, "covered_s": 10.0, "mean_power_w": power_w, "util_percent": 50.0}
    return TelemetrySpan(**known)


def line(*powers: float | None, device: str = "gpu0") -> Timeline:
    spans = [span(10.0 * at - 0.4, power) for at, power in enumerate(powers)]
    return Timeline(attempt=1, node=0, host="acn01", device=device, uuid="GPU-1", spans=spans)


def section(record: RunRecord, name: str, *timelines: Timeline) -> list[str]:
    shown = ShownRun(run=record, timelines=timelines, asked=Asked(overrides=None))
    text = as_text(run_document(shown), width=120)
    _, found, rest = text.partition(f"\n{name}\n")
    return [line.strip() for line in rest.partition("\n\n")[0].splitlines()] if found else []


def test_a_run_shows_what_it_used() -> None:
    assert section(run(usage=USAGE), "usage") == [
        "GPUs            2, 2.000 GPU hours",
        "energy          1800 kJ, +- 0.050 kJ of sampling, by counter",
        "CO2             200.0 g  (GPU boards only, 400 g/kWh: the site, 2025)",
        "power of a GPU  mean 250.0 W, highest 400.0 W, limit 400.0 W",
        "clocks lowered  power cap 12.5 %, heat 0.00 %, of the time",
        "SM clock        median 1755 MHz",
        "utilisation     93.0 %",
        "GPU memory      at most 20480 MiB",
        "CPU time        812.0 s",
    ]


def test_a_run_shows_what_its_steps_do() -> None:
    assert section(run(work=WORK), "work") == [
        "devices            2",
        "FLOPs of a step    1.50e+12 forward and backward",
        "FLOPs, remarks     1 custom op",
        "samples of a step  128.0",
        "peak memory        allocated 812.5 MiB, on the fullest device",
    ]


def test_a_model_s_parameters_are_those_that_the_recipe_told_or_that_were_seen() -> None:
    seen = event(name="precision_observed", details={"parameters": {"float32": 1_000, "float16": 200}})
    told = event(name="training", details={"parameters": 354_002})

    for events, parameters in (([seen], "1,200"), ([seen, told], "354,002")):
        shown = ShownRun(run=run(), events=events, asked=Asked(overrides=None))
        assert f"parameters  {parameters}" in as_text(run_document(shown))


def test_power_and_utilisation_of_each_gpu_are_drawn_to_one_scale() -> None:
    lines = section(
        run(usage=Usage(gpus=2)), "timelines", line(0.0, 400.0, None, 200.0), line(100.0, 100.0, device="gpu1")
    )

    heading, first, second = lines[-3:]
    assert heading.split("  ")[0] == "GPU"
    assert "power, to 400 W" in heading
    assert first == "gpu0 of acn01, attempt 1  ▁█ ▅             ▅▅▅▅"
    assert second == "gpu1 of acn01, attempt 1  ▃▃               ▅▅"


def test_json_has_usage_work_and_timelines_whole() -> None:
    shown = ShownRun(run=run(usage=USAGE, work=WORK), timelines=[line(1.0, None)], asked=Asked(overrides=None))
    told = json.loads(as_json(run_document(shown)))

    assert (told["usage"]["energy_j"], told["usage"]["tensor_percent"]) == (1.8e6, None)
    assert told["work"]["flops_doubt"] == "1 custom op"
    assert [span["mean_power_w"] for span in told["timelines"][0]["spans"]] == [1.0, None]
    assert json.loads(as_json(runs_document([run(usage=USAGE), run()], now=0.0)))[1]["usage"] is None


def test_csv_has_a_column_for_all_that_any_run_used() -> None:
    rows = list(csv.DictReader(io.StringIO(as_csv(runs_document([run(usage=USAGE), run(work=WORK)], now=0.0)))))

    assert [row["usage.energy_j"] for row in rows] == ["1800000.0", ""]
    assert [row["work.samples"] for row in rows] == ["", "128.0"]
    assert "usage.tensor_percent" not in rows[0]  # which no run has


def busy(*cores: float | None, node: int = 0) -> Timeline:
    known = [{} if each is None else {"cpu_s": each * 5, "cpu_covered_s": 5.0} for each in cores]
    spans = [replace(span(0.3 + 10 * at, None), util_percent=None, **each) for at, each in enumerate(known)]
    return Timeline(attempt=1, node=node, host=f"acn{node}", device="host", uuid=None, spans=spans)


def test_cores_are_those_of_the_seconds_in_which_they_are_known_summed_over_nodes() -> None:
    assert cores_busy([busy(1.0, 2.0), busy(4.0, None, node=1), line(5.0)]) == 5.5
    assert cores_busy([busy(1.0), busy(None, node=1)]) is None
    assert cores_busy([]) is None
    assert section(run(usage=Usage(cpu_s=15.0)), "usage", busy(1.0, 2.0)) == [
        "CPU time  15.00 s, 1.500 cores busy on average"
    ]


def test_a_report_draws_each_value_over_its_own_time_and_prints_the_numbers_of_show() -> None:
    told = publication(seeds=1, timelines={})
    runs = [replace(each, usage=replace(USAGE, cpu_s=15.0)) for each in told.runs]
    told = replace(told, runs=runs, timelines={each.uid: [busy(1.0, 2.0)] for each in runs})

    found = telemetry_section(told, level_styles([level.name for group in told.groups for level in group.levels]))

    assert found is not None
    chart = next(part for part in found.parts if isinstance(part, Figure))
    assert chart.title == "CPU cores busy"
    drawn = chart.draw().data[0]
    assert list(drawn.x) == [0.3, 10.3, 10.3, 20.3]
    assert list(drawn.y) == [1.0, 1.0, 2.0, 2.0]
    listing = found.parts[-1]
    assert isinstance(listing, Listing)
    columns = listing.shown()[-3:]
    assert [column.heading for column in columns] == ["throttled, heat", "CPU time", "cores busy"]
    assert [column.written(listing.rows[0]) for column in columns[1:]] == ["15.00", "1.500"]
