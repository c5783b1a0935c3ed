"""Images that several homes share: what each says of its needs, and what is done where that cannot be looked up."""

from __future__ import annotations

import json
import stat
import time
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from hpcml.commands.image_uses import claim_all
from hpcml.errors import ImageError
from hpcml.images import inventory
from hpcml.images.cache import Cache
from hpcml.images.inventory import claim, claims_in
from hpcml.model.image import ImageRecord
from hpcml.paths import Places
from hpcml.runs.plan import Image
from tests.cli.command_line import Hpcml, said_in_one_line
from tests.images.test_cache import TEXT, filled
from tests.images.test_uses import run_of

LONG_AGO = time.time() - 86_400


@pytest.fixture
def hpcml(hpcml_environ: dict[str, str], tmp_path: Path) -> Hpcml:
    cwd = tmp_path / "project"
    cwd.mkdir()
    return Hpcml(environ={**hpcml_environ, "HPCML_IMAGES": str(tmp_path / "images")}, cwd=cwd)


@pytest.fixture
def other(hpcml: Hpcml, tmp_path: Path) -> Hpcml:
    """Somebody with another home and the same images."""
    return Hpcml(environ={**hpcml.environ, "HPCML_HOME": str(tmp_path / "other home")}, cwd=hpcml.cwd)


def submitted_at(hpcml: Hpcml, uid: str, moment: float) -> None:
    manifest = next(hpcml.home.glob(f"runs/*/{uid}/run.json"))
    words = json.loads(manifest.read_text())
    words["provenance"]["submitted_at"] = datetime.fromtimestamp(moment, tz=UTC).isoformat(timespec="seconds")
    manifest.write_text(json.dumps(words))


def test_a_run_of_another_home_keeps_its_image_until_it_ends(hpcml: Hpcml, other: Hpcml, tmp_path: Path) -> None:
    cache, record = filled(tmp_path / "images")
    uid = run_of(other, "20260528-202640-aaaaaa", record.key, ended=False)
    claim(cache, record.key, other.home, at=LONG_AGO)

    refused = hpcml("images", "rm", "-y", "--force", record.key)
    pruned = hpcml("images", "rm", "-y", "--older-than", "0")
    (listed,) = json.loads(hpcml("images", "--json").stdout)
    run_of(other, "20260528-202640-bbbbbb", record.key, ended=True)
    (other.home / "runs" / "default" / uid / "run.json").unlink()
    gone = hpcml("images", "rm", "-y", "--older-than", "0")

    assert refused.returncode == 4
    assert f"is needed by run {uid} of {other.home}, which has not ended; nothing" in refused.stderr
    assert pruned.returncode == 0, pruned.stderr
    assert listed["open_runs"] == [uid]
    assert record.key[:12] in gone.stdout
    assert cache.find(record.key) is None
    assert list((tmp_path / "images" / "uses").iterdir()) == []


def test_a_home_that_cannot_be_read_keeps_what_it_has_claimed_and_nothing_else(hpcml: Hpcml, tmp_path: Path) -> None:
    cache, record = filled(tmp_path / "images")
    _, free = filled(tmp_path / "images", text=TEXT + "%post\ntrue\n")
    claim(cache, record.key, Path("/nowhere/hpcml"), at=LONG_AGO)

    refused = hpcml("images", "rm", "-y", record.key)
    pruned = hpcml("images", "rm", "-y", "--older-than", "0")
    shown = hpcml("images")
    (listed,) = json.loads(hpcml("images", "--json").stdout)
    forced = hpcml("images", "rm", "-y", "--force", record.key)

    assert refused.returncode == 4
    said = said_in_one_line(refused)
    assert f"image {record.key[:12]} may be needed by runs of /nowhere/hpcml (user root), which cannot be read" in said
    assert pruned.returncode == 0, pruned.stderr
    assert "kept: image" in pruned.stderr
    assert free.key[:12] in pruned.stdout
    assert "0 (of root: unknown)" in shown.stdout
    assert (listed["runs"], listed["open_runs"]) == ([], [])
    assert [home["home"] for home in listed["homes"]] == ["/nowhere/hpcml"]
    assert forced.returncode == 0, forced.stderr
    assert cache.records() == []
    assert claims_in(cache) == []


