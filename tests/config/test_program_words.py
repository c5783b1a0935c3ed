import shlex
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcml.config.compose import Composed, compose_command, compose_from_cli
from hpcml.config.program import Program, read_program
from hpcml.errors import ConfigError
from hpcml.model.placeholders import fill_in
from hpcml.model.precision import PrecisionName


def swept(line: str, *settings: str) -> Program:
    """Return what is read of the words of *line* under -m."""
    return read_program(shlex.split(line), ["-m", *settings])[0]


def typed(program: Program) -> tuple[str, ...]:
    """Return the words of *program*, those of a sweep with its placeholders."""
    return tuple(fill_in(word, program.settings) for word in program.words)


def composed(line: str, *settings: str, project: Path) -> list[Composed]:
    program, words = read_program(shlex.split(line), settings)
    return compose_from_cli(words, project=project, program=program)


@given(st.lists(st.text(max_size=20), min_size=1, max_size=6))
def test_without_a_sweep_the_words_are_exactly_those_that_were_typed(words: list[str]) -> None:
    program, rest = read_program(words, ["seed=1"], is_literal=True)

    assert ([fill_in(word, program.settings) for word in shlex.split(program.command)], rest) == (words, ["seed=1"])
    assert list(program.points()) == [program.settings]


@pytest.mark.parametrize(
    ("line", "template", "sweeps"),
    [
        ("python m.py --lr 0.5,1.0 --epochs 3", "--lr {lr} --epochs 3", {"lr": ("0.5", "1.0")}),
        ("python m.py args.rate=1,2", "args.rate={rate}", {"rate": ("1", "2")}),
        ("python m.py --args.rate 1,2", "--args.rate {rate}", {"rate": ("1", "2")}),
        ("python m.py --lr=0.5,1.0 -b 8,16", "--lr={lr} -b {b}", {"lr": ("0.5", "1.0"), "b": ("8", "16")}),
        ("python m.py --n '{1..3}'", "--n {n}", {"n": ("1", "2", "3")}),
        ("python m.py --n 1..3", "--n {n}", {"n": ("1", "2", "3")}),
        ("python m.py --n 0..100..50,7", "--n {n}", {"n": ("0", "50", "100", "7")}),
        ("python m.py --n=2..-2..2", "--n={n}", {"n": ("2", "0", "-2")}),
        ("python m.py lr=1,2 +model.x=3,4", "lr={lr} +model.x={model.x}", {"lr": ("1", "2"), "model.x": ("3", "4")}),
        (
            "python m.py --g=a.lr=1,2 -o b.x=3,4",
            "--g=a.lr={a.lr} -o b.x={b.x}",
            {"a.lr": ("1", "2"), "b.x": ("3", "4")},
        ),
        ("python m.py --url=http://a?x=1,http://b?x=2", "--url={url}", {"url": ("http://a?x=1", "http://b?x=2")}),
        ("python m.py --learning-rate 1,2", "--learning-rate {learning-rate}", {"learning-rate": ("1", "2")}),
        ("python m.py --betas '[0.9,0.99],[0.8,0.9]'", "--betas {betas}", {"betas": ("[0.9,0.99]", "[0.8,0.9]")}),
        ("python m.py --names '\"a,b\",c'", "--names {names}", {"names": ('"a,b"', "c")}),
    ],
)
def test_a_list_behind_a_flag_is_a_sweep_by_the_name_of_the_flag(
    line: str, template: str, sweeps: dict[str, tuple[str, ...]]
) -> None:
    program = swept(line)

    assert typed(program) == ("python", "m.py", *template.split())
    assert program.sweeps == sweeps


@pytest.mark.parametrize("word", ["1,2", "1..3", "-b8,16", "--amp,", "--bn,--no-bn", "A 1,2", "'--lr 1,2'"])
def test_a_list_that_is_no_axis_is_passed_as_it_is_and_said_with_what_sweeps_it(word: str) -> None:
    program = swept(f"python m.py {word}")

    listed = shlex.split(word)[-1]
    assert (typed(program)[-1], program.sweeps) == (listed, {})
    assert program.doubts[0].startswith(f"{listed} is passed as it is")
    assert f"args.NAME={listed} in front of the --, with {{NAME}} in its place" in program.doubts[0]
    flagged = read_program(["python", "m.py", "{amp}"], ["-m", "args.amp=--amp,"])[0]
    assert flagged.sweeps == {"amp": ("--amp", "")}


