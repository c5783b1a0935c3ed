"""Dockerfiles: built by a real Apptainer or buildah as they are meant, and what is refused, by line."""

from __future__ import annotations

import os
import shutil
import tarfile
from pathlib import Path

import pytest

from hpcml.commands import images
from hpcml.errors import ConfigError
from hpcml.images.dockerfile import convert
from hpcml.model.cluster import Cluster, SchedulerName
from hpcml.model.container import Container, ContainerKind
from tests.cluster.apptainer.registry import PATH, Registry
from tests.images.test_registry import closed_port
from tests.images.user import ImageUser, one_line

_REAL = r"""# syntax=docker/dockerfile:1
ARG TAG=24.12-py3
from {host}/nvidia/pytorch:$TAG
LABEL org.example.title="two words" version=1
RUN ["/bin/sh", "-c", "/bin/busybox --install -s /bin || true"]
ARG WHO=eva
ENV GREETING="hello, $WHO" \
    LITERAL='$HOME "as it is"' \
    # a comment in between
    WHERE=/opt:$PATH
ENV OLD form with spaces
RUN echo "$GREETING" > /before \
 # and another
 && cd /tmp; false; true
RUN pwd > /after
WORKDIR /app
WORKDIR sub
COPY one.txt two.txt ./
COPY data /app/data
COPY --chown=1000:1000 one.txt /renamed
RUN echo changed > /app/data/inner
COPY data/inner /app/data/again
USER nobody
EXPOSE 80
ENTRYPOINT ["/bin/echo", "entry point"]
CMD ["by default"]
"""


def write(folder: Path, text: str) -> Path:
    path = folder / "Dockerfile"
    path.write_text(text)
    return path


@pytest.mark.apptainer
def test_a_dockerfile_is_built_as_it_is_meant(user: ImageUser, registry: Registry) -> None:
    folder = user.folder / "project"
    (folder / "data").mkdir(parents=True)
    for name in ("one.txt", "two.txt", "data/inner"):
        (folder / name).write_text(f"{name}\n")
    (folder / "data" / "inner").chmod(0o600)
    shutil.chown(folder / "data" / "inner", "hpcuser")
    write(folder, _REAL.replace("{host}", registry.host))

    done = user("build", "--dockerfile", "project/Dockerfile", "--json")

    assert done.returncode == 0, done.stderr
    (image,) = user.listed()
    assert image["base"] == f"{registry.host}/nvidia/pytorch:24.12-py3"
    assert f"From: {registry.host}/nvidia/pytorch@sha256:" in image["definition"]
    files = "/app/sub/one.txt /app/sub/two.txt /app/data/inner /app/data/again /renamed"
    script = f'cat /before /after {files}; echo "$GREETING|$LITERAL|$WHERE|$OLD"; ls /.hpcml* 2>/dev/null; true'
    seen = user.inside(image["path"], "sh", "-c", script).splitlines()
    assert seen[:7] == ["hello, eva", "/", "one.txt", "two.txt", "changed", "data/inner", "one.txt"]
    greeting, literal, where, old = seen[7].split("|")
    assert (greeting, literal, old) == ("hello, eva", '$HOME "as it is"', "form with spaces")
    assert where.startswith("/opt:/bin")
    assert len(seen) == 8
    run = user.account.run(["apptainer", "run", image["path"]], cwd=user.folder, environ=user.variables())
    assert run.stdout.decode() == "entry point by default\n"
    assert "warning: Dockerfile:23: USER nobody is left out: %post is done as root of the image" in done.stderr
    assert "warning: Dockerfile:24: EXPOSE 80 is left out" in done.stderr

    (folder / "data" / "inner").write_text("another\n")
    shown = user("build", "-n", "--dockerfile", "project/Dockerfile")
    assert "(to be built)" in shown.stdout  # what is copied is in the key


