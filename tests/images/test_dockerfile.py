"""Dockerfiles: what a definition says of them, built by a real Apptainer, and what is refused, by line."""

from __future__ import annotations

import re
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest

from hpcml.errors import ConfigError
from hpcml.images.dockerfile import convert
from hpcml.images.registry import host_architecture
from hpcml.model.image import BaseSettings
from tests.cli.command_line import Hpcml
from tests.cluster.apptainer.registry import Registry, configure, describe, make_base, make_scratch
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
        ("ONBUILD FROM other\nFROM a", "ONBUILD FROM other of a: is nothing that ONBUILD may do"),
        ("ONBUILD COPY nothere /x\nFROM a", "ONBUILD COPY nothere /x of a: nothere is not there ("),
        ("RUN <<EOF\ntrue\nOEF", "the here-document <<EOF has no end: a line EOF alone"),
        ("RUN --mount=type=bind,source=Dockerfile true", "write target=/where"),
        ("RUN --mount=type=secret,id=key true", "--mount=type=secret,id=key is nothing that a build here can do"),
        ("RUN --network=none true", "--network=none is nothing"),
        ("ARG 1KEY", "ARG 1KEY: write ARG NAME=value"),
        ("ARG KEY\nWORKDIR $KEY", "the value of $KEY is not known here: set container.build_args.KEY"),
        ("COPY $NOWHERE /x", "the value of $NOWHERE is not known here: write it, or ARG NOWHERE=..."),
        ("RUN N=2 && echo $((1<<N)) $(( 1 << N ))", None),
        ("RUN echo $((1<<N)) && cat <<EOF", "the here-document <<EOF has no end: a line EOF alone"),
        ("WORKDIR $NOWHERE", None),
        ("COPY nothere /x", "nothere is not there ("),
        ("COPY ../a /x", "../a lies outside of the context /"),
        ("COPY --chmod=x;y Dockerfile /x", "--chmod=x;y: write --chmod=755"),
        ("COPY --parents Dockerfile /x", "--parents is nothing that a definition can say: use RUN"),
        ("COPY --from=3 /x /x", "--from=3 is no stage above"),
        ("COPY a* D* /x", "a* D* /x are several: end /x with a slash"),
        ("COPY Dockerfile", "write COPY SOURCE... DESTINATION"),
        ("COPY D* /x", None),
        ('COPY ["a b", "/x"]', "names with spaces are not read"),
        ("ADD https://example.org/a.git /x", "ADD https://example.org/a.git is not fetched: write RUN with curl"),
        ("ADD --checksum=md5:1 https://example.org/a /x", "--checksum=md5:1: write sha256: and 64 hexadecimal digits"),
        ("ADD git@example.org:a.git /x", "is not fetched"),
        ('RUN ["echo", "a\\n%setup\\ntouch /tmp/x"]', "words with line breaks are not read"),
        ('COPY ["Dockerfile", "/x\\n%setup\\ntouch y"]', "words with line breaks are not read"),
        ('ENTRYPOINT ["a\\u2028%setup"]', "words with line breaks are not read"),
        ('SHELL ["%setup"]', 'write SHELL ["/bin/bash", "-c"]'),
        ("COPY --from=alpine /a`touch$IFS`b /x", "the value of $IFS is not known here"),
        ("COPY --from=alpine '/a;reboot' /x", "/a;reboot: names with signs of a shell are not read: rename it"),
        ("COPY --from=alpine /../a /x", "/../a lies outside of the stage"),
        ('COPY ["-t", "/x"]', "-t: names with signs of a shell are not read: rename it"),
        ('COPY ["a;b", "/x"]', "a;b: names with signs of a shell are not read: rename it"),
        ("COPY a[[]b /x", "a[b: names with signs of a shell are not read: rename it"),
        ("FROM alpine:3;x", "'alpine:3;x' is no image: write NAME:TAG"),
        ("ENV V=${A%.*}", "of ${NAME...}, :-, :+, :?, -, + and ? are read: write the value"),
        ("ARG V=${A:?is wanted}", "$A has no value: is wanted"),
        ("RUN --mount=type=cache,id=x true", "write target=/where"),
        ("FROM alpine:${NAME#x}", "of ${NAME...}, :-, :+, :?, -, + and ? are read: write the value"),
        ("LABEL org.hpcml.base=mine", "LABEL org.hpcml.base is set by hpcml: choose another name"),
        ("LABEL a={{b}}", "LABEL a: Apptainer reads {{ as its own"),
        ("SHELL bash", 'write SHELL ["/bin/bash", "-c"]'),
        ("ENV A", "ENV A: write NAME=value"),
        ("ENV A=1 B C", "ENV B C: write NAME=value"),
        ("ENV A-B=1", "A-B is no variable's name"),
        ("RUN", "RUN says nothing"),
        ("INCLUDE other", "INCLUDE is no instruction"),
        (
            "FROM --platform=plan9/arm alpine",
            "--platform=plan9/arm: the image is made for the processor that builds it",
        ),
        ("FROM scratch", "FROM scratch is an empty image"),
    ],
)
def test_what_a_definition_cannot_say_is_refused_by_line(tmp_path: Path, line: str, says: str | None) -> None:
    for name in ("a b", "a;b", "-t", "a[b"):
        (tmp_path / name).touch()
    path = write(tmp_path, f"# first\nFROM alpine AS a\n\n{line}\n")
    if says is None:
        assert convert(path).text
        return

    with pytest.raises(ConfigError) as caught:
        convert(path)

    assert str(caught.value).startswith(f"{path}:{4 + line.startswith(('ARG KEY', 'ONBUILD'))}: ")
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
        ("ONBUILD RUN true", "ONBUILD is done where another stage begins from this one, and not in images built upon"),
        ("ENV A=1 HOME=/app", "ENV HOME counts while the image is built: runs have your own home"),
        ("ENV TMPDIR=/app/tmp TMP=/tmp", "ENV TMPDIR counts while the image is built: runs use /tmp"),
        ("RUN a && pip3.9 install -q --user b", "pip install --user puts packages into a home, where runs do not look"),
        ("WORKDIR /app", "WORKDIR /app counts while the image is built"),
        ("RUN --mount=type=cache,target=/root/.cache pip install x", "--mount=type=cache begins empty"),
        ("ARG KEY", "ARG KEY has no value: container.build_args.KEY gives it one"),
        ("COPY --chmod=640 Dockerfile /app/", "--chmod=640: everybody may read these files"),
        ("COPY nothing* /app/", "nothing* is nothing in "),
        ("ADD https://example.org/a /a", "is fetched in the image while it is built: add --checksum"),
        ("COPY . /app", ".dockerignore counts for . once it is copied: its files are too many, or have odd names"),
    ],
)
def test_what_is_different_is_said_by_line(tmp_path: Path, line: str, says: str) -> None:
    (tmp_path / ".dockerignore").write_text("secret\n")
    (tmp_path / "secret").touch()
    (tmp_path / "odd name").touch()

    (remark,) = convert(write(tmp_path, f"FROM alpine\n{line}\n")).remarks

    assert remark.startswith("Dockerfile:2: ")
    assert says in remark


