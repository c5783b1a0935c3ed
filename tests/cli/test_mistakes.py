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
    "+training.lr=1": "did you mean training.learning_rate?",
    "lr=1": "did you mean training.learning_rate?",
    "learning_rate=1": "did you mean training.learning_rate?",
    "training.learning_rat=1": "did you mean training.learning_rate?",
    "batch_size=8": "did you mean training.batch_size?",
    "bs=8": "did you mean training.batch_size?",
    "training.batchsize=8": "did you mean training.batch_size?",
    "epochs=3": "did you mean training.steps?",
    "steps=3": "did you mean training.steps?",
    "training.stepz=3": "did you mean training.steps",
    "resources.gpus=1": "did you mean resources.gpus_per_node?",
    "gpus=1": "did you mean resources.gpus_per_node?",
    "gpus_per_node=1": "did you mean resources.gpus_per_node?",
    "resources.cpus=4": "did you mean resources.cpus_per_task?",
    "cores=4": "did you mean resources.cpus_per_task?",
    "resources.memory=4G": "did you mean resources.mem?",
    "mem=4G": "did you mean resources.mem?",
    "resources.time=1h": "did you mean resources.walltime?",
    "walltime=1h": "did you mean resources.walltime?",
    "account=OPEN-1": "did you mean resources.account?",
    "project=OPEN-1": "did you mean resources.account?",
    "partition=qgpu": "did you mean resources.partition?",
    "queue=qgpu": "did you mean resources.queue?",
    "nodes=2": "did you mean resources.nodes?",
    "metric=loss": "did you mean objective.metric?",
    "margin=0.1": "did you mean objective.margin?",
    "command=ls": "did you mean workload.command?",
    "repeats=2": "did you mean schedule.repeats?",
    "dataset=digits": "did you mean data?",
    "modl=mnist_cnn": "did you mean model?",
    "presicion=fp32": "did you mean precision",
    "seeds=1": "did you mean seed?",
    "+colour=red": "hpcml run --help lists the keys",
    "~nothing": "unknown key nothing",
    "+cluster=karolna": "did you mean karolina",
    "cluster=lumi": "did you mean lumi_g?",
    "cluster=atlantis": "cluster is one of anselm",
    "model=mnist_cn": "did you mean mnist_cnn",
    "model=resnet": "resnet50",
    "precision=fp33": "did you mean fp32",
    "precision=bfloat16": "did you mean bf16",
    "precision=": "precision is one of 3xtf32, amp, amp_bf16",
    "precision=float16": "did you mean fp16?",
    "precision=double": "did you mean fp64?",
    "container=pytorch": "did you mean ngc_pytorch",
    "container=docker://pytorch/pytorch:2.9.0": (
        "write +container=docker container.image=pytorch/pytorch container.tag=2.9.0; container is one of "
    ),
    "+container=docker://ubuntu": "write +container=docker container.image=ubuntu; container is one of ",
    "+container=/images/torch.sif": "write +container=sif container.path=/images/torch.sif; container is one of ",
    "strategy=dpp": "did you mean ddp",
    "data=digit": "did you mean digits?",
    "precision=fp32,tf32": "add -m",
    "seed=1,2": "add -m",
    "seed=99999999999999999999": "seed=99999999999999999999 is out of range: whole numbers lie between -2^63 and 2^63",
    "training.steps=-99999999999999999999": "is out of range: whole numbers lie between",
    "seed=4294967296": "must lie in 0..2^32-1",
    "seed=abc": "seed is a whole number",
    "seed=1.5": "seed is a whole number",
    "training.steps=many": "training.steps is a whole number",
    "training.learning_rate=fast": "training.learning_rate is a number",
    "training.deterministic=perhaps": "training.deterministic is true or false",
    "schedule.pack=[seed,precision]": "schedule.pack is one text: leave out the brackets",
    "resources.nodes=two": "resources.nodes is a whole number",
    "training=abc": "training is a section: set one of its keys, training.steps",
    "data.path=${trainin.steps}": "did you mean training.steps?",
    "experiment=ünï": "use letters, digits",
    "experiment=a:b": "use letters, digits",
    "'experiment=a b'": "use letters, digits",
    "'experiment=\"'": "a quote is not closed",
    '"experiment=it\'s"': "a quote is not closed",
    "precision=fp32,": "empty part",
    "-m seed=1,,2": "empty part",
    "-m precision=fp32 precision=tf32": (  # which a shell makes of precision={fp32,tf32}
        "precision=fp32 precision=tf32: of these the last would count, and a shell makes them of {...}: "
        "the values of a sweep stand without braces: precision=fp32,tf32"
    ),
    "-m seed=0 seed=1 seed=2 model=custom": "without braces: seed=0,1,2",
    "-m 'seed={0,1}'": "the values of a sweep stand without brackets: -m seed=0,1",
    "-m 'precision=(fp32,tf32)'": "the values of a sweep stand without brackets: -m precision=fp32,tf32",
    "seed= 1": "'1' is no override: no blank stands behind a =: write seed=1",
    "'seed=range('": "is missing",
    "seed=[1": "is missing",
    "'cluster.prelude=[export A=b]'": "write 'cluster.prelude=[\"...\"]'",
    "'cluster.prelude=[module load a,\"x\" b=c]'": 'write \'cluster.prelude=["...","..."]\'',
    "'a b=1'": "write key=value",
    "schlüssel=1": "write key=value",
    "seed": "write key=value",
    "fp32": "write key=value",
    "=3": "write key=value",
    "--mutlirun seed=1": "unrecognized arguments: --mutlirun",
    "resources.mem=lots": "write 64G, 500M or 1T",
    "workload.metrics=loss": "workload.metrics is a list: write 'workload.metrics=[{pattern: ..., name: ...}]'",
    "workload.metrics_from=auto": "workload.metrics_from is a list: write 'workload.metrics_from=[auto]'",
    "'workload.metrics_from=\"a b.csv\"'": "write 'workload.metrics_from=[a,b]'",
    "workload.metrics=[loss]": "workload.metrics is a list: write 'workload.metrics=[{pattern: ..., name: ...}]'",
    "'workload.metrics={pattern: a, name: b}'": "write 'workload.metrics=[{pattern: ..., name: ...}]'",
    "'workload.metrics=[{patern: a, name: b}]'": "unknown key patern: did you mean pattern?",
    "'training={step: 1}'": "unknown key step: did you mean steps?",
    "workload.env=[A]": "workload.env has names below it: write workload.env.NAME=VALUE",
    "workload.args=x": "workload.args has names below it",
    "tags=a": "write 'tags=[a]'",
    "tags=a]": "write 'tags=[a,b]'",
    "ls -l": "a program stands behind two dashes: hpcml run -- ls -l",
    "train.py --lr 1": "a program stands behind two dashes: hpcml run -- python train.py --lr 1",
    "--gpus 2": "settings of a run have no dashes: write resources.gpus_per_node=2",
    "--nodes=2": "settings of a run have no dashes: write resources.nodes=2",
    "--time 1h": "write resources.walltime=1h",
    "--cluster karolina": "write cluster=karolina; a flag of the program stands behind two dashes: hpcml run --",
    "--experiment=wide": "settings of a run have no dashes: write experiment=wide; a flag",
    "--experiment wide seed=1": "write experiment=wide; a flag",
    "--experimental-rerun=train.py": "settings of a run have no dashes",
    "--exp=train.py": "settings of a run have no dashes; a flag of the program stands behind two dashes: hpcml run -- ",
    "--lr=0.1,0.2": "behind two dashes: hpcml run -- PROGRAM --lr 0.1,0.2",
    "--wrap='python t.py'": "settings of a run have no dashes",
    "-t 2:00:00": "settings of a run have no dashes",
    "--array=0-3": "unrecognized arguments: --array=0-3: settings of a run have no dashes; a flag",
    "-V": "unrecognized arguments: -V",
    "\u2013m seed=1,2": "its first sign is no '-', though it looks like one",
    "-c 4": "for Slurm's -c write resources.cpus_per_task=4",
    "-c4": "for Slurm's -c write resources.cpus_per_task=4",
    "seed=null": "seed=null: seed needs a value: leave the word out for its default",
    "training.steps=null": "training.steps needs a value",
    "-m seed=0..2": "a range of them is written -m 'seed=range(0,3)'",
    "-p gpu": "for Slurm's -p write resources.partition=gpu",
    "workload.env=x": "write workload.env.NAME=VALUE",
    "workload.env.1A=b": "where no name begins with a digit",
    "tag=paper": "did you mean tags?",
}
# The words of `hpcml`, and what the answer must say.
TYPED = {
    "cmpare": "did you mean compare?",
    "statsu": "did you mean status?",
    "submit": "did you mean run?",
    "ls": "did you mean runs?",
    "ps": "did you mean status?",
    "kill 222c": "did you mean cancel?",
    "tail -f x": "did you mean logs?",
    "resume": "did you mean retry?",
    "create": "did you mean new?",
    "init --cluster karolna": "did you mean karolina",
    "init --margin -1": "must be a positive number",
    "compare experiment=looks": "runs are selected by --experiment looks",
    "show precision=fp32": "runs are selected by --where precision=fp32",
    "run +workload.args.lr=0.1,0.2 workload.command=ls": "hpcml run args.lr=0.1,0.2 -- python train.py --lr {lr}",
    "zzz": "hpcml --help lists the commands",
    "--hme /x runs": "--home",
    "compare --byy precision": "Did you mean '--by'?",
    "compare --where nosuch": "write it as in 'precision=tf32",
    "compare nosuch": "hpcml runs lists them",
    "compare --margin much": "Invalid value for '--margin': 'much' is not a valid number.",
    "runs --limit x": "Invalid value for '--limit': 'x' is not a valid whole number.",
    "logs x --rank one": "'one' is not a valid whole number.",
    "show": "Missing argument 'RUN'",
    "show nosuch": "hpcml runs lists them",
    "show @-1": "fewer submissions",
    "logs x --errr": "Did you mean '--err'?",
    "wait --timeout soon": "write 200 (seconds)",
    "cancel": "say what is to be stopped",
    "rm": "say what goes",
    "tag": "say which runs, and what to change",
    "diff one two": "at least 4 characters",
    "curves": "name them",
    "runs --state DONE": "choose PENDING",
    "runs --limit -1": "x>=1",
    "export --to excel -o x": "there is no exporter 'excel': choose csv",
    "export --to csv": "-o FOLDER",
    "import /nowhere": "does not exist",
    "ingest /nowhere": "name a run directory",
    "scaling --over nosuch": "is not one of 'gpus'",
    "plan --margin 0": "x>0",
    "estimate seed=x": "seed is a whole number",
    "build nosuch": "write key=value",
    "images rmm x": "there is no command images rmm: did you mean rm",
    "images check": "did you mean verify?",
    "images nosuch": "there is no command images nosuch: choose export, import, prune, rm, verify",
    "cluster lst": "did you mean list?",
    "cluster discover": "did you mean new?",
    "store chekc": "there is no command store chekc: did you mean check?",
    "new study x": "did you mean experiment?",
    "report -o r.pdf": "-o r.pdf: a report is no pdf: write .html (a browser prints it to a PDF), .md or .tex",
    "runs --where 'loss=>0.9'": "after 'loss': write >= in place of =>, at character 6",
    "cluster show karolna": "did you mean karolina",
    "recipes image_clasification": "did you mean image_classification?",
    "recipes resnet50": "it is a model of the recipe resnet",
    "run workload.command=": "hpcml run -- python train.py",
    "top @99": "fewer runs",
    "top @-99": "fewer submissions",
    "new recpie x": "did you mean recipe?",
    "new recipe ../x": "use letters, digits",
    "gpus nosuch": "hpcml gpus lists them",
    "recipes nosuch": "choose allreduce",
    "sync extra": "Got unexpected extra argument (extra): hpcml sync --help lists what it takes",
    "doctor karolina": "hpcml doctor --help lists what it takes",
    "compare --baseline fp32": "No such option '--baseline'. Did you mean '--reference'?",
    "logs x --tail 5": "Did you mean '--lines'?",
    "report --output x.html": "Did you mean '-o'?",
    "runs --last 3": "Did you mean '--limit'?",
    "show --run x": "No such option '--run': hpcml show --help lists what it takes",
    "images rm --nosuch": "hpcml images rm --help lists what it takes",
    "run -n --json": "--dry-run submits nothing: leave one of them out",
    "run account=x": "did you mean resources.account?",
    "run lr=1 -- ls": "of your program stands behind the --: hpcml run [-m] -- python train.py --lr VALUE[,VALUE]",
    "run -m +lr=1,2 'workload.command=ls ${lr}'": "option of your program stands behind the --: hpcml run [-m] -- ",
    "run gpus=2 -- ls": "did you mean resources.gpus_per_node? An option of your program stands behind the --",
    "run resources.gpus=2 -- ls": "unknown key resources.gpus: did you mean resources.gpus_per_node?",
}


