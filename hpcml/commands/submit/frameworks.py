"""Whether the image of a run has the framework that its recipe needs, and in a version that is new enough.

Before the image is there, NVIDIA's own tables say what is in a release (hpcml/images/releases.yaml); once it is there,
its record says it to the digit. What neither says is said to be unknown.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from packaging.version import InvalidVersion, Version

from hpcml.commands.submit.planned import Planned
from hpcml.errors import ConfigError
from hpcml.images import releases
from hpcml.model.container import ContainerKind
from hpcml.model.recipe import oldest_version, read_recipe
from hpcml.model.run import Run


def check_framework(run: Run, project: Path) -> None:
    """Raise `ConfigError` where the image is known to lack the framework of the run's recipe.

    What the user adds to an image may bring it: packages of its name, files of requirements, lines of shell, or a
    definition in *project*.
    """
    container, framework = run.container, run.model.framework
    if run.workload.command is not None or container.kind is not ContainerKind.build or framework is None:
        return
    if _may_bring(run, project):
        return
    if wrong := releases.without(container.image or "", framework):
        raise ConfigError(wrong)


def check_version(run: Run, script: Path, project: Path) -> str | None:
    """Raise `ConfigError` where the framework in a release of NVIDIA's is known to be older than the recipe asks.

    *script* is the recipe's program. Returns in one line what is not known of it, None where all is known, or nothing
    is asked. What the user adds may bring another version, as in `check_framework`: then nothing is said.
    """
    container, framework = run.container, str(run.model.framework)
    if run.workload.command is not None or container.kind is not ContainerKind.build:
        return None
    asked = oldest_version(run, read_recipe(script.parent))
    if asked is None or _may_bring(run, project) or container.image is None or container.tag is None:
        return None
    oldest, why = asked
    lowest, highest = releases.version_of(container.image, container.tag, framework)
    image = f"{container.image}:{container.tag}"
    if highest is not None and _is_older(highest, oldest):
        has = f"{framework} {highest}" if lowest == highest else f"{framework} {highest} or older"
        raise ConfigError(f"{why} needs {framework} {oldest} or newer, and {image} has {has}: {_newer(framework)}")
    if lowest is None or _is_older(lowest, oldest):
        known = f", which is {lowest} or newer" if lowest is not None else ""
        return f"{why} needs {framework} {oldest} or newer; which one is in {image} is not known here{known}"
    if lowest == highest and _is_before_release(lowest, oldest):
        return (
            f"{why} needs {framework} {oldest} or newer, and {image} has {lowest}, of before that release: whether it "
            "has all that is needed is not known"
        )
    return None


def check_packages(planned: Iterable[Planned], packages: Mapping[str, Mapping[str, str]]) -> None:
    """Raise `ConfigError` for the first run whose built image has an older framework than its recipe asks, or none.

    *packages* has what is installed in each image, as its record says it, by the key of the image.
    """
    for item in planned:
        found = packages.get(item.image.key or "") if item.image is not None else None
        framework = str(item.run.model.framework)
        if item.run.workload.command is not None or found is None or framework not in ("torch", "tensorflow", "jax"):
            continue
        has = found.get(f"python:{framework}")
        if has is None:
            continue  # it may be called otherwise, as tensorflow-cpu is
        asked = oldest_version(item.run, read_recipe(Path(item.plan.argv[1]).parent))
        if asked is not None and _is_older(has, asked[0]):
            assert item.image is not None
            raise ConfigError(
                f"{asked[1]} needs {framework} {asked[0]} or newer, and the image {str(item.image.key)[:12]} has "
                f"{framework} {has}: {_newer(framework)}"
            )


def _may_bring(run: Run, project: Path) -> bool:
    """Tell whether what the user adds to the image may bring the framework, or another version of it."""
    container, framework = run.container, str(run.model.framework)
    names = any(word.startswith((framework, "-")) for word in container.pip)
    return names or bool(container.post) or (project / "containers" / f"{container.name}.def").is_file()


def _newer(framework: str) -> str:
    return f"choose a newer container.tag, or container.pip=[{framework}] with a version"


def _is_older(version: str, oldest: str) -> bool:
    """Tell whether *version* is of a release before *oldest*; one of shortly before *oldest* itself is not."""
    try:
        return Version(Version(version).base_version) < Version(oldest)
    except InvalidVersion:
        return False


def _is_before_release(version: str, oldest: str) -> bool:
    found = Version(version)
    return found.is_prerelease and Version(found.base_version) == Version(oldest)
