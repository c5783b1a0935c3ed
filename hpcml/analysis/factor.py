"""The one setting that is allowed to differ: what its name means, which levels it has, what else belongs to it."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hpcml.errors import ComparisonError
from hpcml.precision import ALIASES, PrecisionName
from hpcml.records import RunRecord

GROUPS = ("model", "data", "precision", "strategy", "layout", "cluster", "container")  # hpcml's config groups
CELL_GROUPS = tuple(group for group in GROUPS if group != "precision")

SOFTWARE = ("framework", "torch", "tensorflow", "keras", "jax", "jaxlib", "cuda", "cudnn")  # facts
_GPUS = ("gpu_model", "n_gpus", "gpu_driver", "gpu_power_limit_w", "gpu_max_sm_mhz", "gpu_ecc")
_DEVICES = ("resources.nodes", "resources.gpus_per_node")
# What cannot stay alike when the factor changes: it goes with the factor, and is listed where it differs.
_COMPANIONS: Mapping[str, tuple[str, ...]] = {
    "cluster": ("data.path", "workload.cwd", *_GPUS, "cpu_model"),
    "container": (*SOFTWARE, "image_sha256", "python"),
    "model": SOFTWARE,  # it may bring another framework
    "precision": ("precision_effective",),
    "strategy": (*_DEVICES, "n_gpus"),
    "resources.nodes": ("n_gpus",),
    "resources.gpus_per_node": ("strategy.processes_per_node", "n_gpus"),
    "resources.cpus_per_task": ("threads",),
}
_SHORT = {"devices": ",".join(_DEVICES)}  # words for several keys
_UNITS_OF_STATISTICS = ("seed",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Factor:
    """What `--by` names."""

    name: str  # precision, training.batch_size
    key: str  # precision.name, training.batch_size
    group: str | None
    parts: tuple[Factor, ...] = ()  # of several settings that change together; `key` and `group` are the first's

    @property
    def groups(self) -> frozenset[str]:
        """The config groups that are the factor, or a part of it."""
        return frozenset(part.group for part in (self, *self.parts) if part.group is not None)

    def is_about(self, key: str) -> bool:
        """Whether the setting *key* is the factor itself, or a word of the config group that is."""
        if self.parts:
            return any(part.is_about(key) for part in self.parts)
        return key == self.key or (self.group is not None and key.startswith(f"{self.group}."))

    def owns(self, key: str) -> bool:
        """Whether the setting or fact *key* may change along with the factor."""
        if self.parts:
            return any(part.owns(key) for part in self.parts)
        section = "container" if self.key.startswith("container.") else self.name
        return self.is_about(key) or key in _COMPANIONS.get(section, ())

    def level(self, run: RunRecord) -> str:
        """Return the level that *run* belongs to."""
        if self.parts:
            return " x ".join(part.level(run) for part in self.parts)
        return show(run.precision if self.group == "precision" else run.params.get(self.key))

    def sort_key(self, level: str) -> tuple[Any, ...]:
        """Order levels as a person would: precisions as hpcml lists them, 2 before 10, words by letter."""
        if self.group == "precision" and not self.parts and level in PrecisionName.__members__:
            return (0, list(PrecisionName.__members__).index(level))
        return (1, natural(level), level)


def find_factor(by: str, runs: Sequence[RunRecord]) -> Factor:
    """Return what *by* means for these runs, or raise `ComparisonError` with what it may have meant."""
    words = _SHORT.get(by, by).split(",")
    if len(words) > 1:
        parts = tuple(_find_one(word.strip(), runs) for word in words)
        return Factor(name=by, key=parts[0].key, group=parts[0].group, parts=parts)
    return _find_one(by, runs)


def _find_one(by: str, runs: Sequence[RunRecord]) -> Factor:
    if by in _UNITS_OF_STATISTICS:
        raise ComparisonError(f"--by {by}: seeds are what everything else is averaged over; compare by another setting")
    group = by.removesuffix(".name")
    if group in GROUPS:
        return Factor(name=group, key=f"{group}.name", group=group)
    keys = {key for run in runs for key in run.params}
    if by in keys:
        return Factor(name=by, key=by, group=None)
    known = sorted(
        (keys | set(GROUPS) | set(_SHORT)) - {f"{group}.name" for group in GROUPS} - set(_UNITS_OF_STATISTICS)
    )
    near = suggest(by, known)
    raise ComparisonError(f"--by {by} is no setting of these runs; {near or f'one is {known[0]}'}")


def suggest(word: str, known: Iterable[str]) -> str:
    """Return "did you mean ...?" with the nearest of *known*, which may match in their last part only, or ""."""
    known = list(known)
    tails = [key for key in known if key.rpartition(".")[2] == word or word in key.split(".")]
    near = list(dict.fromkeys(tails + difflib.get_close_matches(word, known, n=3, cutoff=0.5)))[:3]
    return f"did you mean {' or '.join(near)}?" if near else ""


def find_levels(factor: Factor, runs: Sequence[RunRecord]) -> tuple[str, ...]:
    """Return the levels in natural order, or raise `ComparisonError` where there is nothing to compare."""
    levels = tuple(sorted({factor.level(run) for run in runs}, key=factor.sort_key))
    if len(levels) == 1:
        other = "" if factor.parts else f", e.g. hpcml run -m {factor.name}={levels[0]},OTHER"
        raise ComparisonError(
            f"all {len(runs)} runs have {factor.name}={levels[0]}: nothing to compare; select more runs or launch "
            f"others{other}"
        )
    return levels


def find_reference(factor: Factor, levels: Sequence[str], wanted: str | None) -> str:
    """Return the level that the others are measured against: as wanted, else fp32 among precisions, else the first."""
    if wanted is None:
        return "fp32" if "fp32" in levels else levels[0]
    if factor.group == "precision" and wanted in ALIASES:
        wanted = ALIASES[wanted].name
    if wanted not in levels:
        near = suggest(wanted, levels)
        raise ComparisonError(f"reference {wanted} is none of {', '.join(levels)}{f'; {near}' if near else ''}")
    return wanted


def show(value: object) -> str:
    """Return a setting or a fact as one would type it; values that mean one thing look alike (64 and 64.0)."""
    if isinstance(value, str):
        return value
    if value is None:
        return "not set"
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return json.dumps(value, sort_keys=True, default=str)


def natural(text: str) -> tuple[tuple[int, float, str], ...]:
    """Return a key that sorts the numbers in *text* by size; a text that is a number whole goes by its value."""
    if re.fullmatch(r"[-+]?(\d+\.?\d*|\.\d+)(e[-+]?\d{1,3})?", text, re.ASCII | re.IGNORECASE):
        return ((0, float(text), ""),)
    parts = re.split(r"(\d{1,18})", text)
    return tuple((0, float(part), "") if part.isdecimal() else (1, 0.0, part) for part in parts if part)
