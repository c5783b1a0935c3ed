"""MIG: the slices that a GPU can be divided into (mig.toml), and what a run on one of them may ask for."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from hpcml.errors import ConfigError, require

_NAME = re.compile(r"(\d+)g\.(\d+)gb(\+me)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class MigProfile:
    """One kind of slice; `memory_gb` is NVIDIA's rounded number, a little more than the program can have."""

    name: str  # 1g.5gb
    slices: int  # of `of` compute slices
    of: int
    memory_gb: int
    most: int  # of one GPU, where all of its slices are of this kind

    def __str__(self) -> str:
        return self.name


@cache
def mig_profiles(gpu: str) -> Sequence[MigProfile]:
    """Return the profiles of the GPU with the name *gpu*, the smallest first; none where it has no MIG or is not known.

    >>> [str(profile) for profile in mig_profiles("NVIDIA A30")][0]
    '1g.6gb'
    """
    for match, profiles in _layouts():
        if match.search(gpu):
            return profiles
    return ()


def gpus_of_run(params: Mapping[str, Any]) -> Any:  # noqa: ANN401 - as the record has it
    """Return the GPUs of a node that the run of these flat settings computes on itself; None: it does not say.

    Of the MIG slices of a job a run has one; runs of its pack have the others.
    """
    return 1 if params.get("resources.mig") else params.get("resources.gpus_per_node")


def check_mig(wanted: str, *, cluster: str, gpu: str | None, offered: Sequence[str], is_asked_for: bool) -> None:
    """Raise `ConfigError` in one line where *wanted* is no profile of a GPU called *gpu*.

    *offered* are the profiles that the site says it has; none: all that the GPU can have. *is_asked_for* tells whether
    the profile of the *cluster* says how its scheduler is asked for slices.
    """
    require(
        is_asked_for,
        f"resources.mig={wanted}: cluster={cluster} offers no MIG slices, as far as its profile knows: if the site "
        "does, set cluster.mig_type to its scheduler's name of one, such as 'a100_{mig}'",
    )
    known = mig_profiles(gpu or "")
    if not known and _NAME.fullmatch(wanted) and wanted in offered:
        return
    valid = [profile for profile in known if not offered or profile.name in offered]
    if all(profile.name != wanted for profile in valid):
        names = ", ".join(map(str, valid)) or "none that is known"
        raise ConfigError(f"resources.mig={wanted} is no MIG profile of cluster={cluster} ({gpu}): choose of {names}")


def check_is_told(wanted: str, *, cluster: str, mig_type: str, gpu_request: str, directives: Sequence[str]) -> None:
    """Raise `ConfigError` where the scheduler of *cluster* would not hear of the slice *wanted*.

    With *mig_type* as {gpu_type}, *gpu_request* and the *directives* are what is asked for. A `mig_type` without {mig}
    is of a site that has slices of one kind, and says where by other means.
    """
    odd = {"{", "}"} & set(mig_type.replace("{mig}", ""))
    require(not odd, f"cluster.mig_type={mig_type!r}: only {{mig}} is filled in")
    require(
        "{mig}" not in mig_type or any("{gpu_type}" in template for template in (gpu_request, *directives)),
        f"resources.mig={wanted}: cluster={cluster} would be asked for whole GPUs, since cluster.gpu_request="
        f"{gpu_request!r} does not say {{gpu_type}}, the slice: write '--gpus-per-node={{gpu_type}}:{{gpus}}', say",
    )


@cache
def _layouts() -> Sequence[tuple[re.Pattern[str], Sequence[MigProfile]]]:
    raw = tomllib.loads((Path(__file__).parent / "mig.toml").read_text(encoding="utf-8"))
    return [
        (
            re.compile(layout["match"]),
            tuple(_profile(name, most, of=layout["slices"]) for name, most in layout["profiles"].items()),
        )
        for layout in raw["layout"]
    ]


def _profile(name: str, most: int, *, of: int) -> MigProfile:
    found = _NAME.fullmatch(name)
    assert found is not None, name
    return MigProfile(name=name, slices=int(found[1]), of=of, memory_gb=int(found[2]), most=most)