def test_an_archive_is_unpacked_where_it_is_said_and_nothing_else_is_done(tmp_path: Path) -> None:
    (tmp_path / "empty.tar.gz").touch()
    with tarfile.open(tmp_path / "packed", "w:xz") as archive:
        archive.add(tmp_path / "empty.tar.gz", "a")

    text = convert(write(tmp_path, "FROM alpine\nARG TO='/opt/x;touch'\nADD packed empty.tar.gz $TO/\n")).text

    assert "mkdir -p '/opt/x;touch/'; tar -xJf /.hpcml-copy/0 -C '/opt/x;touch/'\n" in text
    assert "hpcml_put 1 empty.tar.gz '/opt/x;touch/'\n" in text


@pytest.mark.parametrize(
    ("lines", "post"),
    [
        (
            "RUN wget https://example.org/\\\nb.tar \\  \n\n# said\n  && echo b",
            "/bin/sh -c 'wget https://example.org/b.tar   && echo b'",
        ),
        ("RUN echo a\\\\\nRUN echo b", "/bin/sh -c 'echo a\\\\'\n/bin/sh -c 'echo b'"),
        ('RUN ["%setup", "x"]', "(exec %setup x)"),
        ("RUN []", "/bin/sh -c '[]'"),
        ("RUN echo '{{ a }}'", """/bin/sh -c 'echo '"'"'{''{ a }}'"'"''"""),
        (
            "ENV A=1\nENV A=2 B=$A PATH=/a:$PATH OLD=$PATH",
            'export A="1"\nexport A="2" B="1" PATH="/a:$PATH" OLD="$PATH"',
        ),
        ("ENV A=1\nARG A=2\nWORKDIR /$A", 'export A="1"\nmkdir -p /1; cd /1'),
        ("ENV A='{{b}}' B=${C:-`d`}", """export A="{""{b}}" B="${C:-\\`d\\`}\""""),
        ("ARG A={{b}}\nRUN echo $A", """export A='{''{b}}'\n/bin/sh -c 'echo $A'"""),
        ("WORKDIR /{{b}}", "mkdir -p '/{''{b}}'; cd '/{''{b}}'"),
        (
            "ARG A=1\nENV B=${A:-2}${A:+3} C=${NONE:-$A} D=${NONE:-${A:-4}}",
            'export A=1\nexport B="13" C="${NONE:-1}" D="${NONE:-1}"',
        ),
        ("ARG A='say \"x\"'\nENV B=$A", """export A='say "x"'\nexport B="say \\"x\\"\""""),
        ('ENV A="${B:-c\\}d}"', 'export A="${B:-c\\}d}"'),
        ('ENV A="\\`x"', 'export A="\\\\\\`x"'),
        ('ARG A=\'x y\' B=$A C\nARG D="$B\\""', """export A='x y'\nexport B='x y'\nexport D='x y"'"""),
        ("ARG A\nARG B=${A-b}${A:-c}${B:+d}${UNKNOWN+e}${UNKNOWN-f}", "export B=bcf"),
    ],
)
def test_words_are_read_as_docker_reads_them(tmp_path: Path, lines: str, post: str) -> None:
    text = convert(write(tmp_path, f"FROM alpine\n{lines}\n")).text

    assert text.partition("\n}\nexport HOME=/root\ncd /\n")[2].rpartition("\nhpcml_open")[0] == post


