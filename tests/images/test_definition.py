from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from hpcml.errors import ConfigError
from hpcml.images.definition import define, local_base_of, reference_of, remarks
from hpcml.images.key import Definition
from hpcml.model.container import Container, ContainerKind
from hpcml.paths import resource_dir

DIGEST = f"sha256:{'ab' * 32}"
PYTORCH = Container(
    name="ngc_pytorch", kind=ContainerKind.build, registry="nvcr.io", image="nvidia/pytorch", tag="24.12-py3"
)


def rendered(container: Container, *folders: Path, digest: str = DIGEST, architecture: str = "amd64") -> Definition:
    return define(
        container, digest, folders=[*folders, resource_dir("containers")], project=Path.cwd(), architecture=architecture
    )


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

    shipped = (resource_dir("containers") / "ngc_pytorch.def").read_text(encoding="utf-8")
    head, test = shipped.split("From: nvcr.io/nvidia/pytorch:26.03-py3\n")
    own, test = test.split("\n%test\n")
    labels, own = own.split("\n%environment\n")
    assert text == (
        f"""\
{head}# nvcr.io/nvidia/pytorch:24.12-py3
From: nvcr.io/nvidia/pytorch@{DIGEST}
{labels}    org.hpcml.base nvcr.io/nvidia/pytorch:24.12-py3
    org.hpcml.base.digest {DIGEST}
    project OPEN-1-2

%environment
{own}export MODE='it'"'"'s here'

%post
export MODE='it'"'"'s here'
apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends git """
        """&& rm -rf /var/lib/apt/lists/*
python3 -m pip --version >/dev/null 2>&1 || { apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y """
        f"""--no-install-recommends python3-pip && rm -rf /var/lib/apt/lists/*; }}
PIP_BREAK_SYSTEM_PACKAGES=1 python3 -m pip install --no-cache-dir einops==0.8 'a>1'
echo one
echo two
true

%test
{test}"""
    )


def test_a_base_alone_needs_no_sections() -> None:
    text = rendered(replace(PYTORCH, name="mine")).text

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


def test_a_definition_of_the_project_comes_first_and_is_taken_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "ngc_pytorch.def").write_text(
        "Bootstrap: docker\nFrom: nvcr.io/nvidia/pytorch\n\n%post\necho $HOME\n\n%test\ntrue\n"
    )

    text = rendered(replace(PYTORCH, post=["echo own"]), tmp_path).text

    assert f"From: nvcr.io/nvidia/pytorch@{DIGEST}\n" in text
    assert "\n%post\necho $HOME\necho own\n" in text
    assert text.endswith("\n%test\ntrue\n")


def test_of_several_stages_the_last_is_pinned_and_gets_what_is_added(tmp_path: Path) -> None:
    (tmp_path / "ngc_pytorch.def").write_text(
        "Bootstrap: docker\nFrom: alpine:3\nStage: one\n\n%post\necho one\n\n"
        "Bootstrap: docker\nFrom: nvcr.io/nvidia/pytorch:24.12-py3\nStage: two\n\n%post\necho two\n"
    )

    text = rendered(replace(PYTORCH, post=["echo own"]), tmp_path).text

    assert "From: alpine:3\n" in text
    assert text.count(DIGEST) == 2  # the base, and the label
    assert "echo one\n\nBootstrap" in text
    assert "echo two\necho own\n" in text


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "is empty"),
        ("Bootstrap: localimage\nFrom: /a.sif\n", "hpcml builds from registries"),
        ("Bootstrap: docker\nFrom: $pinned\n", "is no image: write From: nvcr.io/nvidia/pytorch:24.12-py3"),
        (
            "Bootstrap: docker\nFrom: nvcr.io/nvidia/cuda:1\n",
            "container.image=nvidia/pytorch: for another image add container.name=docker",
        ),
        ("Bootstrap: docker\nFrom: nvcr.io/nvidia/pytorch:24.10-py3\n", "set container.tag=24.10-py3"),
        (f"Bootstrap: docker\nFrom: nvcr.io/nvidia/pytorch@{DIGEST}\n", f"set container.digest={DIGEST}"),
    ],
)
def test_a_definition_of_the_project_that_is_not_what_is_asked_for_is_refused(
    tmp_path: Path, text: str, says: str
) -> None:
    (tmp_path / "ngc_pytorch.def").write_text(text)

    with pytest.raises(ConfigError, match=re.escape(says)) as refused:
        rendered(PYTORCH, tmp_path)

    assert "\n" not in str(refused.value)


