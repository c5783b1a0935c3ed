"""The images of planned runs: found or built before anything is submitted, each once, and read if they are new here."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path

from hpcml.cluster import Cluster
from hpcml.container import Container, ContainerBuild, ContainerKind
from hpcml.errors import ConfigError, ImageError
from hpcml.images.build import OnProgress, Progress
from hpcml.images.cache import Cache
from hpcml.images.checksums import Checksums
from hpcml.images.registry import UnreachableError
from hpcml.manifest import Image
from hpcml.operations import images
from hpcml.operations.build_jobs import BuildJobs, waiting_for
from hpcml.operations.image_uses import claim_all
from hpcml.operations.images import Wanted
from hpcml.operations.plan import Planned

_READING = Progress(stage="checking")  # ten gigabytes take their time


@dataclass(frozen=True, slots=True, kw_only=True)
class Voice:
    """How the user is told of what takes time, or looks wrong."""

    display: Callable[[str], AbstractContextManager[OnProgress]]  # of the build of a base
    warn: Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Provided:
    """An image, and the job that must succeed before it can be used."""

    image: Image
    job_id: str | None = None


def with_images(
    planned: Sequence[Planned], environ: Mapping[str, str], project: Path, voice: Voice, jobs: BuildJobs
) -> list[Planned]:
    """Return *planned* with the image of each, built now, or by a job where that is wanted.

    Raises `ConfigError` for one that is not there and must not be built, and `ImageError` for one that cannot be.
    """
    checksums = Checksums(jobs.places.checksums)

    def provide(item: Planned) -> Provided:
        if item.run.container.kind is not ContainerKind.build:
            return Provided(image=_own(item.run.container, checksums, voice))
        wanted = images.want(item.run.container, item.run.cluster, environ, project)
        if wanted.note:
            voice.warn(wanted.note)
        _refuse_unbuilt(wanted, item)
        if wanted.found is None and item.run.container.build is ContainerBuild.job:
            builds = jobs.job_for(wanted, item)
            image = replace(_unbuilt(wanted), built_by=builds.run_dir.uid)
            return Provided(image=image, job_id=builds.ticket.job_id)
        if wanted.found is not None:
            record = wanted.found
            wrong = wanted.cache.verify(record, lambda path: _sha256(path, checksums, voice, wanted.definition.base))
            if wrong:
                raise ImageError(f"image {record.key[:12]} {wrong}: hpcml images rm {record.key[:12]}, then try again")
        else:
            with voice.display(wanted.definition.base) as on_progress:
                record = images.build(wanted, environ, on_progress=on_progress)
        return Provided(image=Image(path=record.path, sha256=record.sha256, key=record.key))

    done = _each(planned, provide)
    needed = [item.image for item in done if item.image is not None]
    for warning in claim_all(needed, jobs.places):
        voice.warn(warning)
    for image in needed:  # after it was claimed: whoever removes it from now on sees that it is needed
        if image.key is not None and image.built_by is None and Cache(Path(image.path).parent).read(image.key) is None:
            raise ImageError(f"image {image.key[:12]} was removed at this moment: try again")
    return done


def foreseen(planned: Sequence[Planned], environ: Mapping[str, str], project: Path) -> tuple[list[Planned], list[str]]:
    """Return *planned* as `with_images` would, and a line for each image; nothing is built or read.

    Where the registry cannot be asked, what is known without it is said.
    """
    lines: list[str] = []

    def provide(item: Planned) -> Provided:
        if item.run.container.kind is not ContainerKind.build:
            assert item.run.container.path is not None
            lines.append(f"image: {item.run.container.path}")
            return Provided(image=Image(path=item.run.container.path))
        try:
            wanted = images.want(item.run.container, item.run.cluster, environ, project)
        except UnreachableError as error:
            place = images.place_of(item.run.container, item.run.cluster, environ)
            path = str(place.folder / "KEY.sif")
            lines.append(f"image: {path} of {place.base} ({_unknown(place)}): {error}")
            return Provided(image=Image(path=path))
        _refuse_unbuilt(wanted, item)
        image = _unbuilt(wanted)
        by = " by a job before" if item.run.container.build is ContainerBuild.job else ""
        state = "is there" if wanted.found else f"to be built{by}"
        note = f"; {wanted.note}" if wanted.note else ""
        lines.append(f"image: {image.path} of {wanted.definition.base} ({state}){note}")
        return Provided(image=replace(image, sha256=wanted.found.sha256 if wanted.found else None))

    return _each(planned, provide), lines


def _unknown(place: images.Place) -> str:
    """Return what can be said of an image whose base is not known to the digest."""
    count = len(place.of_this_tag)
    others = f"{count} of that tag there, none built as it is asked for" if count else "none of that tag there"
    return f"{others}; KEY follows from the digest of its base, which could not be asked for"


def _each(planned: Sequence[Planned], provide: Callable[[Planned], Provided]) -> list[Planned]:
    """Return *planned* with what *provide* has for each container; it is asked once for equal ones."""
    known: list[tuple[tuple[Container, Cluster], Provided]] = []
    done: list[Planned] = []
    for item in planned:
        if not item.wants_image:
            done.append(item)
            continue
        asked = (item.run.container, item.run.cluster)
        provided = next((found for other, found in known if other == asked), None)
        if provided is None:
            provided = provide(item)
            known.append((asked, provided))
        ready = replace(item, image=provided.image)
        done.append(ready if provided.job_id is None else waiting_for(ready, provided.job_id))
    return done


def _unbuilt(wanted: Wanted) -> Image:
    """Return what the image will be; its SHA-256 is found beside it when the run starts."""
    return Image(path=str(wanted.cache.image(wanted.definition.key)), key=wanted.definition.key)


def _own(container: Container, checksums: Checksums, voice: Voice) -> Image:
    assert container.path is not None
    if container.kind is ContainerKind.sandbox:
        return Image(path=container.path)
    try:
        return Image(path=container.path, sha256=_sha256(Path(container.path), checksums, voice, container.path))
    except OSError as error:
        raise ConfigError(f"container.path={container.path} cannot be read: {error.strerror}") from error


def _sha256(path: Path, checksums: Checksums, voice: Voice, name: str) -> str:
    """Return the SHA-256 of an image, read only if it is not the one that was read before."""
    known = checksums.recall(path)
    if known is not None:
        return known
    with voice.display(name) as on_progress:
        on_progress(_READING)
        return checksums.take(path)


def _refuse_unbuilt(wanted: Wanted, item: Planned) -> None:
    if wanted.found is None and item.run.container.build is ContainerBuild.never:
        chosen = [word for word in item.overrides if _says_what_to_build(word)]
        raise ConfigError(
            f"container.build=never: there is no image of {wanted.definition.base} as it is asked for: "
            f"{shlex.join(['hpcml', 'build', *chosen])}"
        )


def _says_what_to_build(override: str) -> bool:
    key = override.lstrip("+~").partition("=")[0]
    in_a_run = ("build", "binds", "options", "writable_tmpfs", "gpu")
    return key.partition(".")[0] in ("container", "cluster") and key.removeprefix("container.") not in in_a_run
