"""The container images of planned runs: found, or built now, before anything is submitted."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from hpcml.commands import images
from hpcml.commands.images import WantedImage
from hpcml.commands.submit.containers import runtime_for
from hpcml.commands.submit.plan import Planned
from hpcml.errors import ConfigError, ImageError
from hpcml.images import releases
from hpcml.images.build import BuildProgress, OnProgress
from hpcml.images.cache import Checksums
from hpcml.images.definition import adds_to_base
from hpcml.images.registry import Reference
from hpcml.images.runtimes import runtime_named
from hpcml.model.container import ContainerBuild, ContainerKind
from hpcml.model.run import Run
from hpcml.paths import Places
from hpcml.runs.plan import Image
from hpcml.runs.private import check_lent

_READING = BuildProgress(stage="checking")  # ten gigabytes take their time


class ImageReporter(Protocol):
    """What is called to tell the user how images are found and built."""

    def warn(self, text: str) -> None:
        """Tell what looks wrong, though the submission goes on."""

    def note(self, text: str) -> None:
        """Tell what is good to know: that an image is built by a job, say."""

    def building(self, base: str) -> AbstractContextManager[OnProgress]:
        """Show the progress of an image that is built from *base*, or read, until the context is left."""


def with_images(
    planned: Sequence[Planned],
    places: Places,
    reporter: ImageReporter,
    *,
    environ: Mapping[str, str],
    project: Path,
) -> list[Planned]:
    """Return *planned*, in order, with the image of each run that wants one; runs with equal settings share it.

    All that is to be said of them is said before the first is built. An image that is not in the cache is built now;
    one that is there is verified by its SHA-256.

    Raises `ConfigError` for one that is not there and must not be built (``container.build=never``), and `ImageError`
    for one that cannot be built, is damaged, or is removed by somebody at this moment.
    """
    kinds = _kinds(planned)
    wanted = [_wanted(item, environ, project) for item in kinds]
    for line in [line for item, want in zip(kinds, wanted, strict=True) if want for line in _remarks(want, item)]:
        reporter.warn(line)
    checksums = Checksums(places.checksums)
    found = [
        _own_image(item, project, checksums, reporter) if want is None else _built(want, environ, checksums, reporter)
        for item, want in zip(kinds, wanted, strict=True)
    ]
    return _each(planned, kinds, found)


def _remarks(wanted: WantedImage, item: Planned) -> list[str]:
    """Return what is to be said of an image; raise `ConfigError` where it must not be built and is not there."""
    _refuse_unbuilt(wanted, item)
    remarks = wanted.remarks if wanted.found is None else ()
    return [line for line in (wanted.note, *remarks, _reliance(item)) if line]


def foreseen(planned: Sequence[Planned], environ: Mapping[str, str], project: Path) -> tuple[list[Planned], list[str]]:
    """Return *planned* as `with_images` would, and a line for each image; for ``hpcml run --dry-run``.

    Nothing is built, and no image is read to the end. Where the registry cannot be asked, the digest of the base and
    with it the image's name are unknown: the line says so, and the path ends in ``KEY.sif``.
    """
    kinds = _kinds(planned)
    found = [_foreseen(item, environ, project) for item in kinds]
    return _each(planned, kinds, [image for image, _ in found]), [line for _, line in found]


def _foreseen(item: Planned, environ: Mapping[str, str], project: Path) -> tuple[Image, str]:
    container, relies = item.run.container, _reliance(item)
    if (own := _not_built(item, project)) is not None:
        how = f", which {runtime_for(item.run)} finds by that name" if container.kind is ContainerKind.build else ""
        return own, f"image: {own.path}{how}"
    (drafted,) = images.draft_all([item.run], environ, project)
    if isinstance(drafted, images.UnresolvedImage):
        if drafted.folder is None:
            raise ConfigError(drafted.why)
        path, more = str(drafted.folder / "KEY.sif"), f"; {relies}" if relies else ""
        unknown = "KEY follows from the digest of its base, which could not be asked for"
        return Image(path=path), f"image: {path} of {drafted.definition.base} ({unknown}): {drafted.why}{more}"
    _refuse_unbuilt(drafted, item)
    key = drafted.definition.key
    image = Image(path=str(drafted.cache.image(key)), key=key, sha256=drafted.found.sha256 if drafted.found else None)
    state = "is there" if drafted.found else "to be built"
    note = "".join(f"; {words}" for words in (drafted.note, relies) if words)
    return image, f"image: {image.path} of {drafted.definition.base} ({state}){note}"


def _kinds(planned: Sequence[Planned]) -> list[Planned]:
    """Return the first run of those that want an image for each distinct pair of container and cluster."""
    kinds: list[Planned] = []
    for item in planned:
        if item.wants_image and not any(_is_alike(item, other) for other in kinds):
            kinds.append(item)
    return kinds


def _is_alike(one: Planned, other: Planned) -> bool:
    return one.run.container == other.run.container and one.run.cluster == other.run.cluster


def _each(planned: Sequence[Planned], kinds: Sequence[Planned], found: Sequence[Image]) -> list[Planned]:
    """Return *planned* with the image that was *found* for their kind."""
    return [
        replace(item, image=next(its for kind, its in zip(kinds, found, strict=True) if _is_alike(item, kind)))
        if item.wants_image
        else item
        for item in planned
    ]


def _wanted(item: Planned, environ: Mapping[str, str], project: Path) -> WantedImage | None:
    """Return the image that hpcml builds for the run; None where it builds none."""
    if _not_built(item, project) is not None:
        return None
    return images.want(item.run.container, item.run.cluster, environ, project)


def _not_built(item: Planned, project: Path) -> Image | None:
    """Return the image that hpcml does not build: the user's own, unread yet, or one that the runtime has by name."""
    container = item.run.container
    if container.kind is ContainerKind.build:
        return named_image(item.run, project)
    assert container.path is not None
    return Image(path=container.path)


