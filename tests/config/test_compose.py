import re
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hpcml.config.command_line import read_command_line
from hpcml.config.compose import compose_from_cli
from hpcml.errors import ConfigError
from hpcml.model.precision import PrecisionName
from hpcml.model.strategy import KINDS, Processes
from hpcml.paths import resource_dir
from tests.effort import times

CONF = resource_dir("conf")


def overrides_of(*words: str, project: Path) -> list[tuple[str, ...]]:
    return [point.overrides for point in compose_from_cli(words, project=project)]


def test_no_words_give_the_embedded_default(tmp_path: Path) -> None:
    (point,) = compose_from_cli([], project=tmp_path)

    assert (point.run.model.name, point.run.data.name, point.run.cluster.name) == ("mnist_cnn", "digits", "local")
    assert point.run.precision.name is PrecisionName.fp32


@pytest.mark.parametrize(
    "words",
    [
        ["+cluster=karolina", "-m", "precision=fp32,tf32"],
        ["-m", "cluster=karolina", "precision=fp32,tf32"],
        ["precision=fp32,tf32", "cluster=karolina", "--multirun"],
        ["-m", "--", "precision=fp32,tf32", "+cluster=karolina"],
    ],
)
def test_flags_stand_anywhere_and_cluster_is_taken_with_or_without_plus(words: list[str], tmp_path: Path) -> None:
    points = compose_from_cli(words, project=tmp_path)

    assert [point.run.precision.name.name for point in points] == ["fp32", "tf32"]
    assert {point.run.cluster.name for point in points} == {"karolina"}


def test_an_option_may_be_called_by_a_number(tmp_path: Path) -> None:
    own = tmp_path / "conf" / "cluster" / "123.yaml"
    own.parent.mkdir(parents=True)
    own.write_text('# @package _global_\ncluster: {name: "123", scheduler: slurm}\n', encoding="ascii")

    (point,) = compose_from_cli(["+cluster=123"], project=tmp_path)

    assert point.run.cluster.name == "123"


def test_options_may_lie_over_one_of_ours(tmp_path: Path) -> None:
    own = tmp_path / "conf" / "cluster" / "patient.yaml"
    own.parent.mkdir(parents=True)
    own.write_text("# @package _global_\nresources: {walltime: 2h}\n", encoding="ascii")

    (point,) = compose_from_cli(["+cluster=[karolina,patient]"], project=tmp_path)

    assert (point.run.cluster.name, point.run.resources.walltime) == ("karolina", "2h")


def test_a_sweep_is_every_combination(tmp_path: Path) -> None:
    points = compose_from_cli(["-m", "precision=choice(fp32,amp)", "seed=range(3)"], project=tmp_path)

    assert {(point.run.precision.name.name, point.run.seed) for point in points} == {
        (name, seed) for name in ("fp32", "amp_fp16") for seed in (0, 1, 2)
    }


