import logging
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hydra
import pytest
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from omegaconf import DictConfig, OmegaConf

from hpcml.codec import decode
from hpcml.config import compose, schema
from hpcml.config.command_line import read_command_line
from hpcml.config.compose import compose_from_cli
from hpcml.errors import ConfigError
from hpcml.model.run import Run
from hpcml.paths import resource_dir
from tests.effort import times

CONF = resource_dir("conf")
Outcome = list[tuple[Run, tuple[str, ...]]] | str


def ours(words: list[str], project: Path) -> Outcome:
    try:
        return [(point.run, point.overrides) for point in compose_from_cli(words, project=project)]
    except ConfigError as error:
        return str(error)


def hydras(words: list[str], project: Path, *, scratch: Path) -> Outcome:
    """Let Hydra's BasicSweeper and BasicLauncher compose each point anew: slow, and right by definition."""
    points: list[tuple[Run, tuple[str, ...]]] = []
    refusals: list[str] = []

    def collect(cfg: DictConfig) -> None:
        overrides = OmegaConf.to_container(HydraConfig.instance().cfg.hydra.overrides.task)  # type: ignore[union-attr]
        assert isinstance(overrides, list)
        try:
            points.append((decided(cfg, project), tuple(overrides)))
        except Exception as error:  # noqa: BLE001 - counted
            refusals.append(str(error))

    schema.register()
    line = read_command_line(words, project=project)
    decorate = hydra.main(version_base="1.3", config_path=str(CONF), config_name="run")
    path = ",".join(f"file://{folder}" for folder in line.folders)
    quiet = [f"hydra.run.dir={scratch}", f"hydra.sweep.dir={scratch}", "hydra.output_subdir=null"]
    quiet += ["hydra/hydra_logging=none", "hydra/job_logging=none", f"hydra.searchpath=[{path}]"]
    argv, sys.argv = sys.argv, ["hpcml run", *["-m"] * line.is_sweep, "--", *line.overrides, *quiet]
    before = os.environ.get("HYDRA_FULL_ERROR")
    os.environ["HYDRA_FULL_ERROR"] = "1"
    try:
        decorate(collect)()
    except Exception as error:  # noqa: BLE001 - of whatever kind
        return f"refused: {error}"
    finally:
        sys.argv = argv
        os.environ.pop("HYDRA_FULL_ERROR")
        if before is not None:
            os.environ["HYDRA_FULL_ERROR"] = before
    return f"refused: {refusals}" if refusals else points


def decided(cfg: DictConfig, project: Path) -> Run:
    if missing := sorted(OmegaConf.missing_keys(cfg)):
        raise ConfigError(f"not decided: {', '.join(missing)} (set {missing[0]}=...; hpcml run --help lists choices)")
    if cfg.data.path is not None:
        cfg.data.path = str(project / Path(cfg.data.path).expanduser())
    if cfg.workload.cwd is not None:
        cfg.workload.cwd = str(project / Path(cfg.workload.cwd).expanduser())
    values = OmegaConf.to_container(cfg, resolve=True, enum_to_str=True)
    assert isinstance(values, dict)
    if values["workload"]["command"] is None and values["precision"]["name"] == "own":
        values["precision"]["name"] = "fp32"  # which is a recipe's own
    run = decode(Run, values)
    assert isinstance(run, Run)
    return run


def option(folder: Path, name: str, text: str) -> None:
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(text)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    conf = tmp_path / "project" / "conf"
    option(conf, "model/linked.yaml", "# @package _global_\nmodel:\n  name: linked\n  recipe: null\nname: ${seed}\n")
    option(conf, "extra/env.yaml", "# @package workload.env\nFROM: ${seed}-${..stop_grace}\n")
    return tmp_path / "project"


