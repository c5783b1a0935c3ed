"""Builds that are interrupted, disturbed or refused: what is left, and what is said."""

from __future__ import annotations

import os
import random
import re
import signal
import time
from contextlib import suppress
from pathlib import Path

import pytest

from hpcml.images.cache import Cache
from tests.cluster.apptainer.registry import Registry, make_base, running
from tests.images.user import ImageUser, one_line
from tests.images.watching import LONGEST_S, await_command, await_line, await_silence, small_disk

pytestmark = pytest.mark.apptainer


def test_a_build_goes_on_from_the_layers_that_were_downloaded(user: ImageUser, tmp_path: Path) -> None:
    def downloaded_bytes() -> int:
        """Return how much of layers was sent; Apptainer asks for one that it has, and then does not read it."""
        log = (tmp_path / "registry" / "log").read_text()
        return sum(map(int, re.findall(r'"GET /v2/nvidia/pytorch/blobs/\S+ HTTP/1.1" 200 (\d+)', log)))

    layout = make_base(tmp_path / "base", words=os.urandom(20_000_000).hex())
    with running(tmp_path / "registry", needs_login=False) as registry:
        registry.push(layout, "base", "nvidia/pytorch:24.12-py3")
        builder = user.start("build", *user.build_words(registry, "container.post=['sleep 60']"))
        await_command(user, "sleep 60")
        builder.kill()
        builder.communicate(timeout=LONGEST_S)
        before = downloaded_bytes()
        done = user.build(registry)
    after = downloaded_bytes() - before

    assert done.returncode == 0, done.stderr
    assert before > 20_000_000
    assert after < before / 2


def test_of_two_builders_one_builds_and_the_other_takes_its_image(user: ImageUser, registry: Registry) -> None:
    words = ["build", *user.build_words(registry, "container.post=['sleep 3']")]
    builders = [user.start(*words) for _ in range(3)]

    outcomes = [builder.communicate(timeout=LONGEST_S) for builder in builders]

    assert [builder.returncode for builder in builders] == [0, 0, 0], outcomes
    assert sum("installing" in said for _, said in outcomes) == 1
    assert sum("waiting: process " in said for _, said in outcomes) >= 1
    assert len(user.listed()) == 1


def test_who_does_not_want_to_wait_is_told_who_builds(user: ImageUser, registry: Registry) -> None:
    words = user.build_words(registry, "container.post=['sleep 60']")
    first = user.start("build", *words)
    await_line(first, "installing")

    second = user("build", "--no-wait", *words)
    first.terminate()
    first.communicate(timeout=LONGEST_S)

    assert second.returncode == 4
    assert re.search(r"is being built by process \d+ on ", one_line(second))


def test_a_build_that_is_killed_at_any_moment_leaves_no_broken_image(user: ImageUser, registry: Registry) -> None:
    chance = random.Random(4711)  # noqa: S311 - moments, not secrets
    words = user.build_words(registry, "container.post=['head -c 3000000 /dev/urandom > /etc/noise']")
    cache = Cache(user.images)
    whole = user.start("build", *words)
    await_line(whole, "preparing")
    began = time.monotonic()
    whole.communicate(timeout=LONGEST_S)
    takes_s = time.monotonic() - began  # on this machine, under this load
    interrupted = 0
    for _ in range(12):
        for image in cache.records():
            assert cache.verify(image) is None
            user.inside(image.path, "true")
            cache.remove(image.key)
        builder = user.start("build", *words)
        await_line(builder, "preparing")
        time.sleep(chance.uniform(0.0, takes_s))
        builder.kill()
        builder.communicate(timeout=LONGEST_S)
        interrupted += cache.records() == []
    assert whole.returncode == 0
    assert interrupted > 0, takes_s
    for image in cache.records():  # of one that was killed when it was done: nothing would be built then
        cache.remove(image.key)

    done = user("build", *words)

    assert done.returncode == 0, done.stderr
    assert cache.verify(*cache.records()) is None
    assert user("images", "verify").returncode == 0
    assert [Path(name).suffix for name in user.left_behind()] == [".def", ".json", ".log", ".sif"]
    await_silence(user)


def test_a_build_goes_on_where_a_killed_one_left_a_torn_index_of_its_downloads(
    user: ImageUser, registry: Registry
) -> None:
    words = user.build_words(registry)
    assert user("build", *words).returncode == 0
    cache = Cache(user.images)
    cache.remove(*[image.key for image in cache.records()])
    torn = [path for path in cache.layers.rglob("*.json") if path.stat().st_size]
    assert torn
    for path in torn:
        path.write_text("", encoding="utf-8")

    done = user("build", *words)

    assert done.returncode == 0, done.stderr
    assert cache.verify(*cache.records()) is None


def test_a_build_does_not_outlive_the_process_that_began_it(user: ImageUser, registry: Registry) -> None:
    builder = user.start("build", *user.build_words(registry, "container.post=['sleep 60']"))
    await_command(user, "sleep 60")

    builder.kill()

    builder.communicate(timeout=LONGEST_S)
    await_silence(user)


