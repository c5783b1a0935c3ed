"""What `hpcml compare` says of recorded runs of which some were lost, in every form."""

from __future__ import annotations

import csv
import io
import json
import math
from dataclasses import fields
from pathlib import Path

import pytest

from hpcml.config.compose import compose_from_cli
from tests.cli.command_line import Hpcml
from tests.store.building import Journal, make_run_dir

SURVIVORS = 2


@pytest.fixture
def hpcml(hpcml_environ: dict[str, str], tmp_path: Path) -> Hpcml:
    """A user with ten recorded runs at each of two learning rates, of which eight at 0.5 ended in nan."""
    user = Hpcml(environ=hpcml_environ, cwd=tmp_path)
    for point in compose_from_cli(["-m", "training.learning_rate=0.1,0.5", "seed=range(10)"], project=tmp_path):
        rate, seed = point.run.training.learning_rate, point.run.seed
        changes = {field.name: getattr(point.run, field.name) for field in fields(point.run)}
        run_dir = make_run_dir(user.home / "runs", f"20260528-202640-lr{round(10 * rate)}s{seed}a", **changes)
        agent, rank0 = Journal(run_dir, writer="agent"), Journal(run_dir)
        agent.event("attempt_started")
        agent.event("facts", device="cpu", cpu_model="a")
        is_lost = rate > 0.3 and seed >= SURVIVORS
        rank0.metrics(1, 2.0, val_accuracy=0.1)
        rank0.metrics(300, 20.0, val_accuracy=math.nan if is_lost else 0.9 + seed / 977 + seed * seed / 99991)
        agent.event("attempt_ended", 21.0, state="COMPLETED", exit_code=0, wall_s=21.0)
    return user


def test_eight_of_ten_runs_that_end_in_nan_are_the_finding_in_every_form(hpcml: Hpcml) -> None:
    text = hpcml("compare", "--by", "training.learning_rate")
    row = json.loads(hpcml("compare", "--by", "training.learning_rate", "--json").stdout)["cells"][0]["rows"][1]
    line = list(csv.DictReader(io.StringIO(hpcml("compare", "--by", "training.learning_rate", "--csv").stdout)))[1]
    latex = hpcml("compare", "--by", "training.learning_rate", "--latex").stdout

    assert (
        "0.5: unstable: lost 8 of 10 of its seeds to their own doing, 0.1 lost 0 of 10: survivors differ by"
        in " ".join(text.stdout.split())
    )
    assert (row["verdict"], row["losses"]["n"], row["losses"]["n_ended"]) == ("unstable", 8, 10)
    assert row["losses"]["rate_ci90"]["low"] > 0.4
    assert (line["verdict"], line["n_lost"], line["n_ended"]) == ("unstable", "8", "10")
    assert "8 of 10" in latex
    assert "unstable" in latex


def test_questions_write_nothing_but_the_index_of_new_records(hpcml: Hpcml, tmp_path: Path) -> None:
    def files() -> dict[Path, int]:
        return {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if not path.is_dir()}

    before = files()
    hpcml("compare", "--by", "training.learning_rate")
    indexed = files()
    hpcml("compare", "--by", "training.learning_rate", "--margin", "0.02")
    hpcml("report", "--by", "training.learning_rate", "--md")

    assert {path.relative_to(hpcml.home).parts[0] for path in indexed.keys() - before.keys()} == {"store.db"}
    assert {path: indexed[path] for path in before} == before
    assert files() == indexed
