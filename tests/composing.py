"""Runs for tests, as `hpcml run` composes them; the same words give the same run."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path

from hpcml.config.compose import compose_from_cli
from hpcml.model.run import Run


def compose_run(words: Sequence[str], project: Path) -> Run:
    """Return the run that `hpcml run WORDS` would compose in *project*, which has no options of its own."""
    is_of_place = any("path=" in word or "cwd=" in word for word in words)
    return _composed(tuple(words), project if is_of_place else Path("/"))


@functools.cache
def _composed(words: tuple[str, ...], project: Path) -> Run:
    (point,) = compose_from_cli(words, project=project)
    return point.run
