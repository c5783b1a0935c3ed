"""The container images of planned runs: found, built now, or built by a job, before anything is submitted."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path

from hpcml.codec import encode
from hpcml.commands import images
from hpcml.commands.images import WantedImage
from hpcml.commands.submit.backends import Backends
from hpcml.commands.submit.containers import runtime_for
from hpcml.commands.submit.frameworks import check_packages
from hpcml.commands.submit.launch import Launched, launch
from hpcml.commands.submit.planned import Planned
from hpcml.commands.submit.workload import Software, build_plan
from hpcml.errors import ConfigError, ImageError
from hpcml.images import releases
from hpcml.images.build import BuildProgress, OnProgress
from hpcml.images.cache import Checksums
from hpcml.images.definition import adds_to_base
from hpcml.images.packing import Packing
from hpcml.images.registry import Reference, UnreachableError
from hpcml.images.runtimes import runtime_named
from hpcml.model.choices import Numerics
from hpcml.model.cluster import Cluster
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Voice:
    """The functions that tell the user what takes time, or looks wrong.

    `display` is a context for the build or the reading of one image, called with the name of its base.
    """

    display: Callable[[str], AbstractContextManager[OnProgress]]  # of the build of a base
    warn: Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Provided:
    """An image, and the job that must succeed before it can be used (None: it can be used now)."""

    image: Image
    job_id: str | None = None


def with_images(
    planned: Sequence[Planned], environ: Mapping[str, str], project: Path, voice: Voice, jobs: BuildJobs
) -> list[Planned]:
    """Return *planned*, in order, with the image of each run that wants one.

    An image that is not in the cache is built now, or by a job before the runs (``container.build=job``), which then
    depend on that job. One that is there is verified by its SHA-256. All images are claimed for this home before
    anything is submitted, so that `hpcml images rm` keeps them.

    Raises `ConfigError` for one that is not there and must not be built (``container.build=never``) and for one with an
    older framework than a recipe needs, and `ImageError`
    for one that cannot be built, is damaged, or is removed by somebody at this moment.
    """
    checksums = Checksums(jobs.places.checksums)
    packages: dict[str, Mapping[str, str]] = {}

    def provide(item: Planned) -> Provided:
        if (there := _there(item.run, project, checksums, voice)) is not None:
            return Provided(image=there)
        wanted = images.want(item.run.container, item.run.cluster, environ, project)
        _tell(wanted, voice)
        _refuse_unbuilt(wanted, item)
        if wanted.found is None and item.run.container.build is ContainerBuild.job:
            builds = jobs.job_for(wanted, item)
            image = replace(_unbuilt(wanted), built_by=builds.run_dir.uid)
            return Provided(image=image, job_id=builds.ticket.job_id)
        if wanted.found is not None:
            record = _verified(wanted.found, wanted, checksums, voice)
        else:
            with voice.display(wanted.definition.base) as on_progress:
                record = images.build(wanted, environ, on_progress=on_progress)
        packages[record.key] = record.packages or {}
        if relies := _reliance(item):
            voice.warn(relies)
        return Provided(
            image=Image(
                path=record.path,
                sha256=record.sha256,
                size_bytes=record.size_bytes,
                mtime_ns=record.mtime_ns,
                key=record.key,
            )
        )

    done = _each(planned, provide)
    check_packages(done, packages)
    return done


def _tell(wanted: WantedImage, voice: Voice) -> None:
    for line in (*filter(None, [wanted.note]), *(wanted.remarks if wanted.found is None else ())):
        voice.warn(line)


def _verified(record: ImageRecord, wanted: WantedImage, checksums: Checksums, voice: Voice) -> ImageRecord:
    """Return *record*, of an image in the cache; raise `ImageError` where its file is not what was built."""
    wrong = wanted.cache.verify(record, lambda path: _sha256(path, checksums, voice, wanted.definition.base))
    if wrong:
        raise ImageError(f"image {record.key[:12]} {wrong}: hpcml images rm {record.key[:12]}, then try again")
    check_lent(wanted.cache.record(record.key))
    check_lent(Path(record.path))
    return record


def foreseen(planned: Sequence[Planned], environ: Mapping[str, str], project: Path) -> tuple[list[Planned], list[str]]:
    """Return *planned* as `with_images` would, and a line for each image; for ``hpcml run --dry-run``.

    Nothing is built, and no image is read to the end. Where the registry cannot be asked, the digest of the base and
    with it the image's name are unknown: the line says so, and the path ends in ``KEY.sif``.
    """
    lines: list[str] = []

    def provide(item: Planned) -> Provided:
        if item.run.container.kind is not ContainerKind.build:
            assert item.run.container.path is not None
            lines.append(f"image: {item.run.container.path}")
            return Provided(image=Image(path=item.run.container.path))
        if (named := named_image(item.run, project)) is not None:
            lines.append(f"image: {named.path}, which {runtime_for(item.run)} finds by that name")
            return Provided(image=named)
        try:
            wanted = images.want(item.run.container, item.run.cluster, environ, project)
        except UnreachableError as error:
            place = images.place_of(item.run.container, item.run.cluster, environ)
            path = str(place.folder / "KEY.sif")
            relies = f"; {words}" if (words := _reliance(item)) else ""
            lines.append(f"image: {path} of {place.base} ({_unknown(place)}): {error}{relies}")
            return Provided(image=Image(path=path))
        _refuse_unbuilt(wanted, item)
        image = _unbuilt(wanted)
        by = " by a job before" if item.run.container.build is ContainerBuild.job else ""
        state = "is there" if wanted.found else f"to be built{by}"
        note = "".join(f"; {words}" for words in (wanted.note, _reliance(item)) if words)
        lines.append(f"image: {image.path} of {wanted.definition.base} ({state}){note}")
        return Provided(image=replace(image, sha256=wanted.found.sha256 if wanted.found else None))

    return _each(planned, provide), lines


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


def _unknown(place: images.Place) -> str:
    """Return what can be said of an image whose base is not known to the digest."""
    count = len(place.of_this_tag)
    others = f"{count} of that tag there, none built as it is asked for" if count else "none of that tag there"
    return f"{others}; KEY follows from the digest of its base, which could not be asked for"


def _each(planned: Sequence[Planned], provide: Callable[[Planned], Provided]) -> list[Planned]:
    """Return *planned*, each run with the image that *provide* returns for it.

    *provide* is called once for each distinct pair of container and cluster. Runs that want no image stay as they are.
    """
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


def _unbuilt(wanted: WantedImage) -> Image:
    """Return what the image will be; its SHA-256 is found beside it when the run starts."""
    return Image(path=str(wanted.cache.image(wanted.definition.key)), key=wanted.definition.key)


def _there(run: Run, project: Path, checksums: Checksums, voice: Voice) -> Image | None:
    """Return the image of *run* where hpcml does not build it: the user's own, or one that the runtime has by name."""
    container = run.container
    if container.kind is ContainerKind.build:
        return named_image(run, project)
    assert container.path is not None
    if container.kind is ContainerKind.sandbox:
        return Image(path=container.path)
    path = Path(container.path)
    try:
        status = path.stat()
        digest = _sha256(path, checksums, voice, container.path)
        return Image(path=str(path), sha256=digest, size_bytes=status.st_size, mtime_ns=status.st_mtime_ns)
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


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildJobs:
    """Submits jobs that build images: one for each image and cluster, whichever runs ask for it.

    `command_line` is recorded in the runs that build; `tell` gets a line for the user for each job.
    """

    places: Places
    backends: Backends
    command_line: Sequence[str]
    tell: Callable[[str], None]
    _jobs: dict[tuple[str, str], Launched] = field(default_factory=dict)

    def job_for(self, wanted: WantedImage, item: Planned) -> Launched:
        """Return the run that builds the image which *item* needs; it is submitted in the first call for that image.

        Raises what `launch` raises: `ConfigError` or `SubmissionError`.
        """
        asked = (wanted.definition.key, item.run.cluster.name)
        if asked not in self._jobs:
            (launched,) = launch([_planned(wanted, item, self.places)], self.places, self.backends, self.command_line)
            self._jobs[asked] = launched
            self.tell(
                f"{wanted.definition.base} is built by {launched.ticket.scheduler} job {launched.ticket.job_id}, "
                f"run {launched.run_dir.uid}; what needs it begins afterwards"
            )
        return self._jobs[asked]


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


def _planned(wanted: WantedImage, item: Planned, places: Places) -> Planned:
    run = build_run(wanted, item.run, places)
    software = Software(python=sys.executable, recipes=places.home, cwd=places.home)
    plan = build_plan(run, run.profile_device(), software, cpus_per_task=run.resources.cpus_per_task)
    return Planned(run=run, plan=replace(plan, needs_login=True), overrides=(), user_config=item.user_config)


def build_run(wanted: WantedImage, needs_it: Run, places: Places) -> Run:
    """Return a run that builds: with the resources of *needs_it*, but one node, and of its GPUs at most one."""
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
        cluster=_with_module(needs_it.cluster),
        resources=resources,
        workload=Workload(command=shlex.join(_command(wanted, places)), cwd=str(places.home)),
        schedule=Schedule(snapshot=Snapshot.none),
        profile=Profiling(),
        seed=0,
        experiment=_EXPERIMENT,
        name=wanted.definition.key[:12],
        tags=[],
    )


def _with_module(cluster: Cluster) -> Cluster:
    modules = [*cluster.modules, *filter(None, [cluster.container_module])]
    return replace(cluster, modules=list(dict.fromkeys(modules)))


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
