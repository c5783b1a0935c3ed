"""Command line in, runs out. The only module that talks to Hydra.

Hydra composes and nothing else: the task function it calls only collects, so submission, exit codes, directories and
error messages stay ours. ``--cfg``, ``--info`` and ``--help`` never call it; they print, and yield no runs.
"""

from __future__ import annotations

import io
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hydra
from hydra.core.config_store import ConfigStore
from hydra.core.hydra_config import HydraConfig
from hydra.errors import OverrideParseException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from hpcml.codec import decode
from hpcml.config.schema import mutable_twin
from hpcml.config.sweep import HYDRA_REFUSALS, Composition, Sweep, SweepFoundError, typed
from hpcml.config.wording import in_one_line
from hpcml.config.words import Words, arrange
from hpcml.errors import ConfigError
from hpcml.resources import resource_dir
from hpcml.spec import Run

_ROOT_CONFIG = "run"
_BASIC_SWEEPER = "hydra._internal.core_plugins.basic_sweeper.BasicSweeper"
_STOP_AT_SWEEP = "+hydra.callbacks.hpcml._target_=hpcml.config.sweep.StopAtSweep"


@dataclass(frozen=True, slots=True, kw_only=True)
class Composed:
    """One point of the command line: the run, and the words that lead to it."""

    run: Run
    overrides: tuple[str, ...]
    user_config: tuple[str, ...]  # configuration directories besides the shipped one


def compose_from_cli(arguments: Sequence[str], *, project: Path) -> list[Composed]:
    """Run Hydra's whole command line on *arguments*; return one entry for each composed configuration.

    *project* is where ``./conf`` may add options. Raises `ConfigError` if any point is refused: a sweep is all or
    nothing. An empty list means that Hydra only printed (``--cfg``, ``--info``, ``--help``).
    """
    outcomes: list[Composed | ConfigError] = []

    def settle(composition: Composition, overrides: tuple[str, ...]) -> Composed:
        shipped = resource_dir("conf")
        user_config = tuple(folder for folder in composition.directories if Path(folder) != shipped)
        return Composed(run=decide(composition), overrides=overrides, user_config=user_config)

    def collect(cfg: DictConfig) -> None:
        settings: Any = HydraConfig.get()  # declared as what it holds, and is a DictConfig
        try:
            _refuse_other_sweepers(settings)
            outcomes.append(settle(Composition(cfg, settings, project), tuple(typed(settings.overrides.task))))
        except ConfigError as error:  # raised below, once Hydra has returned: it would print a traceback
            outcomes.append(error)

    with tempfile.TemporaryDirectory(prefix="hpcml-hydra-") as scratch:
        words = arrange(arguments, shipped=resource_dir("conf"), project=project)
        with _complaints_in_one_line():
            try:
                _run_hydra(words, collect, scratch)
            except SweepFoundError as found:
                _refuse_other_sweepers(found.config.hydra)
                outcomes = Sweep(found, project, settle).settled()
    return _all_or_nothing(outcomes)


def _all_or_nothing(outcomes: Sequence[Composed | ConfigError]) -> list[Composed]:
    refusals = [outcome for outcome in outcomes if isinstance(outcome, ConfigError)]
    if refusals:
        more = f" (and {len(refusals) - 1} more of {len(outcomes)} points)" if len(refusals) > 1 else ""
        raise ConfigError(f"{refusals[0]}{more}")
    return [outcome for outcome in outcomes if isinstance(outcome, Composed)]


def _run_hydra(words: Words, collect: Callable[[DictConfig], None], scratch: str) -> None:
    """Let Hydra read *words*; a sweep ends it with `SweepFoundError`."""
    _register_schema()
    decorate = hydra.main(version_base="1.3", config_path=str(resource_dir("conf")), config_name=_ROOT_CONFIG)
    complaints = io.StringIO()
    try:
        argv = ["hpcml run", *words.flags, "--", *words.overrides, *_no_output(scratch), *_stop_at_sweep(words)]
        with _process_state(argv), redirect_stderr(complaints):
            decorate(collect)()
    except SystemExit as ended:  # argparse's way of refusing, and of ending after --help
        if ended.code not in (None, 0):
            raise ConfigError(in_one_line(complaints.getvalue().rpartition("error: ")[2])) from ended


@contextmanager
def _complaints_in_one_line() -> Iterator[None]:
    """Turn every complaint of Hydra's into one `ConfigError`."""
    try:
        yield
    except OverrideParseException as error:
        raise ConfigError(f"{error.override!r} is no override: {in_one_line(str(error))}") from error
    except HYDRA_REFUSALS as error:
        raise ConfigError(in_one_line(str(error), str(error.__cause__ or ""), schema=Run)) from error


def _no_output(scratch: str) -> list[str]:
    """Hydra insists on output directories; give it some that disappear."""
    return [f"hydra.run.dir={scratch}", f"hydra.sweep.dir={scratch}", "hydra.output_subdir=null"]


def _stop_at_sweep(words: Words) -> list[str]:
    """Leave Hydra before it composes point by point; a sweep that another file asks for it does, at its own pace."""
    asked = any(flag.startswith(("-m", "--m")) for flag in words.flags)
    by_word = any(word.startswith(("hydra.mode=", "study=")) for word in words.overrides)
    return [_STOP_AT_SWEEP] if asked or by_word else []


def _refuse_other_sweepers(settings: Any) -> None:  # noqa: ANN401 - Hydra's own configuration
    if settings.sweeper._target_ != _BASIC_SWEEPER:
        raise ConfigError(
            f"hydra/sweeper={settings.runtime.choices.get('hydra/sweeper')} waits for each result to choose "
            "the next point; hpcml submits a sweep whole: list the points (seed=0,1,2, range(), choice())"
        )


def decide(composition: Composition) -> Run:
    """Turn a composed configuration into a `Run`, which checks itself on the way."""
    try:
        run = decode(Run, composition.values())
    except OmegaConfBaseException as error:
        raise ConfigError(in_one_line(str(error), str(error.__cause__ or ""), schema=Run)) from error
    assert isinstance(run, Run)
    return run


def _register_schema() -> None:
    node = OmegaConf.structured(mutable_twin(Run))
    OmegaConf.set_struct(node.workload.env, value=False)  # the one place where the user makes up the keys
    ConfigStore.instance().store(name="run_schema", node=node)


@contextmanager
def _process_state(argv: list[str]) -> Iterator[None]:
    """Hydra takes its words from sys.argv, and raises instead of printing only if HYDRA_FULL_ERROR is set.

    After ``--cfg``, ``--info`` and ``--help`` it leaves its configuration behind, for whatever asks for it next.
    """
    singleton = HydraConfig.instance()
    config_before = singleton.cfg
    argv_before, full_error_before = sys.argv, os.environ.get("HYDRA_FULL_ERROR")
    sys.argv, os.environ["HYDRA_FULL_ERROR"] = argv, "1"
    try:
        yield
    finally:
        sys.argv, singleton.cfg = argv_before, config_before
        if full_error_before is None:
            del os.environ["HYDRA_FULL_ERROR"]
        else:
            os.environ["HYDRA_FULL_ERROR"] = full_error_before