def test_one_impossible_point_refuses_the_whole_sweep(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cluster=salomon has 0 a node"):
        compose_from_cli(["-m", "cluster=karolina,salomon", "resources.gpus_per_node=1"], project=tmp_path)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["presicion=fp32"], "did you mean precision"),
        (["precision=fp31"], "Could not find 'precision/fp31'"),
        (["precision=16"], "Could not find 'precision/16': did you mean amp_fp16?"),
        (["-m", "precision=32,64"], "Could not find 'precision/32': did you mean fp32?"),
        (["precision=bf16-mixed"], "did you mean amp_bf16?"),
        (["strategy=null"], "Could not find 'strategy/null'"),
        (["+study=7"], "Could not find 'study/7'"),
        (["precision=[16]"], "an option is chosen by its name, as in precision=NAME"),
        (["precision=[fp32,tf32]"], "the values of a sweep stand without brackets: -m precision=fp32,tf32"),
        (["-m", "+cluster=[karolina,lumi_g]"], "the last alone would be left"),
        (["training.stepz=5"], "did you mean training.steps"),
        (["training.steps=many"], "training.steps is a whole number"),
        (["seed.first=2"], "seed.first=2: seed has a value, and nothing below it: write seed=2"),
        (["resources.walltime.h=1"], "resources.walltime.h=1: resources.walltime has a value, and nothing below it"),
        (["precision.numerics=quick"], "precision.numerics is one of auto, native, emulated"),
        (["objective.goal=minimum"], "objective.goal=minimum: objective.goal is one of max, min"),
        (["objective.margin=inf"], "objective.margin=inf must be positive, and finite"),
        (
            ["objective.metric=depth", "objective.target=3"],
            "objective.target=3.0: the name depth does not tell which way is better: say objective.goal=max or min",
        ),
        (["+objective.margins.val_loss=inf"], "objective.margins.val_loss=inf must be positive, and finite"),
        (
            ["experiment=${oc.env:NOPE}"],
            'experiment: KeyError raised while resolving interpolation: "Environment variable',
        ),
        (["+precision.colour=red"], "unknown key precision.colour"),
        (["+colour=red"], "unknown key colour"),
        (["seed=1,2"], "--multirun"),
        (["seed"], "write key=value"),
        (["seed=[1"], "seed=[1"),
        (["--bogus"], "--bogus is no option of hpcml run"),
        (["-cd", "/nowhere"], "/nowhere"),
        (["--cfg", "hydra"], "only --cfg job can be shown"),
        (["hydra.job.name=a"], "Hydra only composes here"),
        (["experiment=${hydra:job.num}"], "HydraConfig was not set"),
        (["hydra/sweeper=optuna", "-m", "seed=1,2"], "submits a sweep whole"),
        (["hydra.sweeper._target_=my.Sweeper"], "submits a sweep whole"),
        (["~model"], "not decided: model.name"),
        (["+cluster=atlantis"], "Could not find 'cluster/atlantis'"),
    ],
)
def test_a_mistake_is_one_line_that_names_it(words: list[str], says: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as refusal:
        compose_from_cli(words, project=tmp_path)

    assert says in str(refusal.value)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("words", [["--cfg", "job"], ["--cfg", "job", "-p", "training", "--resolve"], ["--help"]])
def test_what_is_only_shown_is_no_run(words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert compose_from_cli(words, project=tmp_path) == []
    assert "steps: " in capsys.readouterr().out


def test_help_lists_our_groups_with_their_options(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    compose_from_cli(["--help"], project=tmp_path)

    said = capsys.readouterr().out
    assert "precision: 3xtf32, amp, amp_bf16, amp_fp16, bf16, bf16x3" in said
    clusters = said.partition("\ncluster: ")[2].partition("\ncontainer: ")[0]
    assert {"karolina", "local", "salomon"} <= {word.strip() for word in clusters.split(",")}
    assert max(map(len, said.splitlines())) <= 120


def test_composing_leaves_no_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    argv_before = list(sys.argv)

    compose_from_cli(["-m", "seed=0,1"], project=tmp_path)

    assert list(tmp_path.iterdir()) == []
    assert sys.argv == argv_before


def option(folder: Path, group: str, name: str, text: str) -> None:
    (folder / group).mkdir(parents=True, exist_ok=True)
    (folder / group / f"{name}.yaml").write_text(text)


@pytest.mark.parametrize("folder_name", ["plain", "with, comma [and] 'quotes' \"too\""])
def test_a_projects_own_conf_adds_options(tmp_path: Path, folder_name: str) -> None:
    project = tmp_path / folder_name
    option(project / "conf", "model", "mine", "name: mine\nrecipe: image_classification\n")

    (point,) = compose_from_cli(["model=mine"], project=project)

    assert point.run.model.name == "mine"
    assert point.user_config == (str(project / "conf"),)


def test_config_dir_adds_options_and_cannot_shadow_shipped_ones(tmp_path: Path) -> None:
    option(tmp_path / "site", "cluster", "mine", "name: mine\nscheduler: local\n")
    option(tmp_path / "site", "precision", "fp32", "name: bf16\n")

    (point,) = compose_from_cli(["-cd", str(tmp_path / "site"), "cluster=mine"], project=tmp_path)

    assert point.run.cluster.name == "mine"
    assert point.run.precision.name is PrecisionName.fp32


def test_a_conf_folder_of_another_program_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "conf" / "nginx").mkdir(parents=True)

    (point,) = compose_from_cli([], project=tmp_path)

    assert point.user_config == ()


def test_a_broken_option_file_is_named(tmp_path: Path) -> None:
    option(tmp_path / "conf", "model", "broken", "name: [unclosed\n")

    with pytest.raises(ConfigError, match=r"broken\.yaml"):
        compose_from_cli(["model=broken"], project=tmp_path)


@pytest.mark.parametrize("is_given", [True, False], ids=["given", "of-the-project"])
def test_an_option_file_in_another_encoding_is_named(tmp_path: Path, *, is_given: bool) -> None:
    folder = tmp_path / ("given" if is_given else "conf")
    (folder / "cluster").mkdir(parents=True)
    (folder / "cluster" / "mine.yaml").write_bytes("# @package _global_\n# Universität\n".encode("latin-1"))
    words = ["--config-dir", str(folder)] if is_given else []

    with pytest.raises(ConfigError, match=r"cluster/mine\.yaml: .*byte 0xe4.*: save it in UTF-8"):
        compose_from_cli([*words, "cluster=mine"], project=tmp_path)


def test_a_users_program_is_not_recorded_as_our_model_on_our_data(tmp_path: Path) -> None:
    (point,) = compose_from_cli(["workload.command=python train.py --lr 0.1"], project=tmp_path)

    assert (point.run.model.name, point.run.data.name) == ("custom", "custom")
    assert point.run.workload.command == "python train.py --lr 0.1"


def test_a_command_may_use_other_settings(tmp_path: Path) -> None:
    points = compose_from_cli(["-m", "workload.command=train --seed ${seed}", "seed=3,4"], project=tmp_path)

    assert [point.run.workload.command for point in points] == ["train --seed 3", "train --seed 4"]


# "$" begins an interpolation, and that is wanted; line ends and outer blanks are Hydra's.
@given(
    st.text(st.characters(codec="utf-8", exclude_characters="$", exclude_categories=["C", "Z"]), min_size=1).map(
        lambda t: f"x{t}x"
    )
)
@settings(max_examples=times(10, 60), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_command_arrives_as_it_was_typed(tmp_path: Path, command: str) -> None:
    (point,) = compose_from_cli([f"workload.command={command}"], project=tmp_path)

    assert point.run.workload.command == command


@pytest.mark.parametrize(
    "command", ['python -c "print(1, 2)"', r'grep "a\"b" c\\d', "a {b: c} [d] #e", "trailing\\", "it's"]
)
def test_a_command_with_hydras_own_characters_arrives_as_it_was_typed(tmp_path: Path, command: str) -> None:
    (point,) = compose_from_cli([f"workload.command={command}"], project=tmp_path)

    assert point.run.workload.command == command


def test_paths_are_meant_from_where_they_were_typed(tmp_path: Path) -> None:
    (point,) = compose_from_cli(["data=mnist", "data.path=files/mnist"], project=tmp_path)

    assert point.run.data.path == str(tmp_path / "files" / "mnist")


def test_every_shipped_option_composes_and_says_what_it_is(tmp_path: Path) -> None:
    needy = {file.stem for file in (CONF / "data").glob("*.yaml") if "needs_path: true" in file.read_text()}
    word = dict.fromkeys(Processes, "processes_per_node") | {Processes.one: "devices"}
    extra = {
        **{
            f"strategy/{name.name}": [f"strategy.{word[kind.processes]}={kind.fewest_devices}"]
            for name, kind in KINDS.items()
        },
        "model/custom": ["workload.command=x"],
        "container/sif": ["container.path=/x.sif"],
        "container/sandbox": ["container.path=/x"],
        "container/local": ["container.path=/x"],
        "container/definition": ["container.definition=/x"],
        "container/dockerfile": ["container.dockerfile=/x"],
    }
    together: dict[tuple[str, ...], list[str]] = {}  # a sweep composes its points in half the time
    for file in sorted(CONF.glob("*/*.yaml")):
        choice = f"{file.parent.name}/{file.stem}"
        text = file.read_text()
        assert any(line.startswith("# ") for line in text.splitlines()), f"{choice} is not documented"
        data = {file.stem} if file.parent.name == "data" else set(re.findall(r"override /data: (\w+)", text))
        path = ["data.path=x"] if data & needy else []
        if file.parent.name not in ("cluster", "study"):  # test_profiles.py and test_studies.py compose each of those
            together.setdefault((file.parent.name, *path, *extra.get(choice, [])), []).append(file.stem)
    for (group, *words), options in together.items():
        points = overrides_of("-m", f"{group}={','.join(options)}", *words, project=tmp_path)
        assert all(f"{group}={option}" in point for option, point in zip(options, points, strict=True))


def test_a_flag_that_takes_a_value_keeps_it(tmp_path: Path) -> None:
    (tmp_path / "a=b").mkdir()
    line = read_command_line(["seed=1", "-cd", str(tmp_path / "a=b"), "--cfg", "job"], project=tmp_path)

    assert (line.folders, line.shows) == ((tmp_path / "a=b",), "job")
    assert line.overrides == ("seed=1",)


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (["-m", "seed=1,2", "seed=3"], "seed=1,2 and seed=3 both set seed"),
        (["-m", "seed=1,2", "+seed=3,4"], "seed=1,2 and +seed=3,4 both set seed"),
        (["-m", "precision=fp32,tf32", "precision=bf16"], "both set precision"),
        (["~seed"], "~seed: every run has seed"),
        (["~training.steps"], "write training.steps=VALUE"),
    ],
)
def test_what_hydra_takes_in_silence_and_nobody_can_mean_is_refused(
    words: list[str], answer: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=re.escape(answer)):
        compose_from_cli(words, project=tmp_path)


def test_a_later_word_still_counts_where_no_sweep_is_lost(tmp_path: Path) -> None:
    assert [one.run.seed for one in compose_from_cli(["seed=1", "seed=2"], project=tmp_path)] == [2]
    assert [one.run.seed for one in compose_from_cli(["-m", "seed=3", "seed=1,2"], project=tmp_path)] == [1, 2]
    assert [one.run.name for one in compose_from_cli(["name=r{epoch}"], project=tmp_path)] == ["r{epoch}"]
    assert [one.run.name for one in compose_from_cli(["name=r-${seed}", "seed=4"], project=tmp_path)] == ["r-4"]


@pytest.mark.parametrize("key", ["account", "partition", "qos", "reservation"])
def test_an_empty_word_to_the_scheduler_is_a_variable_that_was_not_set(tmp_path: Path, key: str) -> None:
    with pytest.raises(ConfigError, match=rf"^resources\.{key}= is empty: .* or resources\.{key}=null for none$"):
        compose_from_cli([f"resources.{key}="], project=tmp_path)

    (point,) = compose_from_cli([f"resources.{key}=null"], project=tmp_path)
    assert getattr(point.run.resources, key) is None
