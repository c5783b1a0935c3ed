from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from hpcml.errors import ConfigError
from hpcml.images.definition import define
from hpcml.model.container import Container, ContainerKind
from hpcml.model.image import Definition
from hpcml.paths import resource_dir

DIGEST = f"sha256:{'ab' * 32}"
PYTORCH = Container(
    name="ngc_pytorch", kind=ContainerKind.build, registry="nvcr.io", image="nvidia/pytorch", tag="24.12-py3"
)


def rendered(container: Container, *folders: Path, digest: str = DIGEST, architecture: str = "amd64") -> Definition:
    return define(container, digest, folders=[*folders, resource_dir("containers")], architecture=architecture)


def test_a_definition_pins_its_base_and_says_what_it_was() -> None:
    container = replace(
        PYTORCH,
        apt=["git"],
        pip=["einops==0.8", "a>1"],
        post=["echo one\necho two", "true"],
        environment={"MODE": "it's here"},
        labels={"project": "OPEN-1-2"},
    )

    text = rendered(container).text

    assert text == (
        f"""\
# nvcr.io/nvidia/pytorch:24.12-py3
Bootstrap: docker
From: nvcr.io/nvidia/pytorch@{DIGEST}

%labels
org.hpcml.base nvcr.io/nvidia/pytorch:24.12-py3
org.hpcml.base.digest {DIGEST}
project OPEN-1-2

%environment
export MODE='it'"'"'s here'

%post
export MODE='it'"'"'s here'
apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends git """
        """&& rm -rf /var/lib/apt/lists/*
python3 -m pip --version >/dev/null 2>&1 || { apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y """
        """--no-install-recommends python3-pip && rm -rf /var/lib/apt/lists/*; }
PIP_BREAK_SYSTEM_PACKAGES=1 python3 -m pip install --no-cache-dir einops==0.8 'a>1'
echo one
echo two
true
"""
    )


def test_a_base_alone_needs_no_sections() -> None:
    text = rendered(PYTORCH).text

    assert "%post" not in text
    assert "%environment" not in text


def test_the_key_follows_from_everything_that_decides_what_is_inside() -> None:
    keys = {
        rendered(PYTORCH).key,
        rendered(PYTORCH, digest=f"sha256:{'cd' * 32}").key,
        rendered(PYTORCH, architecture="arm64").key,
        rendered(replace(PYTORCH, pip=["einops"])).key,
        rendered(replace(PYTORCH, environment={"A": "1"})).key,
    }

    assert len(keys) == 5
    assert rendered(PYTORCH).key in keys


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"labels": {"a b": "c"}}, "container.labels"),
        ({"labels": {"org.hpcml.base": "mine"}}, "org.hpcml.base"),
        ({"image": "NVIDIA PyTorch"}, "container.image"),
        ({"tag": None}, "container.tag"),
        ({"registry": "ftp://nvcr.io"}, "container.registry"),
    ],
)
def test_what_no_registry_or_definition_takes_is_refused(change: dict[str, object], word: str) -> None:
    with pytest.raises(ConfigError, match=word) as refused:
        rendered(replace(PYTORCH, **change))

    assert "\n" not in str(refused.value)


def test_a_template_of_the_project_comes_first(tmp_path: Path) -> None:
    (tmp_path / "ngc_pytorch.def").write_text("Bootstrap: docker\nFrom: $pinned\n\n%post\necho $$HOME\n$post\n")

    text = rendered(replace(PYTORCH, post=["echo $HOME"]), tmp_path).text

    assert text.endswith("%post\necho $HOME\necho $HOME\n")


def test_a_template_with_an_unknown_word_is_refused(tmp_path: Path) -> None:
    (tmp_path / "docker.def").write_text("From: $bases\n")

    with pytest.raises(ConfigError, match=r"docker\.def: 'bases' is no word"):
        rendered(PYTORCH, tmp_path)
