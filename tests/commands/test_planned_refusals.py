"""What a recipe would refuse when it starts is refused before anything waits in a queue, in one line."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import chdir
from pathlib import Path

import pytest

from hpcml.agent.telemetry.gpus import Gpu
from hpcml.commands.submit.backends import Machine
from hpcml.commands.submit.check import is_importable, plan_all
from hpcml.commands.submit.plan import Planned
from hpcml.config.compose import compose_from_cli
from hpcml.errors import ConfigError
from tests.cli.command_line import Hpcml
from tests.commands.planning import planned_for

TWO_PROCESSES = ("strategy.processes_per_node=2", "resources.cpus_per_task=1")
ONE_GPU = Machine(
    cores=4,
    gpus=[Gpu(uuid="GPU-0", name="A100", compute_capability=(8, 0), memory_mb=40960, driver="550.54")],
)


def plan_without(folder: Path, *words: str, absent: str) -> list[Planned]:
    """Plan as where the Python of the run lacks the module *absent*."""
    has_module: Callable[[str], bool] = lambda module: module != absent  # noqa: E731 - its type is said
    with chdir(folder):
        return plan_all(compose_from_cli(words, project=folder), Machine(cores=2, gpus=[]), has_module)


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (['tags=[paper,""]'], "'' is no tag: give 200 printable characters at most, no blanks at its ends"),
        (['tags=["draft "]'], "'draft ' is no tag"),
        (["training.accumulate=5"], "training.accumulate=5 does not divide the 64 samples of each share"),
        (
            ["strategy=ddp", *TWO_PROCESSES, "training.batch_size=63"],
            "training.batch_size=63 cannot be shared by 2 processes: use a multiple of 2",
        ),
        (
            ["model=lu", "model.options.factorisation=library", "precision=bf16"],
            "precision=bf16 with model.options.factorisation=library must be fp64 or fp32: LAPACK has no other",
        ),
        (
            ["model=gemm", "strategy=cpu_threads", "resources.cpus_per_task=2", "strategy.inter_op_threads=2"],
            "strategy.inter_op_threads=2 must be at most 1: each operation needs the one before it",
        ),
        (["model.framework=tensorflow", "precision=fp64"], "layout=nchw with model.framework=tensorflow"),
        (
            ["model=transformer_tiny", "model.options.heads=5"],
            "model.options.width=128 with model.options.heads=5 must",
        ),
        (
            ["model=transformer_tiny", "model.options.kind=encoder_decoder", "model.options.layers=3"],
            "model.options.la",
        ),
        (
            ["model=transformer_base", "strategy=model_parallel", "strategy.devices=2"],
            "model.options.kind=encoder_decoder with strategy=model_parallel must be decoder or encoder: all decoders",
        ),
        (
            ["model=transformer_tiny", "strategy=model_parallel", "strategy.devices=5"],
            "stages=5 with model.options.lay",
        ),
        (
            ["model=mnist_mlp", "strategy=model_parallel", "strategy.devices=3"],
            "stages=3 with model=mnist_mlp must be at most 2: ",
        ),
        (
            ["model=staleness", "model.options.workers=3"],
            "training.batch_size=64 with model.options.workers=3 must be a",
        ),
        (["model=staleness", "training.accumulate=2"], "training.accumulate=2 must be 1: simulated workers"),
        (["model=staleness", "training.compile=true"], "training.compile=true must be false: simulated workers"),
        (
            ["model=unet", "model.options.image_size=50"],
            "model.options.image_size=50 with data=shapes must be a multiple",
        ),
        (["model=unet", "model.options.width=6"], "model.options.width=6 must be a multiple of 4: GroupNorm"),
        (["model=unet", "model.options.classes=3"], "model.options.classes=3 with data=shapes must be at least 4"),
        (
            ["model=resnet18", "model.options.image_size=32", "training.batch_size=4", "training.accumulate=4"],
            "part_size=1 with model.options.image_size=32 must be at least 2: one picture of 32 pixels",
        ),
        (
            ["model=inference", "model.options.provider=cuda"],
            "device=cpu with model.options.provider=cuda must be cuda",
        ),
        (
            ["model.framework=tensorflow", "training.cudnn_benchmark=true", "training.deterministic=false"],
            "training.cudnn_benchmark=true is torch's: set it to false with model.framework=tensorflow",
        ),
        (["model.options.groups=3"], "model.options.groups=3 must be 1 or 2 or 4: 12, 24 and 32 channels"),
        (
            ["model.options.groups=2", "model.framework=tensorflow"],
            "model.options.groups=2 with model.framework=tensorflow must be at most 1: grouped convolutions are",
        ),
        (["model=mnist_mlp", "+model.options.dilation=2"], "model.options.dilation=2 with model=mnist_mlp must be at"),
        (["model=word2vec", "model.options.predicts=both"], "model.options.predicts='both' choose context, word"),
        (["model.name=mine"], "model=mine must be mnist_cnn or mnist_mlp"),
        (["data={name: mnist}"], "data=mnist needs data.path: a file or a folder"),
        (["data=mnist", "data.path=hollow"], "data.path={folder}/hollow is empty: data=mnist is read from it"),
        (
            ["model=lstm", "data=text", "data.path=hollow"],
            "data.path={folder}/hollow is a folder: data=text is read from a f",
        ),
        (
            ["model=unet", "data=mask_pairs", "data.path=book"],
            "data.path={folder}/book is a file: data=mask_pairs is read",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(value),
)
def test_what_a_recipe_would_refuse_is_refused_in_planning(tmp_path: Path, words: list[str], line: str) -> None:
    (tmp_path / "hollow").mkdir()
    (tmp_path / "book").write_text("once")

    with pytest.raises(ConfigError) as refused:
        planned_for(tmp_path, *words)
    assert str(refused.value).startswith(line.format(folder=tmp_path))
    assert "\n" not in str(refused.value)


def test_a_framework_that_the_python_of_the_run_lacks_takes_one_line(tmp_path: Path) -> None:
    words = ["model.framework=tensorflow", "layout=nhwc"]

    with pytest.raises(ConfigError) as refused:
        plan_without(tmp_path, *words, absent="tensorflow")
    assert str(refused.value) == (
        f"model.framework=tensorflow: the Python of this run ({sys.executable}) has no tensorflow: "
        "pip install 'hpcml[tensorflow]', or use a container that has it"
    )


@pytest.mark.parametrize(
    ("words", "absent"),
    [(["model=inference"], "onnxscript"), (["model=mnist_cnn"], "sklearn"), (["model=gemm"], "torch")],
)
def test_whatever_else_a_recipe_imports_is_looked_for(tmp_path: Path, words: list[str], absent: str) -> None:
    with pytest.raises(ConfigError, match=rf"has no {absent}: pip install"):
        plan_without(tmp_path, *words, absent=absent)


@pytest.mark.parametrize(
    "words",
    [
        ["workload.command=true"],
        ["+workload.env.PYTHONPATH=/somewhere"],
        ["model.framework=tensorflow", "layout=nhwc"],
    ],
    ids=" ".join,
)
def test_where_another_python_may_have_it_nothing_is_said(tmp_path: Path, words: list[str]) -> None:
    assert plan_without(tmp_path, *words, absent="torch")


def test_jobs_that_cannot_be_submitted_from_here_may_find_what_is_missing_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    assert plan_without(tmp_path, "cluster=karolina", absent="torch")

    for name in ("sbatch", "squeue", "sacct", "scancel"):
        (tmp_path / "bin" / name).symlink_to("/bin/true")
    with pytest.raises(ConfigError, match="has no torch"):
        plan_without(tmp_path, "cluster=karolina", absent="torch")
    assert plan_without(tmp_path, "cluster=karolina", "cluster.prelude=['. /opt/venv/bin/activate']", absent="torch")


def test_modules_are_found_without_being_imported() -> None:
    assert is_importable("wave")
    assert not is_importable("no_such_module")
    assert "wave" not in sys.modules


def test_two_processes_on_the_one_gpu_that_nobody_asked_for_are_refused(tmp_path: Path) -> None:
    words = ["strategy=ddp", *TWO_PROCESSES]

    with chdir(tmp_path), pytest.raises(ConfigError, match=r"resources\.gpus_per_node=null is one GPU: say how many"):
        plan_all(compose_from_cli(words, project=tmp_path), ONE_GPU)
    with chdir(tmp_path):
        (planned,) = plan_all(compose_from_cli([*words, "resources.gpus_per_node=0"], project=tmp_path), ONE_GPU)
    assert planned.plan.device == "cpu"


def test_one_refused_point_of_a_sweep_stops_all_of_them(hpcml_environ: dict[str, str], tmp_path: Path) -> None:
    done = Hpcml(environ=hpcml_environ, cwd=tmp_path)("run", "-m", "training.batch_size=64,63", "training.accumulate=2")

    assert done.returncode == 2
    assert done.stderr.startswith("hpcml: training.accumulate=2 does not divide the 63 samples")
    assert not (Path(hpcml_environ["HPCML_HOME"]) / "runs").exists()


def test_the_plan_says_how_a_batch_and_a_model_are_divided(tmp_path: Path) -> None:
    (shared,) = planned_for(tmp_path, "strategy=ddp", *TWO_PROCESSES, "training.accumulate=2")
    (cut,) = planned_for(tmp_path, "strategy=model_parallel", "strategy.devices=3")
    (own,) = planned_for(tmp_path, "workload.command=true")

    assert (shared.plan.part_size, shared.plan.stages) == (16, None)
    assert (cut.plan.part_size, cut.plan.stages) == (64, 3)
    assert (own.plan.part_size, own.plan.stages) == (None, None)


@pytest.mark.parametrize("model", ["lstm", "seq2seq"])
def test_recurrent_networks_in_bf16_by_autocast_are_refused_on_a_gpu_where_pytorch_takes_fp16(
    model: str, tmp_path: Path
) -> None:
    words = [f"model={model}", "resources.gpus_per_node=1"]
    with chdir(tmp_path):
        plan_all(compose_from_cli([*words, "precision=amp_fp16"], project=tmp_path), ONE_GPU)
        plan_all(
            compose_from_cli([f"model={model}", "precision=amp_bf16"], project=tmp_path), Machine(cores=2, gpus=[])
        )

        with pytest.raises(ConfigError) as caught:
            plan_all(compose_from_cli([*words, "precision=amp_bf16"], project=tmp_path), ONE_GPU)

    assert str(caught.value) == (
        "precision=amp_bf16 with model.framework=torch, device=cuda "
        "must be fp64 or fp32 or tf32 or amp_fp16 or fp16 or bf16: "
        "PyTorch computes recurrent layers in FP16 in every autocast on a GPU (docs/precision)"
    )


@pytest.mark.parametrize(("key", "value", "option"), [("cpus_per_task", "8", "cpus-per-task"), ("mem", "64G", "mem")])
def test_what_the_sites_sbatch_does_not_take_is_refused_by_its_key(
    tmp_path: Path, key: str, value: str, option: str
) -> None:
    words = ["+cluster=slurm", f"cluster.slurm.refuses=[{option}]", "workload.command=true"]

    assert planned_for(tmp_path, *words)
    with pytest.raises(ConfigError, match=rf"^resources.{key}={value}: cluster=slurm takes no --{option} "):
        planned_for(tmp_path, *words, f"resources.{key}={value}")