@pytest.mark.apptainer
def test_what_fails_ends_the_build(user: ImageUser, registry: Registry) -> None:
    write(user.folder, f"FROM {registry.host}/nvidia/pytorch:24.12-py3\nRUN exit 3\nRUN true\n")

    done = user("build", "--dockerfile", "Dockerfile")

    assert done.returncode == 4
    assert "a command of %post failed with exit status 3" in done.stderr
    assert user.listed() == []


_OF_TWO_STAGES = """FROM scratch AS tools
ADD root.tar /
RUN ["/bin/busybox", "--install", "-s", "/bin"]
FROM tools
ARG WHO
RUN echo $WHO >/said
COPY --from=tools /bin /other
"""


@pytest.mark.apptainer
def test_where_buildah_is_it_builds_all_that_a_dockerfile_says(user: ImageUser, tmp_path: Path) -> None:
    if os.environ.get("CI") != "true" and shutil.which("buildah") is None:
        pytest.skip("there is no buildah")
    with tarfile.open(tmp_path / "root.tar", "w") as archive:
        archive.add("/bin/busybox", "bin/busybox")
    path = write(tmp_path, _OF_TWO_STAGES)
    storage = tmp_path / "storage.conf"
    storage.write_text(f'[storage]\ndriver = "vfs"\nrunroot = "{tmp_path}/run"\ngraphroot = "{tmp_path}/graph"\n')
    environ = {
        "PATH": PATH,
        "HOME": str(tmp_path),
        "HPCML_IMAGES": str(tmp_path / "images"),
        "BUILDAH_ISOLATION": "chroot",  # needs no rights of the kernel's that a test's machine may lack
        "CONTAINERS_STORAGE_CONF": str(storage),
    }
    container = Container(name="dockerfile", kind=ContainerKind.build, dockerfile=str(path), build_args={"WHO": "eva"})
    cluster = Cluster(name="local", scheduler=SchedulerName.local)

    wanted = images.want(container, cluster, environ, tmp_path)
    record = images.build(wanted, environ, on_progress=lambda _: None)

    assert wanted.definition.text.startswith("Bootstrap: oci-archive\n")
    assert record.base_digest.startswith("sha256:")
    assert wanted.archive is not None
    assert not wanted.archive.exists()
    shutil.copy(record.path, user.folder / "image.sif")
    (user.folder / "image.sif").chmod(0o644)
    assert user.inside(str(user.folder / "image.sif"), "/other/sh", "-c", "cat /said") == "eva\n"
    assert images.want(container, cluster, environ, tmp_path).found == record


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("FROM other", "FROM other begins another stage: build it where podman, buildah or docker is"),
        ("COPY --from=a /x /x", "--from=a: build it where"),
        ("RUN <<EOF", "RUN with a here-document: build it where"),
        ("COPY <<EOF /x", "COPY with a here-document: build it where"),
        ("RUN --mount=type=cache,target=/x true", "RUN --mount=type=cache,target=/x true: build it where"),
        ("ONBUILD RUN true", "ONBUILD is nothing that a definition can say: build it where"),
        ('SHELL ["/bin/bash", "-c"]', "SHELL is nothing that a definition can say"),
        ("INCLUDE other", "INCLUDE is nothing that a definition can say"),
        ("ADD https://example.org/a /x", "ADD https://example.org/a: build it where"),
        ("ADD packed.tar /x", "ADD packed.tar is an archive, which Docker unpacks: write COPY, and RUN tar"),
        ("ARG 1KEY", "ARG 1KEY: write ARG NAME=value"),
        ("COPY $NOWHERE /x", "the value of $NOWHERE is not known here: write it, or ARG with a value"),
        ("COPY nothere /x", "nothere is not there ("),
        ("COPY ../a /x", "../a lies outside of the context /"),
        ("COPY Dockerfile x", "x: what the base says is not known here: write WORKDIR /where before it"),
        ("WORKDIR x", "x: what the base says is not known here"),
        ("COPY --chmod=x;y Dockerfile /x", "--chmod=x;y: write --chmod=755"),
        ("COPY D* p* /x", "D* p* /x are several: end /x with a slash"),
        ("COPY Dockerfile", "write COPY SOURCE... DESTINATION"),
        ('COPY ["a b", "/x"]', "'a b': names with signs of a shell are not read: rename it"),
        ('COPY ["a;b", "/x"]', "'a;b': names with signs of a shell are not read"),
        ('RUN ["echo", "a\\n%setup\\ntouch /tmp/x"]', "words with line breaks are not read"),
        ('ENTRYPOINT ["a\\u2028%setup"]', "words with line breaks are not read"),
        ("ENV V=${A%.*}", "of ${NAME...}, :-, :+, - and + with a plain text are read: write the value"),
        ("ENV A='b'$PATH", "write it between double quotes"),
        ("LABEL org.hpcml.base=mine", "LABEL org.hpcml.base is set by hpcml: choose another name"),
        ("LABEL a={{b}}", "LABEL: Apptainer reads {{ as its own"),
        ("ENV A", "ENV A: write NAME=value"),
        ("ENV A=1 B C", "ENV B: write NAME=value"),
        ("ENV A-B=1", "ENV A-B: it is no variable's name"),
        ("RUN", "RUN says nothing"),
    ],
)
def test_what_a_definition_cannot_say_is_refused_by_line(tmp_path: Path, line: str, says: str) -> None:
    for name in ("a b", "a;b"):
        (tmp_path / name).touch()
    with tarfile.open(tmp_path / "packed.tar", "w"):
        pass
    path = write(tmp_path, f"# first\nFROM alpine AS a\n\n{line}\n")

    with pytest.raises(ConfigError) as caught:
        convert(path)

    assert str(caught.value).startswith(f"{path}:4: ")
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("HEALTHCHECK CMD curl localhost", "HEALTHCHECK CMD curl localhost is left out: nobody asks for it"),
        ("VOLUME /data", "VOLUME /data is left out: use container.binds"),
        ("USER 1000:1000", "USER 1000:1000 is left out"),
        ("ENV A=1 HOME=/app", "ENV HOME counts while the image is built: runs have your own home"),
        ("WORKDIR /app", "WORKDIR /app counts while the image is built"),
        ("ARG KEY", "ARG KEY has no value: container.build_args.KEY gives it one"),
        ("COPY --chown=app Dockerfile /app/", "--chown=app is left out: files of an image are read as yourself"),
    ],
)
def test_what_is_different_is_said_by_line(tmp_path: Path, line: str, says: str) -> None:
    (remark,) = convert(write(tmp_path, f"FROM alpine\n{line}\n")).remarks

    assert remark.startswith("Dockerfile:2: ")
    assert says in remark