@pytest.mark.parametrize(
    ("lines", "script"),
    [
        ('CMD ["a"]\nENTRYPOINT ["b"]', '    [ "$#" -gt 0 ] || set -- a\n    exec b "$@"\n'),
        ('CMD ["a"]\nFROM one\nENTRYPOINT ["b"]', '    exec b "$@"\n'),
        ('ENTRYPOINT ["b"]\nCMD ["a"]\nFROM one\nENTRYPOINT []', ""),
        ('ENTRYPOINT []\nCMD ["a"]', '    [ "$#" -gt 0 ] || set -- a\n    exec "$@"\n'),
        ('CMD ["a"]\nCMD []', ""),
    ],
)
def test_what_an_image_runs_is_what_docker_would(tmp_path: Path, lines: str, script: str) -> None:
    text = convert(write(tmp_path, f"FROM alpine AS one\n{lines}\n")).text

    assert text.partition("%runscript\n")[2] == script


@pytest.mark.parametrize("line", ["RUN <<EOF\n#!/bin/sh\necho wrong\nexit 3\nEOF", "WORKDIR /file/below"])
@pytest.mark.apptainer
def test_what_fails_ends_the_build(user: ImageUser, registry: Registry, line: str) -> None:
    prepared = "/bin/busybox --install -s /bin || true; touch /file"
    write(user.folder, f"FROM {registry.host}/nvidia/pytorch:24.12-py3\nRUN {prepared}\n{line}\nRUN true\n")

    done = user("build", "--dockerfile", "Dockerfile")

    assert done.returncode == 4
    assert "a command of %post failed with exit status" in done.stderr
    assert user.listed() == []


_OF_ROOT = """FROM {host}/nvidia/pytorch:24.12-py3
ARG WHO=eva
ENV PATH=/root/bin:$PATH WHO=${WHO:-nobody}
RUN /bin/busybox --install -s /bin || true; rm -f /bin/mount
RUN mkdir -p -m 700 /root/bin /home/app && echo 'echo tool' >/root/bin/tool && chmod -R go= /root && echo x >/home/app/x
RUN --mount=type=cache,target=/root/cache --mount=type=tmpfs,target=/scratch echo $WHO | tee /root/cache/a >/scratch/b
RUN --mount=type=cache,target=/root/cache --mount=type=tmpfs,target=/etc cat /root/cache/a >/seen; touch /etc/c
COPY private /private/
"""


@pytest.mark.apptainer
def test_what_only_root_might_read_is_read_in_a_run_and_mounts_are_not_in_the_image(
    user: ImageUser, registry: Registry
) -> None:
    (user.folder / "private").mkdir(mode=0o700)
    (user.folder / "private" / "file").write_text("copied\n")
    shutil.chown(user.folder / "private", "hpcuser")
    shutil.chown(user.folder / "private" / "file", "hpcuser")
    (user.folder / "private" / "file").chmod(0o600)
    write(user.folder, _OF_ROOT.replace("{host}", registry.host))
    shut = user.folder / "shut"
    shut.mkdir(mode=0o700)
    shutil.chown(shut, "hpcuser")

    done = user("build", "--dockerfile", "Dockerfile")

    assert done.returncode == 0, done.stderr
    (image,) = user.listed()
    script = "sh /root/bin/tool; cat /home/app/x /private/file /seen; echo $WHO; ls -A /root/cache /scratch /etc/c"
    seen = user.account.run(
        ["apptainer", "exec", image["path"], "sh", "-c", script], cwd=user.folder, environ=user.variables()
    ).stdout.decode()
    assert seen == "tool\nx\ncopied\neva\neva\n/root/cache:\n\n/scratch:\n"

    definition = Path(image["path"]).with_suffix(".def")
    bound = {"APPTAINER_BINDPATH": f"{shut}:/root", "APPTAINER_NOHTTPS": "1"}
    by_hand = user.account.run(
        ["apptainer", "build", "x.sif", str(definition)], cwd=user.folder, environ=user.variables(**bound)
    )
    assert by_hand.returncode == 0, by_hand.stderr
    assert (shut / "bin").stat().st_mode & 0o077 == 0  # of the host: its mode is nothing of an image's


