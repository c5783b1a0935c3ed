"""The cache of container images: finding, building, listing, removing; for ``hpcml build`` and ``hpcml images``."""

from __future__ import annotations

import tarfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcml.commands.collect import collect, opened
from hpcml.commands.submit.containers import with_tag
from hpcml.config import profiles
from hpcml.errors import ConfigError, HpcmlError, ImageError
from hpcml.images import build as builder
from hpcml.images import cache as caches
from hpcml.images import definition as definitions
from hpcml.images import docker_build, inventory, registry
from hpcml.images.cache import Cache, Checksums
from hpcml.images.docker_build import DockerImage
from hpcml.images.inventory import Stocked
from hpcml.images.key import Definition
from hpcml.images.packing import Packing, processors_on
from hpcml.images.runtime import find_builder, require_whole
from hpcml.images.sources import path_of_base
from hpcml.model.cluster import Cluster, SchedulerName
from hpcml.model.container import Container, ContainerKind
from hpcml.model.image import ImageRecord, ImageUse
from hpcml.model.record_keys import begun_at
from hpcml.model.run import Run
from hpcml.paths import Places, resource_dir
from hpcml.runs.files import read_raw
from hpcml.runs.layout import find_run_dirs
from hpcml.store import query
from hpcml.walltime import parse_walltime_s


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedImage:
    """An image that a configuration asks for: its definition with the base's digest, and whether the cache has it."""

    container: Container
    cluster: Cluster
    definition: Definition
    cache: Cache
    found: ImageRecord | None  # None: it has to be built
    note: str | None = None  # what the user should know of how it was found
    remarks: tuple[str, ...] = ()  # on what is different from the Dockerfile that was given
    archive: Path | None = None  # what another program has built of a Dockerfile, and this one is to be made of


def want_all(runs: Sequence[Run], environ: Mapping[str, str], project: Path) -> list[WantedImage]:
    """Return the images that *runs* ask for, each once, in the order of the runs; raises as `want` does."""
    found: dict[str, WantedImage] = {}
    for container, cluster in _distinct(runs):
        wanted = want(container, cluster, environ, project)
        found.setdefault(wanted.definition.key, wanted)
    return list(found.values())


def want(container: Container, cluster: Cluster, environ: Mapping[str, str], project: Path) -> WantedImage:
    """Return the image that *container* asks for, after asking its registry which base the tag means now.

    Nothing is built but by podman, buildah or docker, where there is a Dockerfile and one of them. With a digest in the
    settings and the image in the cache, the registry is not asked. Where it does not answer, an image that was built
    from that tag before is taken, and `WantedImage.note` says so. *environ* says where the cache is and how to log in;
    *project* may have definitions of its own.

    Raises `ImageError` for a container that is not built (none, sif, sandbox) and where the base is unknown, and
    `ConfigError` for a tag that the cluster cannot run.
    """
    if container.kind is not ContainerKind.build:
        what = "is no image" if container.kind is ContainerKind.none else "is an image already"
        raise ImageError(f"container={container.name} {what}: choose one to build, as +container=ngc_pytorch")
    container = with_tag(container, cluster)
    cache = Cache(caches.locate(environ, site=cluster.scratch))
    if (program := _docker_program(container, environ)) is not None:
        image = docker_build.build_image(program, container, environ)
        definition = _define(container, project, None, docker_image=image, archives=cache.archives)
        found = cache.find(definition.key)
        archive = docker_build.save(image, cache.archives, environ) if found is None else None
        return WantedImage(
            container=container, cluster=cluster, definition=definition, cache=cache, found=found, archive=archive
        )

    remarks = definitions.remarks(container, definition_folders(project))  # a Dockerfile that cannot be read ends here

    def wanted(digest: str | None, size_bytes: int | None = None, note: str | None = None) -> WantedImage:
        definition = _define(container, project, digest, base_size_bytes=size_bytes)
        return WantedImage(
            container=container,
            cluster=cluster,
            definition=definition,
            cache=cache,
            found=cache.find(definition.key),
            note=note,
            remarks=remarks,
        )

    reference = definitions.reference_of(container)
    if reference is None:
        return wanted(None, _size_of_local_base(container))
    if container.digest is not None and (pinned := wanted(container.digest)).found is not None:
        return pinned
    try:
        base = registry.ask(reference, environ=environ)
    except ImageError as error:
        known = _kept(container, reference, cache, project)
        if known is None:
            raise
        note = f"the image of {known.built_at[:10]} is used, without a look at the registry: {error}"
        return wanted(known.base_digest, note=note)
    return wanted(base.digest, base.size_bytes)


