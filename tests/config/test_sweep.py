import hashlib
import json
import random
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hydra
import pytest
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from omegaconf import DictConfig, OmegaConf

from hpcml.codec import decode, encode
from hpcml.config import compose
from hpcml.config.command_line import arrange
from hpcml.config.compose import compose_from_cli
from hpcml.config.sweep import points
from hpcml.errors import ConfigError
from hpcml.model.run import Run
from hpcml.paths import resource_dir
from tests.effort import is_full, keep, times

CONF = resource_dir("conf")
ROOT = Path(__file__).resolve().parents[2]
KEPT = Path(__file__).with_name("hydra_said.json")
HYDRA_SAID: dict[str, str] = json.loads(KEPT.read_text(encoding="utf-8"))
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
            with compose._complaints_in_one_line():
                points.append((decided(cfg, project), tuple(overrides)))
        except ConfigError as error:
            refusals.append(str(error))

    compose._register_schema()
    arranged = arrange(words, shipped=CONF, project=project)
    decorate = hydra.main(version_base="1.3", config_path=str(CONF), config_name="run")
    argv = ["hpcml run", *arranged.flags, "--", *arranged.overrides, *compose._leave_alone(str(scratch))]
    try:
        with compose._process_state(argv), compose._complaints_in_one_line():
            decorate(collect)()
    except ConfigError as error:
        return str(error)
    if refusals:
        count = len(refusals) + len(points)
        return refusals[0] + (f" (and {len(refusals) - 1} more of {count} points)" if len(refusals) > 1 else "")
    return points


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
    option(conf, "experiment/trial.yaml", "# @package _global_\nseed: 5\n")
    return tmp_path / "project"