_OF_TMP = """FROM {host}/nvidia/pytorch:24.12-py3 AS made
RUN /bin/busybox --install -s /bin || true; mkdir -p /tmp/out /var/tmp/d
RUN echo one >/tmp/out/a.whl; echo two >/tmp/out/b.whl; echo three >/var/tmp/d/c; ln -s /var/tmp/d/c /tmp/link
FROM {host}/nvidia/pytorch:24.12-py3
RUN /bin/busybox --install -s /bin || true
COPY --from=made /tmp/out/*.whl /wheels/
COPY --from=made /var/tmp/d /d/
COPY --from=made /tmp/link /link
COPY Dockerfile /tmp/hpcml-of-a-build
"""


@pytest.mark.apptainer
def test_a_build_has_a_tmp_of_its_own_and_other_stages_take_from_it(user: ImageUser, registry: Registry) -> None:
    write(user.folder, _OF_TMP.replace("{host}", registry.host))

    done = user("build", "--dockerfile", "Dockerfile")

    assert done.returncode == 0, done.stderr
    assert not Path("/tmp/hpcml-of-a-build").exists()  # noqa: S108 - the host's, as others have it
    seen = user.inside(
        user.listed()[0]["path"],
        "sh",
        "-c",
        "cat /wheels/a.whl /wheels/b.whl /d/c /link; ls -d /.hpcml* || true",
    )
    assert seen == "one\ntwo\nthree\nthree\n"


@pytest.mark.apptainer
def test_what_a_site_binds_into_every_container_does_not_disturb_a_build(user: ImageUser, registry: Registry) -> None:
    done = user.build(
        registry,
        "container.post=['test ! -e /scratch']",
        APPTAINER_BIND=f"{user.folder}:/scratch",
        SINGULARITY_BINDPATH="/nowhere:/x",
    )

    assert done.returncode == 0, done.stderr


def test_a_stage_may_be_named_by_a_variable(tmp_path: Path) -> None:
    path = write(
        tmp_path, "ARG KIND=gpu\nFROM alpine:1 AS on-cpu\nFROM alpine:2 AS on-gpu\nRUN true\nFROM on-${KIND}\n"
    )

    assert "From: alpine:2\n" in convert(path).text
    assert "From: alpine:1\n" in convert(path, build_args={"KIND": "cpu"}).text


def test_names_of_labels_may_stand_in_quotes(tmp_path: Path) -> None:
    text = convert(write(tmp_path, 'FROM alpine\nLABEL "com.example.vendor"="ACME Incorporated" version=1\n')).text

    assert "%labels\n    com.example.vendor ACME Incorporated\n    version 1\n" in text


def test_values_for_arg_arrive_as_they_are_typed(hpcml_environ: dict[str, str], tmp_path: Path) -> None:
    write(tmp_path, f"FROM {closed_port()}/alpine:3\nARG X\nRUN true\n")
    hpcml = Hpcml(environ=hpcml_environ, cwd=tmp_path)

    shown = hpcml(
        "build", "-n", "--dockerfile", "Dockerfile", "--build-arg", "X=1", "--build-arg", "X=a\\b\\\\ ${HOME}\\"
    )
    wrong = hpcml("build", "-n", "--dockerfile", "Dockerfile", "--build-arg", "a.b=1")

    assert "export X='a\\b\\\\ ${HOME}\\'\n" in shown.stdout
    assert wrong.returncode == 2
    assert wrong.stderr == "hpcml: --build-arg a.b=1: write --build-arg NAME=VALUE, with a variable's name\n"


def test_a_dry_run_without_a_network_says_what_is_different_too(hpcml_environ: dict[str, str], tmp_path: Path) -> None:
    write(tmp_path, f"FROM {closed_port()}/alpine:3\nEXPOSE 80\n")

    shown = Hpcml(environ=hpcml_environ, cwd=tmp_path)("build", "-n", "--dockerfile", "Dockerfile")

    assert shown.returncode == 0, shown.stderr
    assert "key     unresolved" in shown.stdout
    assert "warning: Dockerfile:2: EXPOSE is left out" in shown.stderr


