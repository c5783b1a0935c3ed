"""``hpcml run -- program``: a program of one's own, behind two dashes."""

import json
import re
import shlex
import sys
from pathlib import Path

import pytest

from hpcml.runs.layout import RunDir
from tests.cli.command_line import Hpcml, said_in_one_line

SAYS = "import sys, json; print(json.dumps(sys.argv[1:]))"
FITS = """
import argparse, random
p = argparse.ArgumentParser()
p.add_argument("--lr", type=float)
p.add_argument("--seed", type=int)
a = p.parse_args()
print("loss", a.lr + random.Random(a.seed).random() / 1000)
"""
RULES = [r'workload.metrics=[{pattern: "loss (?P<value>\S+)", name: loss}]', "objective.metric=loss"]
JUDGED = [*RULES, "objective.goal=min", "objective.margin=0.1"]


def test_words_reach_the_program_exactly_as_they_were_typed(hpcml: Hpcml) -> None:
    words = ["-m", "--json", "-n", "a  b", "", "it's", '{"a":1,"b":2}', "1,2", "x=${y}", "--", "--missing", "{o}.pt"]

    done = hpcml("run", "seed=7", "--", sys.executable, "-c", SAYS, *words, "{seed}", "{{seed}}")

    assert done.returncode == 0, done.stderr
    (run,) = hpcml.runs()
    said = RunDir(Path(run["path"])).stdout(0, 0).read_text()
    assert json.loads(said) == [*words, "7", "{seed}"]


def test_a_flag_that_is_there_or_not_is_swept_with_the_seeds_and_compared(hpcml: Hpcml) -> None:
    says = "import sys, json; given = sys.argv[2:]; print('loss', len(given) + int(given[0]) / 1000, json.dumps(given))"
    (hpcml.cwd / "says.py").write_text(says)

    program = ("--", sys.executable, "says.py", "--seed", "0..2", "{amp}", "x")
    done = hpcml("run", "-m", "args.amp=--amp,", *JUDGED, *program)
    assert done.returncode == 0, done.stderr
    compared = hpcml("compare", "--by", "amp", "--json")
    without, with_it = json.loads(compared.stdout)["cells"][0]["rows"]

    assert [(row["level"], row["n_ok"]) for row in (without, with_it)] == [('""', 3), ("--amp", 3)]
    for command in (("runs", "--md"), ("show", "--curve", "--experiment", "default", "--md")):  # which is which
        listed = hpcml(*command).stdout
        assert (listed.count('| amp="" |'), listed.count("| amp=--amp |")) == (3, 3), listed
    said = {RunDir(Path(run["path"])).stdout(0, 0).read_text().partition(" [")[2] for run in hpcml.runs()}
    assert said == {f'"{seed}", {words}]\n' for seed in range(3) for words in ('"x"', '"--amp", "x"')}


def test_a_setting_that_is_set_twice_is_told_of(hpcml: Hpcml) -> None:
    done = hpcml("run", "-n", "precision=fp32", "seed=1", "precision=tf32", "seed=1", "--", sys.executable, "-c", SAYS)

    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines() == ["hpcml: warning: precision=fp32 has no effect: precision=tf32 stands behind it"]


def test_a_command_that_is_a_setting_has_the_runs_own_filled_in_as_well(hpcml: Hpcml) -> None:
    words = ["{seed}", "--p={precision}", "{mixed_precision}", "{other}", "{{seed}}"]
    command = f"{shlex.join([sys.executable, '-c', SAYS])} {' '.join(words)}"

    done = hpcml("run", f"workload.command={command}", "seed=7", "precision=amp_bf16")

    assert done.returncode == 0, done.stderr
    (run,) = hpcml.runs()
    said = RunDir(Path(run["path"])).stdout(0, 0).read_text()
    assert json.loads(said) == ["7", "--p=amp_bf16", "bf16", "{other}", "{seed}"]