def _built(wanted: WantedImage, environ: Mapping[str, str], checksums: Checksums, reporter: ImageReporter) -> Image:
    """Return the image, built now if it is not there.

    Raises `ImageError` where its file is not what was built.
    """
    record = wanted.found
    if record is None:
        with reporter.building(wanted.definition.base) as on_progress:
            record = images.build(wanted, environ, on_progress=on_progress)
    else:
        wrong = wanted.cache.verify(record, lambda path: _sha256(path, checksums, reporter, wanted.definition.base))
        if wrong:
            raise ImageError(f"image {record.key[:12]} {wrong}: hpcml images rm {record.key[:12]}, then try again")
        check_lent(wanted.cache.record(record.key))
        check_lent(Path(record.path))
    return Image(
        path=record.path,
        sha256=record.sha256,
        size_bytes=record.size_bytes,
        mtime_ns=record.mtime_ns,
        key=record.key,
    )


def _reliance(item: Planned) -> str | None:
    """Return in one line that the image runs on the cluster by CUDA's forward compatibility alone, where it does."""
    container = item.run.container
    if container.image is None or container.tag is None or item.plan.device == "cpu":
        return None
    return releases.reliance(container.image, container.tag, item.run.cluster.host_driver)


def named_image(run: Run, project: Path) -> Image | None:
    """Return the image that the runtime of *run* takes by its name in a registry; None: it takes files.

    Raises `ConfigError` where *project* has a definition for it, which such a runtime cannot use, and where hpcml's own
    puts something upon the base.
    """
    runtime = runtime_named(runtime_for(run))
    if runtime.builds or runtime.reference is None:
        return None
    own = project / "containers" / f"{run.container.name}.def"
    if own.is_file():
        raise ConfigError(f"{own}: {runtime.name} takes {runtime.takes}, and reads no definition: rename it")
    if (adds := adds_to_base(run.container, images.definition_folders(project))) is not None:
        raise ConfigError(
            f"container={run.container.name}: {runtime.name} takes {runtime.takes}, and would have nothing of what "
            f"{adds.name} puts upon its base: choose another container, or another container.runtime"
        )
    return Image(path=runtime.reference(Reference.of(run.container)))


def _own_image(item: Planned, project: Path, checksums: Checksums, reporter: ImageReporter) -> Image:
    """Return the image of a run where hpcml does not build it, of a file with its SHA-256."""
    image = _not_built(item, project)
    assert image is not None
    if item.run.container.kind is not ContainerKind.sif:
        return image
    path = Path(image.path)
    try:
        status = path.stat()
        digest = _sha256(path, checksums, reporter, image.path)
    except OSError as error:
        raise ConfigError(f"container.path={path} cannot be read: {error.strerror}") from error
    return replace(image, sha256=digest, size_bytes=status.st_size, mtime_ns=status.st_mtime_ns)


def _sha256(path: Path, checksums: Checksums, reporter: ImageReporter, name: str) -> str:
    """Return the SHA-256 of an image, read only if it is not the one that was read before."""
    known = checksums.recall(path)
    if known is not None:
        return known
    with reporter.building(name) as on_progress:
        on_progress(_READING)
        return checksums.take(path)


def _refuse_unbuilt(wanted: WantedImage, item: Planned) -> None:
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