def test_each_run_is_a_shell_of_its_own_and_the_shell_that_is_asked_for(tmp_path: Path) -> None:
    text = convert(write(tmp_path, 'FROM alpine\nRUN cd /tmp\nSHELL ["/bin/bash", "-ec"]\nRUN set x\n')).text

    assert "/bin/sh -c 'cd /tmp'\n/bin/bash -ec 'set x'\n" in text


def test_what_is_done_behind_from_and_as_whom_is_as_the_base_says(tmp_path: Path) -> None:
    base = BaseSettings(
        directory="/workspace",
        shell_words=("/bin/bash", "-o", "pipefail", "-c"),
        variables={"CUDA_VERSION": "12.4", "DATA": "/data"},
        user="app:app",
        triggers=("COPY Dockerfile src/", "RUN make \\\n all"),
        entrypoint=("/entry.sh",),
        command=("bash",),
    )
    text = (
        "FROM base AS made\nRUN ls ~\nFROM base\nARG CUDA_VERSION=12.1\nARG OTHER=${CUDA_VERSION}\n"
        "COPY --from=made $DATA/x .\nWORKDIR sub\nUSER root\nENV HOME=/h\nUSER app\n"
    )

    found = convert(write(tmp_path, text), bases={"base": base})

    first, last = found.text.split("Bootstrap: docker\n")[1:]
    begun = "export HOME=/root\ncd /\nhpcml_home app\nmkdir -p /workspace; cd /workspace\n"
    bash = "/bin/bash -o pipefail -c"
    assert f"{begun}hpcml_put 0 Dockerfile /workspace/src/\n{bash} 'make  all'\n{bash} 'ls ~'\n" in first
    assert (
        f"{begun}hpcml_put 1 Dockerfile /workspace/src/\n{bash} 'make  all'\nexport OTHER=12.4\n"
        "hpcml_put 2 x /workspace/\nmkdir -p /workspace/sub; cd /workspace/sub\n"
        'hpcml_home root\nexport HOME="/h"\nrm -rf /.hpcml-copy\n'
    ) in last
    assert "    /data/x /.hpcml-copy/2\n" in last
    assert "%runscript" not in found.text  # the base's own
    write(tmp_path, 'FROM base\nCMD ["python"]\n')
    assert "exec /entry.sh" in convert(tmp_path / "Dockerfile", bases={"base": base}).text


def test_what_was_put_for_the_program_alone_is_opened_and_nothing_of_the_system(tmp_path: Path) -> None:
    text = """
        FROM base AS first
        WORKDIR /app
        FROM first
        WORKDIR tool's
        WORKDIR /usr/src/mine
        WORKDIR /usr/src
        WORKDIR /etc/mine
        WORKDIR /
        WORKDIR /var
        WORKDIR /libre
    """
    found = convert(write(tmp_path, text)).text
    tree = tmp_path / "opt" / "tool"
    tree.mkdir(mode=0o700, parents=True)
    (tree / "file").touch(mode=0o600)
    function = found.partition("hpcml_open() {")[2].partition("\n}")[0]
    of_test = re.sub(r"(?m)for each in .*; do$", f"for each in {tmp_path}/opt/*; do", function)
    subprocess.run(["sh", "-ec", f"f() {{{of_test}\n}}\nf"], check=True)

    assert found.splitlines()[-1] == """hpcml_open /app '/app/tool'"'"'s' /usr/src/mine /libre"""
    assert [oct(path.stat().st_mode & 0o777) for path in (tree, tree / "file")] == ["0o755", "0o644"]


def test_homes_are_opened_of_no_user_of_the_system_and_nothing_that_is_mounted(tmp_path: Path) -> None:
    text = convert(write(tmp_path, "FROM base\nUSER app\n")).text
    functions = "".join(
        f"{name}() {{{text.partition(f'{name}() {{')[2].partition(chr(10) + '}')[0]}\n}}\n"
        for name in ("hpcml_home", "hpcml_open")
    )
    script = f"""{functions}
        for user in root sys daemon www-data {tmp_path}; do hpcml_home $user; echo $HOME; done
        echo homes $hpcml_homes
        chmod() {{ echo opened $2 $3; }}
        hpcml_homes="/usr/share /dev/shm /dev /proc/self"
        hpcml_open"""

    said = subprocess.run(["sh", "-ec", script], capture_output=True, text=True, check=True).stdout.splitlines()

    assert said[:6] == ["/root", "/dev", "/usr/sbin", "/var/www", "/", "homes /root /var/www"]
    opened = [
        line
        for line in said[6:]
        if not line.startswith(tuple(f"opened go+rX /{name}" for name in ("root", "home", "opt")))
    ]
    assert opened == ["opened go+rX /usr/share"]


