"""Cluster profiles (``conf/cluster/*.yaml``): found as Hydra finds them, read, and written for a new site.

`hpcml cluster` lists, shows and creates them.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, replace
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from hpcml.codec import decode, encode
from hpcml.config.choices import option_files, sections_in
from hpcml.config.compose import compose_from_cli
from hpcml.errors import ConfigError, require
from hpcml.model.cluster import Cluster, Resources
from hpcml.model.run import Run
from hpcml.paths import resource_dir
from hpcml.runs.atomic import create_text
from hpcml.spelling import did_you_mean

log = logging.getLogger(__name__)

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")  # a file, and a word of Hydra's override grammar
_GLOBAL = "# @package _global_"

# What no scheduler tells, and what the person who makes a profile is asked for.
_TO_FILL_IN = {
    "site": "who runs it",
    "gpu_vendor": "nvidia or amd",
    "gpu_model": "A100-SXM4-40GB; the comparison of precisions depends on it",
    "gpu_compute_capability": '"8.0", as NVIDIA writes it: without it no precision is refused before the job starts',
    "account_required": "true if every job must name a project",
    "account_pattern": '"^[A-Z]+-[0-9]+$": a mismatch is warned about',
    "modules": "[StdEnv/2023]: loaded before every run",
    "scratch": "$SCRATCH or a path: where big files go",
    "container_runtime": "apptainer or singularity",
    "container_module": "what to load for it, if anything",
    "compute_internet": "whether compute nodes reach the internet",
    "co2_g_per_kwh": "450: of the site's electricity; give it with co2_source, or leave it out, and no CO2 is told",
    "co2_source": '"Czechia 2023, Ember": who says so, and for which year',
}
_OF_GPUS = ("gpu_vendor", "gpu_model", "gpu_compute_capability", "co2_g_per_kwh", "co2_source")


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """One file of conf/cluster/: the cluster, and the default resources of its jobs.

    `resources` are the values that a job has unless the user says otherwise.
    """

    cluster: Cluster
    resources: Resources
    path: Path


def list_profiles(project: Path, config_dirs: Sequence[Path] = ()) -> list[Profile]:
    """Return all profiles that can be read, sorted by name, and warn of the others.

    Shipped ones, those of *config_dirs* (``--config-dir``) and those of *project*'s ./conf. Of files of the same name
    the first in this order counts, as in Hydra.
    """
    found = []
    for name in sorted(_files(project, config_dirs)):
        try:
            found.append(get_profile(name, project, config_dirs))
        except ConfigError as error:
            log.warning("left out: %s", error)
    return found


def get_profile(name: str, project: Path, config_dirs: Sequence[Path] = ()) -> Profile:
    """Return the profile that ``+cluster=NAME`` would compose; raise `ConfigError` without a valid one.

    *name* is the word to type, and becomes the name of the cluster. Hydra composes a profile with a defaults list. The
    message of an error names the file, or the names that there are.
    """
    files = _files(project, config_dirs)
    if name not in files:
        guess = did_you_mean(name, files)
        names = f"choose {', '.join(sorted(files))}, or make it: hpcml cluster new NAME"
        raise ConfigError(f"cluster={name} is not known: {guess or names}")
    path = files[name]
    settings = sections_in(path, "cluster")
    try:
        if settings is None:
            run = _composed(name, project, config_dirs)
            return Profile(cluster=replace(run.cluster, name=name), resources=run.resources, path=path)
        return Profile(
            # By the word to type: a profile built on another keeps the other's name inside.
            cluster=replace(decode(Cluster, settings.get("cluster", {}), where="cluster"), name=name),
            resources=decode(Resources, settings.get("resources", {}), where="resources"),
            path=path,
        )
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error


def write_profile(cluster: Cluster, resources: Resources, folder: Path, *, head: Sequence[str]) -> Path:
    """Write a new profile into *folder* and return its path; *head* is the comment in its first lines.

    Raises `ConfigError` where the file exists or cannot be written: nothing is overwritten. *folder* is made where it
    is absent.
    """
    path = folder / f"{check_name(cluster.name)}.yaml"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        create_text(path, profile_text(cluster, resources, head=head), permissions=0o666)
    except FileExistsError as error:
        raise ConfigError(f"{path} exists already: choose another name or delete it") from error
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror}") from error
    return path


def check_name(name: str) -> str:
    """Return *name* if a new profile may have it, else raise `ConfigError`.

    Names of shipped profiles are refused, since Hydra would find the shipped one.

    >>> check_name("mycluster")
    'mycluster'
    """
    is_name = _NAME.fullmatch(name) is not None
    require(is_name, f"{name!r} is no name for a cluster: use letters, digits, _ and - (64 at most)")
    shipped = resource_dir("conf") / "cluster" / f"{name}.yaml"
    require(not shipped.exists(), f"cluster={name} ships with hpcml and would hide yours: choose another name")
    return name


def to_fill_in(cluster: Cluster) -> list[str]:
    """Return the fields of *cluster* that no scheduler reports and that still have their default.

    In the order in which `profile_text` writes them. Fields about GPUs are asked for only where the cluster has some.
    """
    default = {field.name: _default(field) for field in fields(Cluster)}
    return [
        key
        for key in _TO_FILL_IN
        if getattr(cluster, key) == default[key] and (cluster.gpus_per_node or key not in _OF_GPUS)
    ]


def profile_text(cluster: Cluster, resources: Resources, *, head: Sequence[str]) -> str:
    """Return the YAML of a profile; unknown fields stand in it as comments, to be filled in.

    *head* are lines of a comment, without their ``#``. Only what differs from the defaults is written. The text has the
    header that puts its keys at the top (``# @package _global_``, hydra.cc/docs/advanced/overriding_packages).
    """
    lines = [_GLOBAL, *(f"# {line}" for line in head), *_section("cluster", cluster)]
    lines += [f"  # {key}: # {_TO_FILL_IN[key]}" for key in to_fill_in(cluster)]
    return "\n".join([*lines, *_section("resources", resources), ""])


def _section(name: str, node: Cluster | Resources) -> list[str]:
    """Return the lines of what differs from the schema's defaults, as OmegaConf writes and reads them."""
    defaults = {field.name: encode(_default(field)) for field in fields(node)}
    plain = json.dumps({name: _changed(encode(node), defaults)}).replace("${", r"\\${")  # a reference, else
    return OmegaConf.to_yaml(OmegaConf.create(json.loads(plain))).splitlines()


def _changed(values: dict[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Return what of *values* differs from *defaults*, in the groups within them too."""
    return {
        name: _changed(value, default or {}) if isinstance(value, dict) else value
        for name, value in values.items()
        if value != (default := defaults.get(name))
    }


def _default(field: Any) -> object:  # noqa: ANN401 - dataclasses.Field is generic in its value
    return field.default_factory() if field.default_factory is not MISSING else field.default


def _files(project: Path, config_dirs: Sequence[Path]) -> dict[str, Path]:
    for folder in config_dirs:
        require(folder.is_dir(), f"--config-dir {folder} is no directory")
    return option_files("cluster", project, config_dirs)


def _composed(name: str, project: Path, config_dirs: Sequence[Path]) -> Run:
    """Return the run that ``+cluster=NAME`` alone is."""
    folders = [word for folder in config_dirs for word in ("--config-dir", str(folder))]
    (point,) = compose_from_cli([*folders, f"cluster={name}"], project=project)
    return point.run