def test_a_metric_to_compare_by_that_was_never_reported_is_named_at_the_end(hpcml: Hpcml) -> None:
    row = "{'step': 1, 'acc': 0.5, **dict.fromkeys(sys.argv[1:], 1)}"
    (hpcml.cwd / "metrics.py").write_text(
        f"import json, sys; print(json.dumps({row}), file=open('metrics.jsonl', 'w'))"
    )
    program = ["--", sys.executable, "metrics.py"]

    other, chosen = hpcml("run", *program, "loss"), hpcml("run", "objective.metric=acc", *program, "loss")
    only = hpcml("run", *program)

    assert (other.returncode, chosen.returncode) == (0, 0), other.stderr
    told = "1 of 1 runs reported loss, acc: objective.metric=NAME says which counts"
    assert told in other.stderr
    assert "and --metric NAME judges these" in other.stderr
    assert "runs reported" not in chosen.stderr + only.stderr


@pytest.mark.parametrize("printed", ["FOM  =  32.76 (z/s)", "Lookups/s:   975,159"])
def test_what_is_advised_for_a_printed_metric_reads_it_and_judges_by_it_when_it_is_typed(
    hpcml: Hpcml, printed: str
) -> None:
    program = ["--", "echo", printed]

    mute = hpcml("run", *program)
    advised = re.search(r"hpcml (read \S+ --metric (\S+)), and next time hpcml (run --metric \S+) -- ...", mute.stderr)
    assert advised is not None, mute.stderr
    read, told = hpcml(*advised[1].split()), hpcml(*advised[3].split(), *program)

    assert (read.returncode, read.stdout) == (0, f"1 of 1 runs: 1 values of {advised[2]}\n")
    assert (told.returncode, told.stderr) == (0, "")
    assert f"COMPLETED {advised[2]} " in told.stdout


def test_metrics_are_named_before_the_run_and_the_first_is_what_runs_are_judged_by(hpcml: Hpcml) -> None:
    (hpcml.cwd / "both.py").write_text(
        "print('step 3 loss=0.5 val_loss: 0.75 rate 9')\nopen('metrics.jsonl', 'w').write('{\"acc\": 0.25}\\n')"
    )
    rule = 'workload.metrics=[{pattern: "rate (?P<rate>.)"}]'

    done = hpcml("run", "--metric", "val_loss", "--metric=acc", "--metric=loss", rule, "--", sys.executable, "both.py")

    (run,) = hpcml.runs()
    refused = hpcml("run", "--metric=", "--", "true")
    assert (done.returncode, done.stderr) == (0, "")
    assert "COMPLETED val_loss 0.7500" in done.stdout
    values = {name: one["last"] for name, one in run["metrics"].items()}
    assert values == {"val_loss": 0.75, "loss": 0.5, "acc": 0.25, "rate": 9}
    assert said_in_one_line(refused).endswith("the name that a program prints before the number")


def test_a_rule_that_matched_no_line_is_named_at_the_end(hpcml: Hpcml) -> None:
    rules = r'workload.metrics=[{pattern: "loss: (?P<value>\S+)", name: loss}, {pattern: "acc (?P<acc>\S+)"}]'

    done = hpcml("run", "-m", "seed=1,2", rules, "--", "echo", "loss=0.5")

    assert done.returncode == 0, done.stderr
    first, second, third = [line for line in done.stderr.splitlines() if "warning" in line][-3:]
    assert r"in 2 of 2 runs no line matched the rule loss: (?P<value>\S+), or none with a number: hpcml logs" in first
    assert r"the rule acc (?P<acc>\S+), or none" in second
    assert "it printed loss 0.5: hpcml read" in third


def test_a_program_of_which_nothing_is_known_is_said_to_have_reported_nothing(hpcml: Hpcml) -> None:
    done = hpcml("run", "--", "true")
    (run,) = hpcml.runs()

    shown, alone = hpcml("show", run["uid"]), hpcml("compare")

    assert "1 of 1 runs reported no metric" in done.stderr
    assert "hpcml run --metric loss -- ..." in done.stderr
    said = {line.split()[0]: " ".join(line.split()[1:]) for line in shown.stdout.splitlines() if line.split()}
    assert said["command"] == "true"
    assert said["effective"] == "not proven"
    assert said.keys().isdisjoint({"asked", "numerics"})
    assert alone.returncode == 2
    assert "the only run has precision=own" in said_in_one_line(alone)


