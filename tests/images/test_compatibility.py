"""CUDA's forward compatibility: when the image's own libcuda comes before the driver's, seen in a real Apptainer.

What a node's kernel says of its driver and its GPU is a folder in the place of /proc.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest

from hpcml.images.command import exec_argv, wrapped
from hpcml.model.container import ContainerGpu
from tests.cluster.slurm.account import USER, Account
from tests.images.inside import Inside, make_tree

pytestmark = pytest.mark.apptainer
_CLOSED = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  {}  Wed Apr  3 12:00:00 UTC 2024\nGCC version:  gcc 12\n"
_OPEN = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {}  Release Build  (dvs-builder)\n"
_LIBRARIES = "/.singularity.d/libs"  # where --nv puts the driver's


@pytest.fixture(scope="module")
def inside(account: Account) -> Iterator[Inside]:
    """An unpacked image with a libcuda of CUDA 12.6, where NVIDIA's older images have it."""
    folder = account.new_folder()
    image = make_tree(folder / "tree")
    compatibility = image / "usr" / "local" / "cuda" / "compat" / "lib.real"
    compatibility.mkdir(parents=True)
    (compatibility / "libcuda.so.560.35.05").touch()
    (compatibility / "libcuda.so.1").symlink_to("libcuda.so.560.35.05")
    for path in (image, *image.rglob("*")):
        if not path.is_symlink():
            shutil.chown(path, USER, USER)
    found = Inside(account=account, folder=folder, image=folder / "image")
    built = found(["apptainer", "build", "--sandbox", str(found.image), str(image)])
    assert built.returncode == 0, built.stderr
    yield found
    shutil.rmtree(folder, ignore_errors=True)


def library_path(inside: Inside, version: str, model: str, *branches: str) -> tuple[str, str]:
    """Return the library path of a program on a node with that driver and GPU, and what its log says."""
    node = inside.folder / "proc" / "driver" / "nvidia"
    (node / "gpus" / "0000:01:00.0").mkdir(parents=True, exist_ok=True)
    (node / "version").write_text(version)
    (node / "gpus" / "0000:01:00.0" / "information").write_text(f"Model: \t\t {model}\nIRQ:   \t\t 42\n")
    kernel = ["--no-mount", "proc", "--bind", f"{inside.folder / 'proc'}:/proc"]
    argv = exec_argv(str(inside.image), "apptainer", gpu=ContainerGpu.nv, options=kernel)
    done = inside([*argv, *wrapped(["sh", "-c", "echo $LD_LIBRARY_PATH"], {}, old_branches=branches)])
    assert done.returncode == 0, done.stderr
    return done.stdout.strip(), done.stderr


@pytest.mark.parametrize("words", [_CLOSED, _OPEN])
def test_under_a_driver_of_an_older_branch_the_images_own_comes_first_and_the_log_says_so(
    inside: Inside, words: str
) -> None:
    path, log = library_path(inside, words.format("535.183.01"), "NVIDIA A100-SXM4-40GB", "470.57", "535.86")

    assert path == f"/usr/local/cuda/compat/lib.real:{_LIBRARIES}"
    assert "hpcml: driver 535.183.01 is older than the image: its own libcuda 560.35.05 is used" in log


@pytest.mark.parametrize(
    ("driver", "model"),
    [
        ("565.57.01", "NVIDIA A100-SXM4-40GB"),  # newer than the image
        ("560.28.03", "NVIDIA A100-SXM4-40GB"),  # of its branch
        ("545.23.08", "NVIDIA A100-SXM4-40GB"),  # of one that NVIDIA's package does not serve
        ("535.183.01", "NVIDIA GeForce RTX 3090"),
        ("nonsense", "NVIDIA A100-SXM4-40GB"),
    ],
)
def test_the_drivers_own_stays_first_where_it_must(inside: Inside, driver: str, model: str) -> None:
    path, log = library_path(inside, _CLOSED.format(driver), model, "470.57", "535.86")

    assert path == _LIBRARIES
    assert "hpcml:" not in log


def test_an_image_without_one_is_said_to_have_none(inside: Inside) -> None:
    library = inside.image / "usr" / "local" / "cuda" / "compat" / "lib.real"
    library.rename(library.with_name("away"))
    try:
        path, log = library_path(inside, _CLOSED.format("535.183.01"), "Tesla V100-SXM2-16GB", "535.86")
    finally:
        library.with_name("away").rename(library)

    assert path == _LIBRARIES
    assert "which has no libcuda of its own in /usr/local/cuda/compat" in log
