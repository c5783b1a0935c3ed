"""Which runs use an image: those of this home, and of other homes as far as their files can be read."""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from hpcml.commands.collect import collect, opened
from hpcml.commands.follow import Watcher
from hpcml.errors import HpcmlError
from hpcml.images.cache import Cache
from hpcml.images.inventory import ImageClaim, claim, claims_in, name_of
from hpcml.model.image import ImageUse
from hpcml.model.record_keys import unix_time
from hpcml.model.records import RunRecord
from hpcml.paths import Places
from hpcml.runs.files import read_raw
from hpcml.runs.layout import RunDir, find_run_dirs
from hpcml.runs.plan import Image
from hpcml.store import query

_UNDER_WAY_S = 600.0  # between saying that an image is used, and the directories of the runs that use it


def uses(cache: Cache, places: Places) -> list[ImageUse]:
    """Return which runs use images of *cache*: those of this home, and of other homes as far as they can be read.

    A use without a uid stands for runs that cannot be seen: of a home that is closed to us, or just being submitted.
    Claims of this home whose runs have all ended are updated on the way; where the cache is not ours to write, they
    stay.
    """
    own, now = _own(places), time.time()
    found = list(own)
    for said in claims_in(cache):
        if said.home != name_of(places.home):
            found += _elsewhere(said, now)
            continue
        here = [use for use in own if use.key == said.key]
        if _is_under_way(said, here, now):
            found.append(ImageUse(uid=None, key=said.key, has_ended=False, at=said.at))
        elif said.has_ended != all(use.has_ended for use in here):
            with suppress(OSError):  # somebody else's folder: that we need it, was said there
                claim(cache, said.key, places.home, at=said.at, has_ended=not said.has_ended)
    return found


def claim_all(images: Iterable[Image], places: Places) -> list[str]:
    """Record beside *images* that runs of this home use them, so that nobody removes them.

    Images of the user's own (without a key) are left out. Return a warning for each cache that cannot be written.
    """
    wrong = {}
    for path, key in dict.fromkeys((image.path, image.key) for image in images if image.key is not None):
        cache = Cache(Path(path).parent)
        try:
            claim(cache, key, places.home, at=time.time())
        except OSError as error:
            wrong[cache.root] = (
                f"{cache.claims} cannot be written ({error.strerror}): whoever looks after the images there does not "
                "see that your runs need them"
            )
    return list(wrong.values())


def _own(places: Places) -> list[ImageUse]:
    named = list(_images_named(find_run_dirs(places.runs)))
    if not named:
        return []
    with opened(places) as store:
        collect(store, places)
        still_open = {record.uid for record in query.open_runs(store)}
        records = {record.uid: record for record in query.find_runs(store)}
    return [_use(run_dir.uid, key, records.get(run_dir.uid), still_open) for run_dir, key, _ in named]


def _use(uid: str, key: str, record: RunRecord | None, still_open: Collection[str]) -> ImageUse:
    if record is None:  # of a store that could not take it: better kept than gone
        return ImageUse(uid=uid, key=key, has_ended=False, at=None)
    return ImageUse(
        uid=uid,
        key=key,
        has_ended=uid not in still_open,
        at=record.t_end or record.t_start or _seconds(record.submitted_at),
    )


def _elsewhere(said: ImageClaim, now: float) -> list[ImageUse]:
    """Return the runs of another home, or one use that stands for what cannot be read there."""
    unknown = ImageUse(uid=None, key=said.key, has_ended=False, at=said.at, home=said.home, user=said.user)
    if said.has_ended:
        return [replace(unknown, has_ended=True)]
    folders = _run_dirs_of(Path(said.home))
    if folders is None:
        return [unknown]
    found = [
        ImageUse(
            uid=run_dir.uid,
            key=key,
            has_ended=Watcher(run_dir).look().is_over,
            at=_seconds(submitted_at),
            home=said.home,
            user=said.user,
        )
        for run_dir, key, submitted_at in _images_named(folders)
        if key == said.key
    ]
    return [*found, unknown] if _is_under_way(said, found, now) else found


def _run_dirs_of(home: Path) -> list[RunDir] | None:
    """Return all run directories of another home; None if anything there is closed, or the home is not to be seen."""
    try:
        if home / "runs" not in home.iterdir():
            return []
        experiments = [path for path in (home / "runs").iterdir() if path.is_dir()]
        found = [path for experiment in experiments for path in experiment.iterdir() if path.is_dir()]
    except OSError:
        return None
    return [RunDir(path) for path in found] if all(os.access(path, os.R_OK | os.X_OK) for path in found) else None


def _is_under_way(said: ImageClaim, known: Collection[ImageUse], now: float) -> bool:
    """Tell whether an image was claimed for runs that have no directories yet."""
    newest = max((use.at for use in known if use.at is not None), default=0.0)
    return not said.has_ended and said.at >= newest + 1 and now - said.at < _UNDER_WAY_S  # 1: of rounded times


def _images_named(run_dirs: Iterable[RunDir]) -> Iterator[tuple[RunDir, str, str | None]]:
    """Yield the runs that say in their run.json that they use an image of a cache: its key, and when they were made."""
    for run_dir in run_dirs:
        try:
            raw = read_raw(run_dir.manifest)
        except HpcmlError:
            continue  # torn: `hpcml sync` says so
        plan, origin = raw.get("plan"), raw.get("provenance")
        image = plan.get("image") if isinstance(plan, dict) else None
        if isinstance(image, dict) and isinstance(image.get("key"), str):
            yield run_dir, image["key"], origin.get("submitted_at") if isinstance(origin, dict) else None


def _seconds(moment: object) -> float | None:
    return unix_time(moment) if isinstance(moment, str) else None
