"""What `hpcml run` leaves on the disk, and packs that really run."""

from __future__ import annotations

import json
import subprocess
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from hpcml.runs.journal import events, read_journal
from hpcml.runs.layout import RunDir
from hpcml.runs.manifest import read_manifest
from tests.cli.command_line import Hpcml, program


@pytest.fixture
def hpcml(hpcml_environ: dict[str, str], tmp_path: Path) -> Hpcml:
    cwd = tmp_path / "project"
    cwd.mkdir()
    return Hpcml(environ=hpcml_environ, cwd=cwd)


def submit(hpcml: Hpcml, *words: str) -> list[dict[str, Any]]:
    done = hpcml("run", *words, "--json")
    assert done.returncode == 0, done.stderr
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


def starts(entry: dict[str, Any]) -> list[tuple[float, dict[str, Any]]]:
    """Return when the attempts of a run started, and what their agent said of it."""
    found = []
    for path in RunDir(Path(entry["path"])).journal_files():
        chunk = read_journal(path)
        assert chunk.header is not None
        t0 = chunk.header.t0
        found += [(t0 + event.t_s, event.details) for event in events([chunk], "attempt_started")]
    return found


def test_the_arms_of_a_pack_take_turns_in_one_job(hpcml: Hpcml) -> None:
    words = ("precision=fp32,bf16,tf32", "schedule.pack=precision", "schedule.repeats=2")
    submitted = submit(hpcml, "-m", program("import time; time.sleep(0.1)"), *words)
    assert hpcml("wait", *(entry["uid"] for entry in submitted)).returncode == 0

    told = sorted(((at, said, entry) for entry in submitted for at, said in starts(entry)), key=lambda one: one[0])

    assert [entry["uid"] for _, _, entry in told] == [entry["uid"] for entry in submitted]
    precisions = [read_manifest(RunDir(Path(entry["path"])).manifest).run.precision.name.name for _, _, entry in told]
    assert precisions == ["fp32", "bf16", "tf32", "bf16", "tf32", "fp32"]
    assert len({said["pid"] for _, said, _ in told}) == 1
    assert {said["pack"] for _, said, _ in told} == {f"{submitted[0]['submission']}-0/0"}
    assert {run["state"] for run in hpcml.runs()} == {"COMPLETED"}


def test_runs_know_with_how_many_they_were_submitted(hpcml: Hpcml) -> None:
    submitted = submit(hpcml, "-m", program("pass"), "seed=1,2,3")

    origins = [read_manifest(RunDir(Path(entry["path"])).manifest).provenance for entry in submitted]
    assert {(origin.submission, origin.submission_size) for origin in origins} == {(submitted[0]["submission"], 3)}


def test_missing_completes_the_repeats(hpcml: Hpcml) -> None:
    (first,) = submit(hpcml, program("pass"))
    assert hpcml("wait", first["uid"]).returncode == 0

    rest = submit(hpcml, program("pass"), "schedule.repeats=3", "--missing")

    assert len(rest) == 2
    assert submit(hpcml, program("pass"), "schedule.repeats=3", "--missing") == []


def test_the_recorded_diff_is_that_of_the_folder_where_the_program_starts(hpcml: Hpcml, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    own = ["git", "-c", "user.name=n", "-c", "user.email=e@example.org"]
    (other / "train.py").write_text("print(1)\n")
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "x"]):
        subprocess.run([*own, *words], cwd=other, check=True)
    (other / "train.py").write_text("print(2)\n")

    (entry,) = submit(hpcml, "workload.command=true", f"workload.cwd={other}")

    run_dir = RunDir(Path(entry["path"]))
    assert "+print(2)" in run_dir.git_diff.read_text()
    origin = read_manifest(run_dir.manifest).provenance
    assert (origin.cwd, origin.git_dirty) == (str(hpcml.cwd), True)


NOTES_WHEN = """
import os, pathlib, time
diary = pathlib.Path("diary") / os.environ["HPCML_RUN_ID"]
diary.write_text(f"{time.time()} ")
time.sleep(0.3)
diary.write_text(f"{diary.read_text()}{time.time()}")
"""


def test_one_limit_holds_for_all_runs_of_a_sweep_on_this_machine(hpcml: Hpcml) -> None:
    (hpcml.cwd / "diary").mkdir()
    words = ("seed=1,2", "resources.walltime=10m,20m", "resources.cpus_per_task=1", "resources.array_parallelism=1")

    done = hpcml("run", "-m", program(NOTES_WHEN), *words)

    assert done.returncode == 0, done.stderr
    times = sorted(tuple(map(float, path.read_text().split())) for path in (hpcml.cwd / "diary").iterdir())
    assert len(times) == 4
    assert all(end <= begin for (_, end), (begin, _) in pairwise(times))
