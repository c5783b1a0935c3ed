"""What a colleague has exchanged in a folder of the group: the agent of its owner executes none of it, and says why."""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hpcml.agent.telemetry import sampler  # noqa: F401 - Ada may not read root's Python, from where it is loaded
from hpcml.agent.turns import take_turns
from hpcml.runs.layout import RunDir
from hpcml.schedulers import requeue
from tests.agent.node import MakeRun
from tests.runs.two_users import ADA, EVE, GROUP, folder_of_the_group, needs_root

pytestmark = needs_root()
UID, OTHER = "20261121-083015-222abcde", "20261121-083015-223abcde"


@pytest.fixture
def home(make_run: MakeRun) -> Iterator[Path]:
    """A home of Ada's in a folder of the group, with all that hpcml made in it open to the group, and two runs."""
    with folder_of_the_group() as project:
        for uid in (UID, OTHER):
            run_dir = make_run("replaced", uid=uid)
            say(run_dir.manifest, project, "ada")
        home = project / "home"
        shutil.copytree(run_dir.path.parents[2], home)
        batch = home / "submissions" / "token" / "batch.json"
        batch.parent.mkdir(parents=True)
        sources = [str(home / "runs" / "default" / uid / "run.json") for uid in (UID, OTHER)]
        batch.write_text(json.dumps({"format": 1, "jobs": [sources]}))
        for path in (home, *home.rglob("*")):
            os.chown(path, ADA.uid, GROUP)
            path.chmod(0o2770 if path.is_dir() else 0o660)
        for uid in (UID, OTHER):
            (home / "runs" / "default" / uid).chmod(0o700)
        shutil.copyfile(
            home / "runs" / "default" / UID / "run.json", project / "seen.json"
        )  # she may have seen it before
        (project / "seen.json").chmod(0o644)
        yield home


def say(manifest: Path, project: Path, word: str) -> None:
    """Make the program of a run one that writes *word* into the project's folder."""
    words = json.loads(manifest.read_text())
    words["plan"] |= {"argv": ["/bin/sh", "-c", f"echo {word} >> {project}/executed"], "cwd": str(project)}
    manifest.write_text(json.dumps(words))


def agent(*words: str) -> tuple[int, str]:
    said = io.StringIO()
    with contextlib.redirect_stderr(said):
        status = take_turns(words)
    return status, said.getvalue()


def put_back(*words: str) -> tuple[int, str]:
    said = io.StringIO()
    with contextlib.redirect_stderr(said):
        status = requeue.main(["slurm", *words])
    return status, said.getvalue()


def her_run(home: Path) -> Path:
    """Make a copy of a run that she can read, with a program of hers."""
    manifest = home.parent / "hers" / "run.json"
    (manifest.parent / "journal").mkdir(parents=True)
    manifest.write_text((home.parent / "seen.json").read_text())
    say(manifest, home.parent, "eve")
    manifest.parent.chmod(0o777)
    return manifest.parent


def in_the_place_of_a_run(home: Path) -> None:
    run = home / "runs" / "default" / UID
    run.rename(run.with_name("away"))
    her_run(home).rename(run)


def in_the_place_of_an_experiment(home: Path) -> None:
    experiment = home / "runs" / "default"
    experiment.rename(experiment.with_name("away"))
    experiment.mkdir()
    her_run(home).rename(experiment / UID)


def in_the_place_of_the_home(home: Path) -> None:
    home.rename(home.with_name("away"))
    (home / "runs" / "default").mkdir(parents=True)
    her_run(home).rename(home / "runs" / "default" / UID)


def by_a_link(home: Path) -> None:
    run = home / "runs" / "default" / UID
    run.rename(run.with_name("away"))
    run.symlink_to(her_run(home))


def in_the_list_of_a_batch(home: Path) -> None:
    batch, theirs = home / "submissions" / "token" / "batch.json", her_run(home)
    batch.write_text(json.dumps({"format": 1, "jobs": [[str(theirs / "run.json")]]}))


def in_the_place_of_a_batch(home: Path) -> None:
    batch = home / "submissions" / "token" / "batch.json"
    batch.unlink()
    batch.write_text(json.dumps({"format": 1, "jobs": [[str(her_run(home) / "run.json")]]}))