def _docker_program(container: Container, environ: Mapping[str, str]) -> str | None:
    return docker_build.find_program(environ) if container.dockerfile is not None else None


def _define(container: Container, project: Path, digest: str | None, **more: Any) -> Definition:  # noqa: ANN401
    return definitions.define(container, digest, folders=definition_folders(project), project=project, **more)


def _size_of_local_base(container: Container) -> int:
    """Return the size of a base on this machine, of a folder 0; raise `ConfigError` where it is no whole image."""
    written = definitions.local_base_of(container)
    assert written is not None
    found = path_of_base(written)
    named_by = "container.path=" if container.definition is None else f"{container.definition}: From: "
    if not found.exists():
        raise ConfigError(f"{named_by}{found} does not exist")
    is_archive = container.definition is not None and found.is_file() and tarfile.is_tarfile(found)
    if found.is_file() and not is_archive:
        require_whole(found, named_by)
    return found.stat().st_size if found.is_file() else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class UnresolvedImage:
    """A definition whose base could not be asked for: its digest is unresolved, and so is the key of the image."""

    definition: Definition
    folder: Path | None  # where the image would be; None: no place for images is known
    why: str
    remarks: tuple[str, ...] = ()  # as of a `WantedImage`


def draft_all(runs: Sequence[Run], environ: Mapping[str, str], project: Path) -> list[WantedImage | UnresolvedImage]:
    """Return as `want_all`, with an `UnresolvedImage` where the registry does not answer or images have no place.

    Nothing is written.
    """
    found: list[WantedImage | UnresolvedImage] = []
    for container, cluster in _distinct(runs):
        folder: Path | None = None
        try:
            if container.kind is ContainerKind.build:
                folder = caches.locate(environ, site=cluster.scratch)
            if (program := _docker_program(container, environ)) is None:
                found.append(want(container, cluster, environ, project))
                continue
            why = f"{program} builds it first, and the key has the id of what it builds"
            definition = _define(container, project, None, docker_image=DockerImage(program=program))
            found.append(UnresolvedImage(definition=definition, folder=folder, why=why))
        except (ConfigError, ImageError) as error:
            known = container.kind is not ContainerKind.build or folder is not None
            if known and not isinstance(error, registry.UnreachableError):
                raise
            tagged = with_tag(container, cluster)
            found.append(
                UnresolvedImage(
                    definition=_define(tagged, project, container.digest),
                    folder=folder,
                    why=str(error),
                    remarks=definitions.remarks(tagged, definition_folders(project)),
                )
            )
    return found


def _distinct(runs: Sequence[Run]) -> Iterator[tuple[Container, Cluster]]:
    asked: list[Container] = []
    for run in runs:
        if run.container not in asked:
            asked.append(run.container)
            yield run.container, run.cluster


def build(
    wanted: WantedImage, environ: Mapping[str, str], *, on_progress: builder.OnProgress, wait: bool = True
) -> ImageRecord:
    """Return the image, built now if it is not in the cache.

    *on_progress* is called with each stage. Where another process builds the same image, this one waits for it, or
    raises `ImageError` without *wait*; it raises that too where the build fails.
    """
    if wanted.found is not None:
        return wanted.found
    runtime = find_builder(environ, wanted.container.runtime, module=wanted.cluster.container_module)
    record = builder.build(
        wanted.definition,
        wanted.cache,
        runtime=runtime,
        environ=environ,
        packing=packing_for(wanted.container, wanted.cluster, environ),
        on_progress=on_progress,
        wait=wait,
    )
    if wanted.archive is not None:
        wanted.archive.unlink(missing_ok=True)  # it is in the image
    return record


