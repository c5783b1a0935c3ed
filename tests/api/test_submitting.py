from __future__ import annotations

import json
import signal
import subprocess
import sys
import textwrap
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import hydra
import pytest
from hydra.core.global_hydra import GlobalHydra

import hpcml
from hpcml.api.submission import ComposedRuns, Submission
from hpcml.errors import ConfigError, HpcmlError
from hpcml.model.precision import PrecisionName
from hpcml.model.state import State
from hpcml.runs.layout import RunDir

TRAIN = """
import sys, time
lr, seed, pause_s = float(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
print(f"val_accuracy={lr + seed / 100:.3f}", flush=True)
time.sleep(pause_s)
sys.exit(seed == 9)
"""
METRICS = [{"pattern": r"val_accuracy=(?P<value>\S+)", "name": "val_accuracy"}]


@pytest.fixture
def project(tmp_path: Path, hpcml_environ: Mapping[str, str], monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder of a user with an empty home, with a program in it."""
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "train.py").write_text(TRAIN)
    monkeypatch.chdir(folder)
    for name in ("HOME", "HPCML_HOME", "XDG_RUNTIME_DIR"):
        monkeypatch.setenv(name, hpcml_environ[name])
    monkeypatch.delenv("HPCML_STORE", raising=False)
    return folder


def composed(*, lrs: Sequence[float] = (0.1,), seeds: Sequence[int] = (0,), pause_s: float = 0) -> ComposedRuns:
    return hpcml.compose(
        settings={"experiment": "notebook", "workload.metrics": METRICS, "telemetry.enabled": False},
        program=[sys.executable, "train.py", "{lr}", "{seed}", str(pause_s)],
        sweep={"args.lr": lrs, "seed": seeds},
    )


def test_runs_are_composed_as_on_the_command_line(project: Path) -> None:
    del project

    runs = hpcml.compose(
        "model=mnist_cnn",
        settings={"training.steps": 7},
        sweep={"precision": ["fp32", PrecisionName.tf32], "seed": [3]},
    )

    assert [(run.precision.name.name, run.training.steps, run.seed) for run in runs] == [("fp32", 7, 3), ("tf32", 7, 3)]
    assert runs[1:][0] == runs[-1]
    assert runs.overrides[1] == ("model=mnist_cnn", "training.steps=7", "precision=tf32", "seed=3")
    assert repr(runs) == "<2 composed runs: hpcml run -m model=mnist_cnn training.steps=7 precision=fp32,tf32 seed=3>"
    assert [run.seed for run in hpcml.compose("-m", "seed=0,1")] == [0, 1]


def test_a_program_gets_texts_as_they_are(project: Path) -> None:
    (project / "say.py").write_text("import sys\nprint(repr(sys.argv[1:]))\n")
    texts = ["it's", "a, b", "[0,1)", "", "x=y", "1..3", 'say "hi"', "{seed}", "${oc.env:HOME}", r"a\,b", "null"]

    runs = hpcml.compose(program=["python", Path("say.py"), "-{text}"], sweep={"args.text": texts})
    one = hpcml.compose(program="python say.py {text} {flag}", settings={"args.text": "a, b", "args.flag": True})

    assert [run.workload.args["text"] for run in runs if run.workload.args] == texts
    assert [run.workload.args for run in one] == [{"text": "a, b", "flag": "true"}]
    for run, text in zip(runs.submit().wait(timeout_s=120), texts, strict=True):
        assert RunDir(Path(run.path)).stdout(0, 0).read_text().strip() == repr([f"-{text}"])


def test_what_is_asked_otherwise_in_python_is_said(project: Path) -> None:
    del project

    with pytest.raises(ConfigError, match=r"--missing is submit\(only_missing=True\) in Python"):
        hpcml.compose("model=mnist_mlp", "--missing")
    with pytest.raises(ConfigError, match=r"program= has 0.1: each of its words is a text or a path"):
        hpcml.compose(program=["python", 0.1])  # type: ignore[list-item]
    with pytest.raises(ConfigError, match=r"args.x is in settings and in sweep"):
        hpcml.compose(program="python {x}", settings={"args.x": 1}, sweep={"args.x": [1, 2]})


def test_composed_runs_show_no_secrets(project: Path) -> None:
    del project
    runs = hpcml.compose("model=mnist_mlp", settings={"workload.env.HF_TOKEN": "abc"})

    assert runs[0].workload.env == {"HF_TOKEN": "abc"}
    assert repr(runs) == "<1 composed run: hpcml run model=mnist_mlp 'workload.env.HF_TOKEN=***'>"


def test_a_hydra_of_the_users_own_is_left_alone(project: Path) -> None:
    (project / "settings").mkdir()
    (project / "settings" / "config.yaml").write_text("mine: 3\n")

    with hydra.initialize_config_dir(str(project / "settings"), version_base="1.3"):
        before = hydra.compose("config")
        runs = hpcml.compose("model=mnist_mlp", sweep={"seed": [before.mine, 4]})
        after = hydra.compose("config")

    assert [run.seed for run in runs] == [3, 4]
    assert before == after == {"mine": 3}


def test_runs_that_are_added_are_submitted_together(project: Path) -> None:
    del project

    both = composed(lrs=[0.3], seeds=[2]) + composed(lrs=[0.1], seeds=[1])
    submission = both.submit()

    assert [run.seed for run in both] == [2, 1]
    assert {run.submission for run in submission.wait(timeout_s=120)} == {submission.id}
    assert submission.runs().values("seed", "val_accuracy") == [(2, 0.32), (1, 0.11)]


def test_runs_that_are_added_and_differ_in_a_secret_alone_are_refused(project: Path) -> None:
    del project
    one, other = (hpcml.compose(program=["true", "--token", token], settings={"seed": 1}) for token in ("ab", "cd"))
    first, second = (hpcml.compose(program="true", settings={"workload.env.HF_TOKEN": text}) for text in ("ab", "cd"))

    with pytest.raises(ConfigError, match=r"workload\.command sounds like a secret"):
        (one + other).submit()
    with pytest.raises(ConfigError, match=r"workload\.env\.HF_TOKEN sounds like a secret"):
        (first + second).preview()
    assert len((one + one).submit().wait(timeout_s=120)) == 2


def test_programs_that_are_swept_alike_keep_the_order_in_which_they_were_added(project: Path) -> None:
    (project / "other.py").write_text(TRAIN.replace("val_accuracy={lr", "val_accuracy={10 + lr"))
    words = {"settings": {"workload.metrics": METRICS, "telemetry.enabled": False}, "sweep": {"seed": [0, 1]}}

    each = [
        hpcml.compose(program=[sys.executable, name, "0", "{seed}", "0"], **words) for name in ("train.py", "other.py")
    ]
    submission = (each[0] + each[1]).submit(only_missing=True)

    assert submission.wait(timeout_s=120).values("val_accuracy") == [0.0, 0.01, 10.0, 10.01]
    again = (each[0] + each[1]).submit(only_missing=True)
    assert again.uids == submission.uids
    recorded = json.loads((Path(submission.runs()[0].path) / "run.json").read_text())["provenance"]["command_line"]
    assert recorded[:3] == ["hpcml", "run", "--missing"]


def test_a_preview_writes_nothing(project: Path, hpcml_environ: Mapping[str, str]) -> None:
    seen = hpcml.compose("+cluster=karolina", "model=mnist_cnn", "resources.walltime=1h").preview()

    (submission,) = seen.submissions
    assert submission.command[0] == "sbatch"
    assert repr(seen) == "<preview of 1 run in 1 submission>"
    assert submission.script in str(seen)
    assert "--account=YOUR-ACCOUNT" in submission.script
    assert not Path(hpcml_environ["HPCML_HOME"]).exists()
    assert [path.name for path in project.iterdir()] == ["train.py"]


def test_submitted_runs_are_waited_for_and_compared(project: Path) -> None:
    del project
    submission = composed(lrs=[0.1, 0.2], seeds=[0, 1]).submit()

    records = submission.wait(timeout_s=120)

    assert [run.uid for run in records] == submission.uids
    assert records.values("seed", "val_accuracy") == [(0, 0.1), (0, 0.2), (1, 0.11), (1, 0.21)]  # as composed
    assert {run.submission for run in records} == {submission.id}
    assert {standing.record.state for standing in submission.status()} == {State.COMPLETED}
    assert set(submission.cancel().values()) == {"had ended already"}
    (cell,) = hpcml.open_store().compare("experiment=notebook", by="lr").cells
    assert [row.n_ok for row in cell.rows] == [2, 2]
    words = json.loads((Path(records[0].path) / "run.json").read_text())["provenance"]["command_line"]
    assert words[:3] == ["hpcml", "run", "-m"]
    behind = words.index("--")
    assert [run.seed for run in hpcml.compose(*words[2:behind], program=words[behind + 1 :])] == [0, 0, 1, 1]


def test_a_cell_that_is_executed_again_submits_nothing_twice(project: Path) -> None:
    del project
    first = composed(seeds=[0]).submit(only_missing=True)
    first.wait(timeout_s=120)

    more = composed(seeds=[0, 1]).submit(only_missing=True)
    ended = list(more.as_completed(timeout_s=120))
    again = composed(seeds=[0, 1]).submit(only_missing=True)

    assert first.uids[0] in more.uids
    assert sorted(run.seed for run in ended) == [0, 1]
    assert again.uids == more.uids
    assert again.runs().values("seed") == [0, 1]
    assert again.id is None
    assert again.remarks[-1].startswith("2 of 2 configurations are done or under way")


def test_waiting_has_an_end_and_runs_can_be_cancelled(project: Path) -> None:
    del project
    submission = composed(pause_s=600).submit()

    with pytest.raises(TimeoutError, match="1 run has not ended in time"):
        submission.wait(timeout_s=0.5)
    assert submission.cancel() == {submission.uids[0]: "cancelling"}
    assert [run.state for run in hpcml.open_store().wait(submission, timeout_s=120)] == [State.CANCELLED]


def test_threads_may_compose_and_submit(project: Path) -> None:
    del project

    def submit(seed: int) -> Submission:
        return composed(seeds=[seed]).submit()

    with ThreadPoolExecutor(4) as pool:
        submissions = list(pool.map(submit, range(4)))

    assert not GlobalHydra.instance().is_initialized()
    assert [run.seed for each in submissions for run in each.wait(timeout_s=120)] == [0, 1, 2, 3]


def test_ctrl_c_ends_waiting_and_leaves_the_runs(project: Path) -> None:
    code = """
        import hpcml, sys
        submission = hpcml.compose(program=[sys.executable, "train.py", "0.1", "0", "3"]).submit()
        print(submission.uids[0], flush=True)
        submission.wait()
    """
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)],
        cwd=project,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        uid = process.stdout.readline().strip()
        process.send_signal(signal.SIGINT)
        _, complaint = process.communicate(timeout=60)

    assert "KeyboardInterrupt" in complaint
    assert [run.state for run in hpcml.open_store().wait(uid, timeout_s=120)] == [State.COMPLETED]


@pytest.mark.parametrize(
    ("words", "more", "named"),
    [
        (("precison=tf32",), {}, "precison"),
        (("--cfg=job",), {}, "there is no run"),
        ((), {"program": []}, "program= has no words"),
        ((), {"sweep": {"seed": "0,1"}}, "sweep['seed']='0,1'"),
    ],
)
def test_a_mistake_is_an_error_of_one_line(
    project: Path, words: tuple[str, ...], more: Mapping[str, object], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    del project

    with pytest.raises(HpcmlError) as refused:
        hpcml.compose(*words, **more)  # type: ignore[arg-type]

    assert named in str(refused.value)
    assert "\n" not in str(refused.value)
    assert not capsys.readouterr().err


def test_runs_are_submitted_from_the_folder_where_they_were_composed(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = composed()
    monkeypatch.chdir(project.parent)

    with pytest.raises(ConfigError, match=f"composed in {project}"):
        runs.submit()
    with pytest.raises(ConfigError, match="not together"):
        runs + hpcml.compose("model=mnist_mlp")
