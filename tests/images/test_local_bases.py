"""Images built upon what lies here already, unpacked images to develop in, and back, with a real Apptainer."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hpcml.errors import ConfigError
from hpcml.images.definition import define
from hpcml.model.container import Container, ContainerKind
from tests.cluster.apptainer.registry import Registry
from tests.images.user import ImageUser, one_line

real = pytest.mark.apptainer


@real
def test_an_image_is_developed_in_a_sandbox_and_built_from_it(user: ImageUser, registry: Registry) -> None:
    sandbox = user.folder / "dev"

    made = user.build(registry, "container.post=['mkdir /made; echo 1 > /made/by']")
    assert made.returncode == 0, made.stderr
    (image,) = user.listed()
    unpack = ["apptainer", "build", "--sandbox", str(sandbox), image["path"]]
    assert user.account.run(unpack, cwd=user.folder, environ=user.variables()).returncode == 0

    words = ["build", "+container=local", f"container.path={sandbox}"]
    assert user(*words).returncode == 0
    change = ["apptainer", "exec", "--writable", str(sandbox), "sh", "-c", "echo by hand > /made/more"]
    assert user.account.run(change, cwd=user.folder, environ=user.variables()).returncode == 0
    kept = user(*words, "container.post=['echo 3 >> /made/more']")
    assert kept.returncode == 0, kept.stderr

    first, second = (each for each in user.listed() if each["key"] != image["key"])
    assert first["base"] == second["base"] == str(sandbox)
    assert first["base_digest"] != second["base_digest"]  # the sandbox was changed
    assert user.inside(second["path"], "cat", "/made/by", "/made/more") == "1\nby hand\n3\n"
    run = user("run", "-n", "+container=sandbox", f"container.path={sandbox}", "workload.command=true")
    assert run.returncode == 0, run.stderr


@real
def test_a_file_is_a_base_by_what_it_holds_and_so_are_earlier_stages(user: ImageUser, registry: Registry) -> None:
    assert user.build(registry, "container.post=['echo old > /etc/tool']").returncode == 0
    (base,) = user.listed()
    folder = user.folder / "containers"
    user.account.run(["mkdir", str(folder)], cwd=user.folder)
    user.account.run(["cp", base["path"], str(folder / "tools.sif")], cwd=user.folder)
    (folder / "mine.def").write_text(
        "Bootstrap: localimage\nFrom: tools.sif\nStage: tools\n\n"
        f"Bootstrap: localimage\nFrom: {base['path']}\nStage: last\n\n"
        "%files from tools\n    /etc/tool /opt/tool\n"
    )

    words = ["build", "+container=local", "container.name=mine", f"container.path={base['path']}"]
    done = user(*words)

    assert done.returncode == 0, done.stderr
    image = next(image for image in user.listed() if image["base"] == base["path"])
    assert image["base_digest"] == f"sha256:{base['sha256']}"
    assert image["files"] == {base["path"]: base["sha256"], "tools.sif": base["sha256"]}
    assert user.inside(image["path"], "cat", "/opt/tool") == "old\n"
    again = user(*words, "--json")
    assert json.loads(again.stdout)["key"] == image["key"]


DIGEST = f"sha256:{'1' * 64}"


def local(path: Path) -> Container:
    return Container(name="local", kind=ContainerKind.build, path=str(path))


def test_what_a_folder_looks_like_is_what_it_is_as_a_base(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "tool").write_text("1")
    folders = [Path(__file__).parents[2] / "containers"]
    before = define(local(tmp_path), None, folders=folders, project=tmp_path)

    (tmp_path / "bin" / "tool").chmod(0o755)

    after = define(local(tmp_path), None, folders=folders, project=tmp_path)
    assert before.text.replace(before.base_digest, "") == after.text.replace(after.base_digest, "")
    assert f"Bootstrap: localimage\nFrom: {tmp_path}\n" in after.text
    assert before.key != after.key


@pytest.mark.parametrize("agent", ["docker-archive", "oci-archive", "oci", "localimage"])
def test_an_earlier_stage_is_what_its_archive_holds(tmp_path: Path, agent: str) -> None:
    named = "tools.tar" if agent == "localimage" else "tools.tar:latest"
    (tmp_path / "mine.def").write_text(
        f"Bootstrap: {agent}\nFrom: {named}\nStage: tools\n\nBootstrap: docker\nFrom: debian\nStage: last\n\n"
        "%files from tools\n    /etc/tool\n%post\n    cat <<END\n  From: somebody\nEND\n%help\nFrom: me\n"
    )
    (tmp_path / "tools.tar").write_text("old")
    container = Container(name="mine", kind=ContainerKind.build, registry="docker.io", image="debian", tag="12")

    old, again = (define(container, DIGEST, folders=[tmp_path], project=tmp_path) for _ in range(2))
    (tmp_path / "tools.tar").write_text("new")
    new = define(container, DIGEST, folders=[tmp_path], project=tmp_path)

    assert old.key == again.key != new.key
    assert list(old.files) == [named]
    assert "From: somebody\n" in old.text
    (tmp_path / "tools.tar").unlink()
    with pytest.raises(ConfigError, match=f"From: {named}: there is no such image"):
        define(container, DIGEST, folders=[tmp_path], project=tmp_path)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ({}, "container=local needs container.path=/where/the/base is"),
        (
            {"path": "/a", "image": "nvidia/cuda"},
            "and container.path=/a: an image is built upon one base, and container=local would have several",
        ),
        ({"path": "a"}, "container.path=a must be absolute"),
    ],
)
def test_a_base_that_is_half_said_is_refused(words: dict[str, str], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        Container(name="local", kind=ContainerKind.build, **words)  # type: ignore[arg-type]


@real
@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("container.path=/nothere.sif",), "container.path=/nothere.sif does not exist"),
        (("container.path=/etc/passwd",), "container.path=/etc/passwd is no image that Apptainer can start"),
    ],
)
def test_a_base_that_is_not_there_is_refused_in_one_line(user: ImageUser, words: tuple[str, ...], says: str) -> None:
    done = user("build", "+container=local", *words)

    assert done.returncode in (2, 4)
    assert says in one_line(done)