def test_what_a_build_leaves_on_a_host_that_crashed_goes_with_the_next(user: ImageUser, registry: Registry) -> None:
    box = "/bin/busybox"
    post = f"mkdir /var/x; {box} touch /var/x/f; {box} chown -R 1000:1000 /var/x; {box} chmod 700 /var/x"
    builder = user.start("build", *user.build_words(registry, f"container.post=['{post}; sleep 60']"))
    for pid in await_command(user, "sleep 60"):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    builder.communicate(timeout=LONGEST_S)
    left = user.left_behind()
    assert any(name.startswith(".building-") for name in left), left

    done = user.build(registry)

    assert done.returncode == 0, done.stderr
    assert [Path(name).suffix for name in user.left_behind()] == [".def", ".json", ".log", ".sif"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_build_that_is_stopped_takes_everything_with_it(
    user: ImageUser, registry: Registry, number: signal.Signals
) -> None:
    builder = user.start("build", *user.build_words(registry, "container.post=['sleep 30']"))
    await_line(builder, "installing")

    builder.send_signal(number)
    _, said = builder.communicate(timeout=LONGEST_S)

    assert builder.returncode in (130, 143)
    assert "Traceback" not in said
    assert user.left_behind() == []
    await_silence(user)


def test_a_failing_command_is_said_with_its_last_line(user: ImageUser, registry: Registry) -> None:
    done = user.build(registry, "container.post=['echo a b; echo no such thing >&2; (exit 7)']")

    assert done.returncode == 4
    said = one_line(done)
    assert "a command of %post failed with exit status 7: no such thing (all it printed: " in said
    log = Path(said.rpartition("printed: ")[2].rstrip(")"))
    assert "a b\n" in log.read_text()
    assert user.left_behind() == ["failed"]
    assert user.listed() == []


def test_a_changed_image_is_seen_and_built_again(user: ImageUser, registry: Registry) -> None:
    user.build(registry)
    (image,) = user.listed()
    with Path(image["path"]).open("r+b") as file:
        file.seek(image["size_bytes"] // 2)
        file.write(b"XXXX")

    checked = user("images", "verify")
    shown = user("images")
    again = user.build(registry)

    assert checked.returncode == 1
    assert f"{image['key'][:12]}  {image['base']}  has SHA-256 " in checked.stdout
    assert "BROKEN" in shown.stdout
    assert again.stdout.startswith("built ")
    assert user("images", "verify").returncode == 0


def test_a_disk_that_becomes_full_leaves_nothing(user: ImageUser, registry: Registry) -> None:
    with small_disk(user, mib=48):
        done = user.build(registry, "container.post=['dd if=/dev/urandom of=/etc/noise bs=1M count=100']")

        assert done.returncode == 4
        assert f"{user.images}: no space left, or a quota is used up, while the image was built" in one_line(done)
        assert one_line(done).endswith("hpcml images rm --older-than 30d, or set HPCML_IMAGES to another place")
        assert user.left_behind() == []


def test_a_full_disk_for_temporary_files_is_named_with_its_setting(user: ImageUser, registry: Registry) -> None:
    scratch = user.folder / "small"
    noise = "container.post=['dd if=/dev/urandom of=/etc/noise bs=1M count=100']"
    with small_disk(user, 48, scratch):
        full = user.build(registry, noise, APPTAINER_TMPDIR=str(scratch))
        left = list(scratch.iterdir())
    with small_disk(user, 16, user.folder / "tiny"):
        early = user.build(registry, SINGULARITY_TMPDIR=str(user.folder / "tiny"))

    assert (full.returncode, early.returncode) == (4, 4)
    why = "no space left, or a quota is used up, while the image was built; only downloaded layers were kept"
    assert f"{user.images} or {scratch}: {why}: " in one_line(full)
    assert one_line(full).endswith("or set HPCML_IMAGES or APPTAINER_TMPDIR to another place")
    assert one_line(early).endswith("needs about 32 MiB: make room there, or set SINGULARITY_TMPDIR to another place")
    assert left == []


def test_a_disk_without_room_is_noticed_before_building(user: ImageUser, registry: Registry) -> None:
    with small_disk(user, mib=16):
        done = user.build(registry)

        assert done.returncode == 4
        assert re.search(r"has \d+ MiB free, and building .* needs about 32 MiB", one_line(done))
        assert "downloading" not in done.stderr
        assert user.left_behind() == []


def test_a_folder_of_somebody_else_is_noticed_before_building(user: ImageUser, registry: Registry) -> None:
    user.images.mkdir(mode=0o755)  # root's

    done = user.build(registry)

    assert done.returncode == 4
    assert "cannot be written: Permission denied (set HPCML_IMAGES" in one_line(done)
    assert "downloading" not in done.stderr


def test_nothing_is_built_in_the_home_unless_it_was_named(user: ImageUser, registry: Registry) -> None:
    done = user.build(registry, HPCML_IMAGES="", SCRATCH="")

    assert done.returncode == 2
    assert "HPCML_IMAGES" in one_line(done)
    assert not (user.folder / ".apptainer").exists()


def test_temporary_files_go_where_the_user_wants_them_and_do_not_stay(user: ImageUser, registry: Registry) -> None:
    scratch = user.account.new_folder()

    done = user.build(
        registry, "container.post=['cat /proc/self/mountinfo > /dev/null; echo x']", APPTAINER_TMPDIR=str(scratch)
    )

    assert done.returncode == 0, done.stderr
    assert list(scratch.iterdir()) == []
    assert not list((user.folder / ".apptainer").glob("cache/*"))


def test_without_a_runtime_nothing_begins(user: ImageUser, registry: Registry) -> None:
    done = user.build(registry, PATH=f"{user.account.python.parent}:/usr/bin:/bin")

    assert done.returncode == 4
    assert "apptainer and singularity not found on PATH: load its module" in one_line(done)
    assert not user.images.exists()


def test_a_runtime_that_only_says_that_it_has_built_is_not_believed(user: ImageUser, registry: Registry) -> None:
    fake = user.folder / "bin" / "apptainer"
    fake.parent.mkdir()
    fake.write_text('#!/bin/sh\n[ "$1" = --version ] && echo apptainer version 9.9\nexit 0\n')
    fake.chmod(0o755)

    done = user.build(registry, PATH=f"{fake.parent}:{user.environ['PATH']}")

    assert done.returncode == 4
    assert "there is none that can be read" in one_line(done)
    assert user.listed() == []
