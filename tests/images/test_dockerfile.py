"""Dockerfiles: what a definition says of them, built by a real Apptainer, and what is refused, by line."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from hpcml.errors import ConfigError
from hpcml.images.dockerfile import convert
from tests.cli.command_line import Hpcml
from tests.cluster.apptainer.registry import Registry
from tests.images.test_registry import closed_port
from tests.images.user import ImageUser, one_line

_REAL = r"""# syntax=docker/dockerfile:1
ARG TAG=24.12-py3
FROM {host}/nvidia/pytorch:${TAG} AS tools
RUN /bin/busybox --install -s /bin || true
RUN mkdir -p /out/deep && echo tool > /out/deep/tool

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
ADD packed.tar.gz /unpacked
COPY --from=tools /out /from
COPY --from=0 /out/deep/tool /from/tool
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
    subprocess.run(["tar", "-czf", "packed.tar.gz", "two.txt"], cwd=folder, check=True)
    write(folder, _REAL.replace("{host}", registry.host))

    done = user("build", "--dockerfile", "project/Dockerfile", "--json")

    assert done.returncode == 0, done.stderr
    (image,) = user.listed()
    assert image["base"] == f"{registry.host}/nvidia/pytorch:24.12-py3"
    assert image["definition"].count(f"From: {registry.host}/nvidia/pytorch@sha256:") == 2
    ours = "/app/sub/one.txt /app/sub/two.txt /app/data/inner /app/data/again /renamed /unpacked/two.txt"
    script = f'cat /before /after {ours} /from/deep/tool /from/tool; echo "$GREETING|$LITERAL|$WHERE|$OLD"; ls /.hpcml*'
    seen = user.account.run(
        ["apptainer", "exec", image["path"], "sh", "-c", script], cwd=user.folder, environ=user.variables()
    ).stdout.decode()
    assert seen.splitlines() == [
        "hello, eva", "/", "one.txt", "two.txt", "changed", "data/inner", "one.txt", "two.txt", "tool", "tool",
        f'hello, eva|$HOME "as it is"|{seen.splitlines()[-1].split("|")[2]}|form with spaces',
    ]  # fmt: skip
    assert seen.splitlines()[-1].split("|")[2].startswith("/opt:/bin")
    run = user.account.run(["apptainer", "run", image["path"]], cwd=user.folder, environ=user.variables())
    assert run.stdout.decode() == "entry point by default\n"
    assert "warning: Dockerfile:30: USER nobody is left out: %post is done as root of the image" in done.stderr
    assert "warning: Dockerfile:31: EXPOSE is left out" in done.stderr

    (folder / "data" / "inner").write_text("another\n")
    shown = user("build", "-n", "--dockerfile", "project/Dockerfile")
    assert "(to be built)" in shown.stdout  # what is copied is in the key
    assert "    data /.hpcml-copy/2\n" in shown.stdout


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("ONBUILD RUN true", "ONBUILD is for images built from this one"),
        ("RUN <<EOF\ntrue\nEOF", "a here-document (<<) is not read"),
        ("RUN --mount=type=secret,id=key true", "--mount=type=secret,id=key is nothing that a build here can do"),
        ("RUN --network=none true", "--network=none is nothing"),
        ("ARG KEY", "ARG KEY has no value: there is no --build-arg here"),
        ("WORKDIR $NOWHERE", "the value of $NOWHERE is not known here"),
        ("COPY nothere /x", "nothere is not there ("),
        ("COPY ../a /x", "../a lies outside of the Dockerfile's folder"),
        ("COPY --chmod=755 Dockerfile /x", "--chmod is nothing that a definition can say: use RUN"),
        ("COPY --from=golang:1.22 /x /x", "--from=golang:1.22 is no stage above"),
        ("COPY Dockerfile", "write COPY SOURCE... DESTINATION"),
        ("COPY D* /x", None),
        ('COPY ["a b", "/x"]', "names with spaces are not read"),
        ("ADD https://example.org/a.tar.gz /x", "ADD https://example.org/a.tar.gz is not fetched: write RUN with curl"),
        ("ADD git@example.org:a.git /x", "is not fetched"),
        ("SHELL bash", 'write SHELL ["/bin/bash", "-c"]'),
        ("ENV A", "ENV A: write NAME=value"),
        ("ENV A=1 B C", "ENV B C: write NAME=value"),
        ("ENV A-B=1", "A-B is no variable's name"),
        ("RUN", "RUN says nothing"),
        ("INCLUDE other", "INCLUDE is no instruction"),
        ("FROM a", "FROM a goes on from another stage"),
        ("FROM --platform=linux/arm64 alpine", "--platform: the image is made for the processor that builds it"),
        ("FROM scratch", "FROM scratch is an empty image"),
    ],
)
def test_what_a_definition_cannot_say_is_refused_by_line(tmp_path: Path, line: str, says: str | None) -> None:
    (tmp_path / "a b").touch()
    path = write(tmp_path, f"# first\nFROM alpine AS a\n\n{line}\n")
    if says is None:
        assert convert(path).text
        return

    with pytest.raises(ConfigError) as caught:
        convert(path)

    assert str(caught.value).startswith(f"{path}:4: ")
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("HEALTHCHECK CMD curl localhost", "HEALTHCHECK is left out: nobody asks for it"),
        ("VOLUME /data", "VOLUME is left out: use container.binds"),
        ("STOPSIGNAL SIGINT", "STOPSIGNAL is left out"),
        ("MAINTAINER eva", "MAINTAINER is left out: write LABEL"),
        ("USER 1000:1000", "USER 1000:1000 is left out"),
        ("WORKDIR /app", "WORKDIR /app counts while the image is built"),
        ("RUN --mount=type=cache,target=/root/.cache pip install x", "--mount=type=cache is left out"),
        ("COPY . /app", ".dockerignore is not read: all of . is copied"),
    ],
)
def test_what_is_different_is_said_by_line(tmp_path: Path, line: str, says: str) -> None:
    (tmp_path / ".dockerignore").touch()

    (remark,) = convert(write(tmp_path, f"FROM alpine\n{line}\n")).remarks

    assert remark.startswith("Dockerfile:2: ")
    assert says in remark


