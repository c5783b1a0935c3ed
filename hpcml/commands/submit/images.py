"""The container images of planned runs: found, built now, or built by a job, before anything is submitted."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from hpcml.codec import encode
from hpcml.commands import images
from hpcml.commands.images import WantedImage
from hpcml.commands.submit.backends import Backends
from hpcml.commands.submit.containers import runtime_for
from hpcml.commands.submit.launch import Launched, launch
from hpcml.commands.submit.plan import Planned, Software, build_plan
from hpcml.errors import ConfigError, ImageError
from hpcml.images import releases
from hpcml.images.build import BuildProgress, OnProgress
from hpcml.images.cache import Checksums
from hpcml.images.definition import adds_to_base
from hpcml.images.packing import Packing
from hpcml.images.registry import Reference
from hpcml.images.runtimes import runtime_named
from hpcml.model.choices import Numerics
from hpcml.model.container import Container, ContainerBuild, ContainerKind
from hpcml.model.image import ImageRecord
from hpcml.model.precision import PrecisionName
from hpcml.model.run import Data, Model, Precision, Profiling, Run, Schedule, Snapshot, Workload
from hpcml.model.strategy import Strategy, StrategyName
from hpcml.paths import Places
from hpcml.runs.atomic import write_text
from hpcml.runs.plan import Image
from hpcml.runs.private import check_lent, make_folder

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
    backends: Backends,
    reporter: ImageReporter,
    *,
    environ: Mapping[str, str],
    project: Path,
    command_line: Sequence[str],
) -> list[Planned]:
    """Return *planned*, in order, with the image of each run that wants one; runs with equal settings share it.

    All that is to be said of them is said before the first is built. An image that is not in the cache is built now, or
    by a job before the runs (``container.build=job``), which then depend on that job. One that is there is verified by
    its SHA-256. All images are claimed for this home before anything is submitted, so that `hpcml images rm` keeps
    them.

    Raises `ConfigError` for one that is not there and must not be built (``container.build=never``), `ImageError` for
    one that cannot be built, is damaged, or is removed by somebody at this moment, and for a job what `launch` raises.
    """
    kinds = _kinds(planned)
    wanted = [_wanted(item, environ, project) for item in kinds]
    for line in [line for item, want in zip(kinds, wanted, strict=True) if want for line in _remarks(want, item)]:
        reporter.warn(line)
    checksums = Checksums(places.checksums)
    jobs: dict[tuple[str, str], Launched] = {}
    found: list[tuple[Image, str | None]] = []
    for item, want in zip(kinds, wanted, strict=True):
        if want is None:
            found.append((_own_image(item, project, checksums, reporter), None))
        elif want.found is None and item.run.container.build is ContainerBuild.job:
            asked = (want.definition.key, item.run.cluster.name)
            if asked not in jobs:
                (jobs[asked],) = launch([_building(want, item, places)], places, backends, command_line)
                reporter.note(_build_note(want, jobs[asked]))
            image = replace(_unbuilt(want), built_by=jobs[asked].run_dir.uid)
            found.append((image, jobs[asked].ticket.job_id))
        else:
            record = _record(want, environ, checksums, reporter)
            image = Image(
                path=record.path,
                sha256=record.sha256,
                size_bytes=record.size_bytes,
                mtime_ns=record.mtime_ns,
                key=record.key,
            )
            found.append((image, None))
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
    return _each(planned, kinds, [(image, None) for image, _ in found]), [line for _, line in found]


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
    image = replace(_unbuilt(drafted), sha256=drafted.found.sha256 if drafted.found else None)
    by = " by a job before" if container.build is ContainerBuild.job else ""
    state = "is there" if drafted.found else f"to be built{by}"
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


def _each(
    planned: Sequence[Planned], kinds: Sequence[Planned], found: Sequence[tuple[Image, str | None]]
) -> list[Planned]:
    """Return *planned* with the image that was *found* for their kind, waiting for the job, if any, that builds it."""
    done: list[Planned] = []
    for item in planned:
        if item.wants_image:
            image, job_id = next(its for kind, its in zip(kinds, found, strict=True) if _is_alike(item, kind))
            item = replace(item, image=image)  # noqa: PLW2901
            if job_id is not None:
                item = waiting_for(item, job_id)  # noqa: PLW2901
        done.append(item)
    return done


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


def _record(
    wanted: WantedImage, environ: Mapping[str, str], checksums: Checksums, reporter: ImageReporter
) -> ImageRecord:
    """Return the record of the image, built now if it is not there.

    Raises `ImageError` where its file is not what was built.
    """
    record = wanted.found
    if record is None:
        with reporter.building(wanted.definition.base) as on_progress:
            return images.build(wanted, environ, on_progress=on_progress)
    wrong = wanted.cache.verify(record, lambda path: _sha256(path, checksums, reporter, wanted.definition.base))
    if wrong:
        raise ImageError(f"image {record.key[:12]} {wrong}: hpcml images rm {record.key[:12]}, then try again")
    check_lent(wanted.cache.record(record.key))
    check_lent(Path(record.path))
    return record


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


def _unbuilt(wanted: WantedImage) -> Image:
    """Return what the image will be; its SHA-256 is found beside it when the run starts."""
    return Image(path=str(wanted.cache.image(wanted.definition.key)), key=wanted.definition.key)


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


# Builds that run as jobs of their own; the runs that need the image wait for them.

_EXPERIMENT = "images"  # where such runs are listed


def _build_note(wanted: WantedImage, launched: Launched) -> str:
    return (
        f"{wanted.definition.base} is built by {launched.ticket.scheduler} job {launched.ticket.job_id}, run "
        f"{launched.run_dir.uid}; what needs it begins afterwards"
    )


def waiting_for(item: Planned, job_id: str) -> Planned:
    """Return *item* with a dependency, so that it begins only after the job *job_id* has succeeded.

    A dependency that the run has already is kept; ``afterok`` is the word of Slurm's ``--dependency`` and PBS's ``-W
    depend``.
    """
    wanted, built = item.run.resources, f"afterok:{job_id}"
    resources = replace(wanted, dependency=",".join(filter(None, [wanted.dependency, built])))
    jobs = item.plan.dependency
    plan = item.plan if jobs is None else replace(item.plan, dependency=",".join(filter(None, [jobs, built])))
    return replace(item, run=replace(item.run, resources=resources), plan=plan)


def _building(wanted: WantedImage, item: Planned, places: Places) -> Planned:
    run = build_run(wanted, item.run, places)
    software = Software(python=sys.executable, recipes=places.home, cwd=places.home)
    plan = build_plan(run, run.profile_device(), software, cpus_per_task=run.resources.cpus_per_task)
    return Planned(run=run, plan=replace(plan, needs_login=True), overrides=(), user_config=item.user_config)


def build_run(wanted: WantedImage, needs_it: Run, places: Places) -> Run:
    """Return a run that builds: with the resources of *needs_it*, but one node, and of its GPUs at most one."""
    site = needs_it.cluster
    resources = replace(
        needs_it.resources,
        nodes=1,
        gpus_per_node=1 if needs_it.resources.mig is not None else min(1, needs_it.resources.gpus_per_node or 0),
        array_parallelism=None,
        dependency=None,
    )
    return replace(
        needs_it,
        model=Model(name="image", recipe=None),
        data=Data(name="custom"),
        precision=Precision(name=PrecisionName.fp32, numerics=Numerics.auto),
        strategy=Strategy(name=StrategyName.single),
        container=Container(name="none"),
        cluster=replace(site, modules=list(dict.fromkeys([*site.modules, *filter(None, [site.container_module])]))),
        resources=resources,
        workload=Workload(command=shlex.join(_command(wanted, places)), cwd=str(places.home)),
        schedule=Schedule(snapshot=Snapshot.none),
        profile=Profiling(),
        seed=0,
        experiment=_EXPERIMENT,
        name=wanted.definition.key[:12],
        tags=[],
    )


def _command(wanted: WantedImage, places: Places) -> list[str]:
    """Write the order file of a build and return the command line that carries it out.

    The file holds the complete definition, with the digest of its base: by the time the job starts, the tag may mean
    another image.
    """
    folder = places.builds
    make_folder(folder, parents=True)
    order = folder / f"{wanted.definition.key}.json"
    words = {
        "definition": encode(wanted.definition),
        "images": str(wanted.cache.root),
        "packing": encode(
            Packing(compression=wanted.container.compression, processors=wanted.container.build_processors)
        ),
        "runtime": wanted.container.runtime or wanted.cluster.container_runtime,
        "module": wanted.cluster.container_module,
    }
    write_text(order, json.dumps(words, indent=2))
    return [sys.executable, "-P", "-m", "hpcml.images.job", str(order)]
