"""What a failed build is said to have failed of; the output is Apptainer's, as it was."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcml.images.failures import explain
from hpcml.images.runtime import Runtime

APPTAINER = Runtime(name="apptainer", path="/usr/bin/apptainer", version="1.4.5")
# Of a user who is not in /etc/subuid, with `chown` in %post.
WITHOUT_SUBUID = """\
INFO:    User not listed in /etc/subuid, trying root-mapped namespace
INFO:    The %post section will be run under the fakeroot command
INFO:    Starting build...
INFO:    Running post scriptlet
/.singularity.d/libs/fakeroot: eval: line 140: /.singularity.d/libs/faked: not found
fakeroot: error while starting the `faked' daemon.
FATAL:   While performing build: while running engine: while running %post section: exit status 1
"""
# Where no user namespace can be made (max_user_namespaces is 0), without setuid.
WITHOUT_NAMESPACES = """\
INFO:    User not listed in /etc/subuid, trying root-mapped namespace
INFO:    Could not start root-mapped namespace
FATAL:   Building from a definition file unprivileged requires either a suid installation or unprivileged user namespaces
"""  # noqa: E501


def test_who_has_no_user_namespaces_is_told_so(tmp_path: Path) -> None:
    said = str(explain(WITHOUT_NAMESPACES.splitlines(), 255, {tmp_path: "HPCML_IMAGES"}, APPTAINER))

    assert said.startswith("this machine gives you no user namespace, and apptainer 1.4.5 needs one to build: ")
    assert "subuid" not in said
    assert "hpcml images export and import" in said


def test_who_has_no_user_ids_is_told_so_and_not_that_the_commands_are_wrong(tmp_path: Path) -> None:
    said = str(explain(WITHOUT_SUBUID.splitlines(), 255, {tmp_path: "HPCML_IMAGES"}, APPTAINER))

    assert said.startswith("this machine lends you no user ids (you are not in /etc/subuid)")
    assert "error while starting the `faked' daemon" in said
    assert "hpcml images export" in said


def test_who_has_no_user_ids_is_told_so_by_singularity_too(tmp_path: Path) -> None:
    printed = "FATAL:   could not use fakeroot: no mapping entry found in /etc/subuid for eva"  # internal/pkg/fakeroot
    ce = Runtime(name="singularity", path="/usr/bin/singularity", version="4.2.0")

    said = str(explain([printed], 255, {tmp_path: "HPCML_IMAGES"}, ce))

    assert said.startswith(
        "this machine lends you no user ids, and singularity 4.2.0 needs them to build: could not use"
    )
    assert "hpcml images export and import" in said


@pytest.mark.parametrize(
    "words",
    [
        "error writing layer: unexpected EOF",
        "error writing layer: error verifying sha256 checksum after reading 43646 bytes; got sha256:d3, want sha256:16",
    ],
)
def test_a_download_that_broke_off_says_what_to_do(tmp_path: Path, words: str) -> None:
    lines = ["INFO:    Starting build...", f"FATAL:   While performing build: conveyor failed to get: {words}"]

    said = str(explain(lines, 255, {tmp_path: "HPCML_IMAGES"}, APPTAINER))

    assert said == f"the download of the base broke off: {words}: build again, which goes on from whole layers"


def test_with_user_ids_the_command_that_failed_is_named(tmp_path: Path) -> None:
    lines = WITHOUT_SUBUID.splitlines()[1:]

    assert str(explain(lines, 255, {tmp_path: "HPCML_IMAGES"}, APPTAINER)).startswith(
        "a command of %post failed with exit status"
    )


def test_a_command_that_failed_is_named_where_the_program_does_not_name_the_section(tmp_path: Path) -> None:
    printed = """\
INFO:    Running post scriptlet
+ pip install einopz
ERROR: No matching distribution found for einopz
FATAL:   While performing build: while running engine: exit status 1
"""  # SingularityCE 4, by its sources (internal/pkg/build/build.go and stage.go)
    ce = Runtime(name="singularity", path="/usr/bin/singularity", version="4.2.0")

    said = str(explain(printed.splitlines(), 255, {tmp_path: "HPCML_IMAGES"}, ce))

    assert said == "a command of %post failed with exit status 1: No matching distribution found for einopz"


def test_a_test_of_the_definition_that_failed_is_told_with_what_it_printed(tmp_path: Path) -> None:
    printed = """\
INFO:    Running testscript
Traceback (most recent call last):
  File "<string>", line 1, in <module>
ModuleNotFoundError: No module named 'einops'
FATAL:   While performing build: failed to execute %test script: exit status 1
"""

    said = str(explain(printed.splitlines(), 255, {tmp_path: "HPCML_IMAGES"}, APPTAINER))

    assert said == "a command of %test failed with exit status 1: ModuleNotFoundError: No module named 'einops'"
