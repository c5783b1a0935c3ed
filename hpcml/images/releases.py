"""Which of NVIDIA's monthly container releases a GPU and its driver can run, from the table in releases.yaml.

Used to choose the tag of `container=ngc_pytorch` and to refuse one that cannot run on the cluster. Each row of the
table names its source, NVIDIA's release notes in most cases. Releases are compared as texts, ``YY.MM``, which sort by
time; drivers by their numbers.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from hpcml.errors import ConfigError

_TABLE = Path(__file__).with_name("releases.yaml")
_CUDA_FIRST = re.compile(r"^(\d+(?:\.\d+)*)-")  # 12.6.3-devel-ubuntu24.04
_CUDA_WITHIN = re.compile(r"-cuda(\d+(?:\.\d+)*)")  # 25.02-cuda12.8-py3.12
_MONTH = re.compile(r"(\d\d\.(?:0[1-9]|1[0-2]))(?:-|$)")
_FRAMEWORK_IMAGES = {"nvidia/pytorch": "torch", "nvidia/tensorflow": "tensorflow"}  # of which the table has versions
_GPUS = {(6, 0): "P100", (7, 0): "V100", (3, 5): "K20", (3, 7): "K80"}  # those that people ask about

Capability = tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """The image of one month."""

    image: str  # nvidia/pytorch
    release: str  # 24.12
    tag: str  # 24.12-py3
    cuda: str
    driver: str | None  # the oldest that it needs
    branches: tuple[str, ...] = ()  # older ones that do on a data centre's GPU
    compute_capability: Capability  # of the oldest GPU
    framework: str | None = None  # the version of PyTorch or TensorFlow in it, where it was read
    framework_at_most: str | None = None  # where it was not
    source: str
    uncertain: Mapping[str, str] = field(default_factory=dict)  # figure -> where it comes from instead

    def runs_on(self, compute_capability: Capability | None, driver: str | None, *, data_centre: bool = False) -> bool:
        """Tell whether the image runs with this GPU and driver; None is not known, and no obstacle.

        *data_centre* says that the GPU is known to be one of a data centre, where older drivers may do.
        """
        return self.knows_gpu(compute_capability) and (
            self.takes_driver(driver) or (data_centre and self.takes_branch(driver))
        )

    def knows_gpu(self, compute_capability: Capability | None) -> bool:
        """Tell whether the image has code for GPUs of this compute capability."""
        return compute_capability is None or compute_capability >= self.compute_capability

    def takes_driver(self, driver: str | None) -> bool:
        """Tell whether the driver is new enough by itself.

        *driver* is as nvidia-smi writes it (535.183.01); None is not known, and no obstacle. Raises `ConfigError` for a
        text without numbers.
        """
        return driver is None or self.driver is None or _numbers(driver) >= _numbers(self.driver)

    def takes_branch(self, driver: str | None) -> bool:
        """Tell whether the driver is of an older branch that CUDA's forward compatibility serves on data centre GPUs.

        That needs the image's own ``libcuda`` before the driver's (`hpcml.images.command.wrapped`).
        """
        return driver is not None and any(
            _numbers(driver)[:1] == _numbers(b)[:1] and _numbers(driver) >= _numbers(b) for b in self.branches
        )


def newest(
    image: str,
    compute_capability: Capability | None,
    driver: str | None,
    *,
    not_after: str | None = None,
    data_centre: bool = False,
) -> Release:
    """Return the newest release of *image* for the GPU and driver; raise `ConfigError` where there is none.

    *image* is ``nvidia/pytorch``, say. A compute capability or driver of None means not known, or no GPU; *not_after*
    is the newest release (``24.12``) that the site allows. On a GPU of a data centre (*data_centre*) an older driver
    may do, by CUDA's forward compatibility; elsewhere the newest that needs none is taken.
    """
    known = list(_releases(image))
    if not known:
        names = ", ".join(_table()["images"])
        raise ConfigError(f"container.tag is not set, and hpcml knows only the releases of {names}: set container.tag")
    fits = [release for release in known if release.runs_on(compute_capability, driver, data_centre=data_centre)]
    allowed = [release for release in fits if not_after is None or release.release <= not_after]
    if not allowed:
        wanted = ", ".join(_wishes(compute_capability, driver, not_after))
        raise ConfigError(
            f"no release of {image} that hpcml knows ({known[0].tag} to {known[-1].tag}) fits {wanted}: "
            "set container.tag, or choose another container"
        )
    return allowed[-1]


def check(
    image: str,
    tag: str,
    compute_capability: Capability | None,
    driver: str | None,
    *,
    not_after: str | None = None,
    data_centre: bool = False,
) -> str | None:
    """Return in one line why *tag* cannot run there; None where it can, or nothing is known about it.

    Nothing is known of images that are not in the table, and of tags that do not begin with a month (``24.12-py3``). A
    month that is newer than the table needs at least the GPU of the last one in it. *data_centre* is as in `newest`.
    """
    facts = _table()["images"].get(image)
    if facts is not None and "tags" in facts and not facts.get("months"):
        return _check_cuda(image, tag, compute_capability, driver)
    month = _month(tag)
    # A month that is not in the table needs no less than the one before; its driver is not known.
    before = [release for release in _releases(image, all_months=True) if month and release.release <= month]
    if month is None or not before:
        return None
    release = before[-1]
    if not release.knows_gpu(compute_capability):
        assert compute_capability is not None
        return (
            f"container.tag={tag} needs a GPU of compute capability {_written(release.compute_capability)}: "
            f"{_last_for(image, compute_capability)}"
        )
    if release.release == month and not release.runs_on(None, driver, data_centre=data_centre):
        older = f" (on a GPU of a data centre also {', '.join(release.branches)})" if release.branches else ""
        return (
            f"container.tag={tag} needs driver {release.driver}{older}, and cluster.host_driver={driver}: "
            f"{_instead(image, compute_capability, driver, data_centre=data_centre)}"
        )
    if not_after is not None and month > not_after:
        return f"container.tag={tag}: cluster.ngc_max_release={not_after} is the newest that the site runs"
    return None


def served_branches(image: str, tag: str) -> tuple[str, ...]:
    """Return the branches of older drivers that run *tag* on GPUs of data centres with the image's own ``libcuda``.

    Those of a month that is not in the table are not known, and none are returned.
    """
    release = _of_month(image, tag)
    return release.branches if release is not None else ()


def reliance(image: str, tag: str, driver: str | None) -> str | None:
    """Return in one line that *tag* runs with *driver* by CUDA's forward compatibility alone; None where it does not.

    The release is one that `newest` or `check` has let pass.
    """
    release = _of_month(image, tag)
    if release is None or release.takes_driver(driver):
        return None
    return (
        f"{image}:{tag} is for driver {release.driver} and newer; {driver} runs it by CUDA's forward compatibility, "
        "with the image's own libcuda (/usr/local/cuda/compat)"
    )


def _of_month(image: str, tag: str) -> Release | None:
    month = _month(tag)
    return next((each for each in _releases(image, all_months=True) if month and each.release == month), None)


def version_of(image: str, tag: str, framework: str) -> tuple[str | None, str | None]:
    """Return between which versions of *framework* (torch, tensorflow) that of *tag* lies, ends included.

    Both are the same where the version was read. Else it lies between those of the months before and after, since no
    month went back; None is not known.
    """
    month = _month(tag)
    if month is None or _FRAMEWORK_IMAGES.get(image) != framework:
        return None, None
    rows = list(_releases(image, all_months=True))
    before = [row.framework for row in rows if row.framework is not None and row.release <= month]
    bounds = [(row.release, row.framework or row.framework_at_most) for row in rows]
    after = [version for release, version in bounds if version is not None and release >= month]
    return (before[-1] if before else None), (after[0] if after else None)


def without(image: str, framework: str) -> str | None:
    """Return in one line why a recipe in *framework* cannot run in *image*; None where it can, or it is not known.

    *framework* is torch, tensorflow or jax; of others nothing is known.
    """
    known = {name: row["frameworks"] for name, row in _table()["images"].items()}
    having = [name for name, frameworks in known.items() if framework in frameworks]
    if image not in known or image in having or not having:
        return None
    options = ", ".join(f"ngc_{name.rpartition('/')[2]}" for name in having)
    return f"container.image={image} has no {framework}, which the recipe needs: choose container={options}"


def _check_cuda(image: str, tag: str, capability: Capability | None, driver: str | None) -> str | None:
    """Return why *tag* of an image outside of the monthly train cannot run, by the version of CUDA that it names."""
    named = next((row["cuda"] for row in _table()["images"][image]["tags"] if row["tag"] == tag), None)
    found = (_CUDA_FIRST if image == "nvidia/cuda" else _CUDA_WITHIN).search(tag)
    cuda = named or (found[1] if found else "")
    if cuda.partition(".")[0] not in _table()["cuda"]:
        return None
    release = _of_cuda(image, tag, cuda)
    if not release.knows_gpu(capability):
        need = f"a GPU of compute capability {_written(release.compute_capability)}"
    elif not release.takes_driver(driver):
        need = f"driver {release.driver}, and cluster.host_driver={driver}"
    else:
        return None
    return f"container.tag={tag} (CUDA {cuda}) needs {need}: {_instead(image, capability, driver)}"


def _of_cuda(image: str, tag: str, cuda: str) -> Release:
    row = _table()["cuda"][cuda.partition(".")[0]]
    floor = _table()["images"][image].get("compute_capability", "0.0")
    return Release(
        image=image,
        release="",
        tag=tag,
        cuda=cuda,
        driver=row["driver"],
        compute_capability=max(_capability(row["compute_capability"]), _capability(floor)),
        source="cuda",
    )


def _last_for(image: str, capability: Capability) -> str:
    name = f"{_GPUS[capability]} ({_written(capability)})" if capability in _GPUS else _written(capability)
    fits = [release for release in _releases(image, all_months=True) if release.knows_gpu(capability)]
    return f"{fits[-1].release} is the last for {name}" if fits else f"none since 18.12 runs on {name}"


def _instead(image: str, capability: Capability | None, driver: str | None, *, data_centre: bool = False) -> str:
    fits = [release for release in _releases(image) if release.runs_on(capability, driver, data_centre=data_centre)]
    return f"{fits[-1].tag} is the newest for it" if fits else "none that hpcml knows runs with it"


def _wishes(capability: Capability | None, driver: str | None, not_after: str | None) -> Iterator[str]:
    if capability is not None:
        yield f"compute capability {_written(capability)}"
    if driver is not None:
        yield f"driver {driver}"
    if not_after is not None:
        yield f"cluster.ngc_max_release={not_after}"


def _releases(image: str, *, all_months: bool = False) -> Iterator[Release]:
    """Yield the releases of *image*, oldest first: those that exist, or all months of the table."""
    facts = _table()["images"].get(image)
    if facts is None:
        return
    if "tags" in facts and not facts.get("months"):
        yield from (_of_cuda(image, row["tag"], row["cuda"]) for row in facts["tags"])
        return
    seen = {_month(tag): tag for tag in facts.get("tags", ())}
    for month in _table()["releases"]:
        release = month["release"]
        if seen and not all_months and release not in seen:
            continue
        if not seen and not all_months and not facts.get("first", "00.00") <= release <= facts["last"]:
            continue
        row = {**month, **_table()["exceptions"].get(image, {}).get(release, {})}
        yield Release(
            image=image,
            release=release,
            tag=seen.get(release) or facts.get("tag", "{release}-py3").format(release=release),
            cuda=row["cuda"],
            driver=row.get("driver"),
            branches=tuple(row.get("branches", ())),
            compute_capability=_capability(row["compute_capability"]),
            framework=row.get(name := image.rpartition("/")[2]),
            framework_at_most=row.get(f"{name}_at_most"),
            source=row["source"],
            uncertain=row.get("from", {}),
        )


@functools.cache
def _table() -> dict[str, Any]:
    table: dict[str, Any] = yaml.safe_load(_TABLE.read_text(encoding="utf-8"))
    return table


def _month(tag: str) -> str | None:
    match = _MONTH.match(tag)
    return match[1] if match else None


def _capability(written: str) -> Capability:
    major, minor = written.split(".")
    return int(major), int(minor)


def _written(capability: Capability) -> str:
    return f"{capability[0]}.{capability[1]}"


def _numbers(version: str) -> tuple[int, ...]:
    parts = [int(part) for part in re.findall(r"\d+", version)]
    if not parts:
        raise ConfigError(f"cluster.host_driver={version!r} is no version: write it as nvidia-smi does, 535.183.01")
    while len(parts) < 3:
        parts.append(0)
    return tuple(parts)
