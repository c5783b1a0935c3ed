"""Hydra composes once, and everything is as where it composes twice."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import hydra
import pytest
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from hpcml.config import compose
from hpcml.config.command_line import arrange
from hpcml.config.once import composing_once
from hpcml.config.sweep.points import SweepFoundError
from hpcml.errors import ConfigError
from hpcml.paths import resource_dir

CONF = resource_dir("conf")
LINES = {
    "no words": [],
    "a value": ["seed=3", "training.steps=5"],
    "an option": ["precision=bf16", "cluster=karolina"],
    "a program": ["workload.command=train --x ${seed}"],
    "Hydra's own settings": ["hydra.job.name=a", "experiment=${hydra:job.name}"],
    "a mode in words": ["hydra.mode=RUN", "seed=1"],
    "Hydra is asked to be verbose": ["hydra.verbose=true"],
    "a sweep that was not asked for": ["seed=1,2"],
    "what is not there": ["seeed=1"],
    "an option that is not there": ["precision=fp31"],
    "a wrong type": ["seed=x"],
    "a sweep": ["-m", "seed=1,2", "precision=fp32,tf32"],
    "a sweep of one point": ["-m", "seed=1"],
    "a sweep with a mode in words": ["-m", "hydra.mode=RUN", "seed=1,2"],
    "a sweep of Hydra itself": ["-m", "hydra.job.name=a,b"],
    "a mode in a file": ["-cn", "several", "seed=1,2"],
    "a mode in a file and a flag": ["-m", "-cn", "single", "seed=1,2"],
    "a mode in a file, and one point": ["-cn", "single", "seed=1"],
}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "several.yaml").write_text("defaults: [run, _self_]\nhydra: {mode: MULTIRUN}\n")
    (tmp_path / "single.yaml").write_text("defaults: [run, _self_]\nhydra: {mode: RUN}\n")
    return tmp_path


def told(words: list[str], project: Path, *, is_once: bool) -> list[Any]:
    """Return all that Hydra gives, its own settings too, or what it refuses with."""
    compose._register_schema()
    arranged = arrange(["-cd", str(project), *words], shipped=CONF, project=project)
    found: list[Any] = []

    def collect(config: DictConfig) -> None:
        settings = HydraConfig.instance().cfg
        found.append([OmegaConf.to_container(each, enum_to_str=True) for each in (config, settings) if each])

    decorate = hydra.main(version_base="1.3", config_path=str(CONF), config_name="run")
    scratch = str(project / "scratch")
    argv = ["hpcml run", *arranged.flags, "--", *arranged.overrides, *compose._leave_alone(scratch)]
    argv += compose._stop_at_sweep(arranged)
    try:
        with compose._process_state(argv), compose._complaints_in_one_line():
            if not is_once:
                decorate(collect)()
            else:
                with composing_once(is_sweep=compose._asks_for_sweep(arranged)):
                    decorate(collect)()
    except ConfigError as error:
        found.append(str(error))
    except SweepFoundError as swept:
        found.append(OmegaConf.to_container(swept.config, enum_to_str=True))
    return found


@pytest.mark.filterwarnings("ignore:\\s*Running Hydra app:UserWarning")
@pytest.mark.parametrize("words", LINES.values(), ids=list(LINES))
def test_what_is_composed_once_is_what_hydra_composes_twice(words: list[str], project: Path) -> None:
    once = told(words, project, is_once=True)

    assert once
    assert once == told(words, project, is_once=False)


@pytest.mark.parametrize("words", [["seed=3"], ["workload.command=true"], ["-m", "seed=1"]])
def test_hydra_loads_a_configuration_once(words: list[str], project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: list[object] = []
    load = ConfigLoaderImpl.load_configuration

    def counted(self: ConfigLoaderImpl, *words: Any, **named: Any) -> DictConfig:  # noqa: ANN401 - whatever it takes
        loaded.append(words)
        return load(self, *words, **named)

    monkeypatch.setattr(ConfigLoaderImpl, "load_configuration", counted)

    assert told(words, project, is_once=True)

    assert len(loaded) == 1
