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
from dataclasses import dataclass, is_dataclass
from pathlib import Path
from typing import get_type_hints

import hydra
import yaml
from hydra.core.config_store import ConfigStore
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException, OverrideParseException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from hpcml.codec import decode
from hpcml.config.wording import in_one_line
from hpcml.config.words import Words, arrange
from hpcml.errors import ConfigError
from hpcml.resources import resource_dir
from hpcml.spec import Run

_ROOT_CONFIG = "run"
_BASIC_SWEEPER = "hydra._internal.core_plugins.basic_sweeper.BasicSweeper"


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
    points: list[Composed] = []
    refusals: list[ConfigError] = []

    def collect(cfg: DictConfig) -> None:
        try:
            points.append(_point(cfg, project))
        except ConfigError as error:  # raised below, once Hydra has returned: it would print a traceback
            refusals.append(error)

    with tempfile.TemporaryDirectory(prefix="hpcml-hydra-") as scratch:
        words = arrange(arguments, shipped=resource_dir("conf"), project=project)
        _run_hydra(words, collect, scratch)
    if refusals:
        more = f" (and {len(refusals) - 1} more of {len(refusals) + len(points)} points)" if len(refusals) > 1 else ""
        raise ConfigError(f"{refusals[0]}{more}")
    return points


def _run_hydra(words: Words, collect: Callable[[DictConfig], None], scratch: str) -> None:
    """Let Hydra read *words*; its every complaint becomes one `ConfigError`."""
    _register_schema()
    decorate = hydra.main(version_base="1.3", config_path=str(resource_dir("conf")), config_name=_ROOT_CONFIG)
    complaints = io.StringIO()
    try:
        argv = ["hpcml run", *words.flags, "--", *words.overrides, *_no_output(scratch)]
        with _process_state(argv), redirect_stderr(complaints):
            decorate(collect)()
    except SystemExit as ended:  # argparse's way of refusing, and of ending after --help
        if ended.code not in (None, 0):
            raise ConfigError(in_one_line(complaints.getvalue().rpartition("error: ")[2])) from ended
    except OverrideParseException as error:
        raise ConfigError(f"{error.override!r} is no override: {in_one_line(str(error))}") from error
    except (HydraException, OmegaConfBaseException, yaml.YAMLError, ValueError) as error:
        raise ConfigError(in_one_line(str(error), str(error.__cause__ or ""), schema=Run)) from error


def _no_output(scratch: str) -> list[str]:
    """Hydra insists on output directories; give it some that disappear."""
    return [f"hydra.run.dir={scratch}", f"hydra.sweep.dir={scratch}", "hydra.output_subdir=null"]


def _point(cfg: DictConfig, project: Path) -> Composed:
    settings = HydraConfig.get()
    if settings.sweeper._target_ != _BASIC_SWEEPER:
        raise ConfigError(
            f"hydra/sweeper={HydraConfig.get().runtime.choices.get('hydra/sweeper')} waits for each result to choose "
            "the next point; hpcml submits a sweep whole: list the points (seed=0,1,2, range(), choice())"
        )
    return Composed(
        run=decide(cfg, project),
        overrides=tuple(settings.overrides.task),
        user_config=tuple(
            source.path
            for source in settings.runtime.config_sources
            if source.schema == "file" and Path(source.path) != resource_dir("conf")
        ),
    )


def decide(cfg: DictConfig, project: Path) -> Run:
    """Turn a composed configuration into a `Run`, which checks itself on the way."""
    if missing := sorted(OmegaConf.missing_keys(cfg)):
        raise ConfigError(f"not decided: {', '.join(missing)} (set {missing[0]}=...; hpcml run --help lists choices)")
    try:
        _make_absolute(cfg, project)
        run = decode(Run, OmegaConf.to_container(cfg, resolve=True, enum_to_str=True))
    except OmegaConfBaseException as error:
        raise ConfigError(in_one_line(str(error), str(error.__cause__ or ""), schema=Run)) from error
    assert isinstance(run, Run)
    return run


def _make_absolute(cfg: DictConfig, project: Path) -> None:
    """Paths are meant from where they were typed; on the node that place is another one."""
    if cfg.data.path is not None:
        cfg.data.path = str(project / Path(cfg.data.path).expanduser())
    if cfg.workload.cwd is not None:
        cfg.workload.cwd = str(project / Path(cfg.workload.cwd).expanduser())


def _register_schema() -> None:
    ConfigStore.instance().store(name="run_schema", node=_writable(Run))


def _writable(schema: type) -> DictConfig:
    """Return *schema* as a config that Hydra can compose into: OmegaConf marks frozen dataclasses read-only."""
    node: DictConfig = OmegaConf.structured(schema)
    OmegaConf.set_readonly(node, None)
    for name, hint in get_type_hints(schema).items():
        if isinstance(hint, type) and is_dataclass(hint):
            node[name] = _writable(hint)
    return node


@contextmanager
def _process_state(argv: list[str]) -> Iterator[None]:
    """Hydra takes its words from sys.argv, and raises instead of printing only if HYDRA_FULL_ERROR is set."""
    argv_before, full_error_before = sys.argv, os.environ.get("HYDRA_FULL_ERROR")
    sys.argv, os.environ["HYDRA_FULL_ERROR"] = argv, "1"
    try:
        yield
    finally:
        sys.argv = argv_before
        if full_error_before is None:
            del os.environ["HYDRA_FULL_ERROR"]
        else:
            os.environ["HYDRA_FULL_ERROR"] = full_error_before
