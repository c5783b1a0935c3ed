from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcml.codec import decode, encode
from hpcml.errors import ConfigError
from hpcml.model.container import Bind, Container, ContainerGpu, ContainerKind
from hpcml.model.run import Run
from tests.conftest import ComposeOne

BUILT: dict[str, Any] = {
    "name": "ngc_pytorch",
    "kind": ContainerKind.build,
    "registry": "nvcr.io",
    "image": "nvidia/pytorch",
    "tag": "24.12-py3",
}
FILE: dict[str, Any] = {"name": "sif", "kind": ContainerKind.sif, "path": "/scratch/me/x.sif"}
SECRETS = ["WANDB_API_KEY", "HF_TOKEN", "password", "MY_SECRET", "AWS_SECRET_ACCESS_KEY", "GITHUB_PAT", "NGC_API_KEY"]


def test_each_shipped_container_can_be_composed_with_what_it_needs(compose_one: ComposeOne) -> None:
    images = {
        "ngc_pytorch": "nvidia/pytorch",
        "ngc_tensorflow": "nvidia/tensorflow",
        "ngc_tensorrt": "nvidia/tensorrt",
        "ngc_cuda": "nvidia/cuda",
        "ngc_rapids": "nvidia/rapidsai/base",
        "ngc_jax": "nvidia/jax",
        "ngc_nemo": "nvidia/nemo",
        "ngc_pytorch_horovod": "nvidia/pytorch",
        "ngc_tensorflow_horovod": "nvidia/tensorflow",
    }
    for name, image in images.items():
        container = compose_one(f"+container={name}").container
        assert (container.name, container.kind, container.image) == (name, ContainerKind.build, image)
    for name in ("sif", "sandbox"):
        container = compose_one(f"container={name}", "container.path=/scratch/x.sif").container
        assert (container.name, container.kind.name, container.path) == (name, name, "/scratch/x.sif")
    assert compose_one().container == Container(name="none")


def test_everything_can_be_set_on_the_command_line_and_survives_json(compose_one: ComposeOne) -> None:
    run = compose_one(
        "+container=ngc_pytorch",
        "container.tag=24.12-py3",
        "container.pip=['timm==1.0.9','torch>=2,<3']",
        "container.apt=[git]",
        "container.post=['echo one','echo two']",
        "+container.environment.A=1",
        "+container.labels.project=x",
        "container.binds=['/data:/d:ro']",
        "container.options=['--no-home']",
        "container.gpu=nv",
        "container.build=never",
    )

    assert run.container.all_binds() == [Bind(source="/data", destination="/d", read_only=True)]
    assert run.container.gpu is ContainerGpu.nv
    assert run.container.pip == ["timm==1.0.9", "torch>=2,<3"]
    assert decode(Run, encode(run)) == run