@pytest.mark.parametrize(
    ("lines", "post"),
    [
        ("RUN echo $((1<<N)) <<<x", "/bin/sh -c 'echo $((1<<N)) <<<x'"),
        ("RUN wget https://example.org/\\\nb.tar \\  \n# said\n  && echo b", None),
        ('RUN ["%setup", "x"]', "(exec %setup x)"),
        ("ENV A=1\nENV A=2 B=$A OLD=$PATH", 'export A="1"\nexport A="2" B="1" OLD="$PATH"'),
        ("ENV A=1\nARG A=2\nWORKDIR /$A", 'export A="1"\nmkdir -p "/1"; cd "/1"'),
        ("ENV A='`b`' B=${C:-`d`}", "export A='`b`' B=\"${C:-`d`}\""),
        ("ARG A=1\nENV B=${A:-2}${A:+3}", 'export A=1\nexport B="13"'),
        ("ARG A='say \"x\"'\nENV B=$A", """export A='say "x"'\nexport B="say \\"x\\"\""""),
    ],
)
def test_words_are_read_as_docker_reads_them(tmp_path: Path, lines: str, post: str | None) -> None:
    text = convert(write(tmp_path, f"FROM alpine\n{lines}\n")).text

    said = text.partition("\nexport HOME=/root\ncd /\n")[2]
    assert said.rstrip("\n") == post if post is not None else "wget https://example.org/b.tar" in said