@pytest.mark.parametrize(
    ("line", "settings"),
    [
        ("python m.py --lr 0.1 --bs=8 -b 3 -k4 wd=1 +opt.name=x", {"lr": "0.1", "bs": "8", "b": "3"}),
        ("python -u -W ignore m.py wd=1 +opt.name=x", {"wd": "1", "opt.name": "x"}),
        ("python m.py --amp --no-bn -v data.csv", {"amp": "--amp", "bn": "--no-bn", "v": "data.csv"}),
        ("python m.py --x -5 --y -1e-3", {"x": "-5", "y": "-1e-3"}),
        ("python m.py a.txt 7 --ids 30 60 90", {}),  # numbers in a row are a list
        ("python m.py --lr 0.1 a.txt", {"lr": "0.1"}),
        ("python m.py --x 1 --x 2 --y 3", {"y": "3"}),
        ("python m.py --x '' --y=", {}),
        ("python m.py --api-key sesame --token=sesame --t sk-0123456789abcdefghij0123", {}),
        ("python m.py --out run_{seed} --precision 16", {"precision": "16"}),
        ("python m.py --out {precision} --precision 16", {}),
        ("torchrun --nproc_per_node 4 m.py --lr 1", {"lr": "1"}),
        ("python -m torch.distributed.run --nnodes 1 m.py --lr 1", {"lr": "1"}),
        ("python -m pkg.train --conf x.py --lr 1", {"conf": "x.py", "lr": "1"}),
        ("srun --exclusive -n 4 ./train --lr 1", {"lr": "1"}),
        ("mpirun -np 4 -H a,b python m.py -H 1", {"H": "1"}),
        ("bash -c 'train --lr $1' --lr 1", {"lr": "1"}),
        ("./train --conf x.py --lr 1", {"conf": "x.py", "lr": "1"}),
        ("uv run m.py --lr 1", {"lr": "1"}),
    ],
)
def test_what_is_typed_for_the_program_is_recorded_as_its_settings(line: str, settings: dict[str, str]) -> None:
    words = tuple(shlex.split(line))
    for program in (read_program(words, [])[0], read_program(words, ["-m", "--as-is"], is_literal=True)[0]):
        assert settings.items() <= program.settings.items()
        assert settings or not program.settings
        assert typed(program) == words


@pytest.mark.parametrize(
    ("line", "seed", "settings"),
    [
        ("--lr 1 --seed 3", 3, {"lr": "1"}),
        ("--lr 1 --random-state=3", 3, {"lr": "1"}),
        ("--data.seed 1 --seed 3", 3, {"data.seed": "1"}),
        ("--data.seed 1 --model.seed 3", 0, {"data.seed": "1", "model.seed": "3"}),
        ("--seed none", 0, {}),
        ("--seed 007", 0, {}),
        ("--seed 4294967296", 0, {}),
        ("--data_seed 3", 0, {"data_seed": "3"}),
        ("--seed {seed} --data.seed 3", 0, {"data.seed": "3"}),
    ],
)
def test_a_seed_that_is_typed_is_the_seed_of_the_run(
    line: str, seed: int, settings: dict[str, str], tmp_path: Path
) -> None:
    (point,) = composed(f"python m.py {line}", project=tmp_path)

    assert (point.run.seed, point.run.workload.args) == (seed, settings)
    other = line.replace("--seed 3", "--s 3")
    assert composed(f"python m.py {other}", "seed=5", project=tmp_path)[0].run.seed == 5


def test_a_run_of_a_loop_is_the_same_as_that_of_a_sweep(tmp_path: Path) -> None:
    swept_one = composed("python m.py --lr 0.1,0.5 --n 3 --amp --seed 1,2", "-m", project=tmp_path)
    alone = composed("python m.py --lr 0.5 --n 3 --amp --seed 2", project=tmp_path)

    assert alone[0].run in [point.run for point in swept_one]
    assert "seed=2" in alone[0].overrides