@pytest.mark.parametrize(
    ("given", "more", "says"),
    [
        (FILE, {"path": None}, "container=sif needs container.path=/where/the/image.sif is"),
        (FILE, {"kind": ContainerKind.sandbox, "path": None}, "container.path=/where/the/directory is"),
        (FILE, {"path": "x.sif"}, "container.path=x.sif must be absolute"),
        (
            FILE,
            {"path": "docker://debian:12"},
            "=docker://debian:12 is no file: write container=docker container.image=debian container.tag=12",
        ),
        (
            FILE,
            {"path": "docker://quay.io:443/a/b"},
            "write container=docker container.registry=quay.io:443 container.image=a/b container.tag=latest",
        ),
        (
            FILE,
            {"path": "oras://ghcr.io/a/b:1"},
            "is no file: apptainer pull image.sif oras://ghcr.io/a/b:1, then container=sif container.path=/where",
        ),
        (FILE, {"tag": "1"}, "container.tag is of an image to build"),
        (FILE, {"pip": ["timm"]}, "container.pip is of an image to build"),
        (FILE, {"environment": {"A": "1"}}, "container.environment is of an image to build"),
        ({"name": "none"}, {"path": "/x.sif"}, "choose container=sif"),
        ({"name": "none"}, {"image": "x"}, "choose +container=ngc_pytorch"),
        (BUILT, {"registry": None}, "set container.registry=nvcr.io or docker.io"),
        (BUILT, {"image": None}, "set container.image=nvidia/pytorch"),
        (BUILT, {"path": "/x.sif"}, "container.path=/x.sif: an image is built upon one base"),
        (
            {**BUILT, "name": "definition"},
            {"definition": "/x.def"},
            "container.registry=nvcr.io and container.def",
        ),
        ({"name": "none"}, {"definition": "/x.def"}, "container=none is none: choose +container=definition"),
        (BUILT, {"tag": "a b"}, "container.tag='a b' is no tag"),
        (BUILT, {"tag": "a\n%post"}, "container.tag holds a line break"),
        (BUILT, {"image": "nvidia/pytorch@sha256:0"}, "holds a space or an @"),
        (
            BUILT,
            {"image": "nvidia/pytorch:24.10-py3"},
            ":24.10-py3 names more than the image: write container.image=nvidia/pytorch container.tag=24.10-py3",
        ),
        (
            BUILT,
            {"registry": "docker.io", "image": "ghcr.io/lab/tool", "tag": "1"},
            "write container.registry=ghcr.io container.image=lab/tool container.tag=1",
        ),
        (BUILT, {"image": "nvcr.io/nvidia/pytorch"}, "its registry again: write container.image=nvidia/pytorch"),
        (BUILT, {"image": "docker://debian"}, "names more than the image: write container.image=debian container.tag="),
        (BUILT, {"digest": "sha256:12"}, "container.digest='sha256:12': write sha256:"),
        (BUILT, {"digest": "SHA256:" + "0" * 64}, "write sha256:"),
        (BUILT, {"pip": ["a\n%post\nrm -rf /"]}, "container.pip holds a line break"),
        (BUILT, {"pip": ["a\x85b"]}, "container.pip holds a line break"),
        (BUILT, {"pip": ["a\0"]}, "container.pip holds a line break"),
        (BUILT, {"pip": ["numpy\n"]}, "container.pip holds a line break"),
        (BUILT, {"pip": [" "]}, "empty word"),
        (BUILT, {"pip": ["--index-url https://x"]}, "write --option=value"),
        (BUILT, {"pip": ["--extra-index-url=https://me:key@host/simple"]}, "a URL with a login"),
        (BUILT, {"pip": ["x @ git+https://token@github.com/a/b"]}, "a URL with a login"),
        (BUILT, {"apt": ["git; rm -rf /"]}, "is no package"),
        (BUILT, {"apt": ["-o=x"]}, "is no package"),
        (BUILT, {"apt": ["git wget"]}, "is no package"),
        (BUILT, {"post": ["true", "  %files"]}, "container.post: '%files' would begin another section"),
        (BUILT, {"post": ["true\nFrom: other"]}, "would begin another section"),
        (BUILT, {"environment": {"A-B": "1"}}, "'A-B' is no variable's name"),
        (BUILT, {"environment": {"A": "1\n%post"}}, "container.environment.A holds a line break"),
        (BUILT, {"environment": {"A\nB": "1"}}, "container.environment.A holds a line break"),
        *[
            (BUILT, {"environment": {name: "x"}}, f"container.environment.{name} looks like a secret")
            for name in SECRETS
        ],
        (BUILT, {"environment": {"MODE": "nvapi-0123"}}, "container.environment.MODE looks like a secret"),
        (BUILT, {"labels": {"a": "b\n%post"}}, "container.labels.a holds a line break"),
        (BUILT, {"runtime": "docker"}, "choose apptainer, singularity, pyxis"),
        (BUILT, {"binds": ["data"]}, "'data' in 'data' is no absolute path"),
        (BUILT, {"binds": ["/a:b"]}, "'b' in '/a:b' is no absolute path"),
        (BUILT, {"binds": ["/a:/b:rx"]}, "choose ro or rw"),
        (BUILT, {"binds": ["/a:/b:ro:x"]}, "more than two colons"),
        (BUILT, {"binds": ["/a/../b"]}, "goes up"),
        (BUILT, {"binds": ["/a:/"]}, "would hide the whole image"),
        (BUILT, {"binds": ["/"]}, "would hide the whole image"),
        (BUILT, {"options": ["other.sif"]}, "is no option"),
        (BUILT, {"options": ["--"]}, "is no option"),
        (BUILT, {"options": ["--env", "KEY=1"]}, "container.options: --env: set workload.env"),
        (BUILT, {"options": ["--env=KEY=1"]}, "container.options: --env: set workload.env"),
        (BUILT, {"options": ["-B/a:/b"]}, "set container.binds"),
        (BUILT, {"options": ["--bind", "/a"]}, "set container.binds"),
        (BUILT, {"options": ["--nv"]}, "set container.gpu"),
        (BUILT, {"options": ["--docker-password=x"]}, "export NGC_API_KEY"),
        (BUILT, {"options": ["--no-home\n--x"]}, "container.options holds a line break"),
    ],
)
def test_what_is_no_container_is_refused_in_one_line(given: dict[str, Any], more: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Container(**{**given, **more})

    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "more",
    [
        {"pip": ["pkg[extra]==1.2", "git+ssh://git@github.com/a/b@v1", "x; python_version<'3.9'", "--no-deps"]},
        {"pip": ["x @ https://host/x.whl", "--extra-index-url=https://host/simple"]},
        {"apt": ["libstdc++6", "git=1:2.39.2-1.1", "libc6:amd64", "python3.8-venv", "git/bookworm-backports"]},
        {"environment": {"TOKENIZERS_PARALLELISM": "false", "KEYBOARD": "us", "EMPTY": ""}},
        {"post": ["cd /opt\n  make 50%"]},
        {"options": ["--env-file=/home/me/keys", "--overlay", "/scratch/o.img", "-e"]},
        {"binds": ["/a", "/a b:/c", "/a:/b:rw", "/with,comma:/d"]},
        {"tag": None, "digest": "sha256:" + "0a" * 32},
    ],
)
def test_what_people_write_is_taken(more: dict[str, Any]) -> None:
    Container(**{**BUILT, **more})


