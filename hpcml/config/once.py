"""Hydra, but composing a configuration once: by itself it composes all to learn its mode, and all again to use it.

The mode (run, or multirun) may be asked for by any file, so nobody knows it before. What is composed for that is kept
here and used in place of the second composition, which would be the same. Whatever is refused, or asks for another mode
than its command line, is left to Hydra, which says so in its words.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from hydra._internal import hydra as inside
from hydra.core.config_store import ConfigStore
from hydra.core.utils import configure_log
from hydra.types import RunMode
from omegaconf import DictConfig


class ComposingOnce(inside.Hydra):
    """Hydra's own class, whose second composition of the same words is the first."""

    _kept: tuple[str | None, list[str], RunMode, DictConfig] | None = None
    expected = RunMode.RUN

    def get_mode(self, config_name: str | None, overrides: list[str]) -> Any:  # noqa: ANN401 - Hydra's signature
        """Return the mode that files and *overrides* ask for, or None, as Hydra's own does; keep what says it."""
        try:
            config = super().compose_config(config_name, overrides, self.expected)
        except Exception:  # noqa: BLE001 - whatever it is, Hydra meets it again, and says it
            return super().get_mode(config_name, overrides)
        mode = config.hydra.mode
        if mode in (None, self.expected) and not config.hydra.verbose:  # which prints as it composes
            self._kept = (config_name, list(overrides), self.expected, config)
        return mode

    def compose_config(
        self,
        config_name: str | None,
        overrides: list[str],
        run_mode: RunMode,
        with_log_configuration: bool = False,  # noqa: FBT001, FBT002 - Hydra's signature
        from_shell: bool = True,  # noqa: FBT001, FBT002
        validate_sweep_overrides: bool = True,  # noqa: FBT001, FBT002
    ) -> DictConfig:
        """Return what was kept for these words, once, or compose them."""
        kept, self._kept = self._kept, None
        if kept is not None and validate_sweep_overrides and from_shell:
            name, words, mode, config = kept
            if (name, mode) == (config_name, run_mode) and overrides[: len(words)] == words:
                added = overrides[len(words) :]
                if added in ([], [f"hydra.mode={mode.name}"]):  # which Hydra adds where nobody says a mode
                    if added:
                        config.hydra.mode = mode
                        config.hydra.overrides.hydra.append(added[0])
                    if with_log_configuration:
                        configure_log(config.hydra.hydra_logging, config.hydra.verbose)
                    return config
        return super().compose_config(
            config_name, overrides, run_mode, with_log_configuration, from_shell, validate_sweep_overrides
        )


class _ComposingOnceForSweeps(ComposingOnce):
    expected = RunMode.MULTIRUN


@contextmanager
def composing_once(*, is_sweep: bool) -> Iterator[None]:
    """Let Hydra compose once within the block; *is_sweep*: its words ask for a multirun."""
    before = inside.Hydra
    inside.Hydra = _ComposingOnceForSweeps if is_sweep else ComposingOnce  # type: ignore[misc]
    try:
        yield
    finally:
        inside.Hydra = before  # type: ignore[misc]


@contextmanager
def sharing_schemas() -> Iterator[None]:
    """Let Hydra copy its store of schemas no more within the block.

    It copies what it looks for files with before each composition, and with that the whole store. Of that it only
    loads, and copies what it has loaded.
    """
    ConfigStore.__deepcopy__ = lambda self, _: self  # type: ignore[attr-defined]
    try:
        yield
    finally:
        del ConfigStore.__deepcopy__  # type: ignore[attr-defined]
