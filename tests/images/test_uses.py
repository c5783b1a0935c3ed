"""Which images may go, as the commands see it: a run says in its run.json which one it uses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hpcml.model.cluster import Cluster, SchedulerName
from tests.cli.command_line import Hpcml, said_in_one_line
from tests.images.test_cache import filled
from tests.store.building import Journal, make_run_dir


@pytest.fixture
def hpcml(hpcml_environ: dict[str, str], tmp_path: Path) -> Hpcml:
    cwd = tmp_path / "project"
    cwd.mkdir()
    return Hpcml(environ={**hpcml_environ, "HPCML_IMAGES": str(tmp_path / "images")}, cwd=cwd)


def run_of(hpcml: Hpcml, uid: str, key: str, *, ended: bool) -> str:
    """Make a run of a Slurm cluster that says that it uses an image; return its uid."""
    cluster = Cluster(name="far", scheduler=SchedulerName.slurm)
    run_dir = make_run_dir(hpcml.home / "runs", uid, cluster=cluster)
    journal = Journal(run_dir, writer="launch", attempt=0)
    journal.event("submitted", scheduler="slurm", job_id="1", array_index=None)
    if ended:
        agent = Journal(run_dir, writer="agent")
        agent.event("attempt_started", pid=1)
        agent.event("attempt_ended", 60.0, state="COMPLETED", exit_code=0, wall_s=60.0)
    words = json.loads(run_dir.manifest.read_text())
    words["plan"]["image"] = {"key": key, "path": "/images/x.sif", "sha256": "0" * 64}
    run_dir.manifest.write_text(json.dumps(words))
    return uid


def test_an_image_is_kept_for_a_run_that_has_not_ended(hpcml: Hpcml, tmp_path: Path) -> None:
    cache, record = filled(tmp_path / "images")
    finished = run_of(hpcml, "20260528-202640-aaaaaa", record.key, ended=True)
    waiting = run_of(hpcml, "20260528-202640-bbbbbb", record.key, ended=False)

    removed = hpcml("images", "rm", "-y", record.key[:8])
    pruned = hpcml("images", "rm", "-y", "--older-than", "0")
    (listed,) = json.loads(hpcml("images", "--json").stdout)

    assert removed.returncode == 4
    assert f"is needed by run {waiting}" in said_in_one_line(removed)
    assert pruned.returncode == 0, pruned.stderr
    assert cache.find(record.key) is not None
    assert sorted(listed["runs"]) == sorted([finished, waiting])
    assert listed["open_runs"] == [waiting]
    assert "2 (1 open)" in hpcml("images").stdout


def test_an_image_whose_runs_have_ended_may_go(hpcml: Hpcml, tmp_path: Path) -> None:
    cache, record = filled(tmp_path / "images")
    run_of(hpcml, "20260528-202640-aaaaaa", record.key, ended=True)

    (listed,) = json.loads(hpcml("images", "--json").stdout)
    young = hpcml("images", "rm", "-n", "--older-than", "30d")
    shown = hpcml("images", "rm", "-n", "--older-than", "0")
    assert cache.find(record.key) is not None
    gone = hpcml("images", "rm", "-y", "--older-than", "0")

    assert listed["last_used_at"] is not None
    assert young.stdout == ""
    assert record.key[:12] in shown.stdout
    assert record.key[:12] in gone.stdout
    assert cache.find(record.key) is None
    assert hpcml("images").stdout == ""


def test_nothing_is_removed_without_a_yes(hpcml: Hpcml, tmp_path: Path) -> None:
    cache, record = filled(tmp_path / "images")

    refused = hpcml("images", "rm", record.key)

    assert refused.returncode == 2
    assert "nobody here to ask: -y removes without a question" in said_in_one_line(refused)
    assert cache.find(record.key) is not None


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("rm", "-y", "zz"), 4, "no image has a key that begins with 'zz'"),
        (("rm", "--older-than", "soon"), 2, "--older-than=soon is no age: write 30d, 12h or 0"),
        (("export", "zz", "x.sif"), 4, "no image in"),
        (("import", "none.sif"), 4, "No such file"),
        (("verify", "zz"), 4, "no image in"),
    ],
)
def test_what_cannot_be_done_is_said_in_one_line(hpcml: Hpcml, words: tuple[str, ...], code: int, said: str) -> None:
    done = hpcml("images", *words)

    assert done.returncode == code, done.stderr
    assert said in said_in_one_line(done)


def test_without_a_place_the_home_is_not_taken(hpcml: Hpcml) -> None:
    done = hpcml("images", HPCML_IMAGES="", SCRATCH="")

    assert done.returncode == 2
    assert "HPCML_IMAGES" in said_in_one_line(done)


def test_a_container_that_is_no_image_is_not_built(hpcml: Hpcml) -> None:
    done = hpcml("build", "container=none")

    assert done.returncode == 4
    assert "container=none is no image: choose one to build" in said_in_one_line(done)