def test_what_nobody_could_ask_of_a_base_is_said_to_be_unknown(tmp_path: Path) -> None:
    path = write(tmp_path, "FROM alpine\nRUN true\n")

    assert convert(path).remarks == ()
    assert convert(path, bases={"alpine": BaseSettings()}).remarks == ()
    unknown = "Dockerfile:1: of alpine is not known what it says of WORKDIR, SHELL, ENV, USER and ONBUILD"
    assert convert(path, bases={}).remarks == (unknown,)


_OF_A_BASE = """FROM {host}/test/base:8 AS made
RUN mkdir /tmp/src && pwd >/seen && echo ~ >>/seen && echo $OPTION >>/seen
FROM {host}/test/base:8
ARG OPTION=of-the-file
RUN mkdir /tmp/src && echo $OPTION >/option
COPY --from=made /seen /seen
"""


@pytest.mark.apptainer
def test_a_build_goes_on_from_what_its_base_says_of_itself_without_a_network_too(
    user: ImageUser, registry: Registry, tmp_path: Path
) -> None:
    base = make_base(tmp_path / "base")
    describe(base, WorkingDir="/place", User="0", Env=["PATH=/bin", "OPTION=of the base"], OnBuild=["RUN echo 1 >by"])
    registry.push(base, "base", "test/base:8")
    write(user.folder, _OF_A_BASE.replace("{host}", registry.host))

    done = user("build", "--dockerfile", "Dockerfile")

    assert done.returncode == 0, done.stderr
    assert "warning" not in done.stderr
    (image,) = user.listed()
    assert user.inside(image["path"], "cat", "/seen", "/option", "/place/by") == (
        "/place\n/root\nof the base\nof the base\n1\n"
    )
    elsewhere = {"http_proxy": f"http://{closed_port()}"}
    again = user("build", "--dockerfile", "Dockerfile", **elsewhere)
    assert again.returncode == 0, again.stderr
    assert again.stdout.startswith(f"found {image['key'][:12]}  ")
    assert "is used, without a look at the registry" in again.stderr


def test_another_escape_is_the_directives(tmp_path: Path) -> None:
    text = convert(write(tmp_path, "# escape=`\nFROM alpine\nRUN echo `\n  C:\\dir\\\n")).text

    assert "/bin/sh -c 'echo   C:\\dir\\'\n" in text


def test_a_stage_goes_on_from_another_one_and_what_nobody_needs_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "one").touch()
    text = (
        "FROM alpine AS base\nARG WHO=eva\nENV A=1\nCOPY one /one\nWORKDIR /app\n"
        "FROM base AS tests\nRUN --mount=type=secret,id=key true\n"
        'FROM Base AS final\nRUN echo $WHO\nWORKDIR sub\nCMD ["true"]\n'
    )

    found = convert(write(tmp_path, text))

    assert found.text.count("Bootstrap: docker\nFrom: alpine\n") == 1
    assert "Stage:" not in found.text
    assert "    one /.hpcml-copy/0\n" in found.text
    assert 'export WHO=eva\nexport A="1"\nhpcml_put 0 one /one\nmkdir -p /app; cd /app\n' in found.text
    assert found.text.index("/bin/sh -c 'echo $WHO'\nmkdir -p /app/sub; cd /app/sub") > 0
    assert [remark.partition(" counts")[0] for remark in found.remarks] == [
        "Dockerfile:5: WORKDIR /app", "Dockerfile:10: WORKDIR /app/sub",
    ]  # fmt: skip
    with pytest.raises(ConfigError, match="Dockerfile:7: --mount=type=secret"):
        convert(tmp_path / "Dockerfile", target="tests")
    with pytest.raises(ConfigError, match=r"container\.target=nope: .* has the stages base, tests, final"):
        convert(tmp_path / "Dockerfile", target="nope")
    assert "/app/sub" not in convert(tmp_path / "Dockerfile", target="0").text


def test_values_for_arg_are_taken_and_others_refused(tmp_path: Path) -> None:
    path = write(tmp_path, "ARG TAG=1\nARG OTHER\nFROM alpine:$TAG\nARG TAG\nARG X=2\nARG TARGETARCH\nRUN true\n")

    text = convert(path, build_args={"TAG": "3", "X": "a b"}).text

    assert "From: alpine:3\n" in text
    assert f"export TAG=3\nexport X='a b'\nexport TARGETARCH={host_architecture()}\n" in text
    with pytest.raises(
        ConfigError, match=r"container\.build_args\.Y: .* has no such ARG: it has OTHER, TAG, TARGETARCH"
    ):
        convert(path, build_args={"Y": "1"})