SWEEPS = {
    "paths": "data=mnist data.path=a,/b,'~/c' workload.cwd=x,null",
    "an interpolated path": "data=mnist data.path='files/${seed}' workload.cwd='${data.path}' seed=1,2",
    "comma lists": "precision=fp32,tf32 seed=0,1,2",
    "functions": "precision=choice(fp32,amp) seed=range(0,6,3) training.learning_rate=range(0.1,0.3,0.1)",
    "glob over a group": "precision=glob(amp*) seed=1,2",
    "glob with exclusion": "precision=glob(fp*,exclude=fp8*) seed=1,2",
    "quoted values": """experiment='a','b' workload.command='a, b' name="x,y",'it is'""",
    "values that look like others": "name='1','true','null',null training.learning_rate=1.50,1e-3",
    "lists": "tags=[a],[b,c],[] seed=1,2",
    "dicts": "+workload.env={A:1},{B:2} seed=1,2",
    "dicts for a section": "training={steps:3},{batch_size:8} seed=1,2",
    "additions": "+workload.env.A=1,2 seed=1,2",
    "an addition beside a sweep": "+workload.env.A=x seed=1,2",
    "the same key in two forms": "seed=7 ++seed=1,2 experiment=a,b",
    "an added group": "+extra=env seed=1,2",
    "an added group with an interpolation and a +": "+extra=env +name=x seed=1,2",
    "an interpolated value that is set": "model=linked workload.command=x name=a,b seed=1,2",
    "an interpolation in a file": "model=linked,mnist_cnn workload.command=x seed=1,2",
    "an interpolation of a choice": "model=mnist_cnn,mnist_mlp experiment='${model.name}-x' seed=1,2",
    "an interpolation of a sweep": "workload.command='train --seed ${seed}' seed=1,2",
    "a sweep of interpolations": "experiment='${model.name}-x','s${seed}',plain seed=1,2",
    "a path in an interpolation": "data.path=a,b/c workload.command='t ${data.path}' seed=1,2",
    "an environment variable": "workload.command='cd ${oc.env:HOME}' seed=1,2",
    "another resolver": "experiment='${oc.select:name,none}' name=a,b seed=1,2",
    "an interpolation within one": "name=seed,experiment experiment=a,b workload.command='${${name}}'",
    "an escaped interpolation": r"workload.command='a \${seed}' seed=1,2",
    "one point": "seed=1",
    "no words": "",
    "a cluster's resources": "cluster=karolina,local resources.cpus_per_task=4,8",
}


def typed(line: str) -> list[str]:
    """Split at blanks, but not within quotes, brackets or braces; quotes are Hydra's and stay."""
    words, depth, quote = [""], 0, ""
    for character in line:
        quote = "" if character == quote else quote or (character if character in "'\"" else "")
        depth += 0 if quote else (character in "([{") - (character in ")]}")
        if character == " " and not quote and not depth:
            words.append("")
        else:
            words[-1] += character
    return [word for word in words if word]


@pytest.mark.parametrize("line", SWEEPS.values(), ids=list(SWEEPS))
def test_a_sweep_is_what_hydra_makes_of_it(line: str, project: Path, tmp_path: Path) -> None:
    words = ["-m", *typed(line)]
    found = ours(words, project)

    theirs = hydras(words, project, scratch=tmp_path / "scratch")
    assert not isinstance(found, str)
    assert not isinstance(theirs, str)
    assert [run for run, _ in found] == [run for run, _ in theirs]
    assert [unquoted(words) for _, words in found] == [unquoted(words) for _, words in theirs]


def unquoted(words: tuple[str, ...]) -> list[str]:
    """Return *words* without the quotes that keep a text from being read as a number."""
    return [word.replace('"', "").replace("'", "") for word in words]


WORDS: dict[str, list[Any]] = {
    "precision": ["fp32", "amp", "fp31"],
    "model": ["mnist_cnn", "linked"],
    "cluster": ["local", "karolina", "salomon"],
    "seed": [0, 7, -1, "x", "null"],
    "experiment": ["a", "'${model.name}'", "'s${seed}'", "a/b"],
    "name": ["null", "'x, y'", "${experiment}"],
    "+name": ["z"],
    "++training.steps": [5, 6],
    "training.steps": [0, 5, "'7'", 1.5],
    "resources.gpus_per_node": [0, 1, "null"],
    "workload.command": ["'t ${seed} ${data.path}'", "null"],
    "data.path": ["null", "here", "'${experiment}/x'"],
    "+workload.env.A": ["1", "'${seed}'"],
    "tags": ["[]", "[a,b]", "['${seed}']"],
}


