"""Real runs with one and two threads, asked how they scale and what they attained."""

from __future__ import annotations

import csv
import io
import json

import pytest

from tests.cli.command_line import Hpcml, said_in_one_line

SMALL = ("model=mnist_mlp", "training.steps=20", "training.batch_size=32", "telemetry.enabled=false")


def test_threads_of_this_machine_scale_as_they_do(hpcml: Hpcml) -> None:
    threads = hpcml("run", "-m", *SMALL, "resources.cpus_per_task=1,2", "seed=0,1", "experiment=threads")
    assert threads.returncode == 0, threads.stderr

    study = json.loads(hpcml("scaling", "--experiment", "threads", "--json").stdout)
    one, two = study["cells"][0]["points"]
    assert study["over"] == "CPU threads"
    assert (one["devices"], two["devices"], one["n"], two["n"]) == (1, 2, 2, 2)
    assert one["step_ms"] > 0
    assert two["speedup"] == pytest.approx(2 * two["efficiency"])
    assert two["speedup_ci95"]["low"] < two["speedup"] < two["speedup_ci95"]["high"]
    assert two["paired"] is True

    text = hpcml("scaling", "--experiment", "threads", COLUMNS="100")
    assert text.returncode == 0, text.stderr
    assert "2 CPU threads: " in text.stdout

    peak = json.loads(hpcml("peak", "--json").stdout)
    assert {row["where"]["resources.cpus_per_task"] for row in peak["attained"]} == {"1", "2"}
    assert all(row["samples_per_s"] > 0 and row["mfu"] is None for row in peak["attained"])

    refused = hpcml("scaling", "--over", "processes")
    assert said_in_one_line(refused).endswith("nothing to compare: all 4 runs have 1 process; --over threads")


@pytest.mark.parametrize("command", ["scaling", "peak", "runs --best", "compare --by precision", "plan --by precision"])
def test_nothing_to_look_at_is_one_line_and_exit_code_2(hpcml: Hpcml, command: str) -> None:
    done = hpcml(*command.split())

    assert done.returncode == 2
    assert said_in_one_line(done).startswith("hpcml: no run matches: ")


def test_published_figures_need_no_runs(hpcml: Hpcml) -> None:
    done = hpcml("peak", "--published", "--csv")

    assert done.returncode == 0, done.stderr
    lines = list(csv.DictReader(io.StringIO(done.stdout)))
    assert any(line["device"] == "Tesla V100 SXM2" and float(line["value"]) == 125 for line in lines)
    refused = hpcml("peak", "--published", "--experiment", "x")
    assert refused.returncode == 2
    assert "lists no runs" in said_in_one_line(refused)


def test_a_bad_choice_is_one_line_and_exit_code_2(hpcml: Hpcml) -> None:
    for words in (("--over", "cores"), ("--kind", "odd"), ("--reference", "0"), ("--least-gain", "2")):
        done = hpcml("scaling", *words)
        assert done.returncode == 2
        said_in_one_line(done)