def test_what_is_copied_is_of_the_context_without_what_dockerignore_keeps_out(tmp_path: Path) -> None:
    for name in (
        "src/a.py",
        "src/__pycache__/a.pyc",
        "src/deep/b.py",
        "data/big",
        "docs/x.md",
        "docs/keep.md",
        ".git/HEAD",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "docker").mkdir()
    path = write(tmp_path / "docker", "FROM alpine\nCOPY . /app\nCOPY src /src\n")
    (tmp_path / ".dockerignore").write_text("# none\n.git\n/data/\n**/__pycache__\nsrc/../docs/*.md\n!docs/keep.md\n")

    text = convert(path, context=tmp_path).text

    copied = [line.split() for line in text.splitlines() if line.startswith("    ") and " /.hpcml-copy/" in line]
    assert [(source, target.removeprefix("/.hpcml-copy/")) for source, target in copied] == [
        (".dockerignore", "0/.dockerignore"), ("docker", "0/docker"), ("docs/keep.md", "0/docs/keep.md"),
        ("src/a.py", "0/src/a.py"), ("src/deep", "0/src/deep"), ("src/a.py", "1/a.py"), ("src/deep", "1/deep"),
    ]  # fmt: skip
    with pytest.raises(ConfigError, match=f"src is not there .*: set container.context={tmp_path}, where it is"):
        convert(path)
    (tmp_path / "docker" / "Dockerfile.dockerignore").write_text("src\n")
    with pytest.raises(ConfigError, match=r"Dockerfile:3: src is kept out by \.dockerignore"):
        convert(path, context=tmp_path)


@pytest.mark.parametrize(
    ("copied", "leads_to"),
    [
        (".", "../secret"),
        ("loop", "../secret"),
        ("sub", "../secret"),
        ("sub/loop", "../secret"),
        ("l*", "../secret"),
        (".", "/nothere"),
        (".", "loop"),
        ("sub", "loop"),
    ],
)
def test_what_a_link_leads_to_outside_of_the_context_is_not_copied(tmp_path: Path, copied: str, leads_to: str) -> None:
    (tmp_path / "secret").touch()
    folder = tmp_path / "context"
    (folder / "sub").mkdir(parents=True)
    (folder / "loop").symlink_to(leads_to)
    (folder / "sub" / "loop").symlink_to(leads_to.replace("..", "../.."))
    path = write(folder, f"FROM alpine\nCOPY {copied} /x/\n")

    with pytest.raises(ConfigError, match=r"Dockerfile:2: (sub/)?loop leads out of the context, or nowhere: "):
        convert(path)

    (folder / ".dockerignore").write_text("**/loop\n")
    write(folder, "FROM alpine\nCOPY . /x/\n")
    assert "    Dockerfile /.hpcml-copy/0/Dockerfile\n" in convert(path).text


def test_what_dockerignore_keeps_out_of_a_folder_with_odd_names_is_taken_away_again(tmp_path: Path) -> None:
    for name in ("a b", "secret", "docs/it's.md", "docs/keep.md"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "venv").symlink_to("/usr")
    (tmp_path / ".dockerignore").write_text("secret\nvenv\ndocs\n!docs/keep.md\n")

    text = convert(write(tmp_path, "FROM alpine\nCOPY . /app\n")).text

    taken_away = [line for line in text.splitlines() if line.startswith(("rm -rf /.hpcml-copy/0/", "rm -rf '"))]
    assert "    . /.hpcml-copy/0\n" in text
    assert taken_away == [
        "rm -rf '/.hpcml-copy/0/docs/it'\"'\"'s.md'",
        "rm -rf /.hpcml-copy/0/secret",
        "rm -rf /.hpcml-copy/0/venv",
    ]
    assert text.index("rm -rf /.hpcml-copy/0/secret") < text.index("hpcml_put 0")