def test_values_for_arg_are_taken_and_others_refused(tmp_path: Path) -> None:
    path = write(tmp_path, "ARG KIND=a\nFROM alpine:$KIND\nARG KIND\nARG LATER\nRUN true\n")

    text = convert(path, build_args={"KIND": "b", "LATER": "x y"}).text

    assert "From: alpine:b\n" in text
    assert "export KIND=b\nexport LATER='x y'\n" in text
    with pytest.raises(ConfigError, match=r"build_args.NONE: .* has no such ARG: it has KIND, LATER"):
        convert(path, build_args={"NONE": "1"})
    with pytest.raises(ConfigError, match=r"container.target=later: there is no such stage"):
        convert(path, target="later")


def test_what_is_copied_is_of_the_context_without_what_dockerignore_keeps_out(tmp_path: Path) -> None:
    for name in ("kept/a", "kept/b.pyc", ".git/config", "root.pyc", "kept/deep/c"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / ".dockerignore").write_text("# said\n.git\n*.pyc\nDockerfile\n.dockerignore\nkept/deep\n!kept/deep/c\n")

    text = convert(write(tmp_path, "FROM alpine\nCOPY . /app/\n")).text

    staged = [line.strip() for line in text.partition("%files\n")[2].partition("\n\n")[0].splitlines()]
    assert staged == [f"{name} /.hpcml-copy/0/{name}" for name in ("kept/a", "kept/b.pyc", "kept/deep/c")]


def test_another_context_is_copied_from(tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "a").touch()
    folder = tmp_path / "docker"
    folder.mkdir()

    converted = convert(write(folder, "FROM alpine\nCOPY a /a\n"), context=tmp_path / "code")

    assert converted.context == tmp_path / "code"
    assert "a /.hpcml-copy/0/a\n" in converted.text


@pytest.mark.parametrize("text", ["", "# nothing\n", "ARG A=1\n"])
def test_a_file_without_an_image_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError, match="has no FROM"):
        convert(write(tmp_path, text))


@pytest.mark.apptainer
def test_a_dry_run_without_a_network_says_what_is_different_too(user: ImageUser) -> None:
    write(user.folder, f"FROM {closed_port()}/alpine:3\nARG X\nEXPOSE 80\nRUN true\n")

    words = ["build", "-n", "--dockerfile", "Dockerfile", "--build-arg", "X=1", "--build-arg", "X=a\\b ${HOME}\\"]
    shown = user(*words)

    assert shown.returncode == 0, shown.stderr
    assert "key     unresolved" in shown.stdout
    assert "export X='a\\b ${HOME}\\'\n" in shown.stdout
    assert "warning: Dockerfile:3: EXPOSE 80 is left out" in shown.stderr


@pytest.mark.apptainer
@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--dockerfile",), "Option '--dockerfile' requires an argument"),
        (("--dockerfile", "nothere"), "/nothere cannot be read: "),
        (("--dockerfile=Dockerfile", "--build-arg", "a.b=1"), "--build-arg a.b=1: write --build-arg NAME=VALUE"),
        (
            ("--dockerfile=Dockerfile", "container.image=nvidia/cuda"),
            "nvidia/cuda and container.dockerfile=",
        ),
        (("+container=dockerfile",), "container=dockerfile needs container.dockerfile=/where/it/is"),
    ],
)
def test_a_dockerfile_that_is_not_there_is_refused_in_one_line(
    user: ImageUser, words: tuple[str, ...], says: str
) -> None:
    done = user("build", *words)

    assert done.returncode == 2
    assert says in one_line(done)
