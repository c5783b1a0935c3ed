"""Definitions are read as Apptainer 1.4 reads them: what it takes for a stage, a head, a section or an argument."""

from __future__ import annotations

import re
import time

import pytest

from hpcml.errors import ConfigError
from hpcml.images.sections import check, head_of, last_stage, pieces_of, section_name, with_arguments

TWO = """\
# ours
BootStrap: docker
From: alpine:3  # small
Stage: build

%post -c /bin/bash
    echo "bootstrap: yes" >settings.yaml
    cat >>settings.yaml <<END
  bootstrap: true
END

bootstrap:localimage
from:base.sif

%Files from build
    /a /b
"""


def test_a_stage_begins_at_the_beginning_of_a_line_alone() -> None:
    pieces = pieces_of(TWO)

    assert [section_name(piece) for piece in pieces] == ["", "%post", "", "%files"]
    assert head_of(pieces[0]) == {"bootstrap": "docker", "from": "alpine:3", "stage": "build"}
    assert head_of(pieces[2]) == {"bootstrap": "localimage", "from": "base.sif"}
    assert last_stage(pieces) == 2


def test_arguments_have_the_values_of_their_stage_or_those_that_were_given() -> None:
    text = (
        "Bootstrap: docker\nFrom: alpine:{{ TAG }}\n%arguments\n  TAG=3\n  # not=this\n  WHERE=/opt/{{TAG}}\n"
        "%post\necho {{WHERE}} ${{ '{' }} # {{ NOBODY }}\n"
        "Bootstrap: docker\nFrom: debian:{{ TAG }}\n%arguments\nTAG=12\n%post\necho {{ TAG }}\n"
    )

    assert with_arguments(text, {}, "x.def") == (
        "Bootstrap: docker\nFrom: alpine:3\n%post\necho /opt/3 ${{ '{' }} # {{ NOBODY }}\n"
        "Bootstrap: docker\nFrom: debian:12\n%post\necho 12\n"
    )
    assert with_arguments(text, {"TAG": "9"}, "x.def").count("9") == 4


@pytest.mark.parametrize(
    ("text", "given", "says"),
    [
        (
            "Bootstrap: docker\nFrom: {{ BASE }}\n",
            {},
            "x.def: {{ BASE }} has no value: give it one in %arguments, or by",
        ),
        ("Bootstrap: docker\nFrom: a\n", {"BASE": "b"}, "container.build_args.BASE: x.def has no {{ BASE }}"),
    ],
)
def test_an_argument_without_a_value_or_a_place_is_refused(text: str, given: dict[str, str], says: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(says)):
        with_arguments(text, given, "x.def")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("Bootstrap: docker\n  %post\n", "x.def:2: %post begins no section: write it at the beginning of its line"),
        (
            "Bootstrap: docker\n%post\ncat <<E\n%matplotlib\nE\n",
            "x.def:4: %matplotlib begins no section: there is none",
        ),
        ("From: alpine\nBootstrap: docker\n%post\n", "x.def: Apptainer wants Bootstrap: before from: write it first"),
    ],
)
def test_what_apptainer_takes_for_something_else_is_refused_with_its_line(text: str, says: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(says)):
        check(text, "x.def")


def test_a_long_file_is_read_at_once() -> None:
    text = "Bootstrap: docker\nFrom: a\n%post\n" + "echo {{" * 100_000 + "\n" + "bootstrap:\n" * 20_000

    began = time.monotonic()
    check(text, "x.def")
    with_arguments(text, {}, "x.def")

    assert time.monotonic() - began < 20