@pytest.mark.parametrize(
    ("line", "reaches"),
    [
        (r"--betas '0.9\,0.999'", ["--betas", "0.9,0.999"]),
        ("--betas [0.9,0.999]", ["--betas", "[0.9,0.999]"]),
        ("--betas '(0.9,0.999)'", ["--betas", "(0.9,0.999)"]),
        ("""--json '{"a":1,"b":2}'""", ["--json", '{"a":1,"b":2}']),
        ("""--path 'C:\\dir\\x'""", ["--path", "C:\\dir\\x"]),
        ("--ckpt '{epoch}-{val_loss}'", ["--ckpt", "{epoch}-{val_loss}"]),
        ("--version 1.2..3", ["--version", "1.2..3"]),
        ("-- --lr", ["--", "--lr"]),
        ("''", [""]),
    ],
)
def test_a_comma_that_is_meant_stays(line: str, reaches: list[str]) -> None:
    program = swept(f"python m.py {line}")

    assert (typed(program)[2:], program.sweeps) == (tuple(reaches), {})


@pytest.mark.parametrize(
    "interpreter",
    ["bash -c", "bash -lc", "/bin/sh -ec", "python3.11 -u -W ignore -c", "env A=./b perl -ne", "julia --project=. -e"],
)
def test_code_for_an_interpreter_stays_as_it_is_and_so_does_none_of_the_words_behind_it(interpreter: str) -> None:
    words = [*shlex.split(interpreter), "print(1,2); a=1,2; {sed}", "--lr", "1,2"]

    program, _ = read_program(words, ["-m"])

    assert (program.words, program.sweeps) == ((*words[:-1], "{lr}"), {"lr": ("1", "2")})


@pytest.mark.parametrize(
    "command",
    ["./train -s 0 {}", "python m.py {}", "python -m pkg {}", "bash run {}", "sh/train {}", "python -u ../m {}"],
)
@pytest.mark.parametrize("flag", ["-c", "-e", "-Ce"])
def test_a_flag_of_the_programs_own_that_an_interpreter_has_too_is_swept(command: str, flag: str) -> None:
    program = swept(command.format(f"{flag} 0.1,10"))

    assert program.sweeps == {flag.lstrip("-"): ("0.1", "10")}


@pytest.mark.parametrize("word", ["--hparams=lr=0.1,batch=32", "lr=0.1,batch=32", "-o a=1,b.c=2,d=x"])
def test_pairs_between_commas_are_asked_about(word: str) -> None:
    with pytest.raises(
        ConfigError, match=r"one value or several: a comma that belongs to one is written \\, in quotes"
    ):
        swept(f"python m.py {word}")

    escaped = word.replace(",", r"\,")
    assert swept(f"python m.py '{escaped}'" if " " not in escaped else f"python m.py -o '{escaped[3:]}'").sweeps == {}


def test_nothing_is_split_of_words_that_are_to_stay_as_they_are() -> None:
    words = ["python", "m.py", "--layers", "64,64", "--lr", "{lr}"]

    program, rest = read_program(words, ["-m", "args.lr=1,2", "seed=0,1"], is_literal=True)

    assert (typed(program), program.sweeps, rest) == (tuple(words), {"lr": ("1", "2")}, ["-m", "seed=0,1"])
    assert program.settings == {"layers": "64,64"}


def test_a_swept_seed_is_the_seed_of_the_run(tmp_path: Path) -> None:
    points = composed("python m.py --lr 1,2 --seed 0..2", "-m", project=tmp_path)

    assert {(point.run.seed, (point.run.workload.args or {})["lr"]) for point in points} == {
        (seed, lr) for seed in (0, 1, 2) for lr in "12"
    }
    assert {point.run.workload.command for point in points} == {"python m.py --lr '{lr}' --seed '{seed}'"}


