from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from recorded_runs import FACTS, PARAMS
from recorded_runs import run as recorded

from hpcml.analysis.estimate import estimate, find_pace, find_precedents, suggest_walltime_s
from hpcml.analysis.planning import Estimate, Forecast, Wanted
from hpcml.model.records import Point, RunRecord, Usage
from hpcml.model.state import State

Curves = dict[str, tuple[list[Point], list[Point]]]


def wanted(**fields: Any) -> Wanted:  # noqa: ANN401
    params = {**PARAMS, "precision.name": "fp32", "training.eval_every": 20, "seed": 7, **fields.pop("params", {})}
    known: dict[str, Any] = {
        "name": "precision=fp32",
        "seed": 7,
        "params": params,
        "numerics": "native",
        "device": "cuda",
        "device_model": None,
        "gpus": 1,
        "charged_gpus": 1,
        "nodes": 1,
        "walltime_s": None,
        "stop_after_s": None,
        "warn_after_s": None,
    }
    return Wanted(**{**known, **fields})


def timed(
    start_s: float, step_s: float, evaluation_s: float, *, steps: int = 100, every: int = 20
) -> tuple[float, list[Point]]:
    """Return wall time and step times of a run that takes exactly so long; 1 s of it after the end."""
    now, step_times = start_s, []
    for step in range(1, steps + 1):
        now += step_s
        now += evaluation_s if step % every == 0 or step == steps else 0.0
        step_times.append(Point(step=step, t_s=now, value=step_s))
    return now + 1.0, step_times


def ran(uid: str, *parts_s: float, steps: int = 100, **fields: Any) -> tuple[RunRecord, Curves]:  # noqa: ANN401
    wall_s, step_times = timed(*parts_s, steps=steps)
    params = {"training.steps": steps, "training.eval_every": 20, **fields.pop("params", {})}
    return recorded(uid=uid, wall_s=wall_s, params=params, **fields), {uid: step_times}


def asked(
    what: Wanted | Sequence[Wanted], *known: tuple[RunRecord, Curves], without_curves: bool = False
) -> tuple[Forecast, Estimate]:
    several = [what] if isinstance(what, Wanted) else what
    curves: Curves = {} if without_curves else {uid: points for _, of in known for uid, points in of.items()}
    precedents = [find_precedents(each, [run for run, _ in known]) for each in several]
    found = estimate(several, precedents, curves)
    return found.forecasts[0], found


def test_stalls_and_waiting_for_data_belong_to_the_steps() -> None:
    run, curves = ran("a", 10.0, 0.5, 0.0)
    steps = [point._replace(value=0.1) for point in curves["a"]]  # computed for 0.1 s of each 0.5

    pace = find_pace(run, steps)

    assert pace is not None
    assert pace.step_s == pytest.approx(0.5)


def test_too_few_steps_have_no_pace() -> None:
    run, curves = ran("a", 10.0, 0.5, 3.0, steps=10)

    assert find_pace(run, curves["a"]) is None


def test_more_steps_are_accounted_for_with_the_evaluations_among_them() -> None:
    known = [ran(f"run{at}", 10.0, 0.5, 3.0) for at in range(3)]

    forecast, _ = asked(wanted(params={"training.steps": 1000}), *known)

    assert forecast.basis == "alike"
    assert forecast.wall_s == pytest.approx(11.0 + 1000 * 0.5 + 50 * 3.0, rel=0.06)
    assert forecast.remarks == ("1000 steps are extrapolated from 100 at most",)


def test_the_interval_holds_95_of_100_runs() -> None:
    draws = np.random.default_rng(5)
    held = 0
    for _ in range(400):
        walls = np.exp(draws.normal(0.0, 0.2, size=5)) * 100
        known: list[tuple[RunRecord, Curves]] = [
            (recorded(uid=f"r{at}", wall_s=float(wall)), {}) for at, wall in enumerate(walls[:4])
        ]
        forecast, _ = asked(wanted(params={"training.eval_every": None}), *known)
        assert forecast.interval is not None
        held += forecast.interval.low <= walls[4] <= forecast.interval.high
    assert held / 400 == pytest.approx(0.95, abs=0.03)


def test_the_spread_is_pooled_over_configurations_and_seeds_of_one_are_not_counted_twice() -> None:
    fp32 = [ran(f"f{at}", 10.0, step_s, 3.0) for at, step_s in enumerate((0.5, 0.52))]
    tf32 = [ran(f"t{at}", 10.0, step_s, 3.0, precision="tf32") for at, step_s in enumerate((0.3, 0.31))]
    both = [wanted(), wanted(seed=8), wanted(params={"precision.name": "tf32"})]

    _, found = asked(both, *fp32, *tf32)

    assert found.df == 2
    assert all(forecast.interval is not None for forecast in found.forecasts)


def test_one_or_two_runs_give_no_interval_and_a_generous_walltime() -> None:
    forecast, _ = asked(wanted(), ran("a", 100.0, 5.0, 3.0))

    assert forecast.wall_s == pytest.approx(616.0)
    assert forecast.interval is None
    assert (forecast.low_s, forecast.high_s) == (forecast.wall_s, forecast.wall_s)
    assert forecast.suggested_s == 1500  # twice as long, a fifth more, up to the next five minutes
    assert forecast.remarks == ("no interval: 1 recorded run, too few to tell more",)


