"""Runs for tests: Hydra composes once for each choice of options; plain settings are set as hpcml sets a sweep's.

That this gives what Hydra would is what `tests/config/test_sweep.py` is about; the full suite composes each run anew.
"""

from __future__ import annotations

import copy
import functools
import re
import tempfile
from collections.abc import Sequence
from pathlib import Path

from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from hpcml.config import compose
from hpcml.config.command_line import arrange
from hpcml.config.sweep.points import Composition
from hpcml.model.run import Run
from hpcml.paths import resource_dir
from tests.effort import is_full

_PLAIN = re.compile(r"(?P<key>[a-z_]+(\.[a-z_]+)*)=[\w.:-]+")  # no list, quote, interpolation or path
_OF_MORE = ("workload.command", "workload.cwd", "data.path")  # settings that hpcml or Hydra look at, too


def compose_run(words: Sequence[str], project: Path) -> Run:
    """Return the run that `hpcml run WORDS` would compose in *project*, which has no options of its own."""
    kept = None if is_full() else _composed_from_kept(words, project)
    return kept or _composed_anew(words, project)


def _composed_anew(words: Sequence[str], project: Path) -> Run:
    (point,) = compose.compose_from_cli(words, project=project)
    return point.run


def _composed_from_kept(words: Sequence[str], project: Path) -> Run | None:
    """Return the run, or None where Hydra has to say it: *words* are no plain settings, or the schema refuses one."""
    keys = {word: match["key"] for word in words if (match := _PLAIN.fullmatch(word)) and _is_setting(match["key"])}
    if len(set(keys.values())) < len(keys):
        return None
    kept = _composed(tuple(word for word in words if word not in keys))
    if kept is None:
        return None
    composition = Composition(copy.deepcopy(kept[0]), kept[1], project)
    if not composition.can_set(list(keys.values())):
        return None
    parse = OverridesParser.create().parse_override
    try:
        for word, key in keys.items():
            composition.set_leaf(key, parse(word).value())
    except OmegaConfBaseException:
        return None
    return compose.decide(composition)


def _is_setting(key: str) -> bool:
    return key not in _OF_MORE and not (resource_dir("conf") / key).is_dir()


@functools.cache
def _composed(words: tuple[str, ...]) -> tuple[DictConfig, DictConfig] | None:
    """Return what Hydra composes of *words*, and its own settings of that; None where it refuses."""
    found: list[tuple[DictConfig, DictConfig]] = []

    def collect(config: DictConfig) -> None:
        found.append((copy.deepcopy(config), copy.deepcopy(HydraConfig.get())))  # type: ignore[arg-type]

    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        try:
            compose._run_hydra(arrange(words, shipped=resource_dir("conf"), project=place), collect, folder)
        except Exception:  # noqa: BLE001 - it is asked again, and says it in its words
            return None
    return found[0] if len(found) == 1 else None