@pytest.mark.parametrize(
    ("file", "said"), [("words.csv", "[auto,words.csv]"), ("mes résultats, 1.csv", '[auto,"mes résultats, 1.csv"]')]
)
def test_a_file_of_metrics_that_was_named_is_not_advised_again(hpcml: Hpcml, file: str, said: str) -> None:
    write = ["--", "bash", "-c", f"echo begin > '{file}'; echo acc 0.5 >> '{file}'"]

    advised = hpcml("run", *write)
    named = hpcml("run", f"workload.metrics_from={said}", *write)

    assert f"workload.metrics_from='{said}' reads the file that it wrote" in advised.stderr
    assert "reads the file" not in named.stderr
    assert f"{file}: the program wrote no number there" in named.stderr


@pytest.mark.parametrize(("chosen", "alone", "shared"), [([], 7, 1), (["workload.env.UV_NO_SYNC=0"], 0, 0)])
def test_uv_installs_no_copy_into_an_environment_that_runs_share(
    hpcml: Hpcml, chosen: list[str], alone: int, shared: int
) -> None:
    rule = ["workload.metrics=[{pattern: 'no_sync (?P<value>.+)', name: no_sync}]", "objective.metric=no_sync"]
    command = ["run", *rule, *chosen, "--", "bash", "-c", "echo no_sync ${UV_NO_SYNC-7}"]

    without = hpcml(*command)
    (hpcml.cwd / ".venv").mkdir()
    linked = hpcml(*command)

    assert f"COMPLETED no_sync {alone}" in without.stdout
    assert f"COMPLETED no_sync {shared}" in linked.stdout


def test_a_flag_that_is_swept_is_compared_by_its_name(hpcml: Hpcml) -> None:
    (hpcml.cwd / "fit.py").write_text(FITS)
    fit = ["--", sys.executable, "fit.py", "--seed", "0..2", "--lr"]

    first = hpcml("run", "-m", *JUDGED, *fit, "1e-1,0.9")
    more = hpcml("run", "-m", "--missing", *JUDGED, *fit, "1e-1,0.9,0.5")
    again = hpcml("run", "-m", *JUDGED, *fit, "0.10")
    compared = hpcml("compare", "--by", "lr", "--json")
    unasked = hpcml("compare")

    assert said_in_one_line(unasked).endswith("by which setting? these runs differ in lr: --by lr")
    assert (first.returncode, more.returncode, again.returncode) == (0, 0, 0), (first.stderr, again.stderr)
    assert "sweep of the program's own settings: lr: 1e-1 0.9 x seed: 0 1 2" in first.stderr
    assert "6 of 9 configurations are done" in more.stderr
    (cell,) = json.loads(compared.stdout)["cells"]
    assert [(row["level"], sorted(set(row["seeds"]))) for row in cell["rows"]] == [
        ("0.1", [0, 1, 2]),
        ("0.5", [0, 1, 2]),
        ("0.9", [0, 1, 2]),
    ]


def test_of_a_program_of_ones_own_only_what_is_known_is_said(hpcml: Hpcml) -> None:
    done = hpcml("run", "-m", *JUDGED, "--", sys.executable, "-c", "print('loss', 1)", "--lr", "1,2")
    assert done.returncode == 0, done.stderr
    uid = hpcml.runs()[0]["uid"]

    plan, compared, shown = hpcml("run", "-n", "--", "true"), hpcml("compare", "--by", "lr"), hpcml("show", uid)

    for said in (plan.stdout, compared.stdout, shown.stdout):
        assert not [word for word in ("nchw", "batch", "digits", "training.") if word in said], said
    assert "program     your own, single" in plan.stdout
    assert "strategy single · cluster local" in compared.stdout
    asked = [line.split()[:1] for line in shown.stdout.splitlines()[1:]]
    assert asked[0] == ["asked"]
    assert "args.lr=1" in shown.stdout.split()


def test_a_plan_of_a_sweep_says_once_what_its_runs_have_in_common(hpcml: Hpcml) -> None:
    said = hpcml("run", "-n", "-m", "experiment=mine", "--", sys.executable, "-c", "pass", "--lr", "1,2").stdout

    common, first, second = said.partition("all runs\n")[2].partition("\n$ ")[0].split("\n\n")
    assert said.count("OMP_NUM_THREADS=") == 1
    assert "asked       experiment=mine" in common
    assert "processes   1 a node\n" in common
    assert [block.splitlines()[0] for block in (first, second)] == ["[1/2] args.lr=1", "[2/2] args.lr=2"]
    assert [line.split()[0] for line in first.splitlines()[1:]] == ["config", "command"]