OF_RUNS = [in_the_place_of_a_run, in_the_place_of_an_experiment, in_the_place_of_the_home, by_a_link]
OF_BATCHES = [in_the_list_of_a_batch, in_the_place_of_a_batch]


@pytest.mark.parametrize("exchange", [*OF_RUNS, *OF_BATCHES])
@pytest.mark.parametrize("then", ["open", "closed"])
def test_what_she_exchanged_is_not_executed(home: Path, exchange: Callable[[Path], None], then: str) -> None:
    EVE.does(exchange, home)
    if then == "closed" and exchange is not in_the_place_of_the_home:
        home.chmod(0o700)
    run = RunDir(home / "runs" / "default" / UID)
    batch = ["--batch", str(home / "submissions" / "token" / "batch.json")]

    said = (
        [ADA.does(agent, *batch)]
        if exchange in OF_BATCHES
        else [ADA.does(agent, str(run.path)), ADA.does(put_back, str(run.manifest))]
    )

    for status, text in said:
        assert status == 2
        assert f"belongs to user {EVE.uid}" in text or "may be written by others" in text
    assert not (home.parent / "executed").exists()


def test_nothing_is_executed_in_a_home_that_others_may_write_to_and_all_of_it_once_it_is_closed(home: Path) -> None:
    words = ["--batch", str(home / "submissions" / "token" / "batch.json")]
    status, said = ADA.does(agent, *words)
    assert status == 2
    assert f"hpcml agent: {home} may be written by others, who could act as you: chmod go-w {home}" in said
    assert not (home.parent / "executed").exists()

    home.chmod(0o700)
    assert ADA.does(agent, *words) == (0, "")
    assert (home.parent / "executed").read_text() == "ada\nada\n"


@pytest.mark.parametrize("exchange", [*OF_RUNS, *OF_BATCHES])
def test_in_a_home_that_is_closed_she_can_exchange_nothing_but_the_home(
    home: Path, exchange: Callable[[Path], None]
) -> None:
    home.chmod(0o700)
    if exchange is in_the_place_of_the_home:
        EVE.does(exchange, home)
        status, said = ADA.does(agent, str(home / "runs" / "default" / UID))
        assert (status, f"belongs to user {EVE.uid}" in said) == (2, True)
        assert not (home.parent / "executed").exists()
        return

    with pytest.raises(PermissionError):
        EVE.does(exchange, home)
    assert ADA.does(agent, str(home / "runs" / "default" / UID)) == (0, "")
    assert (home.parent / "executed").read_text() == "ada\n"


def with_code_and_image(home: Path, code: Path, image: Path) -> None:
    """Have the run name a copy of code, and an image of a cache."""
    manifest = home / "runs" / "default" / UID / "run.json"
    words = json.loads(manifest.read_text())
    words["provenance"]["code"] = str(code)
    words["plan"]["image"] = {"path": str(image), "sha256": None, "key": "0" * 32}
    manifest.write_text(json.dumps(words))


def test_neither_code_nor_an_image_of_hers_is_used(home: Path) -> None:
    code, image = home / "code" / "0123456789abcdef", home.parent / "images" / "a.sif"
    with_code_and_image(home, code, image)
    EVE.does(code.mkdir, 0o755, True)  # noqa: FBT003 - parents
    ADA.does(image.parent.mkdir, 0o755, umask=0o022)
    os.mknod(image)
    home.chmod(0o700)
    run = str(home / "runs" / "default" / UID)

    of_code = ADA.does(agent, run)
    for path in (code.parent, code):
        os.chown(path, ADA.uid, GROUP)
    works = ADA.does(agent, run)
    os.chown(image, EVE.uid, GROUP)
    of_image = ADA.does(agent, run)

    assert of_code[0] == of_image[0] == 2
    assert f"{code.parent} belongs to user {EVE.uid}" in of_code[1]
    assert f"{image} belongs to user {EVE.uid}, who is not the owner of its folder" in of_image[1]
    assert works[1] == ""
    assert (home.parent / "executed").read_text() == "ada\n"
