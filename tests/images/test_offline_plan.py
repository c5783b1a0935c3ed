"""What a dry run says of an image while its registry cannot be asked."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.cli.command_line import Hpcml, said_in_one_line
from tests.images.test_registry import answering, closed_port

SITE = ["cluster=karolina", "resources.account=project", "resources.walltime=1h", "workload.command=true"]


@pytest.fixture
def hpcml(hpcml_environ: dict[str, str], tmp_path: Path) -> Hpcml:
    cwd = tmp_path / "project"
    cwd.mkdir()
    kept = {name: value for name, value in hpcml_environ.items() if "proxy" not in name.lower()}
    return Hpcml(environ={**kept, "HPCML_IMAGES": str(tmp_path / "images")}, cwd=cwd)


def words(host: str, *more: str) -> list[str]:
    asked = ["+container=ngc_pytorch", f"container.registry=http://{host}", "container.tag=24.12-py3"]
    return ["run", *asked, *SITE, *more]


def image_line(text: str) -> str:
    (line,) = [line for line in text.splitlines() if line.startswith("image: ")]
    return line


def test_a_dry_run_without_a_network_says_what_is_known_and_why_the_rest_is_not(hpcml: Hpcml, tmp_path: Path) -> None:
    host = closed_port()

    shown = hpcml(*words(host, "--dry-run"))
    script = hpcml(*words(host, "--dry-run=script"))
    real = hpcml(*words(host), "schedule.preflight=false")

    assert shown.returncode == 0, shown.stderr
    line = image_line(shown.stdout)
    assert f"{tmp_path / 'images'}/KEY.sif of {host}/nvidia/pytorch:24.12-py3 (KEY follows from the digest of " in line
    assert re.search(r"its base, which could not be asked for\): 127.0.0.1 cannot be reached \(.*refused", line)
    assert "apptainer exec" in shown.stdout
    assert script.returncode == 0, script.stderr
    assert script.stdout.startswith("#!/bin/bash")
    assert real.returncode == 4
    assert "cannot be reached" in real.stderr.splitlines()[-1]
    assert not (hpcml.home / "runs").exists()
    assert not (tmp_path / "images").exists()


@pytest.mark.parametrize(("code", "said"), [(404, "does not exist"), (401, "needs a login")])
def test_an_answer_that_the_run_would_not_survive_is_no_plan(hpcml: Hpcml, code: int, said: str) -> None:
    with answering(lambda *_: (code, {"WWW-Authenticate": "Basic"}, b"{}")) as host:
        shown = hpcml(*words(host, "-n"))

    assert shown.returncode == 4
    assert said in said_in_one_line(shown)


@pytest.mark.parametrize(("code", "said"), [(503, "answers 503"), (429, "too many requests"), (200, "login page")])
def test_an_answer_that_says_nothing_of_the_image_is_told_in_the_plan(hpcml: Hpcml, code: int, said: str) -> None:
    with answering(lambda *_: (code, {}, b"<html>")) as host:
        shown = hpcml(*words(host, "-n"))

    assert shown.returncode == 0, shown.stderr
    assert said in image_line(shown.stdout)
