"""hpcml plan, hpcml plan --time and compare --latex as a user types them."""

from __future__ import annotations

import json
import math
from dataclasses import fields
from pathlib import Path

import pytest

from hpcml.config.compose import compose_from_cli
from tests.cli.command_line import Hpcml, said_in_one_line
from tests.store.building import T0, Journal, make_run_dir

CPU = next(
    " ".join(line.partition(":")[2].split())
    for line in [*Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines(), "model name : unknown"]
    if line.startswith("model name")
)


@pytest.fixture
def hpcml(hpcml_environ: dict[str, str], tmp_path: Path) -> Hpcml:
    """A user with four recorded runs of the recipe in each of two precisions, of about 21 s each."""
    user = Hpcml(environ=hpcml_environ, cwd=tmp_path)
    points = compose_from_cli(["-m", "precision=fp32,bf16", "seed=0,1,2,3"], project=tmp_path)
    for point in points:
        precision, seed = point.run.precision.name.name, point.run.seed
        changes = {field.name: getattr(point.run, field.name) for field in fields(point.run)}
        run_dir = make_run_dir(user.home / "runs", f"20260528-202640-{precision}{seed}ab", **changes)
        agent, rank0 = (Journal(run_dir, writer=writer, attempt=0, t0=T0) for writer in ("agent", "rank0"))
        agent.event("attempt_started")
        agent.event("facts", device="cpu", cpu_model=CPU)
        step_s = 0.06 * (1 + seed / 50)
        for step in range(1, 301):
            rank0.metrics(step, 2 + step * step_s, step_time_s=step_s, loss=1 / step)
        rank0.metrics(300, 21.0, val_accuracy=0.9 + seed / 100 + (0.001 if precision == "bf16" else 0))
        agent.event("attempt_ended", 21.0, state="COMPLETED", exit_code=0, wall_s=3 + 300 * step_s)
    return user


def test_the_power_is_chosen(hpcml: Hpcml) -> None:
    alone = json.loads(hpcml("plan", "--json").stdout)
    bare = hpcml("plan", "20260528-202640-fp320ab", "20260528-202640-fp321ab", "--json")
    higher = hpcml("plan", "--power", "0.95", "--margin", "0.05", "--verdict", "non-inferior", "--json")

    assert (alone["power"], len(alone["cells"][0]["designs"])) == (0.8, 2)
    assert json.loads(bare.stdout)["cells"][0]["seeds"] == {"fp32": 2}
    asked = json.loads(higher.stdout)
    assert (asked["power"], asked["verdict"], asked["cells"][0]["margin"]) == (0.95, "non-inferior", 0.05)


def test_a_plan_reads_as_an_answer_with_its_doubts(hpcml: Hpcml) -> None:
    done = hpcml("plan", "--margin", "0.01")

    assert (done.returncode, done.stderr) == (0, "")
    assert "unpaired: 30 seeds;" in done.stdout
    assert "paired by seed: 3 seeds" in done.stdout  # the least that a verdict takes
    assert hpcml("plan", "--md").stdout.count("| margin |") == 1  # pairs do not vary: any margin is shown


def test_a_plan_without_a_spread_is_refused_in_one_line(hpcml: Hpcml) -> None:
    done = hpcml("plan", "20260528-202640-fp320ab")

    assert done.returncode == 2
    assert "it takes two seeds" in said_in_one_line(done)


def test_a_sweep_is_estimated_and_nothing_is_submitted(hpcml: Hpcml) -> None:
    done = hpcml("plan", "--time", "-m", "precision=fp32,bf16", "seed=7,8", "training.steps=600")

    assert (done.returncode, done.stderr) == (0, "")
    assert "resources.walltime=5m would do" in done.stdout
    assert "all 4 runs, one after the other: 2m40s (2m30s to 2m51s" in done.stdout
    assert len(hpcml.runs()) == 8

    found = json.loads(hpcml("plan", "--time", "precision=fp32", "training.steps=600", "--json").stdout)
    (forecast,) = found["forecasts"]
    mean = math.exp(sum(math.log(3 + 600 * 0.06 * (1 + seed / 50)) for seed in range(4)) / 4)
    assert forecast["wall_s"] == pytest.approx(mean, rel=1e-3)
    assert forecast["basis"] == "alike"
    assert forecast["low_s"] < mean < forecast["high_s"]
    assert hpcml("plan", "--time", "-m", "seed=1,2", "--csv").stdout.count("\n") == 3


def test_what_was_never_run_is_said_to_be_unknown(hpcml: Hpcml) -> None:
    near, unknown = (
        hpcml("plan", "--time", "training.batch_size=256"),
        hpcml("plan", "--time", "model=mnist_mlp", "--md"),
    )

    assert "training.batch_size=256 (recorded: 64)" in near.stdout
    assert "no record" in unknown.stdout
    assert said_in_one_line(hpcml("plan", "--time", "precison=fp32")).startswith("hpcml: ")


def test_a_comparison_comes_as_latex(hpcml: Hpcml) -> None:
    done = hpcml("compare", "--latex")

    assert done.returncode == 0
    assert done.stdout.count(r"\begin{longtable}") == done.stdout.count(r"\end{longtable}") == 1
    assert r"val\_accuracy" in done.stdout