def test_an_earlier_stage_without_a_digest_is_remarked_on(tmp_path: Path) -> None:
    (tmp_path / "ngc_pytorch.def").write_text(
        "Bootstrap: docker\nFrom: alpine:3\nStage: one\n\nBootstrap: docker\nFrom: nvcr.io/nvidia/pytorch\n"
    )

    (remark,) = remarks(PYTORCH, [tmp_path])

    assert remark.endswith("From: alpine:3 of an earlier stage has no digest: its tag may mean another")
    definition = define(PYTORCH, DIGEST, folders=[tmp_path], project=tmp_path)
    assert "From: alpine:3\nStage: one\n" in definition.text


def test_the_content_of_files_is_in_the_key_and_where_they_lie_is_not(tmp_path: Path) -> None:
    keys = []
    for place, word in (("one", "a"), ("two", "a"), ("three", "b")):
        folder = tmp_path / place
        (folder / "data").mkdir(parents=True)
        (folder / "data" / "words").write_text(word)
        (folder / "a b.txt").write_text("same")
        (folder / "ngc_pytorch.def").write_text(
            'Bootstrap: docker\nFrom: nvcr.io/nvidia/pytorch\n\n%files\n    data /opt/data\n    "a b.txt" /opt/\n'
        )
        keys.append(rendered(PYTORCH, folder).key)

    assert keys[0] == keys[1]
    assert keys[2] not in keys[:2]


def test_sources_of_files_are_what_a_shell_makes_of_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("DATA", str(tmp_path / "data"))
    (tmp_path / "data").mkdir()
    lines = ["~/a.txt /a", "$DATA/b.txt /b", "${DATA}/b.txt /c", "data/*.txt /e/"]
    keys = []
    for word in ("one", "two"):
        for name in ("a.txt", "data/b.txt"):
            (tmp_path / name).write_text(word)
        (tmp_path / "x.def").write_text("\n".join(["Bootstrap: docker", "From: alpine", "%files", *lines, ""]))
        definition = rendered(own(tmp_path / "x.def"))
        assert [*definition.files] == [line.split()[0] for line in lines]
        keys.append(dict(definition.files))

    assert all(keys[0][source] != keys[1][source] for source in keys[0])


def test_braces_that_stand_for_several_names_are_refused(tmp_path: Path) -> None:
    (tmp_path / "x.def").write_text("Bootstrap: docker\nFrom: alpine\n%files\n{a,b} /x\n")

    with pytest.raises(ConfigError, match="write each name on a line of its own, without braces"):
        rendered(own(tmp_path / "x.def"))


@pytest.mark.parametrize("source", ["missing.py", "~nobody-of-this-name/missing.py", "$NOT_SET/missing.py"])
def test_a_source_of_files_that_is_not_there_is_refused_in_one_line(tmp_path: Path, source: str) -> None:
    path = tmp_path / "ngc_pytorch.def"
    path.write_text(f"Bootstrap: docker\nFrom: nvcr.io/nvidia/pytorch\n\n%files\n    {source} /opt/\n")

    with pytest.raises(ConfigError, match=re.escape(f"%files {source}: there is no such file")) as refused:
        rendered(PYTORCH, tmp_path)

    assert str(path) in str(refused.value)


def test_files_of_requirements_are_taken_in_with_their_content(tmp_path: Path) -> None:
    (tmp_path / "more.txt").write_text("einops\n")
    (tmp_path / "requirements.txt").write_text("# ours\ntimm==1.0.9  # pinned\n-r more.txt\n")
    container = replace(PYTORCH, pip=["-r requirements.txt", "rich"])

    definition = define(container, DIGEST, folders=[resource_dir("containers")], project=tmp_path)

    assert "\ntimm==1.0.9\neinops\nEND_OF_REQUIREMENTS\n" in definition.text
    assert "install --no-cache-dir -r /tmp/hpcml-requirements-0.txt rich\n" in definition.text


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (None, "requirements.txt cannot be read: No such file"),
        ("./mine\n", "put it into %files of a definition"),
        ("https://me:word@pypi.example/x.whl\n", "a URL with a login"),
        ("%post\n", "would end the section"),
        ("-r requirements.txt\n", "names itself"),
    ],
)
def test_requirements_that_cannot_be_in_an_image_are_refused(tmp_path: Path, text: str | None, says: str) -> None:
    if text is not None:
        (tmp_path / "requirements.txt").write_text(text)

    with pytest.raises(ConfigError, match=re.escape(says)) as refused:
        define(
            replace(PYTORCH, pip=["-r", "requirements.txt"]),
            DIGEST,
            folders=[resource_dir("containers")],
            project=tmp_path,
        )

    assert "\n" not in str(refused.value)


