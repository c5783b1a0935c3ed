"""What docs/containers.md says to type, typed: with a registry on this machine in NVIDIA's place."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from tests.cluster.apptainer.registry import KEY, Registry
from tests.images.user import ImageUser

pytestmark = pytest.mark.apptainer
_PAGE = Path(__file__).resolve().parents[2] / "docs" / "containers.md"


def commands() -> list[str]:
    """Return what is said to be typed of images, in its order."""
    typed = r"^\$ ((?:hpcml build|hpcml images|apptainer build --sandbox)\b.*)$"
    found = re.findall(typed, _PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    return [line.partition("#")[0].strip() for line in found]


def test_every_command_about_images_works_as_it_stands(user: ImageUser, closed_registry: Registry) -> None:
    login = {"NGC_API_KEY": KEY, "HPCML_NGC_REGISTRY": closed_registry.host}
    typed = commands()
    # The page removes what it has built before it carries it elsewhere.
    in_order = sorted(typed, key=lambda line: " rm " in line)
    assert len(typed) >= 8
    base = f"{closed_registry.host}/nvidia/pytorch:24.12-py3"
    (user.folder / "train.def").write_text(f"Bootstrap: docker\nFrom: {base}\n%post\ntrue\n", encoding="utf-8")
    (user.folder / "Dockerfile").write_text(f"FROM {base}\nLABEL of=mine\n", encoding="utf-8")

    for line in in_order:
        program, *words = shlex.split(line.replace("/scratch/me", str(user.folder)))
        if program == "apptainer":
            unpack = [program, *words[:-1], user.listed()[0]["path"]]
            assert user.account.run(unpack, cwd=user.folder, environ=user.variables()).returncode == 0
            continue
        if words[0] == "build" and not {"+container=local", "--definition", "--dockerfile"} & set(words):
            words.append(f"container.registry={closed_registry.url}")
        elif listed := user.listed():
            words = [listed[0]["key"][:8] if word == "6690" else word for word in words]
        if words[1:2] == ["rm"]:
            words.append("-y")

        done = user(*words, **login)

        assert done.returncode == 0, f"{line}: {done.stderr}"
    # Which the page does not remove.
    assert {image["base"] for image in user.listed()} == {base, f"{user.folder}/dev"}
