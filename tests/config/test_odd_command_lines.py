"""Odd words for `hpcml run`: whatever they are, one clear line, exit code 2, and nothing written."""

from __future__ import annotations

import os
import tracemalloc
from pathlib import Path

import pytest

from hpcml.commands.submit.check import plan_points
from hpcml.config.compose import compose_from_cli
from hpcml.config.sweep import most_runs
from hpcml.errors import ConfigError
from tests.cli.command_line import Hpcml, said_in_one_line

LONG = "a" * 5000
# A line each, its words separated by a blank.
TYPED = r"""
tags=${seed}
tags=${tags}
tags=[a,[b]]
tags={a:1}
tags=a
+cluster=shuffle(1)
cluster=null
cluster=${cluster}
model=[]
model=null
model=../run
model=${oc.env:NOPE}
model.name=${model.name}
model@x=mnist_cnn
~model
~a.b
++model=zzz
seed=
seed=nan
seed=???
seed={a:1}
seed=${..}
seed=${
seed=}
seed=${oc.create:{a:1}}
seed=${hydra:runtime}
seed=${${seed}}
seed=extend_list(1)
seed=interval(1,2)
name='a
name=a(b
experiment=../x
=
@
a..b=1
/model=mnist_cnn
_target_=x
defaults=[]
workload=3
+workload.env.A={a:1}
workload.command=\
workload.metrics=[{name:a,pattern:"("}]
model.recipe=../../etc
objective.goal=nope
resources.walltime=99999999999999999999d
resources.mem=${resources.mem}
cluster.account_pattern="("
cluster.rendezvous_suffix="; rm"
hydra.sweeper=null
hydra/help=[1]
--cfg nope
-cd \0
-m seed=1,,2
-m seed=choice(choice(1,2))
-m seed=range(0,10,0)
-m seed=range(1e999)
-m seed=shuffle(range(1e9))
-m seed=range(1000) training.steps=range(1,1001)
-m model=glob([)
-m seed=0,1,0
-m seed=1,2 model=mnist_cnn,zzz
-m +hydra.sweeper.params={seed:1}
""".strip().splitlines()
# What stands in no line: 5000 letters, nested brackets, characters that are none.
MADE = [
    [f"model={LONG}"],
    [f"{LONG}={LONG}"],
    ["-m", f"model={LONG},mnist_cnn"],
    ["model=" + "../" * 3000 + "x"],
    [".".join(["a"] * 3000) + "=1"],
    ["seed=" + "9" * 5000],
    ["resources.walltime=" + "9" * 5000 + "d"],
    ["tags=" + "[" * 500 + "]" * 500],
    ["seed=" + "${a:" * 300 + "1" + "}" * 300],
    ["name=" + "${" * 500],
    ["name=a\0b"],
    ["\0=1"],
    ["model=\ud800"],
    ["\x1b]0;owned\x07=1"],
    ["model=a\nb"],
    ["模型=1"],
    ["seed=²"],
    [""],
    ["a b=1"],
]


def test_odd_words_are_refused_in_one_line_and_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for words in (*(line.split(" ") for line in TYPED), *MADE):
        said = refusal_of(words, tmp_path)

        assert said.strip(), words
        assert "\n" not in said, words
        assert "Traceback" not in said, words
        assert list(tmp_path.iterdir()) == [], words


def refusal_of(words: list[str], folder: Path) -> str:
    """Return what *words* are refused with; nothing where they are not."""
    try:
        plan_points(compose_from_cli(words, project=folder), os.environ, folder, ask=lambda _: None, is_dry=False)
    except ConfigError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["tags=${seed}"], "tags=0 is no list"),
        (["+cluster=shuffle(1)"], "cluster=NAME"),
        (["-m", f"model={LONG},mnist_cnn"], "(5000 characters)"),
        (
            ["-m", "seed=range(1e9)"],
            "1,000,000,000 runs, and 100,000 at once are allowed: sweep less, or raise HPCML_MAX_RUNS",
        ),
        (["schedule.repeats=1000000000"], "schedule.repeats=1000000000 would make 1,000,000,000 runs"),
        (["-m", "seed=0,1,0"], "seed=0,1,0: 0 stands there twice, and would make the same run again"),
    ],
    ids=["reference", "option", "long", "range", "repeats", "twice"],
)
def test_the_command_says_it_and_has_written_nothing(
    words: list[str], says: str, hpcml_environ: dict[str, str], tmp_path: Path
) -> None:
    user = Hpcml(environ=hpcml_environ, cwd=tmp_path)
    before = sorted(tmp_path.rglob("*"))

    done = user("run", *words)

    assert (done.returncode, done.stdout) == (2, "")
    line = said_in_one_line(done)
    assert says in line or (says == "(5000 characters)" and "characters)" in line)
    assert len(line) < 1500
    assert sorted(tmp_path.rglob("*")) == before


def test_the_largest_sweep_is_a_setting_and_is_counted_before_memory_goes(tmp_path: Path) -> None:
    assert len(compose_from_cli(["-m", "seed=range(3)"], project=tmp_path, most=3)) == 3
    with pytest.raises(ConfigError, match=r"seed=range\(4\) would make 4 runs, and 3 at once"):
        compose_from_cli(["-m", "seed=range(4)"], project=tmp_path, most=3)
    with pytest.raises(ConfigError, match="seed=1,2 model=glob"):
        compose_from_cli(["-m", "seed=1,2", "model=glob(mnist*)"], project=tmp_path, most=3)
    tracemalloc.start()
    with pytest.raises(ConfigError, match="1,000,000,000 runs"):
        compose_from_cli(["-m", "seed=range(1e9)"], project=tmp_path)
    assert tracemalloc.get_traced_memory()[1] < 100_000_000
    tracemalloc.stop()

    assert (most_runs({}), most_runs({"HPCML_MAX_RUNS": "5"})) == (100_000, 5)
    for text in ("0", "-1", "many", "1.5", "²"):
        with pytest.raises(ConfigError, match="HPCML_MAX_RUNS"):
            most_runs({"HPCML_MAX_RUNS": text})