def test_as_is_sweeps_nothing_but_what_is_asked_for_in_front(hpcml: Hpcml) -> None:
    done = hpcml("run", "-n", "-m", "--as-is", "args.lr=1,2", "--", sys.executable, "-c", "pass", "3,4", "--lr={lr}")

    assert done.returncode == 0, done.stderr
    assert [done.stdout.count(f"-c pass 3,4 --lr={lr}") for lr in "12"] == [1, 1]


def test_a_sweep_of_one_run_and_a_folder_that_all_runs_write_to_are_remarked_on(hpcml: Hpcml) -> None:
    program = ["--", sys.executable, "-c", "pass"]

    alone = hpcml("run", "-n", "-m", *program, "--lr", "0.1", "0.2")
    shared = hpcml("run", "-n", "-m", *program, "--lr", "0.1,0.2", "--output_dir", "/scratch/out")
    own = hpcml("run", "-n", "-m", *program, "--lr", "0.1,0.2", "--output_dir=/scratch/{lr}", "--data", "/scratch/in")

    assert "-m, and there is one run: a list with commas or a range is a sweep" in alone.stderr
    assert "all runs write to /scratch/out: a relative path behind --output_dir is each run's own" in shared.stderr
    assert "all runs write" not in own.stderr


@pytest.mark.parametrize(
    ("words", "place"),
    [
        (["--storage", "sqlite:////scratch/study.db"], "/scratch/study.db"),
        (["--trainer.default_root_dir=/scratch/out"], "/scratch/out"),
        (["hydra.run.dir=/scratch/out"], "/scratch/out"),
        (["--work-dir", "/scratch/out"], "/scratch/out"),
        (["-o", "/scratch/out"], "/scratch/out"),
        (["train", "project=/scratch/out"], "/scratch/out"),
        (["--ckpt_path", "/scratch/base.pt"], None),  # is read
        (["--saved_model", "/scratch/base.pt", "--load_checkpoint_dir=/scratch/base"], None),
        (
            [
                "--output_size",
                "/scratch/7",
                "--log",
                "/dev/null",
                "--layout=/scratch/net.yaml",
                "--catalog",
                "/scratch/all.csv",
            ],
            None,
        ),
        (["--storage=sqlite:///study.db", "LD_LIBRARY_PATH=/scratch/lib"], None),
        (["--out", "{lr}.pt", "/scratch/in"], None),
    ],
)
def test_a_place_that_all_runs_write_to_is_known_by_its_flag_or_key(
    hpcml: Hpcml, words: list[str], place: str | None
) -> None:
    done = hpcml("run", "-n", "-m", "--", sys.executable, "-c", "pass", "--lr", "0.1,0.2", *words)

    assert done.returncode == 0, done.stderr
    told = [line for line in done.stderr.splitlines() if "all runs write to" in line]
    assert len(told) == (place is not None)
    assert all(f"all runs write to {place}: a relative path behind" in line for line in told)


def test_what_cannot_be_swept_is_said_in_one_line_and_nothing_is_written(hpcml: Hpcml) -> None:
    done = hpcml("run", "-m", "--", sys.executable, "-c", "pass", "--betas", "0.9,")

    assert done.returncode == 2
    assert "a comma that is meant" in said_in_one_line(done)
    assert not hpcml.home.exists()


ASKS = """
import os, sys
print("sees", os.environ.get("NVIDIA_TF32_OVERRIDE"), os.environ.get("TORCH_ALLOW_TF32_CUBLAS_OVERRIDE"), *sys.argv[1:])
"""


