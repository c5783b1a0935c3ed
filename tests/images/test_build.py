"""Images built by a real Apptainer, as an ordinary user, from a real registry on this machine."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from hpcml.images.registry import Reference, ask
from tests.cluster.apptainer.registry import Registry, make_base, running
from tests.images.user import ImageUser, one_line

pytestmark = pytest.mark.apptainer
_AS_NAMED = ("container.image=nvidia/pytorch", "container.tag=24.12-py3")


@pytest.mark.story
def test_an_image_is_built_recorded_and_runs(user: ImageUser, registry: Registry) -> None:
    words = ["container.post=['echo made > /etc/mark']", "+container.environment.MODE='two words'"]

    done = user.build(registry, *words, "+container.labels.project=OPEN-1-2")

    assert done.returncode == 0, done.stderr
    (image,) = user.listed()
    assert done.stdout.startswith(f"built {image['key'][:12]}  ")
    assert [line.rpartition(": ")[2] for line in done.stderr.splitlines()] == [
        "preparing", "downloading", "unpacking", "installing", "packing", "checking",
    ]  # fmt: skip
    assert image["base"] == f"{registry.host}/nvidia/pytorch:24.12-py3"
    assert f"From: {registry.host}/nvidia/pytorch@{image['base_digest']}\n" in image["definition"]
    assert image["builder"] == "hpcuser"
    assert image["labels"]["project"] == "OPEN-1-2"
    assert image["runtime"].startswith("apptainer 1.")
    assert image["size_bytes"] == Path(image["path"]).stat().st_size
    assert image["runs"] == []
    assert image["packages"] == {"deb:busybox": "1:1.36"}
    inside = user.inside(image["path"], "sh", "-c", "cat /etc/words /etc/mark; echo $MODE")
    assert inside == "the first base\nmade\ntwo words\n"
    assert user.left_behind() == [f"{image['key']}.{suffix}" for suffix in ("def", "json", "log", "sif")]


def test_what_is_there_is_found_and_not_built(user: ImageUser, registry: Registry) -> None:
    user.build(registry)
    (before,) = user.listed()

    again = user.build(registry)

    assert again.stdout.startswith("found ")
    assert again.stderr == ""
    assert user.listed() == [before]


def test_a_dry_run_shows_definition_key_and_place_and_writes_nothing(user: ImageUser, registry: Registry) -> None:
    shown = user.build(registry, "--dry-run", "container.pip=[einops]")

    assert "python3 -m pip install --no-cache-dir einops\n" in shown.stdout
    key = re.search(r"^key     ([0-9a-f]{32})$", shown.stdout, re.MULTILINE)
    assert key is not None
    assert f"image   {user.images}/{key[1]}.sif (to be built)" in shown.stdout
    assert not user.images.exists()


def test_a_tag_that_has_moved_is_another_image(user: ImageUser, base_layout: Path, tmp_path: Path) -> None:
    other = make_base(tmp_path / "other", words="the second base\n")
    with running(tmp_path / "registry", needs_login=False) as registry:
        registry.push(base_layout, "base", "nvidia/pytorch:24.12-py3")
        assert user.build(registry).returncode == 0
        registry.push(other, "base", "nvidia/pytorch:24.12-py3")
        assert user.build(registry).returncode == 0

    first, second = user.listed()
    assert first["base"] == second["base"]
    assert user.inside(first["path"], "cat", "/etc/words") == "the first base\n"
    assert user.inside(second["path"], "cat", "/etc/words") == "the second base\n"


def test_without_a_tag_the_newest_that_the_gpu_can_run_is_taken(user: ImageUser, registry: Registry) -> None:
    words = ["+container=ngc_pytorch", f"container.registry={registry.url}", "cluster.gpu_compute_capability='7.0'"]

    chosen = user("build", "--dry-run", *words)
    refused = user("build", *words, "container.tag=25.01-py3")

    assert f"base    {registry.host}/nvidia/pytorch:24.12-py3 sha256:" in chosen.stdout
    assert refused.returncode == 2
    assert "24.12 is the last for" in one_line(refused)


def test_without_a_network_the_image_that_is_here_is_used_and_that_is_said(
    user: ImageUser, base_layout: Path, tmp_path: Path
) -> None:
    with running(tmp_path / "registry", needs_login=False) as registry:
        registry.push(base_layout, "base", "nvidia/pytorch:24.12-py3")
        user.build(registry)

    found, other = user.build(registry), user.build(registry, "container.post=['true']")

    assert found.stdout.startswith("found ")
    assert "without a look at the registry" in one_line(found)
    assert other.returncode == 4
    assert "cannot be reached" in one_line(other)


def test_a_base_that_is_pinned_and_here_needs_no_registry(user: ImageUser, base_layout: Path, tmp_path: Path) -> None:
    with running(tmp_path / "registry", needs_login=False) as registry:
        registry.push(base_layout, "base", "nvidia/pytorch:24.12-py3")
        reference = Reference(host=registry.host, name="nvidia/pytorch", tag="24.12-py3", plain_http=True)
        digest = ask(reference, environ={}).digest
        built = user.build(registry, f"container.digest={digest}")
        wrong = user.build(registry, f"container.digest=sha256:{'0' * 64}")

    found = user.build(registry, f"container.digest={digest}")

    assert built.returncode == 0, built.stderr
    assert "does not exist" in one_line(wrong)
    assert found.stdout.startswith("found ")
    assert found.stderr == ""


def test_an_image_travels_to_a_site_without_a_network(user: ImageUser, registry: Registry) -> None:
    user.build(registry)
    (image,) = user.listed()
    tar, there = user.folder / "image.sif", str(user.folder / "there")

    exported = user("images", "export", image["key"][:8], str(tar))
    imported = user("images", "import", str(tar), HPCML_IMAGES=there)
    found = user.build(registry, HPCML_IMAGES=there)

    assert exported.returncode == 0, exported.stderr
    assert imported.returncode == 0, imported.stderr
    assert found.stdout.startswith("found ")
    (arrived,) = json.loads(user("images", "--json", HPCML_IMAGES=there).stdout)
    assert arrived["sha256"] == image["sha256"]
    assert user.inside(arrived["path"], "cat", "/etc/words") == "the first base\n"


def test_a_file_beside_the_definition_that_changes_makes_another_image(user: ImageUser, registry: Registry) -> None:
    own = user.folder / "containers"
    own.mkdir()
    (own / "ngc_pytorch.def").write_text(
        "Bootstrap: docker\nFrom: nvcr.io/nvidia/pytorch\n\n%files\n    setting /etc/setting\n", encoding="utf-8"
    )
    said = []
    for word in ("first", "second"):
        (own / "setting").write_text(word, encoding="utf-8")
        done = user.build(registry)
        assert done.returncode == 0, done.stderr
        said.append(user.inside(done.stdout.split()[-1], "cat", "/etc/setting"))

    assert said == ["first", "second"]


def test_an_image_of_another_processor_is_refused(user: ImageUser, registry: Registry, tmp_path: Path) -> None:
    layout = make_base(tmp_path / "arm", words="", architecture="arm64")
    registry.push(layout, "base", "nvidia/pytorch:24.11-py3")

    refused = user.build(registry, "container.tag=24.11-py3")

    assert refused.returncode == 4
    assert "is for arm64, and this machine is" in one_line(refused)
    assert user.left_behind() == []


def test_any_image_of_a_registry_is_built_without_a_definition_of_its_own(user: ImageUser, registry: Registry) -> None:
    done = user("build", "+container=docker", f"container.registry={registry.url}", *_AS_NAMED)

    assert done.returncode == 0, done.stderr
    assert user.inside(done.stdout.split()[-1], "cat", "/etc/words") == "the first base\n"
