"""Images built by jobs of PBS: what becomes of the runs that wait, and what such a job finds in its environment."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.command_line import Hpcml
from tests.cluster.pbs.double import PbsDouble
from tests.images.test_registry import MANIFEST, answering
from tests.schedulers.pbs.site import SALOMON, submit, until, user_of

SECRET = "nvapi-not-for-qstat-4711"  # noqa: S105 - made up


@pytest.fixture
def hpcml(pbs: PbsDouble, tmp_path: Path) -> Hpcml:
    user = user_of(pbs, tmp_path)
    return Hpcml(environ={**user.environ, "HPCML_IMAGES": str(tmp_path / "images")}, cwd=user.cwd)


@pytest.fixture
def registry() -> Iterator[str]:
    with answering(lambda *_: (200, {}, MANIFEST)) as host:
        yield host


def words(host: str) -> list[str]:
    image = ["container.image=mine/base", "container.tag=1"]
    return [
        "+container=ngc_pytorch",
        "container.name=docker",
        f"container.registry=http://{host}",
        *image,
        "workload.command=true",
    ]


def test_runs_whose_image_was_not_built_end_and_say_so(hpcml: Hpcml, registry: str) -> None:
    submitted = submit(hpcml, *words(registry), "container.build=job", "-m", "seed=0,1")  # and there is no Apptainer

    runs = until(hpcml, lambda runs: all(run["state"] not in ("PENDING", "RUNNING") for run in runs))

    (built,) = [run for run in runs if run["experiment"] == "images"]
    waiting = [run for run in runs if run["uid"] != built["uid"]]
    assert built["state"] == "FAILED", built["reason"]
    assert "not found on PATH" in hpcml("logs", "--err", built["uid"]).stdout
    assert sorted(run["uid"] for run in waiting) == sorted(run["uid"] for run in submitted)
    for run in waiting:
        assert (run["state"], run["cause"]) == ("CANCELLED", "container"), run["reason"]
        assert f"its image was not built: hpcml logs {built['uid']}" in run["reason"]


def test_qsub_hears_of_no_login_even_for_a_build(hpcml: Hpcml, registry: str, pbs: PbsDouble, tmp_path: Path) -> None:
    # PBS shows the variables of a job to everybody, and -V is all it takes to put them there.
    seen = tmp_path / "seen"
    wrapper = tmp_path / "wrapper" / "qsub"
    wrapper.parent.mkdir()
    wrapper.write_text(f'#!/bin/sh\nenv >> {seen}\nexec {pbs.bin}/qsub "$@"\n')
    wrapper.chmod(0o755)
    hidden = {"NGC_API_KEY": SECRET, "APPTAINER_DOCKER_PASSWORD": SECRET, "OF_MINE": "kept"}

    done = hpcml(
        *("run", *SALOMON, *words(registry), "container.build=job", "--detach", "--json"),
        **{**hidden, "PATH": f"{wrapper.parent}:{hpcml.environ['PATH']}"},
    )

    assert done.returncode == 0, done.stderr
    assert len(json.loads(done.stdout)) == 1
    assert seen.read_text().count("OF_MINE=kept") == 2  # the build, and the run
    assert SECRET not in seen.read_text()