@pytest.mark.parametrize("line", SETTINGS)
def test_a_mistake_in_a_setting_is_one_line_with_the_remedy(line: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    with pytest.raises(ConfigError) as refusal:
        compose_from_cli(shlex.split(line), project=tmp_path)

    said = str(refusal.value)
    assert SETTINGS[line] in said
    assert "\n" not in said
    assert "Exception" not in said
    assert "hydra.cc" not in said
    assert refusal.value.exit_code == 2


@pytest.mark.parametrize("line", TYPED)
def test_a_mistake_in_a_command_is_one_line_with_the_remedy(line: str, hpcml: Hpcml) -> None:
    done = hpcml(*shlex.split(line))

    assert done.returncode == 2
    assert TYPED[line] in said_in_one_line(done)


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
    none, no_folders = hpcml("runs"), hpcml("ingest")

    assert (none.returncode, no_folders.returncode) == (0, 0)
    assert "hpcml run -n" in none.stderr
    assert "hpcml ingest PATH" in said_in_one_line(no_folders)


def test_nothing_is_guessed_for_what_is_like_nothing() -> None:
    assert nearest("zzzzz", ["resources.account", "layout"]) == []


@pytest.mark.parametrize("words", ["run -- true", "init", "new experiment x", "images", "doctor"])
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
        (("import", "x" * 300), "...: File name too long"),
    ],
)
def test_a_word_that_is_too_long_for_a_file_is_answered_in_a_line(
    hpcml: Hpcml, words: tuple[str, ...], says: str
) -> None:
    done = hpcml(*words)

    assert done.returncode == 2
    assert says in said_in_one_line(done)