def plain(key: str) -> str:
    return key.lstrip("+")


@st.composite
def command_lines(draw: Callable[[Any], Any]) -> list[str]:
    words = []
    for key in draw(st.lists(st.sampled_from(list(WORDS)), min_size=1, max_size=4, unique_by=plain)):
        values = draw(st.lists(st.sampled_from(WORDS[key]), min_size=1, max_size=2, unique=True))
        words.append(f"{key}={','.join(map(str, values))}")
    return words


@pytest.mark.nightly("long")
@given(command_lines())
@settings(
    max_examples=times(6, 60),
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_any_sweep_is_what_hydra_makes_of_it(project: Path, tmp_path: Path, words: list[str]) -> None:
    found, theirs = ours(["-m", *words], project), hydras(["-m", *words], project, scratch=tmp_path / "scratch")

    assert isinstance(found, str) == isinstance(theirs, str), (found, theirs)
    if not isinstance(found, str) and not isinstance(theirs, str):
        assert [run for run, _ in found] == [run for run, _ in theirs]


def test_a_mode_set_on_the_command_line_is_a_sweep_too(project: Path) -> None:
    points = compose_from_cli(["hydra.mode=MULTIRUN", "seed=1,2"], project=project)

    assert [point.run.seed for point in points] == [1, 2]


def test_a_study_is_a_sweep_too(project: Path) -> None:
    params = "{seed: range(3), precision: 'fp32,amp'}"
    text = f"# @package _global_\nhydra: {{mode: MULTIRUN, sweeper: {{params: {params}}}}}\n"
    option(project / "conf", "study/several.yaml", text)

    points = compose_from_cli(["+experiment=several", "training.steps=5,6", "seed=8"], project=project)

    assert [(point.run.seed, point.run.precision.name.name, point.run.training.steps) for point in points] == [
        (8, precision, steps) for precision in ("fp32", "amp_fp16") for steps in (5, 6)
    ]


def test_every_point_knows_the_users_configuration(project: Path) -> None:
    points = compose_from_cli(["-m", "seed=1,2"], project=project)

    assert {point.user_config for point in points} == {(str(project / "conf"),)}


def test_the_first_refusal_is_said_and_the_others_are_counted(project: Path) -> None:
    with pytest.raises(ConfigError, match=r"^seed=-2 must lie.*\(and 3 more of 6 points\)$"):
        compose_from_cli(["-m", "precision=fp32,tf32", "seed=-2,-1,0"], project=project)


@pytest.mark.parametrize("empty", ["seed=range(0)", "precision=glob(nothing*)"])
def test_a_sweep_of_no_points_is_refused(empty: str, project: Path) -> None:
    with pytest.raises(ConfigError, match="no points"):
        compose_from_cli(["-m", empty], project=project)


def test_points_share_no_containers(project: Path) -> None:
    one, other = compose_from_cli(["-m", "seed=1,2", "tags=[a]"], project=project)

    assert one.run.tags == other.run.tags
    assert one.run.tags is not other.run.tags


@pytest.mark.parametrize("words", [["-m", "seed=0,1"], ["--cfg", "job"], ["--help"]], ids=" ".join)
def test_a_command_line_leaves_the_process_as_it_was(project: Path, words: list[str]) -> None:
    argv, environ, log = list(sys.argv), dict(os.environ), logging.getLogger()
    before = HydraConfig.instance().cfg, GlobalHydra.instance().hydra, log.level, list(log.handlers)

    compose_from_cli(words, project=project)

    assert (sys.argv, dict(os.environ)) == (argv, environ)
    assert (HydraConfig.instance().cfg, GlobalHydra.instance().hydra, log.level, log.handlers) == before


def test_a_thousand_values_ask_hydra_a_few_times_only(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[str]] = []

    def counting(name: str, words: list[str], **more: Any) -> DictConfig:  # noqa: ANN401 - as Hydra's own
        asked.append(words)
        return hydra.compose(name, words, **more)

    monkeypatch.setattr(compose, "compose", counting)
    compose_from_cli(["-m", "precision=fp32,amp", "seed=range(500)", "name='s${seed}'"], project=project)

    assert len(asked) == 3  # of which one tells whether the files ask for more
