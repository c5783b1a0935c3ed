"""Profilers around chosen processes and steps. torch's is real; nsys and ncu are doubles made from their help texts.

The doubles read the options that hpcml gives, refuse others, and start the program; the real ones were never run here.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from hpcml.errors import ConfigError
from tests.cli.command_line import Hpcml, program, said_in_one_line
from tests.commands.planning import planned_for

# As NVIDIA's say in their help: an output with %q{VARIABLE}, which must be set; behind the options is the program.
DOUBLE = """\
#!/bin/sh
words="$*"
[ "$(basename "$0")" = nsys ] && { [ "$1" = profile ] || { echo "usage: nsys profile" >&2; exit 1; }; shift; }
out=
while :; do case "$1" in
  --output=%q{HPCML_PROFILE}|--export=%q{HPCML_PROFILE}) out=${HPCML_PROFILE:?} ;;
  --sample=none|--force-overwrite=true|--force-overwrite|--target-processes=all|--trace=cuda) ;;
  --capture-range=cudaProfilerApi|--capture-range-end=stop|--profile-from-start=off) ;;
  -*) echo "unrecognised option '$1'" >&2; exit 1 ;;
  *) break ;;
esac; shift; done
echo "$words" > "$out.rep"
exec "$@"
"""


@pytest.fixture
def doubles(tmp_path: Path) -> str:
    folder = tmp_path / "profilers"
    folder.mkdir()
    for name in ("nsys", "ncu"):
        (folder / name).write_text(DOUBLE)
        (folder / name).chmod(0o755)
    return f"{folder}:{Path(sys.executable).parent}:/usr/bin:/bin"


def test_torchs_profiler_keeps_a_trace_of_the_chosen_steps(hpcml: Hpcml) -> None:
    words = ["model=mnist_mlp", "precision=fp32", "training.steps=6", "training.eval_every=6"]

    hpcml("run", *words, "profile=torch", "profile.first_step=3", "profile.steps=2")

    (run,) = hpcml.runs()
    assert run["state"] == "COMPLETED", run["reason"]
    folder = Path(run["path"]) / "profile"
    assert sorted(path.name for path in folder.iterdir()) == ["0-rank0.json", "0-rank0.txt"]
    trace = json.loads((folder / "0-rank0.json").read_text())
    steps = [event for event in trace["traceEvents"] if str(event.get("name")).startswith("Optimizer.step")]
    assert len(steps) == 2
    assert "Self CPU" in (folder / "0-rank0.txt").read_text()


def test_of_a_training_that_fails_what_was_profiled_is_kept(hpcml: Hpcml) -> None:
    words = ["model=mnist_mlp", "precision=fp32", "training.steps=30", "training.learning_rate=1e30"]

    hpcml("run", *words, "profile=torch", "profile.first_step=2", "profile.steps=29")

    (run,) = hpcml.runs()
    assert run["state"] == "FAILED", run["reason"]
    found = sorted(path.name for path in (Path(run["path"]) / "profile").iterdir())
    assert found == ["0-rank0.json", "0-rank0.txt"]


@pytest.mark.parametrize("tool", ["nsys", "ncu"])
def test_nvidias_profiler_is_put_around_the_chosen_process_alone(hpcml: Hpcml, doubles: str, tool: str) -> None:
    two = ["strategy=ddp", "strategy.processes_per_node=2", "resources.gpus_per_node=0"]
    words = [f"profile={tool}", "profile.ranks=[1]", "profile.options=['--trace=cuda']", "precision=fp32"]

    hpcml("run", *two, *words, program("raise SystemExit(0)"), PATH=doubles)

    (run,) = hpcml.runs()
    errors = [path.read_text() for path in (Path(run["path"]) / "logs").glob("*.err")]
    assert run["state"] == "COMPLETED", (run["reason"], errors)
    (found,) = (Path(run["path"]) / "profile").iterdir()
    assert found.name == "0-rank1.rep"
    assert "--trace=cuda" in found.read_text()


@pytest.mark.parametrize("what", ["recipe", "own"])
def test_a_profiled_process_runs_the_copy_of_the_code_as_the_others_do(hpcml: Hpcml, doubles: str, what: str) -> None:
    (hpcml.cwd / "train.py").write_text("pass\n")
    words = {
        "recipe": ["model=mnist_mlp", "training.steps=1", "training.eval_every=1"],
        "own": ["--", sys.executable, str(hpcml.cwd / "train.py")],
    }[what]

    hpcml("run", "precision=fp32", "profile=nsys", *words, PATH=doubles)

    (run,) = hpcml.runs()
    assert run["state"] == "COMPLETED", run["reason"]
    (found,) = (Path(run["path"]) / "profile").iterdir()
    script = next(word for word in found.read_text().split() if word.endswith("train.py"))
    assert Path(script).is_relative_to(Path(run["path"]) if what == "own" else Path(run["path"]).parents[2] / "code")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["profile=nsys"], "profile=nsys: there is no nsys on this machine"),
        (["profile=torch"], "hpcml knows the steps of its recipes for torch alone"),
        (["profile=nsys", "profile.first_step=3"], "hpcml knows the steps of its recipes for torch alone"),
        (["profile=nsys", "profile.ranks=[1]"], "profile.ranks=[1]: the run has 1 process(es), from 0 on"),
        (["profile.options=['--trace=cuda']"], "profile.options are those of nsys and ncu, not of none"),
    ],
)
def test_what_cannot_be_profiled_is_refused_in_one_line(hpcml: Hpcml, words: list[str], says: str) -> None:
    done = hpcml("run", *words, "precision=fp32", program("pass"), PATH=f"{Path(sys.executable).parent}:/usr/bin:/bin")

    assert done.returncode == 2
    assert says in said_in_one_line(done)
    assert hpcml.runs() == []


def test_steps_of_a_recipe_are_chosen_by_the_program_itself(tmp_path: Path) -> None:
    words = ["+cluster=karolina", "resources.account=OPEN-1-1", "model=mnist_mlp", "precision=fp32"]

    (item,) = planned_for(tmp_path, *words, "profile=nsys", "profile.first_step=10")

    assert item.plan.profiled[:2] == ["nsys", "profile"]
    assert "--capture-range=cudaProfilerApi" in item.plan.profiled
    assert item.plan.profiled[-len(item.plan.argv) :] == item.plan.argv
    with pytest.raises(ConfigError, match=r"profile\.first_step=10: the run has training\.steps=9"):
        planned_for(tmp_path, *words, "profile=nsys", "profile.first_step=10", "training.steps=9")
    with pytest.raises(ConfigError, match=r"profile\.steps=0"):
        planned_for(tmp_path, *words, "profile=nsys", "profile.steps=0")


def test_what_would_be_profiled_makes_no_other_experiment_where_nothing_is(tmp_path: Path) -> None:
    plain, told, profiled = (
        planned_for(tmp_path, "model=mnist_mlp", "precision=fp32", *words)[0].run.spec_hash
        for words in ([], ["+profile=none", "profile.first_step=2"], ["+profile=torch"])
    )

    assert plain == told
    assert profiled != plain