@pytest.mark.parametrize(
    "flag",
    [
        "--seed_everything 0..2",
        "--system.seed=0..2",
        "--random-state 0..2",
        "+trainer.seed=0..2",
        "RNG_SEED=0..2",
        "--numpy-rand-seed 0..2",
        "--torch_seed=0..2",
        "--gin_bindings=train.seed=0..2",
        "--randomseed 0..2",
        "--manualSeed 0..2",
        "--randomState=0..2",
    ],
)
def test_a_swept_seed_is_the_seed_of_the_run_whatever_the_program_calls_it(flag: str, tmp_path: Path) -> None:
    points = composed(f"python m.py --lr 1,2 {flag}", "-m", project=tmp_path)

    assert [(point.run.seed, (point.run.workload.args or {})["lr"]) for point in points] == [
        (seed, lr) for seed in (0, 1, 2) for lr in "12"
    ]
    asked, sign, _ = flag.rpartition("=" if "=" in flag else " ")
    (command,) = {point.run.workload.command for point in points}
    said = " ".join(shlex.split(command or ""))
    assert said == f"python m.py --lr {{lr}} {asked}{sign}{{seed}}"


@pytest.mark.parametrize(
    ("line", "settings", "sweeps"),
    [
        ("--data.seed 1,2 --seed 3,4", [], {"data.seed": ("1", "2")}),
        ("--data.seed 1,2 --model.seed 3,4", [], {"data.seed": ("1", "2"), "model.seed": ("3", "4")}),
        ("--data.seed 1,2", ["seed=3,4"], {"data.seed": ("1", "2")}),
        ("--data.seed 1,2 --seed {seed}", ["seed=3,4"], {"data.seed": ("1", "2")}),
        ("--random_state 1,None", [], {"random_state": ("1", "None")}),
        ("--seed_frames 1,2", [], {"seed_frames": ("1", "2")}),
        ("--data_seed 1,2", [], {"data_seed": ("1", "2")}),
        ("--num-seeds 1,2", [], {"num-seeds": ("1", "2")}),
    ],
)
def test_another_seed_than_that_of_the_run_is_a_setting(
    line: str, settings: list[str], sweeps: dict[str, tuple[str, ...]]
) -> None:
    program, rest = read_program(["python", "m.py", *shlex.split(line)], ["-m", *settings])

    assert program.sweeps == sweeps
    assert rest == ["-m", *(settings or (["seed=3,4"] if program.seeds else []))]


def test_the_command_is_one_for_all_runs_and_each_says_its_own_arguments(tmp_path: Path) -> None:
    points = composed("python m.py --lr 1e-3,6e-4", "-m", "seed=0,1", "+cluster=karolina", project=tmp_path)

    assert [point.overrides[-1] for point in points] == ["args.lr=1e-3", "args.lr=6e-4"] * 2
    assert {(point.run.model.name, point.run.data.name) for point in points} == {("custom", "custom")}
    assert len({point.run.spec_hash for point in points}) == 4


def test_words_behind_the_dashes_are_never_read_by_hydra(tmp_path: Path) -> None:
    words = ["a.b=${c}", "+x", "~y", "-m", "--cfg", "job", "seed=1,2"]

    (point,) = composed(shlex.join(["python", "m.py", *words]), project=tmp_path)

    said = shlex.split(point.run.workload.command or "")[2:]
    assert [fill_in(word, point.run.workload.args or {}) for word in said] == words


