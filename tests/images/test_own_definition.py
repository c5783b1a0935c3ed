"""A definition of the user's own, with all that Apptainer takes in one: built and run in by a real Apptainer."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.cluster.apptainer.registry import Registry
from tests.images.user import ImageUser, one_line

pytestmark = pytest.mark.apptainer
DEFINITION = """\
Bootstrap: docker
Registry: {{ HUB }}
Namespace: nvidia
From: pytorch:{{ TAG }}   # as the group has it

%arguments
    HUB=HOST
    TAG=24.12-py3
    WORD=plain

%files
    words.txt /opt/words.txt

%setup
    cp words.txt ${APPTAINER_ROOTFS}/by-setup

%post
    echo {{ WORD }} > /word

%runscript
    exec cat /word

%apprun twice
    exec cat /word /word

%test
    test -s /word

%Labels
    Author Eva
    # not one
    Version 2

%help
    All that there is.
"""


def test_a_definition_of_the_users_own_is_built_found_and_run_in(user: ImageUser, registry: Registry) -> None:
    (user.folder / "train.def").write_text(DEFINITION.replace("HOST", registry.host), encoding="utf-8")
    (user.folder / "words.txt").write_text("of the project\n", encoding="utf-8")

    built = user("build", "--definition", "train.def", "--build-arg", "WORD=given")
    again = user("build", "--definition", "train.def", "--build-arg", "WORD=given")
    command = "workload.command='cat /word /opt/words.txt /by-setup'"
    chosen = ["+container=definition", f"container.definition={user.folder}/train.def"]
    run = user("run", *chosen, "+container.build_args.WORD=given", command, "precision.observe=never")

    assert built.returncode == 0, built.stderr
    assert again.stdout.startswith("found ")
    (image,) = user.listed()
    assert image["base"] == f"{registry.host}/nvidia/pytorch:24.12-py3"
    assert {name: image["labels"].get(name) for name in ("Author", "Version")} == {"Author": "Eva", "Version": "2"}
    assert run.returncode == 0, run.stderr
    (printed,) = (user.folder / "hpcml" / "runs").glob("*/*/logs/*.out")
    assert printed.read_text(encoding="utf-8").splitlines() == ["given", "of the project", "of the project"]


def test_what_docker_save_has_written_is_a_base(user: ImageUser, base_layout: Path) -> None:
    archive, definition = user.folder / "lab.tar", user.folder / "lab.def"
    copy = ["skopeo", "copy", "--quiet", f"oci:{base_layout}:base", f"docker-archive:{archive}:lab/tools:1"]
    subprocess.run(copy, check=True, capture_output=True)
    definition.write_text("Bootstrap: docker-archive\nFrom: lab.tar\n\n%post\necho made > /made\n", encoding="utf-8")

    told = user("build", "+container=local", f"container.path={archive}")
    done = user("build", "--definition", "lab.def")

    assert "Bootstrap: docker-archive and From: with its path in a file x.def" in one_line(told)
    assert done.returncode == 0, done.stderr
    (image,) = user.listed()
    assert image["base"] == str(archive)
    assert user.inside(image["path"], "cat", "/etc/words", "/made") == "the first base\nmade\n"