def test_the_arithmetic_of_a_program_of_ones_own_is_left_alone_unless_one_chooses(hpcml: Hpcml) -> None:
    ask = ["--", sys.executable, "-c", ASKS, "{precision}"]

    done = [
        hpcml("run", *ask, NVIDIA_TF32_OVERRIDE="1"),
        hpcml("run", "precision=fp32", *ask, "{mixed_precision}", NVIDIA_TF32_OVERRIDE="1"),
        hpcml("run", "precision=amp_bf16", *ask, "{mixed_precision}"),
    ]
    refused = hpcml("run", *ask, "--mixed_precision", "{mixed_precision}")
    swept = hpcml("run", "-n", "-m", *ask, "--mixed_precision", "no,bf16")  # accelerate's flag, its values typed
    planned = hpcml("run", "-n", *ask)

    assert swept.returncode == 0, swept.stderr
    assert "--mixed_precision bf16" in swept.stdout
    assert [each.returncode for each in done] == [0, 0, 0], done[0].stderr
    found = {run["precision"]: run for run in hpcml.runs()}
    said = {name: RunDir(Path(run["path"])).stdout(0, 0).read_text().strip() for name, run in found.items()}
    assert said == {"own": "sees 1 None own", "fp32": "sees 0 0 fp32 no", "amp_bf16": "sees 0 0 amp_bf16 bf16"}
    assert refused.returncode == 2
    assert "precision=own: {mixed_precision} has no word for it; choose one of fp32" in said_in_one_line(refused)
    assert "own: left to the program" in planned.stdout
    assert "TF32" not in planned.stdout.replace(ASKS, "").partition("command")[0]
    shown = hpcml("show", found["own"]["uid"]).stdout
    assert "own  (nothing: left to the program)" in shown
    assert "not proven" in shown


def test_what_a_program_measures_by_itself_contradicts_nothing_that_it_was_not_asked(hpcml: Hpcml) -> None:
    code = "import hpcml_client; hpcml_client.connect().apply_precision('numpy'); print('loss', 1)"

    done = hpcml("run", "-m", *JUDGED, "--", sys.executable, "-c", code, "--lr", "1,2")
    compared = hpcml("compare", "--by", "lr", "--json")

    assert done.returncode == 0, done.stderr
    assert {(run["precision"], run["precision_effective"]) for run in hpcml.runs()} == {("own", "fp64")}
    (cell,) = json.loads(compared.stdout)["cells"]
    assert [row["precision_effective"] for row in cell["rows"]] == [["fp64"], ["fp64"]]
    assert "not as requested" not in compared.stdout
    assert "requested own" not in compared.stdout
    assert "own: fp64" in hpcml("runs").stdout


def test_a_python_that_does_not_find_the_client_is_one_line_that_says_what_to_do(hpcml: Hpcml) -> None:
    (hpcml.cwd / "x.py").write_text("import hpcml_client\n")

    done = hpcml("run", "--", sys.executable, "-I", "-S", "x.py")  # which reads no PYTHONPATH

    said = done.stderr.splitlines()[0]
    assert done.returncode == 1
    assert "FAILED: this Python does not find hpcml_client" in said
    assert "pip install ./hpcml_client" in said
    assert "this Python does not find hpcml_client" in " ".join(hpcml("show", "@1").stdout.split())


def test_secrets_reach_the_program_and_are_neither_recorded_as_settings_nor_shown_nor_exported(hpcml: Hpcml) -> None:
    says = "import os, sys; print(sys.argv[1:], os.environ['WANDB_API_KEY'], os.environ['HF_TOKEN'])"
    behind = (
        "env",
        "HF_TOKEN=sesame3",
        sys.executable,
        "-c",
        says,
        "--api-key",
        "sesame1",
        "--token=sesame2",
        "--lr",
        "1",
    )
    words = ("experiment=keys", "workload.env.WANDB_API_KEY=sesame4", "--", *behind)

    planned, done = hpcml("run", "--dry-run", *words), hpcml("run", *words)
    shown = hpcml("show", "@1", "--all")
    (run,) = hpcml.runs()
    run_dir = RunDir(Path(run["path"]))
    crate = hpcml("export", "@1", "--to", "rocrate", "-o", "crate")

    said = run_dir.stdout(0, 0).read_text()
    assert all(f"sesame{number}" in said for number in (1, 2, 3, 4))
    assert crate.returncode == 0, crate.stderr
    exported = "".join(path.read_text() for path in (hpcml.cwd / "crate").rglob("*") if path.is_file())
    assert "run.json" in exported
    recorded = "".join(path.read_text() for path in run_dir.journal_files())
    provenance = json.dumps(json.loads(run_dir.manifest.read_text())["provenance"])
    told = [planned.stdout, done.stdout + done.stderr, shown.stdout, json.dumps(run), recorded, provenance, exported]
    assert ["sesame" in text for text in told] == [False] * len(told)
    assert run["params"]["workload.env.WANDB_API_KEY"] == "***"
    assert b"sesame" not in (hpcml.home / "store.db").read_bytes()