@pytest.mark.parametrize(
    ("line", "settings", "said"),
    [
        ("", "", "nothing stands behind --"),
        ("python m.py", "workload.command=x", "leave one of them out"),
        ("python m.py --lr 0.1,", "-m", r"a comma that is meant is written \\,"),
        ("python m.py --lr 0.1, 0.5", "-m", "values stand without blanks between them"),
        ("python m.py --lr 1,2 --lr 3,4", "-m", r"lr is swept twice: write args.lr=3,4 in front of the --"),
        ("python m.py --lr 1,2", "-m args.lr=3,4", "no word behind -- has {lr}|swept twice"),
        ("python m.py --x 1", "args.lr=3", "no word behind -- has {lr}"),
        ("python m.py --seed a,b", "-m", "a seed is a whole number"),
        ("python m.py --seed 1,2", "-m seed=3,4", "write --seed {seed} behind the --"),
        ("python m.py --seed 3", "seed=5", "seed=5 and --seed 3: write --seed {seed} behind the --"),
        ("python m.py --lr 1e-3,0.1,0.001", "-m", "lr has 1e-3 twice"),
        ("python m.py --layers 64,64", "-m", r"layers has 64 twice, .* is written '64\\,64', in quotes"),
        ("python m.py --seed=0..2,1", "-m", "seed has 1 twice"),
        ("python m.py --n 1..9999999999", "-m", "100,000 at once are allowed"),
        ("python m.py --n 1..1000 --m 1..1000", "-m", "the words behind -- would make 1,000,000 runs"),
    ],
)
def test_words_that_cannot_be_meant_are_refused_with_what_to_write(
    line: str, settings: str, said: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=said):
        composed(line, *settings.split(), project=tmp_path)


def test_what_is_swept_is_said_and_so_is_what_looks_like_a_mistake() -> None:
    assert swept("python m.py --lr 1,2 --seed 0,1").remarks([0, 1], []) == [
        "sweep of the program's own settings: lr: 1 2 x seed: 0 1"
    ]
    assert swept("python m.py --seed_everything 0,1").remarks([0, 1], []) == [
        "sweep of the program's own settings: seed (seed_everything): 0 1"
    ]
    (in_short, *_) = swept("python m.py --seed 0..3000 --n 2..30 --k 50,1..40").remarks([0, 1], [])
    assert in_short.startswith("sweep of the program's own settings: n: 2..30 x k: 50 1 2 ")
    assert in_short.endswith("x seed: 0..3000")
    (no_seed,) = swept("python m.py").remarks([0, 1], [])
    assert "write --seed {seed}" in no_seed
    assert swept("python m.py --lr 1").remarks([0], []) == [
        "-m, and there is one run: a list with commas or a range is a sweep: --lr 0.1,0.5 --seed 0..4"
    ]
    for a_list in ("--input-size 3 32 32", "--milestones 30 60 90", "--layers 3 4 6 3"):
        assert swept(f"python m.py {a_list} --lr 1,2").remarks([0, 0], []) == [
            "sweep of the program's own settings: lr: 1 2"
        ]
    (_, placed) = swept("python m.py args.rate=1,2").remarks([0, 0], [])
    assert placed.startswith("args.rate=1,2 behind the -- is the program's: what fills in a placeholder stands")


def test_placeholders_are_filled_in_once_and_other_braces_stay() -> None:
    values = {"lr": "{seed}", "seed": "3", "model.x": "1"}

    assert fill_in("--lr={lr} {seed} {model.x} {modelAx} {{seed}} {x}", values) == (
        "--lr={seed} 3 1 {modelAx} {seed} {x}"
    )


@pytest.mark.parametrize(
    ("line", "answer"),
    [
        ("python m.py --seed {sed}", "did you mean {seed}?"),
        ("python m.py --seed={Seeds}", "did you mean {seed}?"),
        ("python m.py --p {precison}", "did you mean {precision}?"),
        ("python m.py --lr {rate}", "write args.rate=VALUE in front of the --"),
        ("python m.py lr={training.rate}", "write args.training.rate=VALUE in front of the --"),
        ("python m.py --rate 0.1 --lr {rate}", "write args.rate=VALUE"),
    ],
)
def test_a_placeholder_that_nothing_fills_in_is_refused(line: str, answer: str) -> None:
    for settings in ([], ["-m", "seed=1,2"]):
        with pytest.raises(ConfigError, match="nothing fills in") as refused:
            read_program(shlex.split(line), settings)
        assert answer in str(refused.value)

    assert typed(read_program(shlex.split(line), [], is_literal=True)[0]) == tuple(shlex.split(line))


