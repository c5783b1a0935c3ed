"""The `Planned` run: composed and checked, not yet written or submitted."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from hpcml.model.container import ContainerKind
from hpcml.model.run import Run
from hpcml.runs.plan import Image, Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """A run that could start now: checked, and nothing written yet.

    `overrides` are the words of the command line that made this point of a sweep, without secrets; `user_config` are
    the folders of options that were read besides hpcml's own.
    """

    run: Run
    plan: Plan
    overrides: tuple[str, ...]
    user_config: tuple[str, ...]
    repeat: int = 0  # which of schedule.repeats it is
    image: Image | None = None  # what it will be put into; None: nothing, or not looked for yet

    @property
    def wants_image(self) -> bool:
        """Whether it is to run in a container."""
        return self.run.container.kind is not ContainerKind.none

    @property
    def code_folder(self) -> Path:
        """The folder in which its program is submitted to start; the code around it counts as the run's."""
        return _folder(self.plan.cwd)


@lru_cache(maxsize=1000)  # of a sweep's runs it is the same, and asked for again and again
def _folder(path: str) -> Path:
    return Path(path)
