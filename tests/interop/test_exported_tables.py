from __future__ import annotations

import csv
import json
import math
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cli.command_line import Hpcml, said_in_one_line
from tests.interop.exchanging import EVIL, ODD, OPEN, PLAIN, real
from tests.store.building import Journal, make_run_dir

csv.field_size_limit(sys.maxsize)


def read_csv(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def exported(hpcml: Hpcml, form: str, *words: str) -> Path:
    out = hpcml.cwd / f"out.{form}"
    done = hpcml("export", "--to", form, "-o", str(out), *words)
    assert done.returncode == 0, done.stderr
    return out


def same(one: float, other: float) -> bool:
    return one == other or (math.isnan(one) and math.isnan(other))


def test_csv_has_every_run_point_and_event_exactly(hpcml: Hpcml) -> None:
    out = exported(hpcml, "csv")

    runs = {row["uid"]: row for row in read_csv(out / "runs.csv")}
    assert list(runs) == [PLAIN, ODD, OPEN]
    assert runs[PLAIN]["state"] == "COMPLETED"
    assert (runs[PLAIN]["wall_s"], runs[PLAIN]["git_dirty"], runs[PLAIN]["job_id"]) == ("10.0", "false", "")
    assert json.loads(runs[PLAIN]["tags"]) == ["paper"]
    assert runs[PLAIN]["params.training.steps"] == "300"
    assert runs[PLAIN]["facts.gpu_model"] == "NVIDIA A100"
    assert runs[PLAIN]["metrics.loss"] == "0.2"
    assert (runs[PLAIN]["usage.energy_j"], runs[PLAIN]["usage.energy_method"]) == ("2500.0", "counter")
    assert (runs[PLAIN]["work.model_flops"], runs[ODD]["usage.energy_j"]) == ("2000000000.0", "")
    assert runs[ODD]["name"] == runs[ODD]["facts.gpu_model"] == EVIL
    assert runs[ODD]["metrics.loss"] == "nan"
    assert (runs[PLAIN]["facts.cores"], runs[ODD]["facts.cores"]) == ("8", '"many"')  # of several kinds: JSON
    points = [row for row in read_csv(out / "points.csv") if row["uid"] == ODD and row["metric"] == EVIL]
    values = [float(row["value"]) for row in points]
    assert all(map(same, values, (1.5, math.nan, math.inf, -math.inf, 1e300)))
    assert [float(row["t_s"]) for row in points] == [0.0, 1.0, 2.0, 3.0, 4.0]
    steps = [int(row["step"]) for row in read_csv(out / "points.csv") if (row["uid"], row["metric"]) == (ODD, "loss")]
    assert steps == [2**60]
    events = [row for row in read_csv(out / "events.csv") if row["name"] == "attempt_ended"]
    assert {row["uid"]: json.loads(row["details"])["state"] for row in events} == {PLAIN: "COMPLETED", ODD: "FAILED"}
    summary = {row["metric"]: row for row in read_csv(out / "metrics.csv") if row["uid"] == PLAIN}
    assert (summary["loss"]["n"], summary["loss"]["min"], summary["loss"]["min_step"]) == ("5", "0.2", "4")


def test_json_has_what_csv_has(hpcml: Hpcml) -> None:
    document = json.loads(exported(hpcml, "json").read_text(encoding="utf-8"))

    assert document["hpcml_export"] == 1
    runs = {run["uid"]: run for run in document["runs"]}
    assert list(runs) == [PLAIN, ODD, OPEN]
    assert runs[PLAIN]["params"]["training.steps"] == 300
    assert runs[PLAIN]["curves"]["val/accuracy"] == {
        "step": [0, 1, 2, 3, 4],
        "t_s": [1.0, 1.25, 1.5, 1.75, 2.0],
        "value": [0.0, 0.1, 0.2, 0.3, 0.4],
    }
    assert runs[ODD]["curves"][EVIL]["value"] == [1.5, "nan", "inf", "-inf", 1e300]
    assert runs[ODD]["tags"] == [EVIL, "final"]
    assert runs[OPEN]["state"] == "RUNNING"
    assert (runs[PLAIN]["usage"]["gpu_s"], runs[PLAIN]["work"]["samples"], runs[OPEN]["usage"]) == (10.0, 64.0, None)
    assert runs[PLAIN]["events"][0]["name"] == "attempt_started"


def test_parquet_has_the_same_with_types(hpcml: Hpcml) -> None:
    parquet = real("pyarrow.parquet")
    out = exported(hpcml, "parquet")

    def rows(name: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = parquet.read_table(out / f"{name}.parquet").to_pylist()
        return found

    runs = {row["uid"]: row for row in rows("runs")}
    assert (runs[PLAIN]["params.training.steps"], runs[PLAIN]["git_dirty"], runs[PLAIN]["wall_s"]) == (300, False, 10.0)
    assert runs[OPEN]["exit_code"] is None
    assert (runs[PLAIN]["usage.gpus"], runs[PLAIN]["usage.energy_disagrees"]) == (1, False)
    assert runs[OPEN]["usage.gpus"] is None
    assert runs[ODD]["name"] == EVIL
    as_csv = read_csv(exported(hpcml, "csv") / "points.csv")
    points = rows("points")
    assert len(points) == len(as_csv)
    for row, theirs in zip(points, as_csv, strict=True):
        assert (row["uid"], row["metric"], row["step"]) == (theirs["uid"], theirs["metric"], int(theirs["step"]))
        assert same(row["value"], float(theirs["value"]))
    assert {row["name"] for row in rows("events")} >= {"attempt_started", "facts", "artifact", "attempt_ended"}
    assert {row["metric"]: row["n_nonfinite"] for row in rows("metrics") if row["uid"] == ODD}[EVIL] == 3


def test_only_the_selected_runs_are_exported(hpcml: Hpcml) -> None:
    assert [row["uid"] for row in read_csv(exported(hpcml, "csv", "--state", "failed") / "runs.csv")] == [ODD]
    assert [row["uid"] for row in read_csv(exported(hpcml, "csv", PLAIN) / "runs.csv")] == [PLAIN]


def test_json_goes_to_standard_output_where_no_file_is_named(hpcml: Hpcml) -> None:
    done = hpcml("export", "--to", "json", PLAIN)

    assert [run["uid"] for run in json.loads(done.stdout)["runs"]] == [PLAIN]
    assert done.stderr == "1 run exported\n"


def test_no_run_is_no_export(hpcml: Hpcml) -> None:
    done = hpcml("export", "--to", "csv", "-o", "out", "--experiment", "none")

    assert done.returncode == 2
    (said,) = done.stderr.splitlines()
    assert said.startswith("hpcml: no run matches: nothing was exported; no run is of the experiment 'none'")
    assert not (hpcml.cwd / "out").exists()


def test_a_folder_is_asked_for(hpcml: Hpcml) -> None:
    for words in (("parquet",), ("csv", "-o", "-")):
        done = hpcml("export", "--to", *words)

        assert done.returncode == 2
        assert said_in_one_line(done).endswith("writes a folder: say which with -o FOLDER")


@pytest.mark.parametrize(
    ("form", "package", "extra"),
    [
        ("parquet", "pyarrow", "parquet"),
        ("mlflow", "mlflow", "mlflow"),
        ("tensorboard", "tensorboard", "tensorboard"),
        ("rocrate", "rocrate", "rocrate"),
    ],
)
def test_a_library_that_is_missing_is_named_with_its_extra(
    hpcml: Hpcml, form: str, package: str, extra: str, tmp_path: Path
) -> None:
    missing = tmp_path / "missing" / package
    missing.mkdir(parents=True)
    (missing / "__init__.py").write_text(f"raise ModuleNotFoundError('no', name={package!r})\n")
    out = hpcml.cwd / "out"

    done = hpcml("export", "--to", form, "-o", str(out), PYTHONPATH=str(missing.parent))

    assert done.returncode == 2
    assert said_in_one_line(done) == f"hpcml: {package} is not installed: pip install 'hpcml[{extra}]'"
    assert not list(hpcml.cwd.iterdir())  # nor anything half-made beside it


@pytest.mark.parametrize("last", [math.inf, -math.inf, math.nan])
def test_a_last_value_that_is_not_finite_is_exported_as_it_was(hpcml: Hpcml, last: float) -> None:
    run_dir = make_run_dir(hpcml.home / "runs", "20260530-202640-xxxxxx", seed=7)
    rank0 = Journal(run_dir, attempt=0)
    rank0.metrics(0, 0.0, loss=1.0)
    rank0.metrics(1, 1.0, loss=last)

    assert hpcml("export", "--to", "csv", "-o", "tables", "xxxxxx").returncode == 0

    (row,) = read_csv(hpcml.cwd / "tables" / "runs.csv")
    (summary,) = read_csv(hpcml.cwd / "tables" / "metrics.csv")
    (run,) = json.loads(hpcml("export", "--to", "json", "xxxxxx").stdout)["runs"]
    assert row["metrics.loss"] == summary["last"] == run["metrics"]["loss"]["last"] == str(last)
