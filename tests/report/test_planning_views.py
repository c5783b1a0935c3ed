from __future__ import annotations

import csv
import io
import json
from typing import Any

import pytest
from report_values import EVIL, flag
from rich.console import Console

from hpcml.analysis.compare.result import Interval
from hpcml.analysis.planning import Design, Estimate, Forecast, PowerCell, PowerPlan, Spread, Total, Wanted
from hpcml.report.estimate import estimate_document
from hpcml.report.plan import power_document
from hpcml.report.render.data import as_csv, as_json
from hpcml.report.render.markdown import as_markdown
from hpcml.report.render.terminal import as_renderable


def wanted(name: str = "precision=fp32", **fields: Any) -> Wanted:  # noqa: ANN401
    known: dict[str, Any] = {
        "name": name,
        "seed": 0,
        "params": {},
        "numerics": "native",
        "device": "cuda",
        "device_model": None,
        "gpus": 2,
        "charged_gpus": 2,
        "nodes": 1,
        "walltime_s": 7200,
        "stop_after_s": 7100,
        "warn_after_s": 7000,
    }
    return Wanted(**{**known, **fields})


def forecast(name: str = "precision=fp32", **fields: Any) -> Forecast:  # noqa: ANN401
    known: dict[str, Any] = {
        "wanted": wanted(name),
        "basis": "alike",
        "uids": ["20261121-080000-aaaaaaaa", "20261121-080000-bbbbbbbb"],
        "wall_s": 3600.0,
        "interval": Interval(low=3000.0, high=4320.0, confidence=0.95),
        "suggested_s": 5400,
    }
    return Forecast(**{**known, **fields})


def estimated(*forecasts: Forecast, **totals: Any) -> Estimate:  # noqa: ANN401
    known: dict[str, Any] = {
        "known": 3,
        "unknown": 1,
        "wall_s": 10800.0,
        "low_s": 9000.0,
        "high_s": 12960.0,
        "gpu_hours": 6.0,
        "gpu_hours_low": 5.0,
        "gpu_hours_high": 7.2,
        "node_hours": 3.0,
        "energy_j": 7.2e6,
        "co2_g": 400.0,
    }
    return Estimate(forecasts=forecasts, total=Total(**{**known, **totals}), longest=forecasts[0], log_sd=0.05, df=7)


def printed(renderable: Any, width: int = 120) -> str:  # noqa: ANN401
    console = Console(file=io.StringIO(), width=width, color_system=None, force_terminal=False, legacy_windows=False)
    with console.capture() as capture:
        console.print(renderable(console))
    return capture.get()


SWEEP = estimated(
    forecast("precision=fp32 seed=0"),
    forecast("precision=fp32 seed=1"),
    forecast(
        "precision=tf32 seed=0",
        basis="near",
        interval=None,
        range_s=(1800.0, 7200.0),
        differing=["precision.name=tf32 (recorded: fp32)"],
        remarks=("9000 steps are extrapolated from 300 at most",),
    ),
    forecast("precision=fp16 seed=0", basis="none", wall_s=None, interval=None, uids=(), suggested_s=None),
)


def test_an_estimate_names_its_runs_its_sums_and_its_doubts() -> None:
    text = printed(lambda console: as_renderable(estimate_document(SWEEP), console=console))

    rows = {line.split()[0]: " ".join(line.split()) for line in text.splitlines()[1:4]}
    assert rows["precision=fp32"] == "precision=fp32 2 1h00m 50m00s to 1h12m 4.00 aaaaaaaa, bbbbbbbb"
    assert rows["precision=tf32"] == "precision=tf32 1 30m00s to 2h00m 2.00 aaaaaaaa, bbbbbbbb (not alike)"
    assert rows["precision=fp16"].startswith("precision=fp16 1 no record")
    squeezed = " ".join(text.split())
    for words in (
        "the 3 runs with a record, one after the other: 3h00m (2h30m to 3h36m",
        "GPU-hours: 6.00 (5.00 to 7.20); whole nodes are charged: 3.00 node-hours",
        "energy of the GPUs: 2.00 kWh, 400 g of CO2",
        "up to 1h12m; resources.walltime=1h30m would do",
        "spread by 5.0 % (7 degrees of freedom)",
        "precision=tf32: 9000 steps are extrapolated",
        "precision=tf32: never recorded; a range from runs that differ in precision.name=tf32 (recorded: fp32)",
        "1 run without a record of such work",
    ):
        assert words in squeezed


def test_every_form_of_an_estimate_holds_all_runs() -> None:
    lines = list(csv.DictReader(io.StringIO(as_csv(estimate_document(SWEEP)))))
    found = json.loads(as_json(estimate_document(SWEEP)))

    assert [line["wall_s"] for line in lines] == ["3600.0", "3600.0", "3600.0", ""]
    assert [each["low_s"] for each in found["forecasts"]] == [3000.0, 3000.0, 1800.0, None]
    assert found["total"]["gpu_hours"] == 6.0
    assert as_markdown(estimate_document(SWEEP)).count("\n| ") == 4


def power_plan(where: str = "digits_cnn", sd: float = 0.004) -> PowerPlan:
    spread = Spread(sd=sd, df=4, low=0.75 * sd, high=1.6 * sd)
    design = Design(
        paired=True,
        spread=spread,
        seeds=5,
        seeds_low=4,
        seeds_high=None,
        table=[(0.005, (0.1, 0.5)), (0.01, (0.4, 0.95))],
    )
    cell = PowerCell(
        where={"model.name": where},
        margin=0.01,
        margin_source="command line",
        seeds={"fp32": 5, "tf32": 5},
        designs=[design],
        flags=(flag("the spread itself is hardly known"),),
    )
    return PowerPlan(
        by="precision",
        metric="val_accuracy",
        verdict="equivalent",
        power=0.8,
        comparisons=1,
        columns=(3, 5),
        cells=[cell],
        unusable=["model.name=other: fp32 n=1"],
    )


def test_a_power_plan_answers_first_and_tabulates_then() -> None:
    text = printed(lambda console: as_renderable(power_document(power_plan()), console=console), width=200)

    lines = [" ".join(line.split()) for line in text.splitlines()]
    assert lines[0] == "val_accuracy by precision: seeds in each arm for 'equivalent' in 0.8 of cases"
    assert lines[2] == "model digits_cnn · margin 0.01, given on the command line · at hand fp32 n=5, tf32 n=5"
    assert lines[3].startswith(
        "paired by seed: 5 seeds; between 4 and more than 1000, as the spread may be (sd of diff"
    )
    assert "0.01 40 % 95 %" in lines
    assert lines[-1].endswith("model.name=other: fp32 n=1")


@pytest.mark.parametrize("width", [60, 100])
def test_names_are_made_harmless(width: int) -> None:
    hostile = estimated(forecast(EVIL, remarks=(EVIL,)))

    text = printed(lambda console: as_renderable(power_document(power_plan(EVIL)), console=console), width)
    text += printed(lambda console: as_renderable(estimate_document(hostile), console=console), width)
    text += as_markdown(power_document(power_plan(EVIL))) + as_markdown(estimate_document(hostile))

    assert not any(character in text for character in ("\x1b", "\r", "\u202e"))
    assert "\\|" in as_markdown(power_document(power_plan(EVIL)))
