"""Mistakes that users make, each answered by one line that says how to put it right, and by exit code 2."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path

import pytest

from hpcml.config.compose import compose_from_cli
from hpcml.errors import ConfigError
from hpcml.spelling import nearest
from tests.cli.command_line import HPCML, Hpcml, said_in_one_line

# The words of `hpcml run`, and what the answer must say.
SETTINGS = {
    "training.lr=1": "did you mean training.learning_rate?",
    "learning_rate=1": "did you mean training.learning_rate?",
    "epochs=3": "did you mean training.steps?",
    "resources.gpus=1": "did you mean resources.gpus_per_node?",
    "queue=qgpu": "did you mean resources.queue?",
    "modl=mnist_cnn": "did you mean model?",
    "seeds=1": "did you mean seed?",
    "+colour=red": "hpcml run --help lists the keys",
    "~nothing": "unknown key nothing",
    "+cluster=karolna": "did you mean karolina",
    "cluster=atlantis": "cluster is one of anselm",
    "precision=fp33": "did you mean fp32",
    "precision=nvfp4": "Could not find 'precision/nvfp4': precision is one of",
    "schedule.until=verdict": "unknown key schedule.until: hpcml run --help lists the keys",
    "precision=": "precision is one of 3xtf32, amp, amp_bf16",
    "container=docker://pytorch/pytorch:2.9.0": "Could not find 'container/docker://pytorch/pytorch:2.9.0'",
    "precision=fp32,tf32": "add -m",
    "seed=99999999999999999999": "seed=99999999999999999999 is out of range: whole numbers lie between -2^63 and 2^63",
    "seed=4294967296": "must lie in 0..2^32-1",
    "seed=abc": "seed is a whole number",
    "training.deterministic=perhaps": "training.deterministic is true or false",
    "training=abc": "training is a section: set one of its keys, training.steps",
    "data.path=${trainin.steps}": "data.path: Interpolation key 'trainin.steps' not found",
    "experiment=a:b": "use letters, digits",
    "'experiment=\"'": "a text with such signs in two kinds of quotes: 'experiment=",
    "-m seed=1,,2": "values of a sweep are written seed=a,b",
    "-m precision=fp32 precision=tf32": (  # which a shell makes of precision={fp32,tf32}
        "precision=fp32 precision=tf32: of these the last would count, and a shell makes them of {...}: "
        "the values of a sweep stand without braces: precision=fp32,tf32"
    ),
    "-m 'seed={0,1}'": "values of a sweep are written seed=a,b",
    "seed= 1": "'1' is no override: no blank stands behind a =: write seed=1",
    "seed=[1": "a text with such signs in two kinds of quotes",
    "'a b=1'": "write key=value",
    "fp32": "write key=value",
    "--mutlirun seed=1": "--mutlirun is no option of hpcml run",
    "resources.mem=lots": "write 64G, 500M or 1T",
    "workload.metrics=loss": "workload.metrics is a list: write 'workload.metrics=[{pattern: ..., name: ...}]'",
    "'workload.metrics=[{patern: a, name: b}]'": "'workload.metrics': Key 'patern' not in 'MetricRule'",
    "workload.env=[A]": "workload.env has names below it: write workload.env.NAME=VALUE",
    "tags=a": "write 'tags=[a]'",
    "train.py --lr 1": "a program stands behind two dashes: hpcml run -- python train.py --lr 1",
    "--gpus 2": "settings of a run have no dashes: write resources.gpus_per_node=2",
    "--lr 0.1,0.2": "one of a program: hpcml run -- PROGRAM --lr 0.1,0.2",
    "-t 2:00:00": "write resources.walltime=2:00:00",
    "-c 4": "write resources.cpus_per_task=4",
    "-p gpu": "write resources.partition=gpu",
    "\u2013m seed=1,2": "its first sign is no '-', though it looks like one",
    "--array=0-3": "--array 0-3 is no option of hpcml run: settings of a run have no dashes",
    "-l select=1:ncpus=4": "-l is no option of hpcml run",
    "seed=null": "seed=null: seed needs a value: leave the word out for its default",
    "--wrap='python t.py'": "settings of a run have no dashes",
}
# The words of `hpcml`, and what the answer must say.
TYPED = {
    "cmpare": "did you mean compare?",
    "ps": "did you mean status?",
    "new project --cluster karolna": "did you mean karolina",
    "compare experiment=looks": "runs are selected by --experiment looks",
    "run +workload.args.lr=0.1,0.2 workload.command=ls": "hpcml run args.lr=0.1,0.2 -- python train.py --lr {lr}",
    "zzz": "hpcml --help lists the commands",
    "--hme /x runs": "--home",
    "compare --metric a --by x --metric=b": "--metric was given 2 times, and the last alone would count: give one",
    "compare --margin much": "Invalid value for '--margin': 'much' is not a valid number or per cent.",
    "show a b": "hpcml show shows one run: name it",
    "logs": "Missing argument 'RUN': hpcml logs --help lists what it takes",
    "best": "did you mean runs --best?",
    "files @1": "did you mean show --files?",
    "curves @1": "did you mean show --curve?",
    "gpus a100": "did you mean recipes --gpus?",
    "init --name x": "did you mean new project?",
    "note @1 x": "did you mean tag --note?",
    "images prune": "did you mean rm --older-than?",
    "new experiment x": "did you mean study?",
    "export csv": "Missing option: hpcml export --to FORMAT: csv, json, parquet, mlflow, tensorboard, rocrate, or one",
    "tag x good": "hpcml tag RUN... +paper -draft",
    "runs --tag paper": "No such option '--tag': hpcml runs --help lists what it takes",
    "jewels": "there is no command jewels: hpcml --help lists the commands",
    "show nosuch": "hpcml runs lists them",
    "show @-1": "fewer submissions",
    "wait --timeout soon": "write 200 (seconds)",
    "cancel": "say what is to be stopped",
    "runs --state DONE": "choose PENDING",
    "export --to excel -o x": "there is no exporter 'excel': choose csv",
    "build nosuch": "write key=value",
    "images rmm x": "there is no command images rmm: did you mean rm",
    "runs --where 'loss=>0.9'": "after 'loss': write >= in place of =>, at character 6",
    "recipes resnet50": "it is a model of the recipe resnet",
    "new recipe ../x": "use letters, digits",
    "sync extra": "hpcml sync --add DIR...",
    "doctor extra": "Got unexpected extra argument (extra): hpcml doctor --help lists what it takes",
    "logs x --tail 5": "Did you mean '--lines'?",
    "run -n --json": "--dry-run submits nothing: leave one of them out",
    "run lr=1 -- ls": "of your program stands behind the --: hpcml run [-m] -- python train.py --lr VALUE[,VALUE]",
    "run gpus=2 -- ls": "did you mean resources.gpus_per_node? An option of your program stands behind the --",
}


def test_a_mistake_in_a_setting_is_one_line_with_the_remedy(tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    for line, remedy in SETTINGS.items():
        said = ""
        try:
            compose_from_cli(shlex.split(line), project=tmp_path)
        except ConfigError as error:
            said = str(error)

        assert remedy in said, line
        assert "\n" not in said, line
        assert "Exception" not in said, line
        assert "hydra.cc" not in said, line


def test_a_mistake_in_a_command_is_one_line_with_the_remedy(hpcml: Hpcml) -> None:
    for line, remedy in TYPED.items():
        done = hpcml(*shlex.split(line))

        assert done.returncode == 2, line
        assert remedy in said_in_one_line(done), line


@pytest.mark.parametrize(
    ("word", "key", "value"),
    [
        ("data.path=~/data", "path", str(Path("~/data").expanduser())),
        ("data.path=/scratch/größe/x y", "path", "/scratch/größe/x y"),
        ("resources.nodelist=acn[01-02,05]", "nodelist", "acn[01-02,05]"),
    ],
)
def test_a_value_with_odd_signs_is_taken_as_it_is(word: str, key: str, value: str, tmp_path: Path) -> None:
    (point,) = compose_from_cli([word, "data=custom"], project=tmp_path)

    assert getattr(point.run.data if key == "path" else point.run.resources, key) == value


def test_values_with_odd_signs_are_points_of_a_sweep(tmp_path: Path) -> None:
    points = compose_from_cli(["-m", "resources.nodelist=acn[01,02],acn[03]"], project=tmp_path)

    assert [point.run.resources.nodelist for point in points] == ["acn[01,02]", "acn[03]"]


@pytest.mark.parametrize("words", [[], ["--help"], ["new"]])
def test_a_command_without_words_helps(words: list[str], hpcml: Hpcml) -> None:
    done = hpcml(*words)

    assert (done.returncode, done.stderr) == (0, "")
    assert "Usage: hpcml" in done.stdout


def test_where_nothing_is_yet_it_is_said_how_to_begin(hpcml: Hpcml) -> None:
    none, no_folders = hpcml("runs"), hpcml("sync", "--add")

    assert (none.returncode, no_folders.returncode) == (0, 2)
    assert "hpcml run -n" in none.stderr
    assert "hpcml sync --add DIR" in said_in_one_line(no_folders)


def test_nothing_is_guessed_for_what_is_like_nothing() -> None:
    assert nearest("zzzzz", ["resources.account", "layout"]) == []


@pytest.mark.parametrize("words", ["run -- true", "new project", "new study x", "images", "doctor"])
def test_in_a_folder_that_was_removed_the_answer_is_one_line(hpcml: Hpcml, words: str) -> None:
    lost = hpcml.cwd / "lost"
    lost.mkdir()
    there = ["sh", "-c", 'rmdir "$PWD" && exec "$@"', "sh", *HPCML, *words.split()]

    done = subprocess.run(there, cwd=lost, env=hpcml.environ, capture_output=True, text=True, check=False)

    assert done.returncode == 2
    assert said_in_one_line(done) == "hpcml: the folder that you are in was removed meanwhile: cd to one that is there"


def test_python_without_its_assertions_is_named_where_hydras_parser_needs_them(hpcml: Hpcml) -> None:
    word = 'workload.metrics=[{pattern: "loss=(?P<value>.*)", name: loss}]'

    done = hpcml("run", "-n", word, "--", "true", PYTHONOPTIMIZE="1")

    assert done.returncode == 2
    assert "PYTHONOPTIMIZE takes out what its parser works by: unset it" in said_in_one_line(done)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("run", "-n", "x" * 300), "is no override: write key=value"),
        (("build", "-n", "x" * 300), "is no override: write key=value"),
        (("build", "-n", f"container.post=['echo {'x' * 300}']"), "container.post is of an image to build"),
    ],
)
def test_a_word_that_is_too_long_for_a_file_is_answered_in_a_line(
    hpcml: Hpcml, words: tuple[str, ...], says: str
) -> None:
    done = hpcml(*words)

    assert done.returncode == 2
    assert says in said_in_one_line(done)
