"""Schedulers, samplers and exporters that other packages add, found by their entry points (importlib.metadata).

A package names them in its ``pyproject.toml``, under one of `GROUPS`; installing it is all. **Nothing of a package is
loaded until something names what it adds**: a cluster's profile, ``telemetry.samplers``, ``hpcml export --to``. So what
is broken breaks only what asks for it, in one line, and `hpcml doctor` lists all there is.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from importlib import metadata
from typing import TypeVar

from hpcml.errors import ConfigError

SCHEDULERS, SAMPLERS, EXPORTERS = "hpcml.schedulers", "hpcml.samplers", "hpcml.exporters"
GROUPS = (SCHEDULERS, SAMPLERS, EXPORTERS)
CONTRACT = 1  # the version of what hpcml wants of each: a plug-in says which one it was written for
_WORDS = {SCHEDULERS: "scheduler", SAMPLERS: "sampler", EXPORTERS: "exporter"}
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Plugin:
    """What a package says that it adds; it is not loaded by that."""

    group: str
    name: str
    package: str  # with its version
    entry: metadata.EntryPoint = field(repr=False)

    def __str__(self) -> str:
        return f"{_WORDS[self.group]} {self.name} of package {self.package}"


def installed(group: str) -> list[Plugin]:
    """Return what is installed in *group*, by name; of a package that is found twice on the path the first counts."""
    found: dict[tuple[str, str], Plugin] = {}
    for entry in metadata.entry_points(group=group):
        package = "unknown" if entry.dist is None else f"{entry.dist.name} {entry.dist.version}"
        plugin = Plugin(group=group, name=entry.name, package=package, entry=entry)
        found.setdefault((entry.name, package.partition(" ")[0]), plugin)
    return [found[key] for key in sorted(found)]


def names(group: str) -> list[str]:
    """Return the names in *group*, each once."""
    return list(dict.fromkeys(plugin.name for plugin in installed(group)))


def load(group: str, name: str, kind: type[_T], *, ours: Collection[str]) -> _T:
    """Return what a package adds to *group* as *name*: an object of *kind*, whose ``contract`` is `CONTRACT`.

    *ours* are the names that hpcml has itself. Raises `ConfigError` in one line where nothing, or several packages, or
    hpcml itself has that name, and where the package cannot be imported, or was written for another version of the
    contract.
    """
    found = [plugin for plugin in installed(group) if plugin.name == name]
    if not found:
        word, known = _WORDS[group], ", ".join([*ours, *(other for other in names(group) if other not in ours)])
        choice = f"choose {known}, or " if known else ""
        raise ConfigError(f"there is no {word} {name!r}: {choice}install the package that adds it")
    plugin = found[0]
    if name in ours:
        raise ConfigError(f"{plugin} has the name of hpcml's own, which is used instead of it")
    if len(found) > 1:
        packages = " and ".join(plugin.package for plugin in found)
        raise ConfigError(f"{_WORDS[group]} {name}: {packages} both add one of that name: uninstall one")
    try:
        value = plugin.entry.load()
    except (Exception, SystemExit) as error:  # whatever somebody else's module does while it is imported
        words = " ".join(str(error).split())
        raise ConfigError(f"{plugin} cannot be loaded: {type(error).__name__}: {words}") from error
    if not isinstance(value, kind):
        raise ConfigError(f"{plugin} is no {kind.__module__}.{kind.__name__}, but {type(value).__name__}")
    contract = getattr(value, "contract", None)
    if contract != CONTRACT:
        said = "does not say for which" if contract is None else f"was written for version {contract!r}"
        raise ConfigError(f"{plugin} {said} of hpcml's contract, and this hpcml has version {CONTRACT}")
    return value