def test_a_home_takes_back_its_claims_when_it_looks_after_its_images(
    hpcml: Hpcml, other: Hpcml, tmp_path: Path
) -> None:
    cache, record = filled(tmp_path / "images")
    run_of(other, "20260528-202640-aaaaaa", record.key, ended=True)
    claim(cache, record.key, other.home, at=LONG_AGO)

    assert other("images").returncode == 0

    (said,) = claims_in(cache)
    assert said.has_ended
    assert said.at == LONG_AGO
    other.home.rename(tmp_path / "closed")
    gone = hpcml("images", "rm", "-y", record.key)
    assert gone.returncode == 0, gone.stderr


def test_what_is_being_submitted_keeps_its_image(hpcml: Hpcml, tmp_path: Path) -> None:
    cache, record = filled(tmp_path / "images")
    uid = run_of(hpcml, "20260528-202640-aaaaaa", record.key, ended=True)
    claim(cache, record.key, hpcml.home, at=time.time())
    submitted_at(hpcml, uid, LONG_AGO)

    refused = hpcml("images", "rm", "-y", record.key)
    submitted_at(hpcml, uid, time.time())
    claim(cache, record.key, hpcml.home, at=time.time() - 3600)  # interrupted then
    gone = hpcml("images", "rm", "-y", record.key)

    assert refused.returncode == 4
    assert "is needed by what is being submitted at this moment" in said_in_one_line(refused)
    assert gone.returncode == 0, gone.stderr


def claimed(cache: Cache, record: ImageRecord) -> list[inventory.Stocked]:
    """Return the images as they were listed before another home claimed one."""
    listed = inventory.stock(cache, [], claims_in(cache))
    claim(cache, record.key, Path("/other/home"), at=time.time())
    return listed


def test_an_image_that_is_claimed_after_it_was_listed_stays(tmp_path: Path) -> None:
    cache, record = filled(tmp_path)

    with pytest.raises(ImageError, match="is being submitted at this moment"):
        inventory.remove(cache, claimed(cache, record))

    assert cache.find(record.key) == record
    assert not list(tmp_path.glob(".*"))


def test_claims_are_made_once_for_each_image_and_one_that_cannot_be_made_is_a_warning(tmp_path: Path) -> None:
    cache, record = filled(tmp_path / "images")
    (tmp_path / "file").touch()
    places = Places(home=tmp_path / "home", store_url="")
    image = Image(path=record.path, key=record.key)
    own = Image(path="/somewhere/mine.sif")
    lost = replace(image, path=str(tmp_path / "file" / f"{record.key}.sif"))

    warnings = claim_all([image, own, image, lost], places)

    (said,) = claims_in(cache)
    assert (said.key, said.home, said.has_ended) == (record.key, str(places.home), False)
    assert len(warnings) == 1
    assert "cannot be written" in warnings[0]


@pytest.mark.parametrize("words", ["", "{", "[]", "null", '{"key": "x"}', '{"key":1,"home":2,"user":3,"at":"x"}'])
def test_a_torn_claim_is_none(tmp_path: Path, words: str) -> None:
    cache, record = filled(tmp_path)
    claim(cache, record.key, Path("/other/home"), at=1.0)
    (path,) = cache.claims.iterdir()
    path.write_text(words)

    assert claims_in(cache) == []


def test_a_home_is_the_same_under_another_name_and_a_shared_folder_stays_shared(hpcml: Hpcml, tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    (tmp_path / "images").chmod(0o2775)
    cache, record = filled(tmp_path / "images")
    uid = run_of(hpcml, "20260528-202640-aaaaaa", record.key, ended=False)
    (tmp_path / "link").symlink_to(hpcml.home)
    claim(cache, record.key, tmp_path / "link", at=LONG_AGO)

    (listed,) = json.loads(hpcml("images", "--json").stdout)

    assert listed["runs"] == [uid]
    assert stat.S_IMODE(cache.claims.stat().st_mode) == 0o2775