@given(words=st.text(min_size=1, max_size=8), where=st.sampled_from(["pip", "apt", "label", "variable", "tag"]))
def test_no_word_adds_a_line_to_a_definition(words: str, where: str) -> None:
    more = {
        "pip": {"pip": [words]},
        "apt": {"apt": [words]},
        "label": {"labels": {"a": words}},
        "variable": {"environment": {"A": words}},
        "tag": {"tag": words},
    }[where]
    refusal = ""
    try:
        Container(**{**BUILT, **more})
    except ConfigError as error:
        refusal = str(error)

    assert len(refusal.splitlines()) <= 1
    assert refusal or (f"x{words}y".splitlines() == [f"x{words}y"] and "\0" not in words)


def test_without_a_container_nothing_else_of_it_says_what_a_run_is(compose_one: ComposeOne) -> None:
    assert compose_one("container.gpu=nv", "container.binds=[/data]").spec_hash == compose_one().spec_hash


@pytest.mark.parametrize(
    "override",
    [
        "container.tag=24.11-py3",
        f"container.digest=sha256:{'0' * 64}",
        "container.pip=[timm]",
        "container.apt=[git]",
        "container.post=[true]",
        "+container.environment.A=1",
        "container.binds=['/a:/b']",
        "container.options=[--no-home]",
        "container.registry=docker.io",
        "container.gpu=none",
    ],
)
def test_what_is_in_an_image_and_around_it_makes_another_run(compose_one: ComposeOne, override: str) -> None:
    words = ["+container=ngc_pytorch", "container.tag=24.12-py3"]

    assert compose_one(*words, override).spec_hash != compose_one(*words).spec_hash


@pytest.mark.parametrize("override", ["container.build=never", "+container.labels.a=b", "container.runtime=apptainer"])
def test_how_an_image_comes_about_does_not(compose_one: ComposeOne, override: str) -> None:
    words = ["+container=ngc_pytorch", "container.tag=24.12-py3"]

    assert compose_one(*words, override).spec_hash == compose_one(*words).spec_hash