def test_an_archive_is_unpacked_where_it_is_said_and_nothing_else_is_done(tmp_path: Path) -> None:
    (tmp_path / "a.tar.gz").touch()

    text = convert(write(tmp_path, "FROM alpine\nARG TO='/opt/x;touch'\nADD a.tar.gz $TO\n")).text

    assert "mkdir -p '/opt/x;touch' && tar -xzf /.hpcml-copy/0 -C '/opt/x;touch'\n" in text


def test_a_dry_run_without_a_network_says_what_is_different_too(hpcml_environ: dict[str, str], tmp_path: Path) -> None:
    write(tmp_path, f"FROM {closed_port()}/alpine:3\nEXPOSE 80\n")

    shown = Hpcml(environ=hpcml_environ, cwd=tmp_path)("build", "-n", "--dockerfile", "Dockerfile")

    assert shown.returncode == 0, shown.stderr
    assert "key     unresolved" in shown.stdout
    assert "warning: Dockerfile:2: EXPOSE is left out" in shown.stderr


def test_each_run_is_a_shell_of_its_own_and_the_shell_that_is_asked_for(tmp_path: Path) -> None:
    text = convert(write(tmp_path, 'FROM alpine\nRUN cd /tmp\nUSER root\nSHELL ["/bin/bash", "-ec"]\nRUN set x\n')).text

    assert "/bin/sh -c 'cd /tmp'\n/bin/bash -ec 'set x'\n" in text


def test_another_escape_is_the_directives(tmp_path: Path) -> None:
    text = convert(write(tmp_path, "# escape=`\nFROM alpine\nRUN echo `\n  C:\\dir\\\n")).text

    assert "/bin/sh -c 'echo  C:\\dir\\'\n" in text


@pytest.mark.parametrize("text", ["", "# nothing\n", "ARG A=1\n"])
def test_a_file_without_an_image_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError, match="has no FROM"):
        convert(write(tmp_path, text))


@pytest.mark.apptainer
@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--dockerfile",), "--dockerfile needs a value: --dockerfile FILE"),
        (("--dockerfile", "nothere"), "/nothere cannot be read: "),
        (("--dockerfile=Dockerfile", "container.image=nvidia/cuda"), "takes none, with container.image as its base"),
        (("+container=dockerfile",), "container=dockerfile needs container.dockerfile=/where/it/is"),
    ],
)
def test_a_dockerfile_that_is_not_there_is_refused_in_one_line(
    user: ImageUser, words: tuple[str, ...], says: str
) -> None:
    done = user("build", *words)

    assert done.returncode == 2
    assert says in one_line(done)