def test_runs_that_scatter_wildly_give_no_interval_and_say_so() -> None:
    known = [ran(f"r{at}", 10.0, step_s, 3.0) for at, step_s in enumerate((0.1, 1.0, 20.0))]

    forecast, _ = asked(wanted(), *known)

    assert forecast.interval is None
    assert "the longest 56 times as long as the shortest" in forecast.remarks[0]


def test_a_batch_size_never_run_gives_a_range_and_says_from_what() -> None:
    forecast, _ = asked(wanted(params={"training.batch_size": 128}), ran("a", 10.0, 0.5, 3.0))

    assert forecast.basis == "near"
    assert forecast.differing == ["training.batch_size=128 (recorded: 64)"]
    assert forecast.range_s == pytest.approx((76, 144.4), rel=0.01)  # evaluations are among the steps
    assert forecast.interval is None


def test_more_devices_gain_between_nothing_and_everything() -> None:
    on_four = {"resources.gpus_per_node": 4, "strategy.name": "ddp"}

    forecast, _ = asked(wanted(params=on_four, gpus=4, charged_gpus=8), ran("a", 10.0, 0.5, 3.0))

    assert forecast.range_s == pytest.approx((24.7, 76), rel=0.01)


def test_the_runs_that_differ_in_the_fewest_settings_speak() -> None:
    near = ran("near", 10.0, 0.5, 3.0, precision="tf32")
    far = ran("far", 10.0, 9.0, 3.0, precision="tf32", params={"layout.name": "nhwc"})

    forecast, _ = asked(wanted(), near, far)

    assert forecast.uids == ["near"]


@pytest.mark.parametrize(
    "other",
    [
        {"params": {"model.name": "resnet"}},
        {"params": {"data.name": "mnist"}},
        {"params": {"cluster.name": "lumi_g"}},
        {"numerics": "emulated"},
        {"facts": {**FACTS, "device": "cpu"}},
        {"state": State.FAILED},
        {"attempt": 1},
    ],
)
def test_other_work_says_nothing(other: dict[str, Any]) -> None:
    forecast, found = asked(wanted(), ran("a", 10.0, 0.5, 3.0, **other))

    assert (forecast.basis, forecast.wall_s, forecast.suggested_s) == ("none", None, None)
    assert (found.total.known, found.total.unknown, found.longest) == (0, 1, None)


def test_on_this_machine_only_runs_on_this_device_count() -> None:
    run = ran("a", 10.0, 0.5, 3.0)

    assert asked(wanted(device_model="H100"), run)[0].basis == "none"
    assert asked(wanted(device_model="A100"), run)[0].basis == "alike"


def test_settings_that_came_later_than_a_run_do_not_part_it_from_the_new() -> None:
    assert asked(wanted(params={"training.new_word": 3}), ran("a", 10.0, 0.5, 3.0))[0].basis == "alike"


def test_an_own_program_is_not_taken_apart_since_it_may_ignore_the_steps() -> None:
    own = {"model.recipe": None, "workload.command": "python train.py"}
    run = ran("a", 10.0, 0.5, 3.0, params=own, numerics="unproven")

    same, _ = asked(wanted(params={**own}), run)
    more, _ = asked(wanted(params={**own, "training.steps": 300}), run)

    assert (same.basis, same.wall_s) == ("alike", run[0].wall_s)
    assert more.basis == "near"
    assert more.range_s == pytest.approx((run[0].wall_s, 3 * (run[0].wall_s or 0)))


def test_without_step_times_only_the_same_number_of_steps_says_something() -> None:
    run = ran("a", 10.0, 0.5, 3.0)

    assert asked(wanted(), run, without_curves=True)[0].wall_s == run[0].wall_s
    assert asked(wanted(params={"training.steps": 300}), run, without_curves=True)[0].basis == "none"


def test_the_sweep_is_summed_with_whole_nodes_and_energy_where_all_is_known() -> None:
    run, curves = ran("a", 10.0, 0.5, 3.0)
    measured = replace(run, usage=Usage(gpus=1, energy_j=760.0))
    on_node = wanted(charged_gpus=8, whole_nodes=True, co2_g_per_kwh=100.0)

    _, found = asked([on_node, replace(on_node, seed=8)], (measured, curves))

    total = found.total
    assert total.known == 2
    assert total.wall_s == pytest.approx(152.0)
    assert total.gpu_hours == pytest.approx(152.0 * 8 / 3600)
    assert total.node_hours == pytest.approx(152.0 / 3600)
    assert total.energy_j == pytest.approx(1520.0)
    assert total.co2_g == pytest.approx(1520 / 3.6e6 * 100)

    _, found = asked([on_node, replace(on_node, params={**on_node.params, "model.name": "x"})], (measured, curves))
    assert (found.total.unknown, found.total.energy_j) == (1, None)


@pytest.mark.parametrize(
    ("needed_s", "suggested_s"),
    [(1, 300), (301, 600), (3600, 3600), (3700, 5400), (7 * 3600 - 1, 7 * 3600), (25 * 3600, 30 * 3600)],
)
def test_walltimes_are_suggested_as_people_write_them(needed_s: float, suggested_s: int) -> None:
    assert suggest_walltime_s(needed_s) == suggested_s


def test_what_a_queue_does_not_allow_is_remarked_upon() -> None:
    forecast, _ = asked(wanted(limit_s=600), ran("a", 10.0, 5.0, 3.0))

    assert forecast.suggested_s is not None
    assert forecast.suggested_s > 600
    assert any("more walltime than its queue allows" in remark for remark in forecast.remarks)
    assert math.isfinite(forecast.wall_s or math.nan)
