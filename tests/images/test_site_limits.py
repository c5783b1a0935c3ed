"""What a site does not give, and which exit code says so, with a real Apptainer."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from hpcml.errors import ConfigError, ImageError
from tests.cluster.apptainer.registry import Registry
from tests.cluster.slurm.account import USER
from tests.images.test_registry import closed_port
from tests.images.user import START, ImageUser, one_line

pytestmark = pytest.mark.apptainer
_PAGE = Path(__file__).resolve().parents[2] / "docs" / "containers.md"


def without_fuse(user: ImageUser, closed: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run hpcml where /dev/fuse is nobody's, in a name space of mounts of its own."""
    closed.touch(mode=0o600)
    hide = f'mount --bind {closed} /dev/fuse && exec setpriv --reuid {USER} --regid {USER} --clear-groups "$@"'
    program = [str(user.account.python), "-c", START, *words]
    return subprocess.run(
        ["unshare", "--mount", "sh", "-c", hide, "sh", *program],
        cwd=user.folder,
        env={**user.account.environ, **user.variables()},
        capture_output=True,
        text=True,
        check=False,
    )


def test_without_fuse_images_are_built_and_unpacked_before_they_start_and_that_is_said(
    user: ImageUser, registry: Registry, tmp_path: Path
) -> None:
    built = without_fuse(user, tmp_path / "fuse", "build", *user.build_words(registry))
    assert built.returncode == 0, built.stderr
    (image,) = user.listed()

    words = [*user.build_words(registry), "workload.command=cat /etc/words", "resources.gpus_per_node=0"]
    run = without_fuse(user, tmp_path / "fuse", "run", *words)

    assert image["packages"] == {"deb:busybox": "1:1.36"}  # by --unsquash
    assert run.returncode == 0, run.stderr
    assert "/dev/fuse cannot be used here: each start unpacks its image first (--unsquash)" in run.stderr
    assert "the first base" in user("logs", "@1").stdout


def test_the_exit_codes_of_the_page_are_those_of_the_commands(user: ImageUser, registry: Registry) -> None:
    table = _PAGE.read_text(encoding="utf-8").partition("## Exit codes")[2].partition("\n## ")[0]
    written = [int(code) for row in re.findall(r"^\| ([\d, ]+) \|", table, re.MULTILINE) for code in row.split(",")]
    assert written == [0, 1, ConfigError.exit_code, ImageError.exit_code, 130, 143]

    assert user.build(registry).returncode == 0
    (image,) = user.listed()
    Path(image["path"]).write_bytes(b"x" * image["size_bytes"])
    gone = closed_port()
    unreachable = user("build", "+container=ngc_pytorch", f"container.registry=http://{gone}", "container.tag=1")
    codes = {
        "changed": user("images", "verify").returncode,
        "option": user.build(registry, "container.nothing=1").returncode,
        "definition": user.build(registry, "container.post=['%post']").returncode,
        "place": user.build(registry, HPCML_IMAGES="", SCRATCH="").returncode,
        "unreachable": unreachable.returncode,
        "image": user("images", "rm", "-y", "abc").returncode,
        "tag": user.build(registry, "container.tag=99.99").returncode,
    }
    assert codes == {
        "changed": 1, "option": 2, "definition": 2, "place": 2, "unreachable": 4, "image": 4, "tag": 4,
    }  # fmt: skip
    assert f"{gone.partition(':')[0]} cannot be reached" in one_line(unreachable)


@pytest.mark.parametrize("word", ["container.post=['ls /nothere']", "container.post=['false']"])
def test_no_message_or_log_has_a_code_for_colours(user: ImageUser, registry: Registry, word: str) -> None:
    failed = user.build(registry, word)

    assert failed.returncode == 4
    assert "\x1b" not in failed.stderr + failed.stdout
    (log,) = (user.images / "failed").iterdir()
    assert "\x1b" not in log.read_text()
