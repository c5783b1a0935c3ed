"""How images are packed, by a real mksquashfs, and what is done where a machine can do less."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from hpcml.images.packing import processors_on
from tests.cluster.apptainer.registry import PREFIX, Registry
from tests.images.user import ImageUser, one_line

real = pytest.mark.apptainer
# Stands before the real program on PATH, and is Apptainer 1.3 as far as packing is concerned.
_WITHOUT_OPTION = """#!/bin/sh
case "$*" in *mksquashfs-args*) echo "unknown flag: --mksquashfs-args" >&2; exit 1;; esac
if [ "$*" = "build --help" ]; then echo "  -s, --sandbox  build image as sandbox format"; exit; fi
exec {real} "$@"
"""


def program(user: ImageUser, name: str, text: str) -> str:
    """Put a program before all others; return the PATH."""
    folder = user.folder / "before"
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(text)
    (folder / name).chmod(0o755)
    return f"{folder}:{user.environ['PATH']}"


def without_option(user: ImageUser) -> str:
    return program(user, "apptainer", _WITHOUT_OPTION.format(real=PREFIX / "usr" / "bin" / "apptainer"))


def log_of(image: dict[str, str]) -> str:
    return Path(image["log"]).read_text()


@real
@pytest.mark.parametrize(("words", "packed"), [((), "zstd"), (("container.compression=gzip",), "gzip")])
def test_an_image_is_packed_with_zstd_or_as_is_asked_and_its_log_stays(
    user: ImageUser, registry: Registry, words: tuple[str, ...], packed: str
) -> None:
    made = user.build(registry, *words, "container.post=['echo what %post says']", "container.build_processors=1")

    assert made.returncode == 0, made.stderr
    (image,) = user.listed()
    assert image["compression"] == packed
    log = log_of(image)
    assert re.match(rf"hpcml: apptainer \S+, packed with {packed}\n", log)
    assert "\nwhat %post says\n" in log
    assert Path(image["log"]).stat().st_mode & 0o077 == 0
    shown = user("images")
    assert "; what each build printed: KEY.log there" in shown.stderr
    user("images", "rm", "-y", image["key"])
    assert user.left_behind() == []


@real
def test_a_build_uses_no_more_processors_than_it_may(user: ImageUser, registry: Registry) -> None:
    words = ("container.post=['grep Cpus_allowed_list /proc/self/status']",)

    assert user.build(registry, *words, "container.build_processors=1").returncode == 0

    (image,) = user.listed()
    assert re.search(r"^Cpus_allowed_list:\t\d+$", log_of(image), re.MULTILINE)


@real
def test_where_the_runtime_cannot_be_told_it_is_gzip_and_the_log_says_why(user: ImageUser, registry: Registry) -> None:
    made = user.build(registry, PATH=without_option(user))

    assert made.returncode == 0, made.stderr
    (image,) = user.listed()
    assert image["compression"] == "gzip"
    assert "packed with gzip: apptainer 1.4.5 has no option --mksquashfs-args (Apptainer 1.4 has)" in log_of(image)


@real
def test_a_compression_that_cannot_be_had_is_refused_and_nothing_is_left(user: ImageUser, registry: Registry) -> None:
    asked = user.build(registry, "container.compression=zstd", PATH=without_option(user))

    assert asked.returncode == 4
    assert "has no option --mksquashfs-args (Apptainer 1.4 has): set gzip, or auto" in one_line(asked)
    assert user.left_behind() == []


@real
def test_what_the_user_has_set_for_mksquashfs_stays(user: ImageUser, registry: Registry) -> None:
    assert user.build(registry, APPTAINER_MKSQUASHFS_ARGS="-comp lz4").returncode == 0

    (image,) = user.listed()
    assert image["compression"] is None
    assert "packed with -comp lz4, as APPTAINER_MKSQUASHFS_ARGS says" in log_of(image)


def test_on_a_login_node_a_build_is_modest_and_in_a_job_it_is_not() -> None:
    here = len(os.sched_getaffinity(0))

    assert processors_on(is_login_node=True, chosen=None, environ={}) == min(4, here)
    assert processors_on(is_login_node=True, chosen=1, environ={}) == 1
    for job in ("SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "FLUX_JOB_ID"):
        assert processors_on(is_login_node=True, chosen=None, environ={job: "7"}) is None
    assert processors_on(is_login_node=False, chosen=None, environ={}) is None