def test_without_a_digest_the_text_has_the_tag_and_says_so() -> None:
    definition = define(PYTORCH, None, folders=[resource_dir("containers")], project=Path.cwd())

    assert "From: nvcr.io/nvidia/pytorch:24.12-py3\n" in definition.text
    assert "org.hpcml.base.digest unresolved\n" in definition.text


def own(path: Path, **settings: object) -> Container:
    return Container(name="definition", kind=ContainerKind.build, definition=str(path), **settings)  # type: ignore[arg-type]


def test_a_definition_of_the_users_own_says_itself_what_it_is_built_from(tmp_path: Path) -> None:
    path = tmp_path / "train.def"
    path.write_text(
        "BootStrap: docker\nRegistry: ghcr.io\nNamespace: lab\nFrom: tools:{{ TAG }}  # ours\n\n"
        "%arguments\n    TAG=1\n\n%post\n    pip install einops\n"
    )

    container = own(path, build_args={"TAG": "2"}, pip=["rich"])
    reference = reference_of(container)
    text = rendered(container).text

    assert reference is not None
    assert reference.for_people == "ghcr.io/lab/tools:2"
    assert f"BootStrap: docker\n# ghcr.io/lab/tools:2\nFrom: ghcr.io/lab/tools@{DIGEST}\n\n%post\n" in text
    assert "\n    pip install einops\npython3 -m pip --version" in text
    assert "amespace" not in text


def test_a_definition_may_be_from_an_editor_of_windows(tmp_path: Path) -> None:
    path = tmp_path / "train.def"
    path.write_bytes(b"\xef\xbb\xbfBootstrap: docker\r\nFrom: alpine:3.20\r\n%post\r\n    true\r\n")

    text = rendered(own(path)).text

    assert text.startswith("Bootstrap: docker\n# docker.io/library/alpine:3.20\n")
    assert "\r" not in text


def test_a_definition_of_the_users_own_is_built_upon_an_image_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "more.def"
    path.write_text("Bootstrap: localimage\nFrom: base.sif\n\n%setup\n    cp x ${APPTAINER_ROOTFS}/x\n")
    keys = []
    for content in ("one", "two"):
        (tmp_path / "base.sif").write_text(content)
        definition = define(own(path), None, folders=[], project=tmp_path)
        keys.append(definition.key)

    assert local_base_of(own(path)) == tmp_path / "base.sif"
    assert f"From: {tmp_path}/base.sif\n" in definition.text
    assert definition.folder == str(tmp_path)  # where the lines of %setup are run
    assert keys[0] != keys[1]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("print('x')\n", "x.def is no definition of Apptainer's: write Bootstrap: docker into its first line"),
        ("", "x.def is empty"),
        ("Bootstrap: docker\n%post\ntrue\n", "x.def has no From: write From: ubuntu:24.04"),
        ("Bootstrap: docker\nFrom: docker://ubuntu:24.04\n", "From: docker://ubuntu:24.04 is no image of a registry"),
        ("Bootstrap: library\nFrom: ubuntu:24.04\n", "use apptainer build IMAGE.sif x.def, then container=sif"),
        ("Bootstrap: yum\nOSVersion: 7\nInclude: yum\n", "has Bootstrap: yum, and hpcml builds upon images of"),
    ],
)
def test_a_definition_of_the_users_own_that_hpcml_cannot_pin_is_refused(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "x.def"
    path.write_text(text)

    with pytest.raises(ConfigError, match=re.escape(says)) as refused:
        define(own(path), None, folders=[], project=tmp_path)

    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("lines", "image"),
    [
        ("FROM alpine:${X:-3}", "docker.io/library/alpine:3"),
        (
            "FROM a AS one\nFROM nvcr.io/nvidia/pytorch:24.12-py3\nCOPY --from=one /x /x",
            "nvcr.io/nvidia/pytorch:24.12-py3",
        ),
        ("FROM a AS one\nFROM alpine:${X:-3}", None),
    ],
)
def test_the_base_of_a_dockerfile_is_what_its_last_from_names(tmp_path: Path, lines: str, image: str | None) -> None:
    path = tmp_path / "Dockerfile"
    path.write_text(f"{lines}\nRUN true\n")

    found = reference_of(Container(name="dockerfile", kind=ContainerKind.build, dockerfile=str(path)))

    assert (found and found.for_people) == image