def test_links_within_the_context_are_copied(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").symlink_to("a")

    assert "    . /.hpcml-copy/0\n" in convert(write(tmp_path, "FROM alpine\nCOPY . /x\n")).text


_MODERN = r"""# syntax=docker/dockerfile:1
ARG BASE
FROM {host}/$BASE AS start
RUN /bin/busybox --install -s /bin || true
FROM --platform=$BUILDPLATFORM start AS tools
RUN mkdir -p /out && echo wheel > /out/a.whl && echo wheel > /out/b.whl && mkdir /out/deep && echo > /out/deep/in
FROM start AS unwanted
RUN --mount=type=secret,id=key false
FROM start
WORKDIR $PLACE/inner
COPY --from=tools /out/*.whl /wheels/
COPY --from=tools /out/* /flat/
RUN ["/bin/sh", "-c", "echo '{{ template }}' > /template"]
ENV NAME={{name}} OLD_PLACE=$PLACE PLACE=/opt/new
COPY --from={host}/test/tool:1 /tool /bin/
RUN --mount=type=bind,source=pyproject.toml,target=pyproject.toml \
    --mount=type=bind,source=shared,target=/context \
    cat pyproject.toml /context/* > /seen
RUN <<EOF
set -e
for each in 1 2; do
    echo "it's \ $each" >> /looped
done
EOF
RUN <<'EOF'
#!/bin/tool of the
body
EOF
RUN cat > /piped <<"EOF" && echo after >> /piped
$HOME stays
EOF
ARG WHO
COPY --chmod=750 <<EOF /conf/app.ini
user=$WHO
cost=\$5
EOF
COPY --chmod=700 <<one <<'two' /conf/
who=$WHO
one
who=$WHO
two
COPY . $OLD_PLACE/all
RUN pwd > /pwd; echo "$HOME" > /home_then
"""


@pytest.mark.apptainer
def test_a_dockerfile_of_today_is_built_as_it_is_meant(user: ImageUser, registry: Registry, tmp_path: Path) -> None:
    base = make_base(tmp_path / "base")
    configure(base, "PATH=/bin", "PLACE=/opt/place", "HOME=/home/jovyan")
    registry.push(base, "base", "test/base:7")
    registry.push(
        make_scratch(tmp_path / "scratch", "tool", "#!/bin/sh\necho tool $1 $2 > /tooled\n"), "base", "test/tool:1"
    )
    project = user.folder / "project"
    (project / "docker").mkdir(parents=True)
    (project / "data").mkdir()
    (project / "data" / "large").write_text("large\n")
    (project / "pyproject.toml").write_text("[project]\n")
    (project / ".dockerignore").write_text("data\n")
    (project / "odd name").touch()
    (project / "shared").mkdir()
    (project / "shared" / "say").write_text("said\n")
    (project / "docker" / "Dockerfile.gpu").write_text(_MODERN.replace("{host}", registry.host))
    words = ("--dockerfile", "project/docker/Dockerfile.gpu", "--context=project")

    done = user("build", *words, "--build-arg", "BASE=test/base:7", "--build-arg", "WHO=eva and 'ada'", "--json")

    assert done.returncode == 0, done.stderr
    (image,) = user.listed()
    script = (
        "cat /wheels/*.whl /seen /looped /tooled /piped /conf/app.ini /conf/one /conf/two /pwd /home_then; "
        "ls /flat; cat /template; echo $NAME $PLACE $OLD_PLACE; "
        "ls /opt/place/inner /context /opt/place/all; ls -l /conf/one /conf/app.ini; ls -d /.hpcml*"
    )
    seen = user.account.run(
        ["apptainer", "exec", image["path"], "sh", "-c", script], cwd=user.folder, environ=user.variables()
    ).stdout.decode()
    lines = seen.splitlines()
    assert lines[:2] == ["wheel", "wheel"]
    assert lines[2] == "[project]"
    assert "said" in lines
    assert [line for line in lines if line.startswith(("it's", "tool", "$HOME", "after"))] == [
        "it's \\ 1",
        "it's \\ 2",
        "tool of the /.hpcml-copy-script",
        "$HOME stays",
        "after",
    ]
    assert [line for line in lines if line.startswith(("user", "cost", "who"))] == [
        "user=eva and 'ada'", "cost=$5", "who=eva and 'ada'", "who=$WHO",
    ]  # fmt: skip
    assert lines[lines.index("/opt/place/inner") + 1] == "/home/jovyan"
    assert "data" not in lines
    assert [each for each in ("a.whl", "in", "deep") if each in lines] == ["a.whl", "in"]
    assert "{{ template }}" in lines
    assert "{{name}} /opt/new /opt/place" in lines
    assert [line[:10] for line in lines if "/conf/" in line] == ["-rwxr-xr-x", "-rwxr-xr-x"]


@pytest.mark.parametrize("text", ["", "# nothing\n", "ARG A=1\n"])
def test_a_file_without_an_image_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError, match="has no FROM"):
        convert(write(tmp_path, text))


@pytest.mark.apptainer
@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--dockerfile",), "Option '--dockerfile' requires an argument"),
        (("--dockerfile", "nothere"), "/nothere cannot be read: "),
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