def packing_for(container: Container, cluster: Cluster, environ: Mapping[str, str]) -> Packing:
    """Return how an image is packed on this machine: on a login node, which others use too, with few processors."""
    is_login_node = cluster.scheduler is not SchedulerName.local
    count = processors_on(is_login_node=is_login_node, chosen=container.build_processors, environ=environ)
    return Packing(compression=container.compression, processors=count)


def definition_folders(project: Path) -> list[Path]:
    """Return where templates of definitions are looked for: the project's own folder first."""
    return [project / "containers", resource_dir("containers")]


def cache_at(environ: Mapping[str, str], project: Path, *, folder: str | None, cluster: str | None) -> Cache:
    """Return the cache in *folder*, or where the profile *cluster* has it, or where HPCML_IMAGES says.

    Raises `ConfigError` for a profile that does not exist.
    """
    site = profiles.get_profile(cluster, project).cluster.scratch if cluster else None
    return Cache(caches.locate(environ, chosen=folder, site=site))


def stock(cache: Cache, places: Places) -> list[Stocked]:
    """Return all images, and the runs of this home that use them."""
    return inventory.stock(cache, list(_uses(places)))


def _uses(places: Places) -> Iterator[ImageUse]:
    """Yield the runs of this home that use images, as they say in their run.json."""
    with opened(places) as store:
        collect(store, places)
        still_open = {record.uid for record in query.open_runs(store)}
        records = {record.uid: record for record in query.find_runs(store)}
    for run_dir in find_run_dirs(places.runs):
        try:
            plan = read_raw(run_dir.manifest).get("plan")
        except HpcmlError:
            continue  # torn: `hpcml sync` says so
        image = plan.get("image") if isinstance(plan, dict) else None
        if not isinstance(image, dict) or not isinstance(image.get("key"), str):
            continue
        record = records.get(run_dir.uid)  # None: of a store that could not take it, better kept than gone
        at = None if record is None else record.t_end or begun_at(record.submitted_at, record.t_start)
        has_ended = record is not None and record.uid not in still_open
        yield ImageUse(uid=run_dir.uid, key=image["key"], has_ended=has_ended, at=at)


def choose(stocked: Sequence[Stocked], references: Sequence[str]) -> list[Stocked]:
    """Return the images whose keys begin with *references*, each once.

    Raises `ImageError` for a reference that begins the key of no image, or of several.
    """
    chosen = {}
    for reference in references:
        found = [item for item in stocked if item.record.key.startswith(reference)]
        if len(found) != 1:
            what = "more than one image has" if found else "no image has"
            raise ImageError(f"{what} a key that begins with {reference!r}: hpcml images lists them")
        chosen[found[0].record.key] = found[0]
    return list(chosen.values())


def may_go(stocked: Sequence[Stocked], older_than: str, *, now: float) -> list[Stocked]:
    """Return the images that no run needs and that were not used for *older_than* (30d, 12h, 0); *now* in unix seconds.

    Raises `ConfigError` for a text that is no age.
    """
    try:
        age_s = 0 if older_than in ("0", "0d", "0s") else parse_walltime_s(older_than, field="--older-than")
    except ConfigError:
        raise ConfigError(f"--older-than={older_than} is no age: write 30d, 12h or 0") from None
    return inventory.may_go(stocked, now=now, older_than_s=age_s)


def verify(cache: Cache, references: Sequence[str], places: Places) -> Iterator[tuple[ImageRecord, str | None]]:
    """Read the named images, or all, to the last byte; yield each with what is wrong with it, or None."""
    records = [cache.get(reference) for reference in references] if references else cache.records()
    checksums = Checksums(places.checksums)
    for record in records:
        yield record, cache.verify(record, checksums.take)


def _kept(container: Container, reference: registry.Reference, cache: Cache, project: Path) -> ImageRecord | None:
    """Return the newest image here that was built as *container* says, from whatever its tag meant then."""
    for record in reversed(cache.records()):
        if record.base == reference.for_people:
            again = _define(container, project, record.base_digest, architecture=record.architecture)
            if again.key == record.key:
                return cache.find(record.key)
    return None