@pytest.mark.parametrize(
    "word",
    ["{epoch}-{loss}", "{{sed}}", "${sed}", "x{step}.pt", '{"a": 1}', "{print $1}", "{1}", "{}", "{seed}", "x{out}"],
)
def test_braces_of_the_programs_own_are_left_alone(word: str) -> None:
    program, _ = read_program(["python", "m.py", "--out", word], ["seed=1"])
    assert (typed(program)[-1], program.doubts) == (word, ())
    assert read_program(["python", "-c", "print(f'{sed}')"], ["seed=1"])[0].words[-1] == "print(f'{sed}')"
    assert "x" in swept("python m.py training.learning_rate=1,2 x").words


@pytest.mark.parametrize(
    ("line", "names", "is_remarked"),
    [
        ("python train.py", ["fp32", "bf16"], True),
        ("python train.py", ["fp32", "tf32"], False),  # a switch in the environment tells them apart
        ("python train.py", ["fp32", "fp32"], False),
        ("python train.py", ["own", "fp32"], False),
        ("python train.py --p {precision}", ["fp32", "bf16"], False),
        ("accelerate launch --mixed_precision {mixed_precision} train.py", ["fp32", "bf16"], False),
    ],
)
def test_precisions_that_do_not_reach_the_program_are_remarked_on(
    line: str, names: list[str], *, is_remarked: bool
) -> None:
    said = swept(line).remarks([0, 0], [PrecisionName[name] for name in names])

    assert any("2 precisions, and no word of the command tells" in one for one in said) == is_remarked


@pytest.mark.parametrize(
    ("line", "names"),
    [
        ("taskset -c 0,1 python t.py --lr 1,2", ["lr"]),
        ("numactl -C 0,2 --membind=0,1 -- python t.py -C 1,2", ["C"]),
        ("numactl --cpunodebind 0,1 ./train --lr 1,2", ["lr"]),
        ("mpirun --mca btl self,tcp -n 1,2 --host a,b ./train --host 1,2", ["host"]),
        ("/opt/mpi/bin/mpirun -mca btl self,tcp -x A=1,2 python t.py", []),
        ("deepspeed --include=localhost:0,1 t.py --lr 1,2", ["lr"]),
        ("srun -w n1,n2 --cpu-bind=map_cpu:0,1 python t.py -w 1,2", ["w"]),
        ("env CUDA_VISIBLE_DEVICES=0,1 OMP_NUM_THREADS=1,2 python t.py", []),
        ("python t.py --host 1,2", ["host"]),
        ("srun -w n1,n2 --exclusive -n4 train -w 1,2", ["w"]),
        ("mpirun --mca btl self,tcp -np 2 -H a,b lmp -H 1,2", ["H"]),
        ("mpirun -genv OMP_PROC_BIND true -hosts a,b lmp -hosts 1,2", ["hosts"]),
        ("srun --export=A,B --mem=1G train --export 1,2", ["export"]),
        ("accelerate launch --gpu_ids 0,1 train.py --gpu_ids 1,2", ["gpu_ids"]),
    ],
)
def test_lists_of_a_launcher_say_where_a_program_runs_and_are_no_sweep(line: str, names: list[str]) -> None:
    assert list(swept(line).sweeps) == names


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ([], ["--fusion_token", "mean,max"]),
        ([], ["--api-key=a,b", "--lr", "1,2"]),
        (["+workload.env.HF_TOKEN=one,other"], []),
    ],
)
def test_a_sweep_whose_values_would_be_recorded_alike_is_refused(
    settings: list[str], words: list[str], tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=r"(_token|api-key|_TOKEN) sounds like a secret"):
        compose_command(["-m", *settings], ["true", *words], project=tmp_path, is_literal=False, most=100)


def test_a_sweep_of_what_is_no_secret_or_has_another_name_is_none(tmp_path: Path) -> None:
    def count(settings: list[str], words: list[str]) -> int:
        points, _ = compose_command(["-m", *settings], ["true", *words], project=tmp_path, is_literal=False, most=100)
        return len(points)

    assert count(["args.kind=mean,max"], ["--fusion_token", "{kind}"]) == 2
    assert count([], ["--token", "0..3", "--pad_token", "a,b"]) == 8
    assert count(["+workload.env.HF_TOKEN=one", "seed=0,1"], []) == 2