SWEEPS = {
    "comma lists": "precision=fp32,tf32 seed=0,1,2",
    "functions": "precision=choice(fp32,amp) seed=range(0,6,3) training.learning_rate=range(0.1,0.3,0.1)",
    "glob over a group": "precision=glob(amp*) seed=1,2",
    "glob with exclusion": "precision=glob(fp*,exclude=fp8*) seed=1,2",
    "sort and tag": "seed=sort(3,1,2) training.steps=tag(t,choice(5,6))",
    "sorted range": "seed=sort(range(3),reverse=true)",
    "casts": "seed=int(1.0,2.0) experiment=str(1,2)",
    "quoted values": """experiment='a','b' workload.command='a, b' name="x,y",'it is'""",
    "values that look like others": "name='1','true','null',null training.learning_rate=1.50,1e-3",
    "lists": "tags=[a],[b,c],[] seed=1,2",
    "dicts": "+workload.env={A:1},{B:2} seed=1,2",
    "dicts for a section": "training={steps:3},{batch_size:8} seed=1,2",
    "one section as a dict and a leaf": "training={steps:3} training.batch_size=4,5 seed=1,2",
    "additions": "+workload.env.A=1,2 seed=1,2",
    "an addition beside a sweep": "+workload.env.A=x seed=1,2",
    "forced additions": "++seed=1,2 ++workload.env.B=3",
    "the same key in two forms": "seed=7 ++seed=1,2 experiment=a,b",
    "the same key twice": "seed=7 seed=3,4",
    "a deleted group": "~model seed=1,2",
    "a group in a package": "model@data=mnist_cnn,mnist_mlp seed=1,2",
    "an added group": "+extra=env seed=1,2",
    "an added group with an interpolation and a +": "+extra=env +name=x seed=1,2",
    "an interpolated value that is added to": "model=linked workload.command=x +name=y seed=1,2",
    "an interpolated value that is set": "model=linked workload.command=x name=a,b seed=1,2",
    "an interpolation in a file": "model=linked,mnist_cnn workload.command=x seed=1,2",
    "an interpolation of a choice": "model=mnist_cnn,mnist_mlp experiment='${model.name}-x' seed=1,2",
    "an interpolation of a sweep": "workload.command='train --seed ${seed}' seed=1,2",
    "a sweep of interpolations": "experiment='${model.name}-x','s${seed}',plain seed=1,2",
    "an interpolation of a leaf that is set later": "workload.env={A:'${seed}'} seed=1,2 ++workload.env.B='${name}'",
    "a path in an interpolation": "data.path=a,b/c workload.command='t ${data.path}' seed=1,2",
    "an interpolated path": "data.path='files/${seed}' workload.cwd='${data.path}' seed=1,2",
    "paths": "data.path=null,a,/b,'~/c' workload.cwd=x,null",
    "an environment variable": "workload.command='cd ${oc.env:HOME}' seed=1,2",
    "another resolver": "experiment='${oc.select:name,none}' name=a,b seed=1,2",
    "the job's number": "experiment='e${hydra:job.num}' seed=1,2",
    "the job's words": "workload.command='t ${hydra:job.override_dirname}' seed=1,2",
    "an interpolation within one": "name=seed,experiment experiment=a,b workload.command='${${name}}'",
    "an escaped interpolation": r"workload.command='a \${seed}' seed=1,2",
    "an unknown interpolation": "workload.command='${nope}' seed=1,2",
    "an interpolation that is none": "experiment='${seed' seed=1,2",
    "a swept interpolation that is none": "experiment=a,'${seed',b seed=1,2",
    "an interpolated section": "workload='${training}' seed=1,2",
    "an enum": "precision.numerics=native,emulated,auto seed=1,2",
    "a wrong enum": "precision.numerics=native,quick seed=1,2",
    "a wrong type": "seed=1,2 training.steps=5,many",
    "a wrong type in the first": "training.steps=many,5 seed=1,2",
    "a wrong type after a refusal": "seed=-1,2,x precision=fp32,tf32",
    "a wrong type in an early point of a late group": "precision=fp32,bf16 seed=1,x",
    "a wrong type in the last group": "training.steps=5,many precision=fp32,fp31",
    "an unknown key": "trainin.steps=1,2 seed=1,2",
    "an unknown leaf": "training.stepz=1,2 seed=1,2",
    "an unknown option": "precision=fp32,fp31 seed=1,2",
    "an unknown group": "nope=a,b seed=1,2",
    "a key that is a group of the project": "experiment=trial,a seed=1,2",
    "a leaf below a leaf": "seed.x=1,2",
    "a list item": "workload.metrics.0.pattern=a,b",
    "refused by the run": "seed=-1,2,-3 precision=fp32,tf32",
    "refused in one combination": "cluster=local,salomon resources.gpus_per_node=1,2",
    "undecided": "experiment=a,??? seed=1,2",
    "an interval": "training.learning_rate=interval(0,1)",
    "a sweep of Hydra itself": "hydra.job.name=a,b seed=1,2",
    "a value of Hydra itself": "hydra.job.name=a seed=1,2 experiment='${hydra:job.name}'",
    "an environment of the job": "+hydra.job.env_set.HPCML_X=y experiment='${oc.env:HPCML_X}' seed=1,2",
    "batches": "hydra.sweeper.max_batch_size=2 seed=1,2,3 training.steps=5,6",
    "one point": "seed=1",
    "no words": "",
    "a cluster's resources": "cluster=karolina,local resources.cpus_per_task=4,8",
    "long float": "training.learning_rate=1e-4,0.00020,.5,1 objective.margin=null,0.1",
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


@pytest.mark.filterwarnings("ignore:.*experimental:UserWarning")
@pytest.mark.parametrize("line", SWEEPS.values(), ids=list(SWEEPS))
def test_a_sweep_is_what_hydra_makes_of_it(line: str, project: Path, tmp_path: Path) -> None:
    words = ["-m", *typed(line)]
    found = ours(words, project)

    if is_full() or fingerprint(found, project) != HYDRA_SAID.get(line):
        assert alike(found) == alike(hydras(words, project, scratch=tmp_path / "scratch"))
        keep(KEPT, line, fingerprint(found, project))


def fingerprint(outcome: Outcome, project: Path) -> str:
    """Return what *outcome* is known by, wherever it was found."""
    said = alike(outcome)
    plain = said if isinstance(said, str) else [[encode(run), overrides] for run, overrides in said]
    text = json.dumps(plain, sort_keys=True)
    for place, name in ((str(project), "PROJECT"), (str(ROOT), "HPCML"), (str(Path.home()), "HOME")):
        text = text.replace(place, name)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def alike(outcome: Outcome) -> Outcome:
    """Return *outcome* without what Python was doing when its stack was full, which depends on who called."""
    return re.sub(r"(depth exceeded)( in| while)[^;]*", r"\1", outcome) if isinstance(outcome, str) else outcome


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


@given(command_lines())
@settings(
    max_examples=times(6, 60),
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_any_sweep_is_what_hydra_makes_of_it(project: Path, tmp_path: Path, words: list[str]) -> None:
    assert ours(["-m", *words], project) == hydras(["-m", *words], project, scratch=tmp_path / "scratch")


def test_shuffled_values_come_in_hydras_order(project: Path, tmp_path: Path) -> None:
    words = ["-m", "seed=shuffle(range(6))"]

    random.seed(3)
    expected = hydras(words, project, scratch=tmp_path / "scratch")
    random.seed(3)
    assert ours(words, project) == expected


def test_a_mode_set_on_the_command_line_is_a_sweep_too(project: Path) -> None:
    points = compose_from_cli(["hydra.mode=MULTIRUN", "seed=1,2"], project=project)

    assert [point.run.seed for point in points] == [1, 2]


def test_a_mode_set_in_a_file_is_a_sweep_too(project: Path, tmp_path: Path) -> None:
    option(tmp_path / "more", "several.yaml", "defaults: [run, _self_]\nhydra:\n  mode: MULTIRUN\n")

    points = compose_from_cli(["-cd", str(tmp_path / "more"), "-cn", "several", "seed=1,2"], project=project)

    assert [point.overrides for point in points] == [("seed=1",), ("seed=2",)]


def test_parameters_in_a_file_are_swept(project: Path, tmp_path: Path) -> None:
    text = "defaults: [run, _self_]\nhydra:\n  sweeper:\n    params:\n      seed: range(3)\n      precision: fp32,amp\n"
    option(tmp_path / "more", "several.yaml", text)
    words = ["-m", "-cd", str(tmp_path / "more"), "-cn", "several", "training.steps=5,6", "seed=8"]

    points = compose_from_cli(words, project=project)

    assert [(point.run, point.overrides) for point in points] == hydras(words, project, scratch=tmp_path / "scratch")
    assert len(points) == 4


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


@pytest.mark.parametrize("words", [["-m", "seed=0,1"], ["--info"], ["--cfg", "job"], ["--help"]], ids=" ".join)
def test_a_command_line_leaves_the_process_as_it_was(project: Path, words: list[str]) -> None:
    argv, hydra_config = list(sys.argv), HydraConfig.instance().cfg

    compose_from_cli(words, project=project)

    assert sys.argv == argv
    assert HydraConfig.instance().cfg is hydra_config


def test_a_thousand_values_ask_hydra_a_few_times_only(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[str]] = []
    compose_one = ConfigLoaderImpl.load_sweep_config

    def counting(self: ConfigLoaderImpl, master: DictConfig, words: list[str]) -> DictConfig:
        asked.append(words)
        return compose_one(self, master, words)

    monkeypatch.setattr(ConfigLoaderImpl, "load_sweep_config", counting)
    compose_from_cli(["-m", "precision=fp32,amp", "seed=range(500)", "name='s${seed}'"], project=project)

    assert len(asked) == 2


NUMBERS = st.one_of(
    st.integers().map(str),
    st.floats().map(repr),
    st.from_regex(r"[-+]?[0-9_]{0,3}\.?[0-9]{0,3}([eE][-+]?[0-9]{1,2})?", fullmatch=True),
)


@given(text=NUMBERS)
def test_a_number_read_without_hydras_grammar_is_what_the_grammar_says(text: str) -> None:
    value = points._number_in(f"training.lr={text}")

    if value is not None:
        (override,) = OverridesParser.create().parse_overrides([f"training.lr={text}"])
        assert (type(value), repr(value)) == (type(override.value()), repr(override.value()))


@pytest.mark.parametrize(("text", "number"), [("0", 0), ("-17", -17), ("0.25", 0.25), ("1.0e-05", 1e-5)])
def test_plain_numbers_need_no_grammar(text: str, number: float) -> None:
    assert points._number_in(f"seed={text}") == number


@pytest.mark.parametrize("word", ["+seed=1", "~seed=1", "data@other=1", "seed='1'", "seed=01", "seed=1,2", "seed="])
def test_whatever_may_be_more_than_a_number_is_left_to_hydra(word: str) -> None:
    assert points._number_in(word) is None
