"""Odd words for `hpcml run`: whatever they are, one clear line, exit code 2, and nothing written."""

from __future__ import annotations

import os
import tracemalloc
from pathlib import Path

import pytest

from hpcml.commands.submit.validate import plan_points
from hpcml.config.compose import compose_from_cli
from hpcml.config.sweep.size import most_runs
from hpcml.errors import ConfigError
from tests.cli.command_line import Hpcml, said_in_one_line

LONG = "a" * 5000
# A line each, its words separated by a blank.
TYPED = r"""
tags=${seed}
tags=${model.name}
tags=${resources}
tags=${tags}
tags=[${tags}]
tags=[${tags.0}]
tags=[a,[b]]
tags=[[[[]]]]
tags=[{a:1}]
tags={a:1}
tags=[null]
tags=a
tags=1
tags=null
tags=
tags=''
tags.0=a
tags[0]=a
+cluster=shuffle(1)
+cluster=shuffle(a,b)
cluster=sort(1)
cluster=sort(b,a)
cluster=range(3)
cluster=choice(local)
cluster=glob(*)
cluster=interval(1,2)
cluster=null
cluster=
cluster=${cluster}
+cluster=${seed}
model=[1]
model=[null]
model=[mnist_cnn,[a]]
model=[]
model={a:b}
model=null
model=true
model=1.5
model=
model=.
model=..
model=*
model=~
model=../run
model=/etc/passwd
model=a/b
model=mnist_cnn,mnist_mlp
model=${model}
model=${oc.env:NOPE}
model.name=${model.name}
model.name=${model}
model.name.x=x
model@x=mnist_cnn
~model
~model=zzz
~model@x
~cluster=karolina
~nothing
~nothing=1
~a.b
~model.name
~seed=3
~precision
~workload.env.A
+seed=1
+model=mnist_cnn
+model.name=x
++model=zzz
seed=
seed=a
seed=1.0
seed=nan
seed=-1
seed=1e400
seed=true
seed=null
seed=???
seed=[1]
seed={a:1}
seed=0x10
seed=${seed}
seed=${seeed}
seed=${model.name}
seed=${tags}
seed=${resources}
seed=${.}
seed=${..}
seed=${...seed}
seed=${
seed=${}
seed=${a
seed=$
seed=$$
seed=}
seed={
seed=[
seed=]
seed=(
seed=)
seed=${oc.env:NOPE}
seed=${oc.env}
seed=${oc.decode:"["}
seed=${oc.create:{a:1}}
seed=${oc.dict.keys:model}
seed=${hydra:nope}
seed=${hydra:}
seed=${hydra:runtime}
seed=${nope:1}
seed=${${seed}}
seed=${a:${b:${c:1}}}
seed=int(abc)
seed=bool(1)
seed=nothing(1)
seed=extend_list(1)
seed=shuffle()
seed=tag(a,1)
seed=range()
seed=interval(1,2)
seed.x=1
seed..=1
name=???
name=[a]
name={a:1}
name=${name}
name=${tags}
name=${seed
name=a${
name=${hydra:job}
name='a
name="a
name='a'b
name=a(b
experiment=
experiment=..
experiment=../x
experiment=/etc
experiment=a/b
experiment=*
experiment=???
=
=1
+=1
++=1
~=1
~
+
@
@=1
.=1
.a=1
a.=1
a..b=1
a/b=c
/model=mnist_cnn
model/=x
model//x=y
'seed=1
"seed=1
"a"=1
_target_=x
defaults=[]
override=1
workload=3
workload=null
workload.env=3
workload.env=[1]
workload.env={1:2}
workload.env={A=B:2}
workload.env=${seed}
+workload.env.A=[1]
+workload.env.A={a:1}
+workload.env.A.B=1
workload.command='
workload.command="a
workload.command=\
workload.command=
workload.command=${
workload.command=${nope}
workload.command=nope
workload.cwd=/nope
workload.metrics=${seed}
workload.metrics=[1]
workload.metrics=[{name:a,pattern:"("}]
data.path=${nope}
data.path='~nope/x'
data.path=[a]
model.recipe=nope
model.recipe=../../etc
model.recipe=null
model.options=3
model.options=[a]
model.options=${seed}
precision=[1]
precision=${seed}
precision.name=nope
precision.name=null
precision.name=[fp32]
container.binds=${seed}
container.kind=nope
objective=3
objective.goal=nope
training.steps=nan
training.steps=-1
schedule=null
schedule.repeats=0
schedule.repeats=1000000000
telemetry=null
telemetry.interval=nope
resources.nodes=0
resources.walltime=1
resources.walltime=:
resources.walltime=99999999999999999999d
resources.mem=nope
resources.mem=${resources.mem}
resources.extra_directives=a
resources.extra_directives=${seed}
resources.extra_directives=[[a]]
cluster.modules=${seed}
cluster.notes=${seed}
cluster.queues=3
cluster.queues=[a]
cluster.scheduler=nope
cluster.account_pattern="("
cluster.rendezvous_suffix="; rm"
study=nope
study=null
+experiment=nope
+experiment=
hydra=null
hydra.mode=x
hydra.sweeper=null
hydra/launcher=nope
hydra/launcher=[1]
hydra/help=[1]
--cfg nope
--info nope
--bogus
--seed=1
-cn nope
-cd nope
-cd \0
-m seed=a,b
-m seed=,
-m seed=1,,2
-m seed=1,
-m seed=[1,2]
-m seed=choice()
-m seed=choice(choice(1,2))
-m seed=choice({a:1},{b:2})
-m seed=range(a)
-m seed=range(10,0)
-m seed=range(0,10,0)
-m seed=range(nan)
-m seed=range(0,10,nan)
-m seed=range(0,inf)
-m seed=range(-inf,inf)
-m seed=range(1e999)
-m seed=range(0,1,1e-320)
-m seed=range(1e9)
-m seed=shuffle(range(1e9))
-m seed=sort(range(1e9),reverse=true)
-m seed=int(range(1e9))
-m seed=range(1000) training.steps=range(1,1001)
-m seed=interval(1,2)
-m seed=sort(1,a)
-m seed=sort([1],[2])
-m seed=glob(*)
-m model=glob([)
-m model=glob(zzz*)
-m model=glob({a:b})
-m seed=0,1,0
-m precision=fp32,"fp32"
-m seed=1,2 tags=${seed}
-m tags=${seed},[b]
-m tags=a,b
-m name=${name},b
-m +cluster=shuffle(1) seed=1,2
-m seed=1,2 model=mnist_cnn,zzz
-m seed=1,2 hydra.sweeper=null
-m +hydra.sweeper.params={seed:1}
-m +model=mnist_cnn,mnist_mlp
-m schedule.repeats=1,1000000000
""".strip().splitlines()
# What stands in no line: 5000 letters, nested brackets, characters that are none.
MADE = {
    **{f"a long {key}": [f"{key}={LONG}"] for key in ("model", "precision", "+cluster", "study", "container", "seed")},
    **{f"a long {key}": [f"{key}={LONG}"] for key in ("tags", "experiment", "data.path", "workload.cwd")},
    **{f"a long {key}": [f"{key}={LONG}"] for key in ("model.recipe", "workload.command", LONG, f"+{LONG}")},
    "a long choice": ["-m", f"model={LONG},mnist_cnn"],
    "a long path of options": ["model=" + "/".join(["a"] * 3000)],
    "a long way up": ["model=" + "../" * 3000 + "x"],
    "a long key": [".".join(["a"] * 3000) + "=1"],
    "a long flag": [f"--{LONG}"],
    "a long number": ["seed=" + "9" * 5000],
    "a walltime of many digits": ["resources.walltime=" + "9" * 5000 + "d"],
    "a memory of many digits": ["resources.mem=" + "9" * 5000 + "G"],
    "an interval of many digits": ["telemetry.interval=" + "9" * 5000 + "s"],
    "nested lists": ["tags=" + "[" * 500 + "]" * 500],
    "nested tables": ["+workload.env=" + "{a:" * 300 + "1" + "}" * 300],
    "nested references": ["seed=" + "${a:" * 300 + "1" + "}" * 300],
    "open references": ["name=" + "${" * 500],
    "NUL": ["name=a\0b"],
    "NUL in a key": ["\0=1"],
    "NUL in an option": ["model=a\0b"],
    "NUL in a path": ["data.path=a\0b"],
    "half a character": ["model=\ud800"],
    "an escape in a key": ["\x1b]0;owned\x07=1"],
    "an escape in an option": ["model=\x1b[2J"],
    "a line break in an option": ["model=a\nb"],
    "a line break in a key": ["a\nb=1"],
    "letters of elsewhere": ["模型=1"],
    "an option of elsewhere": ["model=模型"],
    "digits of elsewhere": ["seed=²"],
    "nothing": [""],
    "a blank": [" "],
    "a key with blanks": ["a b=1"],
}
CASES = [
    *(pytest.param(line.split(" "), id=line) for line in TYPED),
    *(pytest.param(words, id=name) for name, words in MADE.items()),
]


@pytest.mark.parametrize("words", CASES)
def test_odd_words_are_refused_in_one_line_and_nothing_is_written(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    with pytest.raises(ConfigError) as refusal:
        plan_points(compose_from_cli(words, project=tmp_path), os.environ, tmp_path, ask=lambda _: None, is_dry=False)

    said = str(refusal.value)
    assert said.strip()
    assert "\n" not in said
    assert "Traceback" not in said
    assert list(tmp_path.iterdir()) == []


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
